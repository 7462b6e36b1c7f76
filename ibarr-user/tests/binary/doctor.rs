// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr doctor` beside a daemon that a test breaks.

use std::net::{Ipv6Addr, UdpSocket};

use serde_json::Value;

use crate::paths::{LOCAL, Port, UNKNOWN, start};
use crate::sockets::in_namespace;
use crate::support::{Daemon, TempDir, json};

/// The exit status, and all checks.
fn examine(daemon: &Daemon, dir: &TempDir, more: &[&str]) -> (Option<i32>, Vec<Value>) {
    let (sys, dev) = (dir.path("sys"), dir.path("dev"));
    let places = ["--sys-dir", sys.to_str().unwrap(), "--dev-dir", dev.to_str().unwrap()];
    let output = daemon.ask(&[&["doctor", "--json"], &places[..], more].concat());
    let checks = json(&output)["checks"].as_array().unwrap().clone();
    (output.status.code(), checks)
}

/// The states of the checks with this name.
fn states(checks: &[Value], name: &str) -> Vec<String> {
    let named = checks.iter().filter(|check| check["check"] == name);
    named.map(|check| check["state"].as_str().unwrap().to_owned()).collect()
}

fn remedy<'a>(checks: &'a [Value], name: &str) -> &'a str {
    checks.iter().find(|check| check["check"] == name).unwrap()["remedy"].as_str().unwrap()
}

#[test]
fn doctor_tells_a_path_that_exists_from_one_that_does_not() {
    let dir = TempDir::new("doctor-path");
    let _port = Port::new(&dir);
    let (daemon, _kernel) = start(&dir, "");
    let (_, checks) = examine(&daemon, &dir, &["--peer", LOCAL]);
    for name in ["daemon", "configuration", "ports", "umad", "sa", "sa-answer", "path"] {
        assert_eq!(states(&checks, name), ["ok"], "{name}: {checks:?}");
    }
    // This sysfs has no network interface.
    assert_eq!(states(&checks, "interfaces"), ["fail"]);
    let (status, checks) = examine(&daemon, &dir, &["--peer", UNKNOWN]);
    assert_eq!(status, Some(2));
    assert_eq!(states(&checks, "path"), ["fail"]);
    assert!(remedy(&checks, "path").contains("saquery NR"), "{checks:?}");
}

#[test]
fn doctor_names_a_subnet_administrator_that_is_silent() {
    let dir = TempDir::new("doctor-silent");
    let port = Port::new(&dir);
    let (daemon, _kernel) = start(&dir, "");
    // What the daemon remembers of the port's path to itself does not count.
    assert_eq!(states(&examine(&daemon, &dir, &[]).1, "sa-answer"), ["ok"]);
    let silent = port.hold();
    let (status, checks) = examine(&daemon, &dir, &[]);
    drop(silent);
    assert_eq!(status, Some(2));
    assert_eq!(states(&checks, "sa-answer"), ["fail"]);
    assert!(remedy(&checks, "sa-answer").contains("sminfo"), "{checks:?}");
}

#[test]
fn doctor_names_a_port_that_is_taken_and_a_peer_that_refuses() {
    if !in_namespace("doctor::doctor_names_a_port_that_is_taken_and_a_peer_that_refuses") {
        return;
    }
    let dir = TempDir::new("doctor-taken");
    let taken = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let daemon = Daemon::start(&dir, &format!("udp-port = {port}\n"));
    // A socket that is opened a moment later is no fault.
    let (status, checks) = daemon.until(|daemon| {
        let (status, checks) = examine(daemon, &dir, &["--peer", "127.0.0.2"]);
        let names = |check: &Value| check["found"].as_str().unwrap().contains("is held by");
        checks.iter().any(names).then_some((status, checks))
    });
    assert_eq!(status, Some(2));
    assert!(states(&checks, "peers").iter().any(|state| state != "ok"), "{checks:?}");
    assert!(states(&checks, "modules") == ["fail"] && states(&checks, "ports") == ["fail"]);
    assert_eq!(states(&checks, "path"), ["skipped"]);
    // The address belongs to this machine, but not to an interface with a GID.
    assert_eq!(
        (states(&checks, "route"), states(&checks, "peer")),
        (vec!["ok".to_owned()], vec!["fail".to_owned()])
    );
}

#[test]
fn doctor_without_a_daemon_examines_the_machine_all_the_same() {
    let dir = TempDir::new("doctor-alone");
    let run_dir = dir.0.to_str().unwrap();
    let output = crate::support::ibarr(&["doctor", "--json", "--run-dir", run_dir]);
    assert_eq!(output.status.code(), Some(2));
    let checks = json(&output)["checks"].as_array().unwrap().clone();
    assert_eq!(states(&checks, "daemon"), ["fail"]);
    assert!(remedy(&checks, "daemon").contains("systemctl start ibarr"));
    assert_eq!(states(&checks, "modules").len(), 1);
}
