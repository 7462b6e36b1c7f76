// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The benches work; the tests do not judge the figures.

use std::fs;

use serde_json::Value;

use crate::machine::{Machine, ibarr};

/// A quick run of a bench, which must leave nothing behind.
struct Quick {
    table: String,
    figures: Value,
}

impl Quick {
    fn run(bench: &str) -> Self {
        let machine = Machine::new();
        let before = machine.snapshot();
        let file = machine.directory().join("bench.json");
        let (json, ibarr) = (file.to_str().unwrap(), ibarr().to_str().unwrap());
        let table = machine.run(&["bench", bench, "--quick", "--ibarr", ibarr, "--json", json]);
        let figures = fs::read_to_string(&file).unwrap();
        fs::remove_file(file).unwrap();
        assert_eq!(machine.snapshot(), before);
        let figures: Value = serde_json::from_str(&figures).unwrap();
        assert_eq!((&figures["v"], &figures["bench"]), (&1.into(), &bench.into()));
        assert_eq!(figures["quick"], true);
        Self { table, figures }
    }

    fn rows(&self, name: &str) -> &[Value] {
        self.figures[name].as_array().unwrap()
    }

    /// Checks that a ratio is also in the table.
    fn check_ratio(&self, ratio: &Value) {
        let ratio = ratio.as_f64().unwrap();
        assert!(ratio.is_finite() && ratio > 0.0, "{ratio}");
        let Self { table, .. } = self;
        assert!(table.contains(&format!("{ratio:.2}")), "{ratio} is not in the table: {table}");
    }
}

fn names<'a>(rows: &'a [Value], field: &str) -> Vec<&'a str> {
    rows.iter().map(|row| row[field].as_str().unwrap()).collect()
}

#[test]
fn ip2gid_gives_table_and_json_and_leaves_nothing() {
    let run = Quick::run("ip2gid");
    assert_eq!(names(run.rows("servers"), "name"), ["ibarr", "echo", "batched echo"]);
    for name in [
        "rate_to_echo",
        "rate_per_cpu_to_echo",
        "rate_per_cpu_to_batched_echo",
        "lookup_large_to_small",
    ] {
        run.check_ratio(&run.figures["ratios"][name]);
    }
    let [small, large] = [0, 1].map(|at| run.rows("caches")[at]["entries"].as_u64().unwrap());
    assert_eq!((small, large), (1_000, 100_000));
    assert!(run.rows("caches")[1]["bytes_per_entry"].as_f64().unwrap() > 0.0);
    assert!(run.figures["startup_ms"]["min"].as_f64().unwrap() > 0.0);
}

#[test]
fn responder_is_measured_in_both_families_and_leaves_nothing() {
    let run = Quick::run("responder");
    let programs = run.rows("programs");
    let ours: Vec<_> = programs.iter().filter(|row| row["to_bounce"].is_f64()).cloned().collect();
    assert_eq!(names(&ours, "name"), [["ip2gid_tc"; 8], ["ip2gid_xdp"; 8]].concat());
    for program in ours {
        assert!(program["ns"].as_f64().unwrap() > 0.0, "{program}");
        run.check_ratio(&program["to_bounce"]);
    }
    let servers = names(run.rows("servers"), "name");
    assert_eq!(servers, ["xdp", "xdp", "tc", "tc", "user", "user", "echo", "echo"]);
    for name in ["programs", "servers", "bulk_tcp"] {
        let rows = run.rows(name);
        let of = |family| rows.iter().filter(|row| row["family"] == family).count();
        assert!(of("IPv4") > 0 && of("IPv4") == of("IPv6"), "{name}: {rows:?}");
    }
    for daemon in run.rows("daemon") {
        assert!(daemon["answers"].as_u64().unwrap() >= 20_000, "{daemon}");
    }
}

#[test]
fn resolve_bench_gets_an_answer_to_every_request() {
    let run = Quick::run("resolve");
    assert_eq!(run.figures["outstanding"], 16);
    let families = run.rows("families");
    assert_eq!(names(families, "name"), ["IPv4", "IPv6"]);
    for family in families {
        run.check_ratio(&family["rate_to_echo"]);
        run.check_ratio(&family["rate_per_cpu_to_echo"]);
    }
}

#[test]
fn paths_bench_asks_the_administrator_few_questions() {
    let run = Quick::run("paths");
    assert_eq!(names(run.rows("loads"), "other"), ["echo", "bare client"]);
    for load in run.rows("loads") {
        run.check_ratio(&load["rate_to_other"]);
    }
    let storms = run.rows("storms");
    assert_eq!(names(storms, "pace"), ["bursts", "even"]);
    for storm in storms {
        let count = |name: &str| storm[name].as_u64().unwrap();
        assert_eq!((count("requests"), count("questions")), (20_000, 1_000));
        assert_eq!(count("undelivered"), 0, "{storm}");
        // On a busy machine a question is asked more than once, and without an answer in time the kernel is
        // told to ask.
        assert!((1_000..=5_000).contains(&count("queries")), "{storm}");
        assert!(count("errors") < count("requests"), "{storm}");
    }
    assert!(run.rows("caches")[1]["bytes_per_entry"].as_f64().unwrap() > 0.0);
}
