// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! That the bench measures; what it measures is for people.

use std::fs;

use serde_json::Value;

use crate::machine::{Machine, ibarr};

#[test]
fn ip2gid_gives_table_json_and_svg_and_leaves_nothing() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let [json, svg] = ["bench.json", "bench.svg"].map(|name| machine.directory().join(name));
    let table = machine.run(&[
        "bench",
        "ip2gid",
        "--quick",
        "--ibarr",
        ibarr().to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let figures: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!((&figures["v"], &figures["bench"]), (&1.into(), &"ip2gid".into()));
    assert_eq!(figures["quick"], true);
    let names: Vec<_> = figures["servers"].as_array().unwrap().iter().map(|s| &s["name"]).collect();
    assert_eq!(names, ["ibarr", "echo", "batched echo"]);
    let ratios = figures["ratios"].as_object().unwrap();
    for name in [
        "rate_to_echo",
        "rate_per_cpu_to_echo",
        "rate_per_cpu_to_batched_echo",
        "lookup_large_to_small",
    ] {
        let ratio = ratios[name].as_f64().unwrap();
        assert!(ratio.is_finite() && ratio > 0.0, "{name}: {ratio}");
        assert!(table.contains(&format!("{ratio:.2}")), "{name} is not in the table: {table}");
    }
    let [small, large] = [0, 1].map(|at| figures["caches"][at]["entries"].as_u64().unwrap());
    assert_eq!((small, large), (1_000, 100_000));
    assert!(figures["caches"][1]["bytes_per_entry"].as_f64().unwrap() > 0.0);
    assert!(figures["startup_ms"]["min"].as_f64().unwrap() > 0.0);

    let drawing = fs::read_to_string(&svg).unwrap();
    assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"), "{drawing}");
    // Background, three servers, two caches; of percentiles those that there are.
    assert!(drawing.matches("<rect ").count() >= 1 + 3 + 2, "{drawing}");

    for file in [json, svg] {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn responder_is_measured_in_both_families_and_nothing_is_left() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let [json, svg] =
        ["responder.json", "responder.svg"].map(|name| machine.directory().join(name));
    let table = machine.run(&[
        "bench",
        "responder",
        "--quick",
        "--ibarr",
        ibarr().to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let figures: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!((&figures["v"], &figures["bench"]), (&1.into(), &"responder".into()));
    let rows = |name: &str| figures[name].as_array().unwrap().clone();
    let programs = rows("programs");
    let ours = programs.iter().filter(|program| program["to_bounce"].is_f64());
    let names: Vec<_> = ours.clone().map(|program| program["name"].as_str().unwrap()).collect();
    assert_eq!(names, [["ip2gid_tc"; 8], ["ip2gid_xdp"; 8]].concat());
    for program in ours {
        let ratio = program["to_bounce"].as_f64().unwrap();
        assert!(program["ns"].as_f64().unwrap() > 0.0 && ratio > 0.0, "{program}");
        assert!(table.contains(&format!("{ratio:.2}")), "{ratio} is not in the table: {table}");
    }
    let servers = rows("servers");
    let names: Vec<_> = servers.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["xdp", "xdp", "tc", "tc", "user", "user", "echo", "echo"]);
    for (name, rows) in [
        ("programs", programs),
        ("parts", rows("parts")),
        ("servers", servers),
        ("bulk_tcp", rows("bulk_tcp")),
    ] {
        let of = |family| rows.iter().filter(|row| row["family"] == family).count();
        assert!(of("IPv4") > 0 && of("IPv4") == of("IPv6"), "{name}: {rows:?}");
    }
    for daemon in rows("daemon") {
        assert!(daemon["answers"].as_u64().unwrap() >= 20_000, "{daemon}");
    }
    let drawing = fs::read_to_string(&svg).unwrap();
    assert!(drawing.contains("target: at most twice the bounce"), "{drawing}");
    for file in [json, svg] {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn resolve_answers_every_request_and_says_what_it_costs() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let [json, svg] = ["resolve.json", "resolve.svg"].map(|name| machine.directory().join(name));
    let table = machine.run(&[
        "bench",
        "resolve",
        "--quick",
        "--ibarr",
        ibarr().to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let figures: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!((&figures["v"], &figures["bench"]), (&1.into(), &"resolve".into()));
    assert_eq!(figures["outstanding"], 16);
    let families = figures["families"].as_array().unwrap();
    let names: Vec<_> = families.iter().map(|family| family["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["IPv4", "IPv6"]);
    for family in families {
        for name in ["rate_to_echo", "rate_per_cpu_to_echo"] {
            let ratio = family[name].as_f64().unwrap();
            assert!(ratio.is_finite() && ratio > 0.0, "{name}: {ratio}");
            assert!(table.contains(&format!("{ratio:.2}")), "{name} is not in the table: {table}");
        }
    }
    let drawing = fs::read_to_string(&svg).unwrap();
    // Background, and two charts of two servers and two families.
    assert_eq!(drawing.matches("<rect ").count(), 1 + 2 * 4, "{drawing}");
    for file in [json, svg] {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn paths_are_measured_and_few_questions_asked_of_the_administrator() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let [json, svg] = ["paths.json", "paths.svg"].map(|name| machine.directory().join(name));
    let table = machine.run(&[
        "bench",
        "paths",
        "--quick",
        "--ibarr",
        ibarr().to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let figures: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!((&figures["v"], &figures["bench"]), (&1.into(), &"paths".into()));
    let loads = figures["loads"].as_array().unwrap();
    let others: Vec<_> = loads.iter().map(|load| load["other"].as_str().unwrap()).collect();
    assert_eq!(others, ["echo", "bare client"]);
    for load in loads {
        let ratio = load["rate_to_other"].as_f64().unwrap();
        assert!(ratio.is_finite() && ratio > 0.0, "{load}");
        assert!(table.contains(&format!("{ratio:.2}")), "{ratio} is not in the table: {table}");
    }
    let storms = figures["storms"].as_array().unwrap();
    let paces: Vec<_> = storms.iter().map(|storm| storm["pace"].as_str().unwrap()).collect();
    assert_eq!(paces, ["bursts", "even"]);
    for storm in storms {
        let count = |name: &str| storm[name].as_u64().unwrap();
        assert_eq!((count("requests"), count("questions")), (20_000, 1_000));
        assert_eq!(count("undelivered"), 0, "{storm}");
        // On a machine that has other things to do, a question is asked more than once.
        assert!((1_000..=5_000).contains(&(count("queries") + count("errors"))), "{storm}");
    }
    assert!(figures["caches"][1]["bytes_per_entry"].as_f64().unwrap() > 0.0);
    let drawing = fs::read_to_string(&svg).unwrap();
    assert!(drawing.contains("target: 0.3 of the echo"), "{drawing}");
    for file in [json, svg] {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(machine.snapshot(), before);
}
