// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench fleet`: how long `ibarr fleet` takes to look at ten thousand nodes through losses. Each run has to count them
//! exactly.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Output;
use std::thread::{self, JoinHandle};
use std::time::Instant as Stopwatch;

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{MAX_LEN, PORT, Query};
use ibarr_proto::ip2gid::Family;
use ibarr_user::sys::mmsg::Inbox;
use ibarr_user::sys::udp::{Source, UdpSocket};
use ibarr_user::sys::udp_options;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::report::{Report, Target, median};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, Node, Store, netns};

/// Measures in a lab of its own, which is removed in any case. A short run looks once, and at as many nodes.
///
/// # Errors
/// The lab cannot be made, or a run counts wrongly.
pub fn fleet(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let runs = if quick { 1 } else { 5 };
    let lab = super::lab(store, 1, false, ibarr, interrupt)?;
    let [node] = lab.plan().nodes.as_slice() else { bail!("a lab of one node") };
    connect(&lab, node)?;
    let mut report = Report::new("fleet", quick)?;
    let (mut took, mut rates, mut queries) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..runs {
        interrupt.check()?;
        eprintln!("bench: run {} of {runs}, seed {seed} …", seed + 1);
        let crowd = Crowd::start(&lab.plan().hub, seed)?;
        let start = Stopwatch::now();
        let output = look(&lab, node)?;
        took.push(start.elapsed().as_secs_f64());
        let heard = crowd.end()?;
        check(&output, &heard)?;
        rates.push(heard.most_a_second()?);
        let all: usize = heard.0.values().map(Vec::len).sum();
        queries.push(f64::from(u32::try_from(all)?) / f64::from(NODES));
    }
    lab.down()?;
    let longest = took.iter().copied().fold(0.0, f64::max);
    report.add("s to look at 10,000 nodes", median(took.into_iter())?, None);
    report.add("s of the longest run", longest, Some(Target::AtMost(15.0)));
    let most = rates.into_iter().fold(0.0, f64::max);
    // They are one second apart where they leave, and nearly so where they arrive.
    report.add("queries a second to a dead node, at most", most, Some(Target::AtMost(1.01)));
    report.add("queries for each node", median(queries.into_iter())?, None);
    Ok(report)
}

/// Next hops: network 10.20.N.0/24 is behind 10.1.1.N.
const HOPS: u8 = 100;

/// Nodes behind each next hop, from 10.20.N.1 on.
const BEHIND: u8 = 100;

const NODES: u32 = HOPS as u32 * BEHIND as u32;

/// Each next hop and all networks are in the hub of the lab.
fn connect(lab: &Lab, node: &Node) -> Result<()> {
    let (ip, plan) = (lab.ip()?, lab.plan());
    let bridge = node.subnet.bridge();
    let mut hub: Vec<_> =
        (0..HOPS).map(|n| format!("address add 10.1.1.{n}/16 dev {bridge}")).collect();
    hub.push("route add local 10.20.0.0/16 dev lo".to_owned());
    ip.batch(Some(&plan.hub), &hub)?;
    let interface = Node::INTERFACE;
    let mut routes = vec![format!("route add 10.1.1.0/24 dev {interface}")];
    routes.extend((0..HOPS).map(|n| format!("route add 10.20.{n}.0/24 via 10.1.1.{n}")));
    ip.batch(Some(&node.namespace), &routes)
}

/// What `ibarr fleet` says, with the tries that it has by default.
fn look(lab: &Lab, node: &Node) -> Result<Output> {
    let nodes = format!("10.20.[0-{}].[1-{BEHIND}]", HOPS - 1);
    // Twice the same list: each node is asked once.
    let arguments = ["fleet", &nodes, &nodes, "--udp-port", &PORT.to_string(), "--json"];
    lab.ibarr(node, &arguments)
}

