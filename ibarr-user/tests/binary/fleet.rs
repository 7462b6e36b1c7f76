// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr fleet`: what contradicts a daemon's memory. The test of `bench fleet` looks at ten thousand nodes.

use crate::peers::{Peers, REFUSES, SILENT, name_hosts};
use crate::sockets::in_namespace;
use crate::support::{Daemon, TempDir, ibarr};

#[test]
fn fleet_table_names_what_contradicts_the_daemon_and_who_is_away() {
    if !in_namespace("fleet::fleet_table_names_what_contradicts_the_daemon_and_who_is_away") {
        return;
    }
    let (dir, peers) = (TempDir::new("fleet"), Peers::new());
    let daemon = Daemon::start(&dir, &peers.config());
    name_hosts(&dir, "10.9.0.3 node03\nfd00:9::2 node06\n");
    for n in [2, 3, 4] {
        peers.set(&format!("10.9.0.{n}"), Some(&format!("fe80::{n}")));
    }
    peers.set("fd00:9::2", Some("fe80::6"));
    let port = peers.port.to_string();
    let asked = |more: &[&str]| {
        let unknown = "n".repeat(70);
        let all = ["10.9.0.2,node[03,06]", SILENT, REFUSES, "192.0.2.77", &unknown];
        let options = ["--udp-port", &port, "--tries", "3"];
        daemon.ask(&[&["fleet"], more, &options, &all].concat())
    };
    assert_eq!(daemon.ask(&["resolve", "10.9.0.[2-3]"]).status.code(), Some(0));
    peers.set("10.9.0.2", Some("fe80::9"));
    let said = asked(&[]);
    assert_eq!(said.status.code(), Some(1));
    let table = String::from_utf8(said.stdout).unwrap();
    let lines: Vec<_> = table.lines().collect();
    let begins = [
        // The peers of this test answer every question.
        "10.9.0.2    fe80::9      ibarr  ",
        "    mismatch: the daemon remembers fe80::2, the answer is fe80::9",
        "node03",
        "node06",
        "10.9.0.8    timed-out",
        "10.9.0.9    refused",
        "192.0.2.77  unreachable",
        "6 nodes: 3 found (3 ibarr), 1 timed-out, 1 refused, 1 unreachable, 1 with a mismatch, 1 unknown names; \
         2 are well; ",
    ];
    assert_eq!(lines.len(), begins.len(), "{table}");
    for (line, begin) in lines.iter().zip(begins) {
        assert!(line.starts_with(begin.trim_end()), "{line:?}: {begin:?} in {table}");
    }
    let told = String::from_utf8(said.stderr).unwrap();
    assert!(told.contains("nnn: ") && told.contains("no ibarr listens at 10.9.0.9"), "{told}");
    let faults = String::from_utf8(asked(&["--faults"]).stdout).unwrap();
    assert!(faults.contains("10.9.0.8") && !faults.contains("node03"), "{faults}");

    // Without a daemon the answers are compared with the rest.
    let absent = dir.path("absent");
    let fleet = ["fleet", "node[03,06]", "10.9.0.3", "--udp-port", &port, "--run-dir"];
    let said = ibarr(&[&fleet[..], &[absent.to_str().unwrap()]].concat());
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    let told = String::from_utf8(said.stderr).unwrap();
    assert!(told.contains("answers are not compared with the daemon's: no daemon at"), "{told}");
}
