// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench paths`: what the kernel's path requests cost the daemon and its subnet administrator.
//!
//! | figure | compared with |
//! |---|---|
//! | paths that the daemon remembers | a process that sends back each request |
//! | paths that the daemon asks the subnet administrator for | a bare client of the same one |
//! | the same, from stock OpenSM through a umad device | the same |
//! | very many processes that ask for few paths | one question for each distinct path |
//! | look-up and memory with 10⁶ paths | 10³ paths; a read of as much memory |

mod opensm;
mod report;
mod sa;
mod storm;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::ib::{Gid, Lid, PKey, PortNum, ServiceId};
use ibarr_common::wire::ls::{Answer, PathUse, Request, ResolvePath, Seq, messages};
use ibarr_common::wire::sa::PathQuestion;
use ibarr_proto::paths::PortName;

pub use self::report::Report;
use self::sa::{Administrator, Bare};
use self::storm::{Pace, Storm};
use super::cache::{self, Cache};
use super::local_service::{self, Server};
use super::process;
use super::rounds::Round;
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabName, Node, Plan, Store, TemporaryLab};

/// Measures in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or an answer is wrong.
pub fn paths(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let name: LabName = format!("bench-{}", std::process::id()).parse()?;
    let lab = Lab::up(store, Plan::new(name, 1, false)?, ibarr, interrupt)?;
    let mut lab = TemporaryLab::new(lab);
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let stock = opensm::find()?;
    let node = lab.plan().nodes.first().context("a lab has nodes")?.clone();

    let sa = Administrator::start(&lab.files(&node), SGID)?;
    let daemon = Server::daemon(&mut lab, node.name, interrupt)?;
    let (echo, helper) = Server::echo(&node.namespace)?;
    process::pin(&[daemon.pid(), echo.pid()])?;
    wait_for_port(&lab, &node, interrupt)?;

    let Effort { rounds, round, .. } = effort;
    eprintln!(
        "bench: from the cache and from the subnet administrator, {rounds} rounds of {round:?} …"
    );
    let mut bare = Bare::open(sa.device(), STAND_IN)?;
    let mut measured = Measured::default();
    // One more, because the first warms caches, the daemon's among them.
    for turn in 0..=rounds {
        interrupt.check()?;
        let asked = [
            cached(&daemon, round)?,
            echoed(&echo, round)?,
            uncached(&daemon, STAND_IN, round)?,
            bare.round(OUTSTANDING_SA, round)?,
        ];
        // Paths that were asked for once must not displace those that are asked for always.
        flush(&lab, &node)?;
        if turn > 0 {
            measured.push(asked);
        }
    }
    drop((echo, helper));

    let mut storms = Vec::new();
    for pace in [Pace::Bursts, Pace::Even] {
        eprintln!("bench: {} requests by {} processes, {pace} …", effort.requests, PROCESSES);
        flush(&lab, &node)?;
        storms.push(Storm::run(&daemon, &sa, pace, effort.requests, interrupt)?);
    }
    drop(daemon);
    lab.down()?;

    let from_opensm = match stock {
        Some(stock) => {
            eprintln!("bench: from OpenSM, {rounds} rounds of {round:?} …");
            Some(opensm::measure(&stock, store, ibarr, &effort, interrupt)?)
        }
        None => None,
    };

    eprintln!("bench: caches, in {} processes …", effort.caches);
    let costs = cache::measure_in_children(Cache::Paths, quick, effort.caches, interrupt)?;
    Report::new(quick, &measured, from_opensm.as_ref(), storms, costs)
}

struct Effort {
    rounds: usize,
    round: Duration,
    /// Requests of each storm.
    requests: u32,
    caches: usize,
}

impl Effort {
    const FULL: Self = Self {
        rounds: 11,
        round: Duration::from_secs(1),
        requests: PROCESSES * DESTINATIONS,
        caches: 5,
    };
    /// Shows that the bench works, and the order of magnitude.
    const QUICK: Self =
        Self { rounds: 3, round: Duration::from_millis(200), requests: 20_000, caches: 1 };
}

/// Rounds of each. Rounds with the same index are neighbours in time.
#[derive(Debug, Default)]
struct Measured {
    cached: Vec<Round>,
    echo: Vec<Round>,
    uncached: Vec<Round>,
    bare: Vec<Round>,
}

impl Measured {
    fn push(&mut self, [cached, echo, uncached, bare]: [Round; 4]) {
        self.cached.push(cached);
        self.echo.push(echo);
        self.uncached.push(uncached);
        self.bare.push(bare);
    }
}

/// Requests in flight for remembered paths.
const OUTSTANDING: u32 = 16;
/// Requests in flight for other paths: as many as the daemon asks the subnet administrator at once.
const OUTSTANDING_SA: u32 = 64;

/// Processes, each with a service of its own.
const PROCESSES: u32 = 1_000;
/// Destinations that each process asks for.
const DESTINATIONS: u32 = 1_000;
/// Destinations with at least this number are asked for once.
const FIRST_FRESH: u32 = 1 << 24;

fn cached(daemon: &Server, time: Duration) -> Result<Round> {
    // The daemon has forgotten these destinations.
    let first = local_service::fresh();
    for destination in 0..DESTINATIONS {
        daemon.say(request(Seq(first + destination), destination, 0).as_ref())?;
    }
    for _ in 0..DESTINATIONS {
        daemon.hear()?;
    }
    daemon.closed_loop(OUTSTANDING, time, remembered, |seq, answer| {
        is_path_to(answer, gid(destination(seq)))
    })
}

