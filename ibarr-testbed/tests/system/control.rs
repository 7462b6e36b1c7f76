// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The control socket under a user without privileges that takes as much of it as it can.

use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use ibarr_testbed::start::program;
use serde_json::Value;

use crate::machine::{MARKER, Machine, ibarr, read_until, said};
use crate::responder::rig::ip;

const NOBODY: u32 = 65534;

#[test]
fn half_open_connections_of_a_user_take_no_place_of_root() {
    const CONNECTIONS: u64 = 10_000;
    let daemon = Daemon::start();
    let held = CONNECTIONS.to_string();
    let mut crowd = daemon.crowd(NOBODY, &["--connections", &held, "--text", "{\"ask\":"]);
    read_until(&mut crowd, "ready");
    let counters = daemon.ask(&["counters"]);
    let count = |name: &str| counters["counters"][name].as_u64().unwrap();
    let (refused, served) = (count("control.refused-user"), count("control.connections"));
    // This request counts as served, too.
    assert_eq!(refused + served, CONNECTIONS + 1, "{counters}");
    assert!(served <= 100, "{served} connections were served");
    for _ in 0..20 {
        daemon.ask(&["status"]);
    }
    let output = daemon.ibarr_as_nobody(&["status", "--json", "--daemon-timeout", "20s"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["error"]["kind"], "overloaded", "{}", said(&output));
    assert_eq!(output.status.code(), Some(69));
    drop(crowd.stdin.take());
    assert!(crowd.wait().unwrap().success());
    Daemon::until(|| daemon.ibarr_as_nobody(&["status"]).status.success());
}

#[test]
fn daemon_without_a_descriptor_left_still_answers_root() {
    let daemon = Daemon::start();
    let pid = daemon.child.id().to_string();
    // More than the daemon has at rest, and less than it has with all connections below.
    let limited = program("prlimit").args(["--pid", &pid, "--nofile=64"]).output().unwrap();
    assert!(limited.status.success(), "{}", said(&limited));
    // On a slow machine, the first connections may have ended before the last is made.
    Daemon::until(|| {
        let crowds = [1, 2, 3, 4].map(|user| {
            let mut crowd =
                daemon.crowd(NOBODY - user, &["--connections", "16", "--text", "{\"ask\":"]);
            read_until(&mut crowd, "ready");
            crowd
        });
        for _ in 0..20 {
            daemon.ask(&["status"]);
        }
        let output = daemon.ibarr_as_nobody(&["status"]);
        for mut crowd in crowds {
            drop(crowd.stdin.take());
            assert!(crowd.wait().unwrap().success());
        }
        said(&output).contains("LimitNOFILE") && output.status.code() == Some(69)
    });
    let counters = daemon.ask(&["counters"]);
    let refused = counters["counters"]["control.refused-descriptors"].as_u64().unwrap();
    assert!(refused > 0, "{counters}");
}

#[test]
fn users_with_all_connections_lock_out_neither_root_nor_another() {
    let daemon = Daemon::start();
    // More than there is room for.
    let crowds: Vec<_> = (1..=30)
        .map(|user| daemon.crowd(NOBODY - user, &["--connections", "16", "--text", "{\"ask\":"]))
        .collect();
    for _ in 0..10 {
        daemon.ask(&["status"]);
        let output = daemon.ibarr_as_nobody(&["status"]);
        assert!(output.status.success(), "{}", said(&output));
    }
    for mut crowd in crowds {
        drop(crowd.stdin.take());
        assert!(crowd.wait().unwrap().success());
    }
}

#[test]
fn half_requests_for_metrics_lock_out_no_scraper() {
    let daemon = Daemon::start();
    let socket = daemon.machine.directory().join("metrics.sock");
    Daemon::until(|| socket.exists());
    crowd_out(&daemon, &socket, || UnixStream::connect(&socket).unwrap().into());
}

#[test]
fn half_requests_for_metrics_over_tcp_lock_out_no_scraper() {
    const AT: &str = "127.0.0.1:9792";
    let machine = Machine::new();
    ip("link set lo up");
    let daemon = Daemon::start_on(machine, AT);
    Daemon::until(|| TcpStream::connect(AT).is_ok());
    crowd_out(&daemon, Path::new(AT), || TcpStream::connect(AT).unwrap().into());
}

/// Six users hold more connections than there are, with half a request each. Root and another user ask meanwhile.
fn crowd_out(daemon: &Daemon, socket: &Path, connect: impl Fn() -> OwnedFd) {
    const HALF: &str = "GET /metrics HTTP/1.1\r\n";
    let crowds =
        [(1, "8"), (2, "1000"), (3, "8"), (4, "8"), (5, "8"), (6, "8")].map(|(user, many)| {
            let arguments = ["--connections", many, "--text", HALF];
            let mut crowd = daemon.crowd_at(socket, NOBODY - user, &arguments);
            read_until(&mut crowd, "ready");
            crowd
        });
    let whole = format!("{HALF}Host: x\r\n\r\n");
    for _ in 0..30 {
        let mut stream = File::from(connect());
        stream.write_all(whole.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    let arguments = ["--connections", "1", "--again", "--text", &whole];
    let mut told = 0;
    while told < 30 {
        told += answered(daemon.crowd_at(socket, NOBODY, &arguments));
    }
    for mut crowd in crowds {
        drop(crowd.stdin.take());
        assert!(crowd.wait().unwrap().success());
    }
}

/// How many connections of a crowd that asks again and again were answered: all.
pub(crate) fn answered(mut crowd: Child) -> u64 {
    read_until(&mut crowd, "ready");
    drop(crowd.stdin.take());
    let told = read_until(&mut crowd, "answered");
    assert!(crowd.wait().unwrap().success());
    let mut words = told.split_whitespace();
    let (answers, connections) = (words.next().unwrap(), words.nth(1).unwrap());
    assert_eq!(answers, connections, "{told}");
    answers.parse().unwrap()
}

struct Daemon {
    child: Child,
    machine: Machine,
}

impl Daemon {
    fn start() -> Self {
        let machine = Machine::new();
        let metrics = machine.directory().join("metrics.sock");
        Self::start_on(machine, &format!("unix:{}", metrics.display()))
    }

    fn start_on(machine: Machine, metrics: &str) -> Self {
        let directory = machine.directory();
        // The other user must be able to run these, too.
        for program in [ibarr(), Path::new(env!("CARGO_BIN_EXE_ibarr-testbed"))] {
            fs::copy(program, directory.join(program.file_name().unwrap())).unwrap();
        }
        fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
        let config = directory.join("ibarr.toml");
        let metrics = format!("[metrics]\nlisten = \"{metrics}\"\n");
        fs::write(&config, format!("responder = \"user\"\n{metrics}")).unwrap();
        let mut command = program("sh");
        command.args(["-ec", "exec \"$@\" 2>&1", "sh"]).arg(directory.join("ibarr"));
        command.arg("run").arg("--config").arg(&config).arg("--run-dir").arg(directory);
        command.arg("--bpf-dir").arg(directory.join("bpf")).env(MARKER, machine.marker());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        read_until(&mut child, "ready");
        Self { child, machine }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = program(self.machine.directory().join(name));
        command.env(MARKER, self.machine.marker());
        command
    }

    fn ibarr_as_nobody(&self, arguments: &[&str]) -> Output {
        let mut command = self.command("ibarr");
        command.args(arguments).arg("--run-dir").arg(self.machine.directory());
        command.uid(NOBODY).gid(NOBODY).output().unwrap()
    }

    /// Asks as root. There must be an answer.
    fn ask(&self, arguments: &[&str]) -> Value {
        let mut command = self.command("ibarr");
        command.args(arguments).args(["--json", "--daemon-timeout", "20s", "--run-dir"]);
        let output = command.arg(self.machine.directory()).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn crowd(&self, user: u32, arguments: &[&str]) -> Child {
        self.crowd_at(&self.machine.directory().join("control.sock"), user, arguments)
    }

    fn crowd_at(&self, socket: &Path, user: u32, arguments: &[&str]) -> Child {
        let mut command = self.command("ibarr-testbed");
        command.arg("crowd").arg("--socket").arg(socket).args(arguments).uid(user).gid(NOBODY);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn until(is_so: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed().as_secs() < 30, "timed out");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
