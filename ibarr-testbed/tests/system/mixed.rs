// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A fleet while half of it is upgraded, and while that is taken back. Nodes of the C original and of ibarr 1.0.0 are
//! stand-ins: they send the recorded bytes, and accept the forms that these versions accept.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::PORT;
use ibarr_testbed::interrupt::Interrupt;
use ibarr_testbed::lab::{Node, netns};
use ibarr_testbed::start::program;
use nix::sys::signal::Signal;

use crate::ip2gid::{Wire, eventually, hex, json, octets, receive};
use crate::machine::ibarr;

/// Recorded bytes of ibarr 1.0.0, a name and hex in each line.
const RECORDED: &str = include_str!("../data/ip2gid-1.0.0.txt");
const C_QUERY: &str = include_str!("../../../ibarr-common/tests/golden/ip2gid-query-ipv4-c.hex");
const C_REPLY: &str = include_str!("../../../ibarr-common/tests/golden/ip2gid-reply-ipv4-c.hex");

/// How long a stand-in waits for a reply before it asks the next node.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the fleet works between two replacements.
const BETWEEN: Duration = Duration::from_millis(300);

#[test]
fn replies_are_the_bytes_that_the_older_versions_send() {
    let wire = Wire::new(2, true);
    let [n1, n2] = ["n1", "n2"].map(|name| wire.lab.plan().node(name).unwrap().clone());
    let targets = [Target::of(0, &n2, None)];
    for responder in ["tc", "user"] {
        let old = wire.reconfigure("n2", |config| format!("responder = \"{responder}\"\n{config}"));
        for (number, version) in (1..).zip([Older::Original, Older::First]) {
            let lost = Client::new(version, number, &n1).ask_each(&targets).1;
            assert!(lost.is_empty(), "{responder}, {version:?}: {lost:?}");
        }
        // For an address that n2 lacks it sends the reply of 1.0.0.
        let socket = netns::inside(&n1.namespace, || Ok(UdpSocket::bind("10.1.0.5:0")?)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let query = Older::First.query("10.2.0.99".parse().unwrap(), 9);
        socket.send_to(&query, "10.2.0.5:4791").unwrap();
        let (reply, _) = receive(&socket).expect("a negative reply");
        assert_eq!(reply, recorded("reply-negative"), "{responder}");
        wire.reconfigure("n2", |_| old);
    }
}

#[test]
fn half_a_fleet_is_upgraded_and_taken_back_under_load() {
    let mut wire = Wire::new(6, true);
    let nodes = wire.lab.plan().nodes.clone();
    let [_, first, original, other, stays, stays_original] = &nodes[..] else {
        panic!("six nodes")
    };
    let older = [
        (first, Older::First),
        (original, Older::Original),
        (other, Older::First),
        (stays, Older::First),
        (stays_original, Older::Original),
    ];
    let mut stand_ins: Vec<_> =
        older.iter().map(|&(node, version)| Some(StandIn::start(&wire, node, version))).collect();

    let is_over = Arc::new(AtomicBool::new(false));
    let over = Over(Arc::clone(&is_over));
    let targets: Arc<[Target]> = (0..)
        .zip(&nodes)
        .map(|(at, node)| {
            Target::of(at, node, older.iter().find(|it| it.0.name == node.name).map(|it| it.1))
        })
        .collect();
    let clients =
        [(stays, Older::First), (stays_original, Older::Original)].map(|(node, version)| {
            let (mut client, targets, is_over) =
                (Client::new(version, 1, node), Arc::clone(&targets), Arc::clone(&is_over));
            thread::spawn(move || ask_until(&is_over, || client.ask_each(&targets)))
        });
    let resolver = Resolver::on(&wire, &nodes[0]);
    let resolving = {
        let (resolver, targets, is_over) = (resolver, Arc::clone(&targets), Arc::clone(&is_over));
        thread::spawn(move || ask_until(&is_over, || resolver.ask_each(&targets)))
    };

    let mut replaced = Vec::new();
    for forward in [true, false] {
        for at in 0..3 {
            thread::sleep(BETWEEN);
            let (node, version) = older[at];
            let from = Instant::now();
            if forward {
                stand_ins[at].take().unwrap().stop();
                wire.lab.restart(node.name, &Interrupt::never()).unwrap();
            } else {
                stand_ins[at] = Some(StandIn::start(&wire, node, version));
            }
            replaced.push(Replaced { target: at + 1, from, until: Instant::now() });
            if forward {
                // A new node among old ones asks all of them.
                let (answers, lost) = Resolver::on(&wire, node).ask_each(&targets);
                assert!(lost.is_empty() && answers == 10, "{answers} {lost:?}");
            }
        }
    }
    thread::sleep(BETWEEN);
    drop(over);

    let mut results: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    results.push(resolving.join().unwrap());
    for (answered, lost) in results {
        assert!(answered > 100, "only {answered} queries were answered");
        for lost in lost {
            let allowed = |replaced: &Replaced| {
                let Replaced { target, from, until } = *replaced;
                target == lost.target && lost.from <= until && lost.until >= from
            };
            assert!(replaced.iter().any(allowed), "nobody replaced the node of {lost:?}");
        }
    }
    for stand_in in stand_ins.into_iter().flatten() {
        stand_in.stop();
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Older {
    /// The C original, 0.1.5. It knows IPv4 only.
    Original,
    /// ibarr 1.0.0.
    First,
}

impl Older {
    /// The query that this version sends.
    fn query(self, target: IpAddr, msg_id: u32) -> Vec<u8> {
        let mut query = match (self, target) {
            (Self::Original, IpAddr::V4(_)) => hex(C_QUERY),
            (Self::Original, IpAddr::V6(_)) => panic!("the C original asks for IPv4 only"),
            (Self::First, IpAddr::V4(_)) => recorded("query-ipv4"),
            (Self::First, IpAddr::V6(_)) => recorded("query-ipv6"),
        };
        query[4..8].copy_from_slice(&msg_id.to_be_bytes());
        query[16..].copy_from_slice(&octets(target));
        query
    }

    /// The reply that this version gives to a query, with `gid`.
    ///
    /// # Panics
    /// If this version refuses the query.
    fn reply(self, query: &[u8], gid: &[u8]) -> Vec<u8> {
        let is_ipv6 = form(query) == form(&recorded("query-ipv6"));
        let mut plain = query.to_vec();
        // Both versions read 0 and 1 here.
        plain[0] = plain[0].max(1);
        let is_ipv4 = form(&plain) == form(&recorded("query-ipv4"));
        let is_known = is_ipv4 || (is_ipv6 && self == Self::First);
        assert!(is_known, "{self:?} refuses the query {query:02x?}");
        let mut reply = match (self, query[0]) {
            (Self::Original, _) => hex(C_REPLY),
            (Self::First, 0) => recorded("reply-version-0"),
            (Self::First, _) if is_ipv6 => recorded("reply-ipv6"),
            (Self::First, _) => recorded("reply-version-1"),
        };
        reply[0] = query[0];
        reply[4..8].copy_from_slice(&query[4..8]);
        reply[16..].copy_from_slice(gid);
        reply
    }
}

/// A message without what differs from one to the next: msg_id, and the value of its TLV.
fn form(message: &[u8]) -> Vec<u8> {
    let fields = message.iter().enumerate();
    fields.map(|(at, &byte)| if (4..8).contains(&at) || at >= 16 { 0 } else { byte }).collect()
}

/// The recorded message of this name.
fn recorded(name: &str) -> Vec<u8> {
    let line = RECORDED.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    hex(line.unwrap_or_else(|| panic!("no {name} is recorded")))
}

/// A node whose address all clients ask for.
#[derive(Clone, Debug)]
struct Target {
    /// Its position among the nodes of the lab.
    at: usize,
    addresses: Vec<IpAddr>,
    gid: Gid,
}

impl Target {
    /// The C original does not answer for IPv6 addresses, so a node that has it at any time is asked for IPv4 only.
    fn of(at: usize, node: &Node, older: Option<Older>) -> Self {
        let families = if older == Some(Older::Original) { 1 } else { 2 };
        let addresses = node.addresses[..families].to_vec();
        Self { at, addresses, gid: node.gid().unwrap() }
    }
}

#[derive(Debug)]
struct Lost {
    target: usize,
    from: Instant,
    until: Instant,
}

/// Ends the threads that look at the flag, also when the test fails.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// When a node's server was replaced.
struct Replaced {
    target: usize,
    from: Instant,
    until: Instant,
}

/// The server of an older version on a node.
struct StandIn {
    over: Over,
    threads: Vec<JoinHandle<()>>,
}

impl StandIn {
    /// Ends the daemon of the lab and its programs, and takes its port.
    fn start(wire: &Wire, node: &Node, version: Older) -> Self {
        wire.signal(node, Signal::SIGTERM);
        let sockets = eventually("port 4791", || {
            netns::inside(&node.namespace, || {
                Ok([
                    UdpSocket::bind(("0.0.0.0", PORT))?,
                    UdpSocket::bind((node.addresses[1], PORT))?,
                ])
            })
            .ok()
        });
        // It is refused while the daemon ends.
        eventually("its programs to be detached", || {
            let mut detach = program(ibarr());
            detach.args(["detach", "--bpf-dir"]).arg(wire.lab.bpf_dir(node));
            detach.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut detach = netns::spawn(&node.namespace, &mut detach).unwrap();
            detach.wait().unwrap().success().then_some(())
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let gid = node.gid().unwrap().octets().to_vec();
        let threads = sockets.into_iter().map(|socket| {
            let (is_over, gid) = (Arc::clone(&is_over), gid.clone());
            thread::spawn(move || serve(&socket, version, &gid, &is_over))
        });
        Self { threads: threads.collect(), over: Over(is_over) }
    }

    /// Frees the port.
    ///
    /// # Panics
    /// If a query came that the version refuses.
    fn stop(self) {
        drop(self.over);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn serve(socket: &UdpSocket, version: Older, gid: &[u8], is_over: &AtomicBool) {
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut buffer = [0; 2048];
    while !is_over.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            // The C original logs queries for IPv6 addresses, and answers none.
            Ok((32, _)) if version == Older::Original => {}
            Ok((len, from)) => {
                socket.send_to(&version.reply(&buffer[..len], gid), from).unwrap();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // A client that has ended.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Asks again and again. Returns how many answers there were, and the queries without one.
fn ask_until(is_over: &AtomicBool, mut ask: impl FnMut() -> (u32, Vec<Lost>)) -> (u32, Vec<Lost>) {
    let (mut answered, mut lost) = (0, Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        let more = ask();
        answered += more.0;
        lost.extend(more.1);
    }
    (answered, lost)
}

/// The client of an older version on a node.
struct Client {
    version: Older,
    msg_id: u32,
    namespace: String,
}

impl Client {
    fn new(version: Older, number: u32, node: &Node) -> Self {
        Self { version, msg_id: number << 24, namespace: node.namespace.clone() }
    }

    /// Asks each target once for each of its addresses. Each reply must be the one that this version would give.
    fn ask_each(&mut self, targets: &[Target]) -> (u32, Vec<Lost>) {
        let (mut answered, mut lost) = (0, Vec::new());
        for target in targets {
            let knows = |ip: &&IpAddr| ip.is_ipv4() || self.version == Older::First;
            for &address in target.addresses.iter().filter(knows) {
                let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
                let socket = netns::inside(&self.namespace, || Ok(UdpSocket::bind((any, 0))?));
                let socket = socket.unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                self.msg_id += 1;
                let query = self.version.query(address, self.msg_id);
                let from = Instant::now();
                let server = SocketAddr::new(address, PORT);
                socket.send_to(&query, server).unwrap();
                match receive(&socket) {
                    Some(reply) => {
                        let expected = self.version.reply(&query, &target.gid.octets());
                        assert_eq!(reply, (expected, server));
                        answered += 1;
                    }
                    None => lost.push(Lost { target: target.at, from, until: Instant::now() }),
                }
            }
        }
        (answered, lost)
    }
}

/// The daemon of this tree on a node, asked by `ibarr resolve --fresh`.
struct Resolver {
    namespace: String,
    run_dir: PathBuf,
}

impl Resolver {
    fn on(wire: &Wire, node: &Node) -> Self {
        Self { namespace: node.namespace.clone(), run_dir: wire.lab.files(node).run_dir() }
    }

    /// Asks for all addresses at once. No answer may be wrong.
    fn ask_each(&self, targets: &[Target]) -> (u32, Vec<Lost>) {
        let asked: Vec<_> = targets
            .iter()
            .flat_map(|target| target.addresses.iter().map(move |&ip| (target, ip)))
            .collect();
        let mut command = program(ibarr());
        command.args(["resolve", "--fresh", "--json", "--run-dir"]).arg(&self.run_dir);
        command.args(asked.iter().map(|(_, ip)| ip.to_string()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let from = Instant::now();
        let output =
            netns::spawn(&self.namespace, &mut command).unwrap().wait_with_output().unwrap();
        let until = Instant::now();
        let answers = json(&output);
        let (mut answered, mut lost) = (0, Vec::new());
        for (at, (target, ip)) in asked.iter().enumerate() {
            let answer = &answers["answers"][at];
            assert_eq!(answer["ip"], ip.to_string(), "{answer}");
            if answer["status"] == "found" {
                assert_eq!(answer["gid"], target.gid.to_string(), "{answer}");
                answered += 1;
            } else {
                lost.push(Lost { target: target.at, from, until });
            }
        }
        (answered, lost)
    }
}