fn echoed(echo: &Server, time: Duration) -> Result<Round> {
    let is_right = |seq, answer: &[u8]| remembered(seq).as_ref() == answer;
    echo.closed_loop(OUTSTANDING, time, remembered, is_right)
}

fn uncached(daemon: &Server, place: Place, time: Duration) -> Result<Round> {
    let first = std::cell::Cell::new(None);
    let number = |Seq(seq): Seq| {
        let from = first.get().unwrap_or(seq);
        first.set(Some(from));
        seq - from
    };
    let round = daemon.closed_loop(
        OUTSTANDING_SA,
        time,
        |seq| place.request(seq, number(seq)),
        |seq, answer| is_path_to(answer, (place.destination)(number(seq)).0),
    )?;
    ensure!(round.answers <= f64::from(place.destinations), "some were asked for twice");
    Ok(round)
}

/// A port, its subnet administrator, and its destinations.
#[derive(Clone, Copy, Debug)]
struct Place {
    sgid: Gid,
    sa: Lid,
    /// The destination with this number, and its traffic class.
    destination: fn(u32) -> (Gid, Option<u8>),
    /// Number of distinct destinations.
    destinations: u32,
}

/// Behind a router, so the number of destinations is not bounded.
const STAND_IN: Place = Place {
    sgid: SGID,
    sa: SA,
    destination: |number| (gid(FIRST_FRESH + number), None),
    destinations: u32::MAX - FIRST_FRESH,
};

impl Place {
    fn request(self, seq: Seq, number: u32) -> impl AsRef<[u8]> {
        let (dgid, tclass) = (self.destination)(number);
        ask(seq, ResolvePath { dgid, tclass, sgid: self.sgid, ..as_rdma_cm(0) })
    }

    fn question(self, number: u32) -> PathQuestion {
        let (dgid, tclass) = (self.destination)(number % self.destinations);
        let (reversible, pkey) = (true, Some(PKey::DEFAULT));
        let (service_id, qos_class) = (None, None);
        PathQuestion { dgid, sgid: self.sgid, reversible, pkey, tclass, service_id, qos_class }
    }
}

fn destination(Seq(seq): Seq) -> u32 {
    seq % DESTINATIONS
}

/// A request of another process each time, for one of the common destinations.
fn remembered(seq: Seq) -> impl AsRef<[u8]> {
    request(seq, destination(seq), seq.0 / DESTINATIONS % PROCESSES)
}

fn request(seq: Seq, destination: u32, process: u32) -> impl AsRef<[u8]> {
    ask(seq, ResolvePath { dgid: gid(destination), ..as_rdma_cm(process) })
}

fn ask(seq: Seq, path: ResolvePath) -> impl AsRef<[u8]> {
    Request::ResolvePath(path).emit(seq)
}

/// A request as from rdma_cm, with the service port of `process`.
fn as_rdma_cm(process: u32) -> ResolvePath {
    let PortName { device, port } = port();
    ResolvePath {
        device,
        port,
        path_use: PathUse::All,
        service_id: Some(ServiceId::new(0x0106_0000 + u64::from(process))),
        dgid: SGID,
        sgid: SGID,
        tclass: None,
        pkey: Some(PKey::DEFAULT),
        qos_class: None,
    }
}

fn is_path_to(answer: &[u8], dgid: Gid) -> bool {
    let Some(Answer::Paths(paths)) = parse(answer) else { return false };
    let [path] = paths.as_slice() else { return false };
    path.record.octets().get(8..24) == Some(&dgid.octets())
}

fn parse(answer: &[u8]) -> Option<Answer> {
    Answer::parse(&messages(answer).next()?.ok()?).ok()
}

/// Waits until the daemon can ask the subnet administrator, and knows whether that supports quality of
/// service.
fn wait_for_port(lab: &Lab, node: &Node, interrupt: &Interrupt) -> Result<()> {
    for _ in 0..READY_WITHIN.as_millis() / LOOK_EVERY.as_millis() {
        let counters = lab.ask(node, &["counters"])?;
        if counters["counters"]["sa.answered"] == 1 {
            return Ok(());
        }
        interrupt.sleep(LOOK_EVERY)?;
    }
    bail!("{}: the daemon does not find its port; see ibarr ports", node.name)
}

fn flush(lab: &Lab, node: &Node) -> Result<()> {
    lab.ask(node, &["cache", "--flush"]).map(drop)
}

/// The GID of the port that asks.
const SGID: Gid = gid_of(0xfe80 << 48, 0x0002_c903_0000_0009);

/// The destination with this number, in another subnet.
fn gid(number: u32) -> Gid {
    gid_of(0x2001_0db8_0000_0001, 0x0002_c903_0100_0000 + u64::from(number))
}

const fn gid_of(prefix: u64, guid: u64) -> Gid {
    Gid::new(((prefix as u128) << 64 | guid as u128).to_be_bytes()).expect("a port's")
}

fn port() -> PortName {
    let port = PortNum::new(1).expect("ports count from 1");
    PortName { device: "mlx5_0".parse().expect("a device's name"), port }
}

const OWN: Lid = Lid::new(8).expect("a LID");
const SA: Lid = Lid::new(1).expect("a LID");
const ROUTER: Lid = Lid::new(4).expect("a LID");

const READY_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);
