// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The daemon at the other end of a wire: bytes in, bytes out, and its counters.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use ibarr_common::wire::Error;
use ibarr_common::wire::ip2gid::{PORT, Query};
use ibarr_testbed::interrupt::Interrupt;
use ibarr_testbed::lab::{Lab, Node, Plan, Store, TemporaryLab, netns};
use ibarr_testbed::start::program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::machine::{Machine, ibarr, said};

const RECORDED_QUERY: &str =
    include_str!("../../../ibarr-common/tests/golden/ip2gid-query-ipv4-c.hex");
const RECORDED_REPLY: &str =
    include_str!("../../../ibarr-common/tests/golden/ip2gid-reply-ipv4-c.hex");
const CASES: &str = include_str!("../../../ibarr-common/tests/data/ip2gid-cases.txt");

#[test]
fn recorded_c_query_gets_the_recorded_c_reply() {
    let wire = Wire::new(2, true);
    // Now the kernel prefers to send from 10.2.0.77.
    wire.ip("n2", "address delete 10.2.0.5/24 dev eth0");
    wire.ip("n2", "address add 10.2.0.77/24 dev eth0");
    wire.ip("n2", "address add 10.2.0.5/24 dev eth0");
    wire.ip("n2", "route replace default via 10.2.0.254");
    let socket = wire.socket("n1", "10.1.0.5:48651");
    let server = "10.2.0.5:4791".parse().unwrap();
    let reply = eventually("an answer", || ask(&socket, server, &hex(RECORDED_QUERY)));
    assert_eq!(reply, (hex(RECORDED_REPLY), server));
}

#[test]
fn nodes_resolve_each_other_across_the_router_by_both_families() {
    let wire = Wire::new(4, true);
    for asker in &wire.lab.plan().nodes {
        for owner in &wire.lab.plan().nodes {
            let addresses = owner.addresses.map(|address| address.to_string());
            let [v4, v6] = addresses.each_ref();
            let output = wire.lab.ibarr(asker, &["resolve", v4, v6, "--json"]).unwrap();
            assert!(output.status.success(), "{}", said(&output));
            let source = if asker.name == owner.name { "local" } else { "peer" };
            let answers = json(&output);
            for (at, address) in addresses.iter().enumerate() {
                let answer = &answers["answers"][at];
                assert_eq!(answer["ip"], *address, "{answer}");
                assert_eq!(answer["status"], "found", "{answer}");
                assert_eq!(answer["gid"], owner.gid, "{answer}");
                assert_eq!(answer["source"], source, "{answer}");
            }
        }
    }
}

#[test]
fn hostile_cases_are_answered_or_counted_as_the_table_says() {
    let wire = Wire::new(2, true);
    wire.leave_the_kernel_out("n2");
    let servers = ["10.2.0.5:4791", "[fd00:2::5]:4791"].map(|at| at.parse().unwrap());
    let sockets = ["10.1.0.5:0", "[fd00:1::5]:0"].map(|at| wire.socket("n1", at));
    for (socket, server) in sockets.iter().zip(&servers) {
        // This fills the neighbour tables for the last query.
        eventually("an answer", || ask(socket, *server, &fence(*server)));
    }
    let mut rows = 0;
    for row in CASES.lines().filter(|line| !line.starts_with('#')) {
        let Some((verdict, payload)) = row.split_once('|') else { continue };
        let (verdict, payload) = (verdict.trim(), hex(payload.split('|').next().unwrap()));
        for (socket, &server) in sockets.iter().zip(&servers) {
            let is_for = verdict == "ok" && contains(&payload, &octets(server.ip()));
            let counter = match verdict {
                "ok" if is_for => "answered".to_owned(),
                "ok" => "other-address".to_owned(),
                reason => format!("malformed-{}", kebab(reason)),
            };
            let before = wire.server_counters("n2");
            socket.send_to(&payload, server).unwrap();
            // Queries of one socket are answered in order. So no answer before that of the fence
            // means that the daemon is silent.
            socket.send_to(&fence(server), server).unwrap();
            if verdict == "ok" {
                let mut expected = vec![payload[0], 0, 0, 0];
                expected.extend(&payload[4..8]);
                expected.extend(if is_for {
                    hex("00010000 00100014 fe800000000000000002c90300000201")
                } else {
                    hex("00000000")
                });
                assert_eq!(receive(socket), Some((expected, server)), "{row}");
            }
            let answer = receive(socket).unwrap_or_else(|| panic!("no answer after {row}"));
            assert_eq!(answer.0[4..8], FENCE, "{row}");

            let mut expected = before;
            for counter in ["answered", &counter] {
                *expected.get_mut(counter).unwrap_or_else(|| panic!("no {counter}")) += 1;
            }
            wire.until_counted("n2", &expected, row);
        }
        rows += 1;
    }
    assert!(rows > 30, "{rows} rows of the table were read");
}

