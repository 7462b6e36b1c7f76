// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The benches work; the tests do not judge the figures.

use std::fs;

use serde_json::Value;

use crate::machine::{Machine, ibarr};

/// Runs a bench, which must leave nothing behind, and returns how many figures have names that end in `ending`.
fn quick(bench: &str, ending: &str) -> usize {
    figures(bench).iter().filter(|name| name.ends_with(ending)).count()
}

/// Runs a bench, which must leave nothing behind, and returns the names of its figures.
fn figures(bench: &str) -> Vec<String> {
    let machine = Machine::new();
    let before = machine.snapshot();
    let file = machine.directory().join("bench.json");
    let (json, ibarr) = (file.to_str().unwrap(), ibarr().to_str().unwrap());
    let table = machine.run(&["bench", bench, "--quick", "--ibarr", ibarr, "--json", json]);
    let report: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    fs::remove_file(file).unwrap();
    assert_eq!(machine.snapshot(), before);
    assert_eq!((&report["v"], &report["bench"]), (&2.into(), &bench.into()));
    assert_eq!(report["quick"], true);
    let figures = report["figures"].as_array().unwrap();
    for figure in figures {
        let (name, value) = (figure["name"].as_str().unwrap(), figure["value"].as_f64().unwrap());
        assert!(value.is_finite() && value > 0.0, "{figure}");
        assert!(table.contains(name), "{name} is not in the table: {table}");
    }
    figures.iter().map(|figure| figure["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn ip2gid_gives_table_and_json_and_leaves_nothing() {
    let figures = figures("ip2gid");
    for to in ["to the echo's", "to those without metrics"] {
        assert_eq!(figures.iter().filter(|name| name.ends_with(to)).count(), 2, "{to}");
    }
}

#[test]
fn responder_is_measured_in_both_families_and_leaves_nothing() {
    assert_eq!(quick("responder", "to sending back"), 2 * 2 * 2);
}

#[test]
fn resolve_bench_gets_an_answer_to_every_request() {
    assert_eq!(quick("resolve", "to the echo's"), 2 * 2);
}

#[test]
fn paths_bench_gets_an_answer_to_every_request() {
    assert_eq!(quick("paths", "to the echo's"), 2 * 2);
}

#[test]
fn acm_rate_bench_gets_an_answer_for_each_of_thousands_of_clients() {
    assert_eq!(quick("acm-rate", "to the plain server's"), 4 * 2 + 3);
}

#[test]
fn preload_bench_reads_every_host_and_path() {
    assert_eq!(quick("preload", "for each node"), 1);
}

#[test]
fn addresses_bench_sees_the_daemon_answer_for_the_last_of_them() {
    assert_eq!(quick("addresses", "to that of `ip monitor`"), 2);
}

#[test]
fn fleet_bench_counts_ten_thousand_nodes_exactly_through_losses() {
    assert_eq!(quick("fleet", "to look at 10,000 nodes"), 1);
}
