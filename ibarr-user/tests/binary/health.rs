// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the daemon says of its health, and how `ibarr status --check` exits.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Output;
use std::thread;

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::kernel::{CONFIG, command, pair};
use crate::paths::{LOCAL, Port, UNKNOWN, ask, request, start};
use crate::support::{Daemon, TempDir, ibarr, json, until_ok};

fn checked(daemon: &Daemon) -> (Option<i32>, String) {
    said(&daemon.ask(&["status", "--check"]))
}

/// Checks again until the exit code is `code`, and returns the line.
fn until(daemon: &Daemon, code: i32) -> String {
    until_ok(|| match checked(daemon) {
        (Some(exit), line) if exit == code => Ok(line),
        (exit, line) => Err(format!("not {code}, but {exit:?}: {line}")),
    })
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap())
}

#[test]
fn dead_subnet_administrator_is_a_warning_with_its_remedy_and_recovers() {
    let dir = TempDir::new("health-sa");
    let port = Port::new(&dir);
    let (daemon, kernel) = start(&dir, CONFIG);
    let ok = until(&daemon, 0);
    assert!(ok.starts_with("IBARR OK - ") && ok.ends_with("| failed=0 degraded=0\n"), "{ok:?}");

    port.fall_silent(true);
    assert!(ask(&kernel, 1, request(UNKNOWN, 1)).is_none(), "the kernel may ask");
    let line = until(&daemon, 1);
    assert!(line.starts_with("IBARR WARNING - sa mlx5_0/1: the subnet administrator of"), "{line}");
    assert!(line.contains("sminfo") && line.lines().count() == 1, "{line}");
    let status = json(&daemon.ask(&["status", "--json"]))["status"].clone();
    let of_sa = |status: &Value| {
        let health = status["health"].as_array().unwrap().iter();
        health.clone().find(|one| one["subsystem"] == "sa").unwrap().clone()
    };
    let accepted = daemon.ask(&["status", "--check", "--accept", "sa-silent"]);
    assert_eq!(accepted.status.code(), Some(0), "{accepted:?}");
    let other = daemon.ask(&["status", "--check", "--accept", "port-down"]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    let sa = of_sa(&status);
    assert_eq!((&sa["of"], &sa["state"]), (&"mlx5_0/1".into(), &"degraded".into()));
    assert_eq!(sa["reasons"][0]["cause"], "sa-silent");
    let why = sa["reasons"][0]["why"].as_str().unwrap();
    let warnings = status["warnings"].as_array().unwrap();
    let is_said = |warning: &Value| warning.as_str().unwrap().starts_with(why);
    assert!(warnings.iter().any(is_said), "one decision: {status}");

    port.fall_silent(false);
    until(&daemon, 0);
    assert!(ask(&kernel, 2, request(LOCAL, 1)).is_some());
}

#[test]
fn node_without_a_gid_is_critical() {
    let dir = TempDir::new("health-no-gid");
    let (_kernel, inherited) = pair();
    let daemon = Daemon::spawn(command(&dir, inherited), &dir, "");
    let line = until(&daemon, 2);
    assert!(line.starts_with("IBARR CRITICAL - local-view: no address"), "{line}");
    assert!(line.contains("load ib_ipoib"), "{line}");
    // The status itself is no question about health.
    let (code, text) = said(&daemon.ask(&["status"]));
    assert_eq!(code, Some(0));
    assert!(text.lines().next().unwrap().ends_with(": failed"), "{text}");
    assert!(text.contains("\nfailed    local-view: no-gid, for "), "{text}");
    assert!(text.lines().count() <= 24, "one screen: {text}");
}

#[test]
fn check_without_a_daemon_is_unknown_and_exits_3() {
    let dir = TempDir::new("health-nobody");
    let run_dir = dir.0.to_str().unwrap();
    let (code, line) = said(&ibarr(&["status", "--check", "--run-dir", run_dir]));
    assert_eq!(code, Some(3));
    assert!(line.starts_with("IBARR UNKNOWN - ") && line.contains("systemctl start"), "{line}");
    let output = ibarr(&["status", "--check", "--json", "--run-dir", run_dir]);
    assert_eq!(
        (output.status.code(), &json(&output)["error"]["kind"]),
        (Some(3), &"unreachable".into())
    );
}

#[test]
fn daemon_is_judged_as_soon_as_it_is_ready() {
    let dir = TempDir::new("health-good");
    let _port = Port::new(&dir);
    let (_kernel, inherited) = pair();
    let daemon = Daemon::spawn(command(&dir, inherited), &dir, CONFIG);
    let (code, line) = checked(&daemon);
    assert_eq!(code, Some(0), "{line}");

    let dir = TempDir::new("health-taken");
    let taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let daemon = Daemon::start(&dir, &format!("udp-port = {port}\n"));
    let status = json(&daemon.ask(&["status", "--json"]))["status"].clone();
    assert_eq!(status.get("unknown"), None, "{status}");
    let health = status["health"].as_array().unwrap().iter();
    let peers = health.clone().find(|one| one["subsystem"] == "peers").unwrap();
    assert_eq!(peers["state"], "degraded", "{status}");
    assert_eq!(peers["reasons"][0]["cause"], "not-serving", "{status}");
    assert!(!status["node"].as_str().unwrap().is_empty());
}

#[test]
fn check_of_a_hung_daemon_ends_before_its_answer() {
    let dir = TempDir::new("health-hung");
    let _port = Port::new(&dir);
    let (daemon, _kernel) = start(&dir, CONFIG);
    daemon.stop();
    let (code, line) = checked(&daemon);
    assert_eq!(code, Some(3), "{line}");
    assert!(line.contains("did not answer within 1s 500ms"), "{line}");
    assert_eq!(daemon.ask(&["status"]).status.code(), Some(69));
    kill(daemon.pid(), Signal::SIGCONT).unwrap();
}

#[test]
fn check_waits_until_all_works() {
    let dir = TempDir::new("health-wait");
    let run_dir = dir.0.to_str().unwrap().to_owned();
    let arguments =
        ["status", "--check", "--wait", "30s", "--run-dir", &run_dir].map(str::to_owned);
    let waits = thread::spawn(move || ibarr(&arguments.each_ref().map(String::as_str)));
    let _port = Port::new(&dir);
    let (_daemon, _kernel) = start(&dir, CONFIG);
    let (code, line) = said(&waits.join().unwrap());
    assert_eq!(code, Some(0), "{line}");
    let none = TempDir::new("health-wait-none");
    let run_dir = none.0.to_str().unwrap();
    let given_up = ibarr(&["status", "--check", "--wait", "1ms", "--run-dir", run_dir]);
    assert_eq!(given_up.status.code(), Some(3));
}