#[test]
fn host_that_asks_itself_is_answered_like_a_peer() {
    let wire = Wire::new(2, true);
    for responder in ["tc", "user"] {
        let old = wire.reconfigure("n2", |config| format!("responder = \"{responder}\"\n{config}"));
        for address in ["10.2.0.5", "fd00:2::5"] {
            let server = SocketAddr::new(address.parse().unwrap(), PORT);
            let socket = wire.socket("n2", &SocketAddr::new(server.ip(), 0).to_string());
            let reply = eventually("an answer", || ask(&socket, server, &fence(server)));
            let gid = hex("fe800000000000000002c90300000201");
            assert_eq!((&reply.0[16..], reply.1), (&gid[..], server), "{responder}");
        }
        wire.reconfigure("n2", |_| old);
    }
}

#[test]
fn datagram_of_any_length_is_read_to_its_end() {
    let wire = Wire::new(2, true);
    wire.leave_the_kernel_out("n2");
    let socket = wire.socket("n1", "10.1.0.5:0");
    let server: SocketAddr = "10.2.0.5:4791".parse().unwrap();
    let before = wire.server_counters("n2");
    // Up to the maximum of IP, in fragments.
    for len in [33, 64, 1472, 1473, 9000, 65_507] {
        let mut payload = fence(server);
        payload.resize(len, 0);
        assert_eq!(Query::parse(&payload), Err(Error::TrailingBytes));
        socket.send_to(&payload, server).unwrap();
        assert_eq!(ask(&socket, server, &fence(server)).unwrap().0[4..8], FENCE);
    }
    let mut expected = before;
    for counter in ["malformed-trailing-bytes", "answered"] {
        *expected.get_mut(counter).unwrap() += 6;
    }
    wire.until_counted("n2", &expected, "six lengths");
}

#[test]
fn broken_configuration_leaves_the_old_one_running() {
    let wire = Wire::new(2, true);
    let plan = wire.lab.plan();
    let n2 = plan.node("n2").unwrap();
    let files = wire.lab.files(n2);
    let good = fs::read_to_string(files.config()).unwrap();
    let socket = wire.socket("n1", "10.1.0.5:0");
    let server: SocketAddr = "10.2.0.5:4791".parse().unwrap();
    let gid =
        |socket: &UdpSocket| ask(socket, server, &fence(server)).map(|(r, _)| r[16..].to_vec());
    let old = n2.gid().unwrap().octets().to_vec();

    let lines = good.lines().count();
    fs::write(files.config(), format!("{good}no-such-key = 1\n")).unwrap();
    wire.signal(n2, Signal::SIGHUP);
    let reason = format!("ibarr.toml:{}:1: static-gid.no-such-key", lines + 1);
    eventually("the mistake in the log", || {
        fs::read_to_string(files.log()).unwrap().contains(&reason).then_some(())
    });
    assert_eq!(gid(&socket), Some(old.clone()));
    let reload = wire.lab.ibarr(n2, &["reload"]).unwrap();
    assert_eq!(reload.status.code(), Some(78), "{}", said(&reload));
    assert!(said(&reload).contains(&reason), "{}", said(&reload));
    assert_eq!(gid(&socket), Some(old));

    // The daemon still listens: a right configuration takes effect, by each way.
    for new in ["fe80::2:c903:0:7701", "fe80::2:c903:0:7702"] {
        fs::write(files.config(), good.replace(&n2.gid, new)).unwrap();
        if new.ends_with('1') {
            wire.signal(n2, Signal::SIGHUP);
        } else {
            let reload = wire.lab.ibarr(n2, &["reload"]).unwrap();
            assert!(reload.status.success(), "{}", said(&reload));
        }
        let new = octets(new.parse().unwrap());
        eventually("the new GID", || (gid(&socket)? == new).then_some(()));
    }
}

