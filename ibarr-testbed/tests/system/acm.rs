// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Crowds of users at the socket of ACM, and another user that is answered meanwhile.

use std::fmt::Debug;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::ops::RangeBounds;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ibarr_common::wire::acm::{
    Address, Ask, MAX_REQUEST_LEN, Name, Reply, Request, Resolve, Status, Tid,
};
use ibarr_testbed::start::program;
use nix::mount::{MsFlags, mount};
use serde_json::Value;

use crate::control::answered;
use crate::machine::{MARKER, Machine, ibarr, read_until, said};

/// The share of a user, as in the default of `proto::acm::Config`.
const OF_USER: u64 = 2_500;

/// A user that is not root; further ones have smaller numbers.
const NOBODY: u32 = 65_534;

const PATIENCE: Duration = Duration::from_secs(30);

struct Daemon {
    child: Child,
    machine: Machine,
}

impl Daemon {
    fn start() -> Self {
        Self::start_on(Machine::new())
    }

    fn start_on(machine: Machine) -> Self {
        let directory = machine.directory();
        // The users must be able to run this, too.
        let testbed = Path::new(env!("CARGO_BIN_EXE_ibarr-testbed"));
        fs::copy(testbed, directory.join("ibarr-testbed")).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        let config = directory.join("ibarr.toml");
        let socket = directory.join("acm.sock");
        let text = format!(
            "responder = \"user\"\n[acm]\nserve = \"tools\"\nsocket = {:?}\n",
            socket.to_str().unwrap()
        );
        fs::write(&config, text).unwrap();
        let mut command = program("sh");
        command.args(["-ec", "exec \"$@\" 2>&1", "sh"]).arg(ibarr());
        command.arg("run").arg("--config").arg(&config).arg("--run-dir").arg(directory);
        command.arg("--bpf-dir").arg(directory.join("bpf")).env(MARKER, machine.marker());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        read_until(&mut child, "ready");
        Self { child, machine }
    }

    fn socket(&self) -> PathBuf {
        self.machine.directory().join("acm.sock")
    }

    fn count(&self, name: &str) -> u64 {
        let mut command = program(ibarr());
        command.args(["counters", "--json", "--daemon-timeout", "20s", "--run-dir"]);
        command.arg(self.machine.directory()).env(MARKER, self.machine.marker());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let counters: Value = serde_json::from_slice(&output.stdout).unwrap();
        counters["counters"][name].as_u64().unwrap_or_else(|| panic!("{name} in {counters}"))
    }

