// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr top`: for a pipe, and in a terminal, which tmux is.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::kernel::CONFIG;
use crate::paths::{LOCAL, Port, UNKNOWN, ask, await_capabilities, request, start};
use crate::peers::{Peers, SILENT};
use crate::sockets::in_namespace;
use crate::support::{Daemon, IBARR, TempDir, ibarr, json, program, until_ok};

/// The row of a document with this value.
fn row<'a>(top: &'a Value, table: &str, key: &str, value: &str) -> &'a Value {
    top[table].as_array().unwrap().iter().find(|row| row[key] == value).unwrap()
}

#[test]
fn rates_of_all_intervals_add_up_to_the_number_of_requests() {
    if !in_namespace("top::rates_of_all_intervals_add_up_to_the_number_of_requests") {
        return;
    }
    let (dir, peers) = (TempDir::new("top-pipe"), Peers::new());
    let daemon = Daemon::start(&dir, &peers.config());
    for n in 2..=7 {
        peers.set(&format!("10.9.0.{n}"), Some("fe80::1"));
    }
    let mut command = program(IBARR);
    command.args(["top", "--json", "-i", "50ms", "--run-dir"]).arg(&dir.0);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value {
        let line = lines.next().unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["top"].clone()
    };
    let first = next();
    assert_eq!(row(&first, "requests", "what", "client-addresses")["total"], 0);
    for _ in 0..4 {
        let resolved = daemon.ask(&["resolve", "10.9.0.[2-7]"]);
        assert_eq!(resolved.status.code(), Some(0), "{resolved:?}");
    }
    assert_eq!(daemon.ask(&["resolve", SILENT, "--timeout", "100ms"]).status.code(), Some(1));
    let (mut asked, mut failed, mut from_memory) = (0.0, 0.0, 0.0);
    let last = loop {
        let top = next();
        let seconds = top["interval-ms"].as_f64().unwrap() / 1000.0;
        let addresses = row(&top, "requests", "what", "client-addresses");
        let count = addresses["per-s"].as_f64().unwrap() * seconds;
        let failures = addresses["failed-per-s"].as_f64().unwrap() * seconds;
        asked += count;
        failed += failures;
        from_memory += addresses["from-memory-percent"].as_f64().unwrap_or(0.0) / 100.0 * count;
        if addresses["total"] == 25 && failed > 0.9 {
            break top;
        }
    };
    assert!((asked - 25.0).abs() < 1e-6 && (failed - 1.0).abs() < 1e-6, "{asked} {failed}");
    // A request that waits at the end of an interval is not among those that ended in it.
    assert!(from_memory > 10.0, "18 were answered from memory: {from_memory}");
    assert_eq!(last["slowest-peers"].as_array().unwrap().len(), 6);
    let timed_out = row(&last, "errors", "counter", "ip2gid.client.timed-out");
    assert_eq!(timed_out["total"], 1);
    // The reader goes.
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn page_has_the_mads_and_answers_of_a_port() {
    let dir = TempDir::new("top-port");
    let port = Port::new(&dir);
    let (daemon, kernel) = start(&dir, CONFIG);
    await_capabilities(&daemon);
    for (seq, gid) in [(1, LOCAL), (2, UNKNOWN), (3, LOCAL)] {
        assert!(ask(&kernel, seq, request(gid, 1)).is_some());
    }
    let top = json(&daemon.ask(&["top", "--once", "--json", "-i", "10ms"]))["top"].clone();
    let of_port = row(&top, "ports", "port", "mlx5_0/1");
    assert_eq!(of_port["total"], port.asked());
    let ports = json(&daemon.ask(&["ports", "--json"]))["ports"][0].clone();
    let asked = port.asked().into();
    assert_eq!((&ports["sa"]["mads"], &ports["sa"]["answers"]), (&asked, &asked));
    assert!(ports["sa"]["took-ms"].as_f64().unwrap() > 0.0);
    let paths = row(&top, "requests", "what", "kernel-paths");
    assert_eq!((&paths["total"], &paths["per-s"]), (&3.into(), &0.0.into()));
    // The same for people.
    let said = daemon.ask(&["top", "--once", "-i", "10ms"]);
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(text.contains("\nsubnet administrator      MADs/s  answers/s"), "{text}");
    assert!(text.contains("\nmlx5_0/1 "), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn top_without_a_daemon_exits_69_if_it_looks_once() {
    let dir = TempDir::new("top-nobody");
    let output = ibarr(&["top", "--once", "--json", "--run-dir", dir.0.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(69));
    assert_eq!(json(&output)["error"]["kind"], "unreachable");
}

/// A terminal with a shell.
struct Tmux(PathBuf);

impl Tmux {
    fn new(dir: &TempDir) -> Self {
        let this = Self(dir.path("tmux.sock"));
        this.run(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "40", "sh"]);
        this
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut tmux = program("tmux");
        tmux.env("PS1", "$ ").arg("-S").arg(&self.0).args(arguments);
        let output = tmux.output().expect("tmux is needed: cargo xtask tools tmux");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn send(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// Waits until the screen is as wanted.
    fn until(&self, mut is_wanted: impl FnMut(&str) -> bool) -> String {
        until_ok(|| {
            let screen = self.screen();
            if is_wanted(&screen) { Ok(screen) } else { Err(screen) }
        })
    }

    /// Types a command, and waits for its last words.
    fn shell(&self, command: &str, last: &str) -> String {
        self.send(&["-l", command]);
        self.send(&["Enter"]);
        self.until(|screen| screen.lines().any(|line| line.starts_with(last)))
    }

    /// Checks that the terminal is a shell's again.
    fn is_restored(&self, exit: u8) {
        let ended = format!("ended {exit}");
        self.until(|screen| screen.lines().any(|line| line.ends_with(&ended)));
        let flags = self.run(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(flags, "0 1\n");
        let modes = self.shell("clear; stty -a; echo done", "done");
        for mode in ["icanon", "echo", "isig", "opost"] {
            assert!(modes.split_whitespace().any(|word| word == mode), "{mode}: {modes}");
        }
        self.send(&["-l", "clear"]);
        self.send(&["Enter"]);
        self.until(|screen| !screen.contains("ended"));
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let mut tmux = program("tmux");
        drop(tmux.arg("-S").arg(&self.0).arg("kill-server").output());
    }
}

/// The number after `before`.
fn number(text: &str, before: &str) -> Option<f64> {
    text.split_once(before)?.1.split_whitespace().next()?.parse().ok()
}

#[test]
fn terminal_shows_true_rates_and_is_restored_however_top_ends() {
    if !in_namespace("top::terminal_shows_true_rates_and_is_restored_however_top_ends") {
        return;
    }
    let (dir, peers) = (TempDir::new("top-tmux"), Peers::new());
    let daemon = Daemon::start(&dir, &peers.config());
    for n in 2..=7 {
        peers.set(&format!("10.9.0.{n}"), Some("fe80::1"));
    }
    let tmux = Tmux::new(&dir);
    let run_dir = dir.0.display();
    let top = |interval: &str| {
        let ibarr = IBARR;
        let top =
            format!("echo $$ >{run_dir}/pid; exec {ibarr} top -i {interval} --run-dir {run_dir}");
        tmux.send(&["-l", &format!("sh -c '{top}'; echo ended $?")]);
        tmux.send(&["Enter"]);
    };
    top("1s");
    // 12 requests begin in one interval, or in two.
    tmux.until(|screen| number(screen, "rates over ").is_some());
    for _ in 0..2 {
        assert_eq!(daemon.ask(&["resolve", "10.9.0.[2-7]"]).status.code(), Some(0));
    }
    let (mut pages, mut asked) = (Vec::new(), 0.0);
    tmux.until(|screen| {
        let (Some(over), Some(rate)) =
            (number(screen, "rates over "), number(screen, "\naddresses, client "))
        else {
            return false;
        };
        let line = screen.lines().find(|line| line.starts_with("addresses, client"));
        let page = line.unwrap().to_owned();
        if pages.last() != Some(&page) {
            asked += over * rate;
            pages.push(page.clone());
        }
        page.ends_with(" 12") && rate == 0.0
    });
    assert!((asked - 12.0).abs() < 0.3, "{asked}: {pages:?}");
    let screen = tmux.screen();
    for shown in ["ibarr 1.0.0 on ", "answers to peers", "slowest peers", "\n10.9.0.", "q ends"] {
        assert!(screen.contains(shown), "{shown}: {screen}");
    }

    // A smaller terminal shows what fits, and the rest when asked. That ends with at least this
    // error, and with more where the machine was slow.
    assert_eq!(daemon.ask(&["resolve", SILENT, "--timeout", "100ms"]).status.code(), Some(1));
    let page = String::from_utf8(daemon.ask(&["top", "--once"]).stdout).unwrap();
    let last = page.trim_end().lines().last().unwrap().split_whitespace().next().unwrap();
    tmux.run(&["resize-window", "-x", "70", "-y", "10"]);
    let small = tmux.until(|screen| screen.contains("q ends, down more"));
    assert!(small.starts_with("ibarr 1.0.0 on ") && !small.contains("slowest"), "{small}");
    tmux.until(|screen| {
        tmux.send(&["Down"; 10]);
        screen.contains(last) && screen.ends_with("q ends\n")
    });
    tmux.run(&["resize-window", "-x", "100", "-y", "40"]);

    // It outlives the daemon, and finds the next one.
    drop(daemon);
    tmux.until(|screen| screen.starts_with("no answer from the daemon: no daemon at "));
    let daemon = Daemon::start(&dir, &peers.config());
    let pid = format!(", pid {}, up ", daemon.pid());
    tmux.until(|screen| screen.contains(&pid) && screen.contains("rates over "));
    // One that hangs is no reason not to end.
    daemon.stop();
    tmux.until(|screen| screen.starts_with("no answer from the daemon for "));
    tmux.send(&["q"]);
    tmux.is_restored(0);
    kill(daemon.pid(), Signal::SIGCONT).unwrap();

    top("100ms");
    tmux.until(|screen| screen.contains("rates over "));
    tmux.send(&["C-c"]);
    tmux.is_restored(0);

    top("100ms");
    tmux.until(|screen| screen.contains("rates over "));
    let pid = std::fs::read_to_string(dir.path("pid")).unwrap();
    kill(Pid::from_raw(pid.trim().parse().unwrap()), Signal::SIGTERM).unwrap();
    tmux.is_restored(0);
}
