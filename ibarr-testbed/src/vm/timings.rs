// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run c`: how long `rdma_resolve_addr` and `rdma_resolve_route` take with ibarr, compared with the
//! kernel alone and with ibacm, in the same guest.
//!
//! The scenario prints times and compares them with its aims. It claims what the times are of: which
//! program answered, from memory or by asking, and that no caller had to wait for its time-out.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ibarr_user::control::messages::Request;
use serde_json::Value;

use crate::OWN;
use crate::burst;
use crate::like_c::READY;
use crate::report::Report;
use crate::rig::{self, B, Caller, INTERFACES, Ibarr, N, Place, R, Rig, eventually, spawn};
use crate::rtnetlink::{Rtnetlink, ifindex};
use crate::sys::rdma_cm::EventKind;

/// Samples of each kind in each round. So times that are compared are measured at nearly the same time.
const SAMPLES: usize = 50;
const ROUNDS: usize = 2;

/// Long enough for the daemon to end its turn after an answer.
const PAUSE: Duration = Duration::from_millis(1);

/// The daemon forgets at once, and removes the entries from its maps after that.
const AFTER_FLUSH: Duration = Duration::from_millis(20);

const NEAR: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
const FAR: [&str; 2] = ["10.2.0.1", "fd00:2::1"];

/// Number of resolves one after another, and at once.
const IN_TURN: usize = 1_000;
const AT_ONCE: usize = 200;

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up()) {
        prove(&mut report);
        drop(rig);
    }
    report.end()
}

fn prove(report: &mut Report) {
    let mut times = Times::default();
    report.claim("a burst through a router that nothing was sent to, none lost", first_burst());
    report.claim("every neighbour entry is permanent", know_neighbours());
    for round in 1..=ROUNDS {
        let mut claim = |what: &str, proof: Result<()>| {
            report.claim(&format!("{what} ({round} of {ROUNDS})"), proof);
        };
        claim("the kernel alone, in the same subnet", kernel_alone(&mut times));
        claim("ibacm answers the kernel from memory", ibacm(&mut times));
        claim("ibarr answers the kernel from memory, and by asking", ibarr(&mut times));
        claim("a program with C's system calls asks the SA each time", like_c(&mut times));
    }
    report.claim(
        &format!("{IN_TURN} resolves one after another, none lost"),
        with_ibarr(|_| in_turn()),
    );
    report.claim(&format!("{AT_ONCE} resolves at once, none lost"), with_ibarr(at_once));
    Report::note("all times are of a guest without hardware virtualization: only compare them");
    Report::note(&times);
    times.verdicts().for_each(Report::figure);
}

/// The rows of the table, in its order.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Row {
    AddressKnown,
    AddressArp,
    AddressMemory,
    AddressPaused,
    AddressBackToBack,
    AddressAsked,
    RouteAlone,
    RouteIbacm,
    RouteIbacmPaused,
    RouteMemory,
    RouteMemoryPaused,
    RouteAsked,
    RouteLikeC,
    BothAlone,
    BothIbacm,
    BothMemory,
}

impl Row {
    const ALL: [Self; 16] = [
        Self::AddressKnown,
        Self::AddressArp,
        Self::AddressMemory,
        Self::AddressPaused,
        Self::AddressBackToBack,
        Self::AddressAsked,
        Self::RouteAlone,
        Self::RouteIbacm,
        Self::RouteIbacmPaused,
        Self::RouteMemory,
        Self::RouteMemoryPaused,
        Self::RouteAsked,
        Self::RouteLikeC,
        Self::BothAlone,
        Self::BothIbacm,
        Self::BothMemory,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::AddressKnown => "address next door, neighbour known",
            Self::AddressArp => "address next door, by ARP or ND",
            Self::AddressMemory => "address across the router, ibarr's memory",
            Self::AddressPaused => "address from ibarr's memory, after 1 ms",
            Self::AddressBackToBack => "address from ibarr's memory, back to back",
            Self::AddressAsked => "address across the router, ibarr asks the peer",
            Self::RouteAlone => "route, the kernel asks the SA",
            Self::RouteIbacm => "route, ibacm's memory",
            Self::RouteIbacmPaused => "route, ibacm's memory, 1 ms after its address",
            Self::RouteMemory => "route, ibarr's memory",
            Self::RouteMemoryPaused => "route, ibarr's memory, 1 ms after its address",
            Self::RouteAsked => "route, ibarr asks the SA",
            Self::RouteLikeC => "route, by C's system calls",
            Self::BothAlone => "address and route, the kernel asks the SA",
            Self::BothIbacm => "address and route, ibacm's memory",
            Self::BothMemory => "address and route, ibarr's memory",
        }
    }
}