    /// A user that opens connections, and does with them what the arguments say.
    fn crowd(&self, user: u32, connections: u64, arguments: &[&str]) -> Child {
        let mut command = program(self.machine.directory().join("ibarr-testbed"));
        command.arg("crowd").arg("--socket").arg(self.socket());
        command.args(["--connections", &connections.to_string()]).args(arguments);
        command.env(MARKER, self.machine.marker()).uid(user).gid(NOBODY);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// A crowd whose connections send nothing, or nothing more.
    fn idle(&self, user: u32, connections: u64, text: &str) -> Child {
        let mut crowd = self.crowd(user, connections, &["--text", text]);
        read_until(&mut crowd, "ready");
        crowd
    }

    /// How many connections of clients are open at the daemon's end.
    fn clients(&self) -> u64 {
        let sockets = fs::read_to_string(format!("/proc/{}/net/unix", self.child.id())).unwrap();
        let name = self.socket();
        // The one that listens has the state 01.
        let is_connection = |line: &&str| {
            let mut fields = line.split_ascii_whitespace().skip(5);
            fields.next() == Some("03") && fields.nth(1) == name.to_str()
        };
        sockets.lines().filter(is_connection).count().try_into().unwrap()
    }

    /// The memory that the daemon has in use, in bytes.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn end(mut crowd: Child) {
    drop(crowd.stdin.take());
    assert!(crowd.wait().unwrap().success());
}

/// Waits until a count is one of these.
fn until(expected: impl RangeBounds<u64> + Debug, count: impl Fn() -> u64) {
    let begun = Instant::now();
    loop {
        let now = count();
        if expected.contains(&now) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "it is {now}, and not {expected:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A client of root.
struct Client(UnixStream);

impl Client {
    fn connect(daemon: &Daemon) -> Self {
        let stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn send(&mut self, name: &str) {
        let name = Address::Name(Name::new(name).unwrap());
        let ask = Ask::Resolve(Resolve::to(None, name));
        let mut request = [0; MAX_REQUEST_LEN];
        self.0.write_all(Request { tid: Tid([5; 8]), ask }.emit(&mut request)).unwrap();
    }

    /// Waits for the status with which a request is refused.
    fn refusal(&mut self) -> Status {
        let mut reply = [0; 1024];
        let len = self.0.read(&mut reply).unwrap();
        match Reply::parse(&reply[..len]).unwrap() {
            (Tid([5, ..]), Reply::Refused(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for the counters of the service. Returns whether they came; without room the connection is closed.
    fn asks(&mut self) -> bool {
        let mut request = [0; 16];
        // In network order.
        (request[0], request[1], request[7]) = (1, 2, 16);
        let mut reply = [0; 72];
        self.0.write_all(&request).is_ok() && self.0.read(&mut reply).unwrap_or(0) == reply.len()
    }
}

#[test]
fn ten_thousand_idle_clients_take_less_than_a_kilobyte_each() {
    let daemon = Daemon::start();
    let mut root = Client::connect(&daemon);
    assert!(root.asks());
    // What the first clients need once is not theirs.
    end(daemon.idle(NOBODY, 100, ""));
    until(1..=1, || daemon.clients());
    let before = daemon.resident();
    let crowds: Vec<_> = (1..=4).map(|user| daemon.idle(NOBODY - user, OF_USER, "")).collect();
    until(10_001..=10_001, || daemon.clients());
    let each = daemon.resident().saturating_sub(before) / 10_000;
    eprintln!("{each} bytes of memory for each idle client");
    assert!(each < 1024, "{each} bytes");
    assert_eq!(daemon.count("acm.clients-refused"), 0);
    for _ in 0..1_000 {
        assert!(root.asks());
    }
    crowds.into_iter().for_each(end);
    until(1..=1, || daemon.clients());
    assert!(Client::connect(&daemon).asks());
}

/// The system's resolver waits for a minute, which is longer than the clients here.
#[test]
fn name_server_that_never_answers_delays_no_other_client() {
    let machine = Machine::new();
    let text = "nameserver 127.0.0.1\noptions timeout:30 attempts:2\n";
    let file = machine.directory().join("resolv.conf");
    fs::write(&file, text).unwrap();
    let none: Option<&str> = None;
    mount(Some(&file), "/etc/resolv.conf", none, MsFlags::MS_BIND, none).unwrap();
    let up = program("ip").args(["link", "set", "lo", "up"]).output().unwrap();
    assert!(up.status.success(), "{}", said(&up));
    let name_server = UdpSocket::bind("127.0.0.1:53").unwrap();
    name_server.set_read_timeout(Some(PATIENCE)).unwrap();
    let daemon = Daemon::start_on(machine);

    let mut slow = Client::connect(&daemon);
    slow.send("far.example.com");
    let mut question = [0; 512];
    let len = name_server.recv(&mut question).unwrap();
    assert!(question[..len].windows(8).any(|bytes| bytes == b"\x07example"), "{question:?}");
    let mut root = Client::connect(&daemon);
    for _ in 0..100 {
        assert!(root.asks());
    }
    let mut other = Client::connect(&daemon);
    other.send("localhost");
    assert_eq!(other.refusal(), Status::DestinationAddress);
    assert_eq!(slow.refusal(), Status::TimedOut);
    assert!(root.asks());
}

#[test]
fn user_that_connects_20000_times_leaves_room_for_others() {
    let daemon = Daemon::start();
    let mut root = Client::connect(&daemon);
    // The first half with half a header each, which ends in time.
    let crowds = [daemon.idle(NOBODY, 10_000, "\u{1}\u{1}"), daemon.idle(NOBODY, 10_000, "")];
    until(OF_USER..=2 * OF_USER, || daemon.count("acm.unfinished"));
    let ended = || daemon.count("acm.clients-refused") + daemon.count("acm.unfinished");
    until(20_000 - OF_USER..=20_000, ended);
    for _ in 0..100 {
        assert!(root.asks());
        assert!(Client::connect(&daemon).asks());
    }
    crowds.into_iter().for_each(end);
}

/// A request for the counters, and then bytes that end the connection.
const COUNTERS: &str = "\u{1}\u{2}@@@@@\u{10}@@@@@@@@and that is all.";

/// Takes all places that users may have, and asks meanwhile.
fn crowd_out(users: u32, each: u64) {
    let daemon = Daemon::start();
    let crowds: Vec<_> = (1..=users).map(|user| daemon.idle(NOBODY - user, each, "")).collect();
    for _ in 0..20 {
        assert!(Client::connect(&daemon).asks());
    }
    let mut told = 0;
    while told < 20 {
        let other = daemon.crowd(NOBODY, 1, &["--text", COUNTERS, "--again"]);
        told += answered(other);
    }
    until(1.., || daemon.count("acm.clients-gave-way"));
    crowds.into_iter().for_each(end);
}

#[test]
fn users_with_all_connections_lock_out_neither_root_nor_another() {
    crowd_out(5, 2_600);
    crowd_out(64, 200);
}

#[test]
fn processes_that_connect_without_end_do_not_keep_others_from_their_answers() {
    let daemon = Daemon::start();
    let mut root = Client::connect(&daemon);
    // Each of 200 connections is closed for its nonsense, and made again.
    let storm = ["--text", "this is no request", "--again"];
    let crowds: Vec<_> = (0..50).map(|_| daemon.crowd(NOBODY, 4, &storm)).collect();
    let refused =
        |daemon: &Daemon| daemon.count("acm.illegal") + daemon.count("acm.clients-refused");
    until(1_001.., || refused(&daemon));
    for _ in 0..100 {
        assert!(root.asks());
        assert!(Client::connect(&daemon).asks());
    }
    crowds.into_iter().for_each(end);
    until(1..=1, || daemon.clients());
}
