// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The log of a daemon: its place, its level, and readers that fail.

use std::fs::File;
use std::io::{BufRead, BufReader, pipe};
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::kernel::{CONFIG, Kernel, REQUEST, command, pair};
use crate::support::{Daemon, TempDir, USER_SPACE, json};

/// Starts a daemon with `stderr`; returns it and the kernel's end of its socket.
fn start(dir: &TempDir, stderr: impl Into<Stdio>) -> (Daemon, Kernel) {
    let (kernel, inherited) = pair();
    let mut command = command(dir, inherited);
    command.stderr(stderr);
    let daemon = Daemon::spawn(command, dir, CONFIG);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    (daemon, kernel)
}

/// Makes it log mistakes of a configuration until lines are dropped.
fn lose_lines(dir: &TempDir, daemon: &Daemon) {
    let mistakes: Vec<_> = (0..200).map(|n| format!("no-such-key-{n} = 0")).collect();
    dir.write("ibarr.toml", &mistakes.join("\n"));
    let before = dropped(daemon);
    for _ in 0..200 {
        assert_eq!(daemon.ask(&["reload"]).status.code(), Some(78));
        if dropped(daemon) > before {
            return;
        }
    }
    panic!("nothing was dropped");
}

fn dropped(daemon: &Daemon) -> u64 {
    json(&daemon.ask(&["counters", "--json"]))["counters"]["log.dropped"].as_u64().unwrap()
}

/// Checks that it answers the kernel and the command line, reports the loss, and ends when told to.
fn is_alive_and_ends(mut daemon: Daemon, kernel: &Kernel) {
    kernel.send(REQUEST);
    kernel.expect("24000000 02100000 0c000000", "14000400 fe80000000000000 0002c90300000201");
    let status = json(&daemon.ask(&["status", "--json"]));
    let warnings = status["status"]["warnings"].to_string();
    assert!(warnings.contains("the log lacks "), "{warnings}");
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
}

#[test]
fn log_on_a_full_disk_blocks_nothing() {
    let dir = TempDir::new("log-full");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (daemon, kernel) = start(&dir, full);
    lose_lines(&dir, &daemon);
    is_alive_and_ends(daemon, &kernel);
}

#[test]
fn closed_log_blocks_nothing() {
    let dir = TempDir::new("log-closed");
    let (reader, writer) = pipe().unwrap();
    let (daemon, kernel) = start(&dir, writer);
    drop(reader);
    lose_lines(&dir, &daemon);
    is_alive_and_ends(daemon, &kernel);
}

#[test]
fn stalled_log_blocks_nothing_and_reports_its_losses_later() {
    let dir = TempDir::new("log-stalled");
    let (reader, writer) = pipe().unwrap();
    let (daemon, kernel) = start(&dir, writer);
    lose_lines(&dir, &daemon);
    let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(" lines lost: their reader took no more")));
    lose_lines(&dir, &daemon);
    is_alive_and_ends(daemon, &kernel);
    assert!(lines.count() > 0, "lines from before the stall");
}

#[test]
fn running_daemon_logs_each_request_while_it_is_told_to() {
    let dir = TempDir::new("log-level");
    let (reader, writer) = pipe().unwrap();
    let (kernel, inherited) = pair();
    let mut command = command(&dir, inherited);
    command.args(["--log-to", "stdout"]).stdout(writer);
    let mut daemon = Daemon::spawn(command, &dir, CONFIG);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    let ask = || {
        kernel.send(REQUEST);
        kernel.expect("24000000 02100000 0c000000", "14000400 fe80000000000000 0002c90300000201");
    };
    let set = |arguments: &[&str]| {
        let output = daemon.ask(&[&["log-level"], arguments].concat());
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(set(&[]), "error\n");
    ask();
    assert_eq!(set(&["0", "--for", "1h"]), "trace, for 1h\n");
    ask();
    assert_eq!(set(&["--reset"]), "error\n");
    ask();
    let status = json(&daemon.ask(&["log-level", "ibarr_user=warn", "--json"]));
    assert_eq!(status["log"], serde_json::json!({ "level": "ibarr_user=warn" }));
    // The level of the command line counts more than that of the file.
    dir.write("ibarr.toml", &format!("log-level = \"debug\"\n{USER_SPACE}{CONFIG}"));
    assert_eq!(daemon.ask(&["reload"]).status.code(), Some(0));
    assert_eq!(set(&["--reset"]), "error\n");
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    let lines: Vec<_> = BufReader::new(reader).lines().map(Result::unwrap).collect();
    let with = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        with("from the kernel: ls request dev 2: who has 192.0.2.7? seq=12"),
        1,
        "{lines:#?}"
    );
    assert_eq!(with("to the kernel: ls answer: fe80::2:c903:0:201 seq=12"), 1, "{lines:#?}");
}