/// The aims: a row, the row that it is compared with, and how many times as long it may take.
const AIMS: [(Row, Row, f64); 6] = [
    (Row::AddressMemory, Row::AddressArp, 0.45),
    (Row::AddressBackToBack, Row::AddressPaused, 2.0),
    (Row::AddressAsked, Row::AddressArp, 1.6),
    (Row::RouteMemory, Row::RouteIbacm, 0.75),
    (Row::RouteAsked, Row::RouteLikeC, 1.0),
    (Row::BothMemory, Row::BothIbacm, 0.85),
];

/// Times by row and family, with the families as in [`NEAR`] and [`FAR`].
#[derive(Debug, Default)]
struct Times(HashMap<(Row, usize), Vec<Duration>>);

impl Times {
    fn add(&mut self, row: Row, family: usize, took: Duration) {
        self.0.entry((row, family)).or_default().push(took);
    }

    /// Resolves an address and its route, for the rows of the route and of both. Returns how long the
    /// address took.
    fn resolve(
        &mut self,
        caller: &Caller,
        target: &str,
        family: usize,
        [route, both]: [Row; 2],
    ) -> Result<Duration> {
        let (id, address) = caller.address(target)?;
        let took = caller.route(id)?;
        self.add(route, family, took);
        self.add(both, family, address + took);
        Ok(address)
    }

    /// The percentile `percent` of the samples, in milliseconds.
    fn at(&self, row: Row, family: usize, percent: usize) -> Option<f64> {
        let mut times = self.0.get(&(row, family))?.clone();
        times.sort();
        let index = (times.len() - 1) * percent / 100;
        Some(times.get(index)?.as_secs_f64() * 1e3)
    }
}