#[test]
fn holder_of_a_taken_port_is_named_in_the_status() {
    let wire = Wire::new(1, false);
    let n1 = &wire.lab.plan().nodes[0];
    let run_dir = wire.machine.directory().join("second");
    fs::create_dir(&run_dir).unwrap();
    let mut command = program(ibarr());
    command.arg("run").arg("--config").arg(wire.lab.files(n1).config());
    command.arg("--run-dir").arg(&run_dir).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut second = netns::spawn(&n1.namespace, &mut command).unwrap();

    let first = wire.pid("n1");
    let holder = format!("UDP port {PORT} is held by ibarr (pid {first}, uid 0): stop it");
    // Until /proc has been read, the status says only that the port is taken.
    eventually("the holder of the port", || {
        let mut command = program(ibarr());
        command.args(["status", "--run-dir"]).arg(&run_dir).stdout(Stdio::piped());
        let child = netns::spawn(&n1.namespace, command.stderr(Stdio::piped())).unwrap();
        let status = child.wait_with_output().unwrap();
        (status.status.success() && said(&status).contains(&holder)).then_some(())
    });
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn flood_is_counted_and_delays_no_other_peer() {
    const FLOOD: u64 = 200_000;
    let wire = Wire::new(3, true);
    let plan = wire.lab.plan();
    let (n2, pid) = (plan.node("n2").unwrap(), wire.pid("n2"));
    let server: SocketAddr = "10.2.0.5:4791".parse().unwrap();
    let bystander = wire.socket("n3", "10.1.0.6:0");
    bystander.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    eventually("an answer", || ask(&bystander, server, &fence(server)));
    let flooders = [1, 2, 3, 4].map(|_| wire.socket("n1", "10.1.0.5:0"));
    let payloads: Vec<_> = CASES
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|row| Some(hex(row.split('|').nth(1)?)))
        .collect();
    let (memory, counted) = (resident_kib(pid), total(&wire.server_counters("n2")));
    let log = fs::metadata(wire.lab.files(n2).log()).unwrap().len();

    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            for (at, payload) in (0..FLOOD).zip(payloads.iter().cycle()) {
                let socket = &flooders[usize::try_from(at % 4).unwrap()];
                // The sender's own buffer may refuse a datagram; then it was not sent.
                let _ = socket.send_to(payload, server);
            }
        });
        let mut answered = 0;
        while !flood.is_finished() {
            // The kernel may drop queries at the receive buffer. The client sends again, as ours does.
            eventually("an answer for a bystander", || ask(&bystander, server, &fence(server)));
            answered += 1;
        }
        assert!(answered > 0);
    });
    let resolve = wire.lab.ibarr(n2, &["resolve", "10.1.0.6"]).unwrap();
    assert!(resolve.status.success(), "{}", said(&resolve));

    eventually("an answer", || ask(&bystander, server, &fence(server)));
    let counted = total(&wire.server_counters("n2")) - counted;
    assert!(counted > FLOOD / 100, "only {counted} of {FLOOD} reached the daemon");
    let grown = resident_kib(pid).saturating_sub(memory);
    assert!(grown < 4096, "the daemon grew by {grown} KiB");
    let log = fs::metadata(wire.lab.files(n2).log()).unwrap().len() - log;
    assert!(log < 4096, "{log} bytes were logged");
}

#[test]
fn forged_replies_are_counted_and_change_nothing() {
    const FORGED: u32 = 20_000;
    let wire = Wire::new(2, true);
    let plan = wire.lab.plan();
    let n1 = plan.node("n1").unwrap();
    // This makes the daemon open the sockets that queries leave from.
    let resolve = wire.lab.ibarr(n1, &["resolve", "10.2.0.5"]).unwrap();
    assert!(resolve.status.success(), "{}", said(&resolve));
    let ports = query_ports(n1);
    assert!(!ports.is_empty());

    // Forged from port 4791, which is free after the daemon has ended, while a query waits.
    wire.signal(plan.node("n2").unwrap(), Signal::SIGTERM);
    let forger = eventually("port 4791", || {
        netns::inside(&plan.nodes[1].namespace, || Ok(UdpSocket::bind(("10.2.0.5", PORT))?)).ok()
    });
    let victim = std::thread::scope(|scope| {
        let victim = scope.spawn(|| wire.lab.ibarr(n1, &["resolve", "10.2.0.99"]).unwrap());
        for (id, port) in (0..FORGED).zip(ports.iter().cycle()) {
            let mut reply =
                hex("01000000 00000000 00010000 00100014 fe800000000000000002c9030000dead");
            reply[4..8].copy_from_slice(&id.to_be_bytes());
            let _ = forger.send_to(&reply, ("10.1.0.5", *port));
        }
        victim.join().unwrap()
    });
    let shown = wire.lab.ibarr(n1, &["cache", "--json"]).unwrap();
    assert!(!said(&victim).contains("dead"), "{}", said(&victim));
    assert!(!said(&shown).contains("dead"), "{}", said(&shown));
    let counters = wire.counters("n1", "ip2gid.client.");
    assert!(counters["unasked"] > u64::from(FORGED) / 100, "{counters:?}");
    assert_eq!(counters["replies"], 1, "{counters:?}");
}