/// Each node has to be what the crowd lets it be.
fn check(output: &Output, heard: &Heard) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "ibarr fleet: {}: {said}", output.status);
    let document: Value = serde_json::from_slice(&output.stdout).context("no document")?;
    let summary = &document["fleet"]["summary"];
    for (key, right) in [
        ("answers", json!({ "found": 9900, "timed-out": 100 })),
        ("speaks", json!({ "ibarr": 7900, "ipv4-only": 2000 })),
        // Each liar, and the node whose GID it claims.
        ("mismatches", json!(200)),
        ("well", json!(9700)),
    ] {
        ensure!(summary[key] == right, "{key} is not {right}: {summary}");
    }
    let nodes = document["fleet"]["nodes"].as_array().context("no nodes")?;
    ensure!(nodes.len() == usize::try_from(NODES)?, "{} nodes", nodes.len());
    for node in nodes {
        let ip: Ipv4Addr = node["ip"].as_str().context("a node without address")?.parse()?;
        // The kernel may drop some at the only socket of all nodes.
        let arrived = heard.0.get(&ip).map_or(0, Vec::len);
        ensure!(node["queries"].as_u64() >= Some(arrived.try_into()?), "{arrived}: {node}");
        let own = gid(ip).to_string();
        let before = Ipv4Addr::from_bits(ip.to_bits() - 1);
        let mismatch = |other: Ipv4Addr, says: &str| Some(format!("{other} says {says}, too"));
        let (says, mismatch) = match ip.octets()[3] {
            DEAD => (None, None),
            LIAR => (Some(gid(before).to_string()), mismatch(before, &gid(before).to_string())),
            ROBBED => (Some(own.clone()), mismatch(Ipv4Addr::from_bits(ip.to_bits() + 1), &own)),
            _ => (Some(own), None),
        };
        ensure!(node["gid"].as_str() == says.as_deref(), "{says:?}: {node}");
        let told = node["mismatches"][0]["message"].as_str();
        ensure!(told == mismatch.as_deref(), "{mismatch:?}: {node}");
    }
    Ok(())
}

/// The last byte of the nodes that never answer, of those that claim the GID of the node before, and of that node.
const DEAD: u8 = 7;
const LIAR: u8 = 50;
const ROBBED: u8 = LIAR - 1;

fn gid(ip: Ipv4Addr) -> Gid {
    let [a, b, c, d] = ip.octets();
    Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]).expect("a port's")
}

/// When queries arrived for each node.
#[derive(Default)]
struct Heard(HashMap<Ipv4Addr, Vec<Stopwatch>>);

impl Heard {
    /// The most queries a second, from the first to the last one, to a node that never answers.
    fn most_a_second(&self) -> Result<f64> {
        let dead = self.0.iter().filter(|(ip, _)| ip.octets()[3] == DEAD);
        let rates = dead.filter_map(|(_, at)| {
            let pauses = f64::from(u32::try_from(at.len()).ok()?) - 1.0;
            Some(pauses / (*at.last()? - *at.first()?).as_secs_f64())
        });
        rates.max_by(f64::total_cmp).context("no dead node was asked")
    }
}

/// One socket that answers for all nodes, on a thread of its own.
struct Crowd {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<Heard>>,
}

impl Crowd {
    fn start(hub: &str, seed: u64) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.context("cannot start a runtime")?;
        let socket = netns::inside(hub, || {
            let _entered = runtime.enter();
            let socket = UdpSocket::bind_in(None, Family::V4, PORT).context("cannot bind")?;
            udp_options::widen(&socket, 64 << 20).context("no room for queries")?;
            Ok(socket)
        })?;
        let (stop, mut stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let mut heard = Heard::default();
            let rng = ChaCha12Rng::seed_from_u64(seed);
            runtime.block_on(async {
                tokio::select! {
                    _ = &mut stopped => Ok(()),
                    failed = serve(&socket, &mut heard, rng) => failed,
                }
            })?;
            Ok(heard)
        });
        Ok(Self { stop, thread })
    }

    fn end(self) -> Result<Heard> {
        // A crowd that has failed says so below.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

async fn serve(socket: &UdpSocket, heard: &mut Heard, mut rng: ChaCha12Rng) -> Result<()> {
    let mut inbox = Box::<Inbox<{ MAX_LEN + 1 }>>::default();
    loop {
        socket.receive(&mut inbox).await.context("cannot receive")?;
        for (received, bytes) in inbox.datagrams() {
            let received = received.context("a datagram without packet info")?;
            let IpAddr::V4(ip) = received.to else { bail!("an IPv4 socket") };
            heard.0.entry(ip).or_default().push(Stopwatch::now());
            let query = Query::parse(bytes.get(..received.len).unwrap_or(bytes))?;
            let is_own = query.target() == received.to;
            let gid = match ip.octets()[3] {
                DEAD => continue,
                // The C original knows no question about IPv6.
                61..=80 if !is_own => continue,
                _ if !is_own => None,
                LIAR => Some(gid(Ipv4Addr::from_bits(ip.to_bits() - 1))),
                _ => Some(gid(ip)),
            };
            // Five of a hundred are lost on their way here, and five of a hundred replies.
            if rng.next_u32() % 100 < 5 || rng.next_u32() % 100 < 5 {
                continue;
            }
            let source = Source { address: Some(ip.into()), egress: None };
            // What the socket has no room for is lost, too.
            let _ = socket.try_send(query.reply(gid).emit().as_ref(), received.from, source);
        }
    }
}