impl Times {
    /// A line for each aim: whether it was met.
    fn verdicts(&self) -> impl Iterator<Item = String> {
        let families = ["IPv4", "IPv6"].into_iter().enumerate();
        let all =
            AIMS.into_iter().flat_map(move |aim| families.clone().map(move |family| (aim, family)));
        all.filter_map(move |((row, beside, aim), (family, name))| {
            let ratio = self.at(row, family, 50)? / self.at(beside, family, 50)?;
            let verdict = if ratio <= aim { "met" } else { "missed" };
            let (row, beside) = (row.name(), beside.name());
            Some(format!(
                "{name} {row} / {beside}: {ratio:.2}; the aim is at most {aim}: {verdict}"
            ))
        })
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "median (p90), ms, of {}{:15}IPv4{:14}IPv6", SAMPLES * ROUNDS, "", "")?;
        for row in Row::ALL {
            write!(f, "{:46}", row.name())?;
            for family in 0..2 {
                match (self.at(row, family, 50), self.at(row, family, 90)) {
                    (Some(median), Some(p90)) => write!(f, "{median:7.2} ({p90:6.2})  ")?,
                    _ => write!(f, "{:>18}", "-")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn first_burst() -> Result<()> {
    burst::add_peers()?;
    with_ibarr(burst::prove)
}

/// Makes all neighbour entries permanent. A change of any neighbour wakes all callers that wait for an
/// address, so only our own changes may happen.
fn know_neighbours() -> Result<()> {
    for target in NEAR.iter().chain(&FAR) {
        eventually(|| rig::run(Place::Here, &["ping", "-n", "-c", "1", "-W", "5", target]))?;
    }
    for place in [Place::Here, R, B, N] {
        let shown: Value = serde_json::from_str(&rig::ip(place, "-json neighbour show")?)?;
        for entry in shown.as_array().context("no list of neighbours")? {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            let (address, device, hardware) = (text("dst"), text("dev"), text("lladdr"));
            let is_permanent = entry["state"][0] == "PERMANENT";
            if !hardware.is_empty() && !is_permanent {
                rig::ip(
                    place,
                    &format!(
                        "neighbour replace {address} lladdr {hardware} dev {device} nud permanent"
                    ),
                )?;
            }
        }
    }
    Ok(())
}

fn kernel_alone(times: &mut Times) -> Result<()> {
    let caller = Caller::patient()?;
    let (rtnetlink, ib0) = (Rtnetlink::open()?, ifindex(INTERFACES[0].name)?);
    for (family, target) in NEAR.into_iter().enumerate() {
        for _ in 0..SAMPLES {
            let rows = [Row::RouteAlone, Row::BothAlone];
            let address = times.resolve(&caller, target, family, rows)?;
            times.add(Row::AddressKnown, family, address);
        }
        for _ in 0..SAMPLES {
            rtnetlink.forget(ib0, target.parse()?)?;
            times.add(Row::AddressArp, family, caller.address(target)?.1);
        }
    }
    know_neighbours()
}

/// Makes ibacm log only errors. The rig's configuration for other scenarios causes a dozen writes a
/// request.
const IBACM_CONFIG: (&str, &str) =
    ("/etc/rdma/ibacm_opts.cfg", "log_file /results/ibacm-daemon.log\nlog_level 0\n");

fn ibacm(times: &mut Times) -> Result<()> {
    let (file, config) = IBACM_CONFIG;
    fs::write(file, config).context(file)?;
    let ibacm = spawn("ibacm", Place::Here, &["ibacm", "-P"])?;
    let lids = [INTERFACES[0].lid()?, INTERFACES[4].lid()?].map(|lid| lid.to_string());
    let [from, to] = &lids;
    let ask = ["ib_acme", "-f", "l", "-s", from, "-d", to, "-c"];
    eventually(|| {
        let said = rig::run(Place::Here, &ask)?;
        ensure!(said.contains("return status 0x0"), "{said}");
        Ok(())
    })?;
    let caller = Caller::patient()?;
    for (family, target) in NEAR.into_iter().enumerate() {
        // The first request asks the SA.
        caller.path_to(target)?;
        for _ in 0..SAMPLES {
            times.resolve(&caller, target, family, [Row::RouteIbacm, Row::BothIbacm])?;
        }
        for _ in 0..SAMPLES {
            let (id, _) = caller.address(target)?;
            thread::sleep(PAUSE);
            times.add(Row::RouteIbacmPaused, family, caller.route(id)?);
        }
    }
    let counted = rig::run(Place::Here, &["ib_acme", "-P"])?;
    Report::note(&counted);
    ibacm.stop().map(drop)
}

fn ibarr(times: &mut Times) -> Result<()> {
    with_ibarr(|here| {
        let caller = Caller::patient()?;
        let samples = u64::try_from(SAMPLES)?;
        let names = [
            "local-service.answered-cache",
            "local-service.answered-peer",
            "paths.found-cache",
            "paths.found-sa",
        ];
        for family in 0..2 {
            let (near, far) = (NEAR[family], FAR[family]);
            // Now ibarr remembers address and path.
            caller.path_to(near)?;
            caller.path_to(far)?;
            let before = counted(here, names)?;
            for _ in 0..SAMPLES {
                times.add(Row::AddressMemory, family, caller.address(far)?.1);
            }
            for _ in 0..SAMPLES {
                thread::sleep(PAUSE);
                times.add(Row::AddressPaused, family, caller.address(far)?.1);
            }
            for took in caller.back_to_back(far, SAMPLES)? {
                times.add(Row::AddressBackToBack, family, took);
            }
            for _ in 0..SAMPLES {
                times.resolve(&caller, near, family, [Row::RouteMemory, Row::BothMemory])?;
            }
            for _ in 0..SAMPLES {
                let (id, _) = caller.address(near)?;
                thread::sleep(PAUSE);
                times.add(Row::RouteMemoryPaused, family, caller.route(id)?);
            }
            let remembered = counted(here, names)?;
            for _ in 0..SAMPLES {
                here.flush()?;
                thread::sleep(AFTER_FLUSH);
                times.add(Row::AddressAsked, family, caller.address(far)?.1);
            }
            for _ in 0..SAMPLES {
                here.flush()?;
                thread::sleep(AFTER_FLUSH);
                let (id, _) = caller.address(near)?;
                times.add(Row::RouteAsked, family, caller.route(id)?);
            }
            let asked = counted(here, names)?;
            let said = differences(before, remembered);
            ensure!(said == [3 * samples, 0, 2 * samples, 0], "from memory: {said:?} of {names:?}");
            let said = differences(remembered, asked);
            ensure!(said == [0, samples, 0, samples], "asked for: {said:?} of {names:?}");
        }
        Ok(())
    })
}

/// The command that runs [`crate::like_c`] for a port.
pub(crate) const LIKE_C: &str = "like-c";

fn like_c(times: &mut Times) -> Result<()> {
    let requests = (NEAR.len() * SAMPLES).to_string();
    let server = spawn(LIKE_C, Place::Here, &[OWN, LIKE_C, INTERFACES[0].port, &requests])?;
    eventually(|| {
        // What an earlier round said is there, too.
        ensure!(server.said()?.trim_end().ends_with(READY), "it has not joined the group");
        Ok(())
    })?;
    let caller = Caller::patient()?;
    for (family, target) in NEAR.into_iter().enumerate() {
        for _ in 0..SAMPLES {
            let (id, _) = caller.address(target)?;
            times.add(Row::RouteLikeC, family, caller.route(id)?);
        }
    }
    // It has answered each of them.
    ensure!(server.wait(Duration::from_secs(10))?.success(), "it has failed");
    Ok(())
}

/// Runs `work` with a daemon at each end.
fn with_ibarr(work: impl FnOnce(&Ibarr) -> Result<()>) -> Result<()> {
    let there = Ibarr::start("b", B, "", 1)?;
    let here = Ibarr::start("here", Place::Here, "", 1)?;
    eventually(|| {
        let ports = here.ask(&Request::Ports)?.to_string();
        ensure!(ports.contains("\"port\":\"ibtun0/1\"") && !ports.contains("blocked"), "{ports}");
        Ok(())
    })?;
    let outcome = work(&here);
    here.stop().and(there.stop()).and(outcome)
}

/// Resolves addresses and routes, of both families in turn.
fn in_turn() -> Result<()> {
    let caller = Caller::patient()?;
    let began = Instant::now();
    for (number, target) in FAR.into_iter().cycle().take(IN_TURN).enumerate() {
        caller.path_to(target).with_context(|| format!("resolve {number}"))?;
    }
    let took = began.elapsed().as_secs_f64();
    Report::note(format_args!("{IN_TURN} addresses and their routes, in turn: {took:.2} s"));
    Ok(())
}

fn at_once(here: &Ibarr) -> Result<()> {
    // The daemon of the claim before has left its answers in the map.
    here.flush()?;
    let names = [
        "ip2gid.client.queries",
        "ip2gid.client.resends",
        "local-service.duplicates-waiting",
        "local-service.duplicates-answered",
        "local-service.nudges",
        "local-service.nudges-repeated",
    ];
    let before = counted(here, names)?;
    let caller = Caller::patient()?;
    let began = Instant::now();
    let mut waiting = Vec::new();
    for target in FAR.into_iter().cycle().take(AT_ONCE) {
        waiting.push(caller.start(target)?);
    }
    while !waiting.is_empty() {
        let (id, status) = caller.end(EventKind::AddrResolved, EventKind::AddrError)?;
        ensure!(status == 0, "not resolved: {status}");
        let place = waiting.iter().position(|one| *one == id).context("one ended twice")?;
        waiting.swap_remove(place);
    }
    let took = began.elapsed().as_secs_f64() * 1e3;
    let [queries, resends, waited, answered, nudges, repeated] =
        differences(before, counted(here, names)?);
    ensure!(queries == 2, "{queries} questions for two addresses");
    Report::note(format_args!(
        "{AT_ONCE} addresses at once, {took:.1} ms for all: peers were asked {} times; {} nudges \
         made the kernel ask {} times again",
        queries + resends,
        nudges + repeated,
        waited + answered,
    ));
    Ok(())
}

/// The values of some counters.
pub(crate) fn counted<const N: usize>(ibarr: &Ibarr, names: [&str; N]) -> Result<[u64; N]> {
    let counters = ibarr.ask(&Request::Counters)?;
    let mut counts = [0; N];
    for (count, name) in counts.iter_mut().zip(names) {
        *count = counters["counters"][name].as_u64().with_context(|| format!("no {name}"))?;
    }
    Ok(counts)
}

pub(crate) fn differences<const N: usize>(mut from: [u64; N], to: [u64; N]) -> [u64; N] {
    from.iter_mut().zip(to).for_each(|(from, to)| *from = to - *from);
    from
}