#[test]
fn daemon_and_kernel_answer_only_allowed_sources() {
    let wire = Wire::new(3, true);
    let server: SocketAddr = "10.2.0.5:4791".parse().unwrap();
    let [allowed, other] = ["10.1.0.5:0", "10.1.0.6:0"];
    let (allowed, other) = (wire.socket("n1", allowed), wire.socket("n3", other));
    eventually("an answer", || ask(&other, server, &fence(server)));
    other.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    for responder in ["tc", "user"] {
        let restricted = format!("responder = \"{responder}\"\nallow = [\"10.1.0.5/32\"]\n");
        let old = wire.reconfigure("n2", |config| restricted + config);
        assert_eq!(ask(&allowed, server, &fence(server)).unwrap().0[4..8], FENCE);
        assert_eq!(ask(&other, server, &fence(server)), None, "{responder}");
        wire.reconfigure("n2", |_| old);
        assert_eq!(ask(&other, server, &fence(server)).unwrap().0[4..8], FENCE);
    }
    let counters = wire.server_counters("n2");
    assert_eq!(
        counters["source-not-allowed"], 1,
        "the guard drops queries of other sources: {counters:?}"
    );
}

#[test]
fn reply_from_another_address_counts_unless_the_check_is_strict() {
    let wire = Wire::new(2, true);
    let [n1, n2] = ["n1", "n2"].map(|name| wire.lab.plan().node(name).unwrap());
    wire.ip("n2", "address add 10.2.0.77/24 dev eth0");
    wire.leave_the_kernel_out("n2");
    wire.signal(n2, Signal::SIGTERM);
    // A C peer with two addresses receives on one and answers from the other.
    let bind = |address| {
        eventually("port 4791", || {
            netns::inside(&n2.namespace, || Ok(UdpSocket::bind((address, PORT))?)).ok()
        })
    };
    let (asked, other) = (bind("10.2.0.5"), bind("10.2.0.77"));
    asked.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    for (check, from, found) in
        [("msg-id", &other, true), ("strict", &other, false), ("strict", &asked, true)]
    {
        let line = format!("source-check = \"{check}\"\n");
        let old = wire.reconfigure("n1", |config| line + config);
        wire.lab.ibarr(n1, &["cache", "--flush"]).unwrap();
        let output = std::thread::scope(|scope| {
            let resolve = scope.spawn(|| wire.lab.ibarr(n1, &["resolve", "10.2.0.5"]).unwrap());
            while !resolve.is_finished() {
                let mut query = [0; 64];
                let Ok((_, client)) = asked.recv_from(&mut query) else { continue };
                let mut reply =
                    hex("01000000 00000000 00010000 00100014 fe800000000000000002c90300000201");
                reply[4..8].copy_from_slice(&query[4..8]);
                from.send_to(&reply, client).unwrap();
            }
            resolve.join().unwrap()
        });
        assert_eq!(output.status.success(), found, "{check}: {}", said(&output));
        wire.reconfigure("n1", |_| old);
    }
    let counters = wire.counters("n1", "ip2gid.client.");
    assert!(counters["source-address"] > 0, "{counters:?}");
}

/// A lab with the real daemons, and sockets in its namespaces.
pub(crate) struct Wire {
    pub(crate) lab: TemporaryLab,
    machine: Machine,
}

impl Wire {
    pub(crate) fn new(nodes: u8, router: bool) -> Self {
        let machine = Machine::new();
        let store = Store::at(&machine.state_dir()).unwrap();
        let plan = Plan::new("wire".parse().unwrap(), nodes, router).unwrap();
        let lab = Lab::up(&store, plan, ibarr(), &Interrupt::never()).unwrap();
        Self { lab: TemporaryLab::new(lab), machine }
    }

    /// Makes the daemon answer, and count, from now on.
    fn leave_the_kernel_out(&self, node: &str) {
        self.reconfigure(node, |config| format!("responder = \"user\"\n{config}"));
    }

