// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr fleet`: ten thousand nodes that the test plays, and contradictions to what a daemon remembers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::Query;
use ibarr_proto::ip2gid::Family;
use ibarr_user::sys::mmsg::{Inbox, Source};
use ibarr_user::sys::udp::UdpSocket;
use ibarr_user::sys::udp_options;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::peers::{Peers, REFUSES, SILENT, name_hosts, sh};
use crate::sockets::in_namespace;
use crate::support::{Daemon, TempDir, free_port, ibarr, json};

/// Networks, each behind a next hop of its own, and nodes in each.
const NETWORKS: u8 = 100;
const NODES: u8 = 100;

/// One socket that answers for 10.20.0.1 to 10.20.99.100, in a network namespace of its own.
#[derive(Clone, Default)]
struct Crowd {
    /// How many datagrams have arrived for each node.
    asked: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

impl Crowd {
    /// Starts it, and makes the routes to it.
    fn start(port: u16) -> Self {
        let this = Self::default();
        let (says, said) = mpsc::channel();
        let (go, goes) = mpsc::channel();
        let crowd = this.clone();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            says.send(gettid()).unwrap();
            goes.recv().unwrap();
            let hops = (0..NETWORKS).map(|n| format!("ip addr add 10.9.1.{n}/16 dev far;"));
            let hops: String = hops.collect();
            sh(&format!(
                "ip link set lo up; {hops} ip link set far up; ip route add local 10.20.0.0/16 dev lo"
            ));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let socket = UdpSocket::bind_in(None, Family::V4, port).unwrap();
                udp_options::widen(&socket, 64 << 20).unwrap();
                says.send(gettid()).unwrap();
                crowd.serve(&socket).await;
            });
        });
        let thread = said.recv().unwrap();
        let routes = (0..NETWORKS).map(|n| format!("ip route add 10.20.{n}.0/24 via 10.9.1.{n};"));
        let routes: String = routes.collect();
        sh(&format!(
            "ip link add near type veth peer name far; ip link set far netns {thread}
             ip addr add 10.9.255.1/16 dev near; ip link set near up; {routes}"
        ));
        go.send(()).unwrap();
        said.recv().unwrap();
        this
    }

    async fn serve(&self, socket: &UdpSocket) {
        let mut losses = Losses(ChaCha12Rng::seed_from_u64(1), HashMap::new());
        let mut inbox = Box::<Inbox<64>>::default();
        loop {
            socket.receive(&mut inbox).await.unwrap();
            for (received, bytes) in inbox.datagrams() {
                let received = received.unwrap();
                let query = Query::parse(&bytes[..received.len]).unwrap();
                let IpAddr::V4(ip) = received.to else { panic!("an IPv4 socket") };
                *self.asked.lock().unwrap().entry(ip.into()).or_default() += 1;
                let is_own = query.target() == received.to;
                let gid = match ip.octets()[3] {
                    DEAD => continue,
                    // The C original knows no question about IPv6.
                    61..=80 if !is_own => continue,
                    _ if !is_own => None,
                    LIAR => Some(gid(Ipv4Addr::from(ip.to_bits() - 1))),
                    _ => Some(gid(ip)),
                };
                if !losses.is_lost(ip) {
                    let source = Source { address: Some(ip.into()), egress: None };
                    let reply = query.reply(gid).emit();
                    socket.try_send(reply.as_ref(), received.from, source).unwrap();
                }
            }
        }
    }
}

/// The last byte of the nodes that never answer, and of those that claim the GID of the node before.
const DEAD: u8 = 7;
const LIAR: u8 = 50;

fn gid(ip: Ipv4Addr) -> Gid {
    let bits = ip.to_bits();
    format!("fe80::{:x}:{:x}", bits >> 16, bits & 0xffff).parse().unwrap()
}

/// Loses five of a hundred datagrams in each direction, but of no node more than two together.
struct Losses(ChaCha12Rng, HashMap<Ipv4Addr, u8>);

impl Losses {
    fn is_lost(&mut self, of: Ipv4Addr) -> bool {
        let lost = self.1.entry(of).or_default();
        let is_lost = *lost < 2 && self.0.next_u32() % 10_000 < 975;
        *lost += u8::from(is_lost);
        is_lost
    }
}

#[test]
fn ten_thousand_nodes_are_counted_exactly_through_losses() {
    if !in_namespace("fleet::ten_thousand_nodes_are_counted_exactly_through_losses") {
        return;
    }
    let port = free_port();
    let crowd = Crowd::start(port);
    let port = port.to_string();
    let nodes = format!("10.20.[0-{}].[1-{NODES}]", NETWORKS - 1);
    // Twice the same list: each node is asked once.
    let said = ibarr(&["fleet", &nodes, &nodes, "--udp-port", &port, "--tries", "5", "--json"]);
    assert_eq!(said.status.code(), Some(1), "{}", String::from_utf8_lossy(&said.stderr));
    let document = json(&said);
    let summary = &document["fleet"]["summary"];
    println!("{summary}");
    assert_eq!(summary["answers"], json!({ "found": 9900, "timed-out": 100 }));
    assert_eq!(summary["speaks"], json!({ "ibarr": 7900, "ipv4-only": 2000 }));
    // Each liar, and the node whose GID it claims.
    assert_eq!((&summary["mismatches"], &summary["well"]), (&json!(200), &json!(9700)));
    let asked = crowd.asked.lock().unwrap().clone();
    for node in document["fleet"]["nodes"].as_array().unwrap() {
        let ip: Ipv4Addr = node["ip"].as_str().unwrap().parse().unwrap();
        // The kernel may drop some at the only socket of all nodes.
        assert!(node["queries"].as_u64() >= Some(asked[&ip.into()].into()), "{node}");
        let mismatch = node["mismatches"][0]["message"].as_str();
        let other =
            |ip: u32| Some(format!("{} says {}, too", Ipv4Addr::from(ip), node["gid"].as_str()?));
        match ip.octets()[3] {
            DEAD => assert_eq!((&node["gid"], &node["queries"]), (&Value::Null, &json!(5))),
            LIAR => assert_eq!(mismatch.map(str::to_owned), other(ip.to_bits() - 1)),
            49 => assert_eq!(mismatch.map(str::to_owned), other(ip.to_bits() + 1)),
            _ => {
                let own = gid(ip).to_string();
                assert_eq!((node["gid"].as_str(), mismatch), (Some(&own[..]), None));
            }
        }
    }
}

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