    /// Changes a node's configuration. Returns the old one.
    pub(crate) fn reconfigure(&self, node: &str, change: impl FnOnce(&str) -> String) -> String {
        let node = self.lab.plan().node(node).unwrap();
        let file = self.lab.files(node).config();
        let old = fs::read_to_string(&file).unwrap();
        fs::write(&file, change(&old)).unwrap();
        let reload = self.lab.ibarr(node, &["reload"]).unwrap();
        assert!(reload.status.success(), "{}", said(&reload));
        old
    }

    pub(crate) fn ip(&self, node: &str, command: &str) {
        let namespace = self.lab.plan().namespace_of(node).unwrap();
        let output = program("ip")
            .args(["-netns", namespace])
            .args(command.split(' '))
            .output()
            .expect("ip is on PATH");
        assert!(output.status.success(), "ip {command}: {}", said(&output));
    }

    fn socket(&self, node: &str, address: &str) -> UdpSocket {
        let namespace = self.lab.plan().namespace_of(node).unwrap();
        let socket = netns::inside(namespace, || Ok(UdpSocket::bind(address)?)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket
    }

    pub(crate) fn counters(&self, node: &str, prefix: &str) -> BTreeMap<String, u64> {
        let node = self.lab.plan().node(node).unwrap();
        let output = self.lab.ibarr(node, &["counters", "--json"]).unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let document = json(&output);
        assert_eq!(document["v"], 1);
        let counters = document["counters"].as_object().unwrap().iter();
        counters
            .filter_map(|(name, count)| {
                Some((name.strip_prefix(prefix)?.to_owned(), count.as_u64().unwrap()))
            })
            .collect()
    }

    fn server_counters(&self, node: &str) -> BTreeMap<String, u64> {
        self.counters(node, "ip2gid.server.")
    }

    /// Waits for counters. The daemon counts a reply after it has sent it, so a peer may have it before.
    fn until_counted(&self, node: &str, expected: &BTreeMap<String, u64>, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.server_counters(node) != *expected && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.server_counters(node), *expected, "{what}");
    }

    fn pid(&self, node: &str) -> u32 {
        let daemons = &self.lab.state().daemons;
        daemons.iter().find(|daemon| daemon.node.to_string() == node).unwrap().process.pid
    }

    pub(crate) fn signal(&self, node: &Node, signal: Signal) {
        let pid = self.pid(&node.name.to_string());
        kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
    }
}

/// The ports of a node's IPv4 sockets, without the server's.
fn query_ports(node: &Node) -> Vec<u16> {
    let table =
        netns::inside(&node.namespace, || Ok(fs::read_to_string("/proc/thread-self/net/udp")?));
    let ports = table.unwrap();
    let ports = ports.lines().skip(1).map(|line| {
        let local = line.split_whitespace().nth(1).unwrap();
        u16::from_str_radix(local.split_once(':').unwrap().1, 16).unwrap()
    });
    ports.filter(|&port| port != PORT).collect()
}

/// The msg_id of the last query of a sequence.
const FENCE: [u8; 4] = [0xfe, 0x9c, 0xe0, 0x01];

/// A query for `server`'s own address. When it is answered, all earlier queries are handled.
pub(crate) fn fence(server: SocketAddr) -> Vec<u8> {
    let mut query = match server {
        SocketAddr::V4(_) => hex("01000000 00000000 00010000 00010008"),
        SocketAddr::V6(_) => hex("01000000 00000000 00010000 00020014"),
    };
    query[4..8].copy_from_slice(&FENCE);
    query.extend(octets(server.ip()));
    query
}

fn ask(socket: &UdpSocket, server: SocketAddr, query: &[u8]) -> Option<(Vec<u8>, SocketAddr)> {
    socket.send_to(query, server).unwrap();
    receive(socket)
}

pub(crate) fn receive(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut buffer = [0; 2048];
    let (len, from) = socket.recv_from(&mut buffer).ok()?;
    Some((buffer[..len].to_vec(), from))
}

/// Tries until `attempt` returns something, for some seconds.
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

fn total(counters: &BTreeMap<String, u64>) -> u64 {
    counters.values().sum()
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// Makes `tlv-length` of `TlvLength`.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.push(letter.to_ascii_lowercase());
    }
    kebab
}

fn contains(payload: &[u8], part: &[u8]) -> bool {
    payload.windows(part.len()).any(|window| window == part)
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Hex without its `#` lines and white space.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let digits: Vec<u8> = lines.flat_map(str::bytes).filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}
