// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run c`: many addresses behind a router, asked for at once, first when nothing has been sent to the
//! router yet, and again when it has answered.

use std::fmt::Write as _;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::report::Report;
use crate::rig::{self, B, Caller, INTERFACES, Ibarr, R, eventually};
use crate::sys::rdma_cm::EventKind;
use crate::timings::{counted, differences};

/// Number of addresses.
const PEERS: usize = 200;
const COMMANDS: &str = "/results/peers";

/// The addresses, all of the node behind the router.
fn peers() -> impl Iterator<Item = String> {
    (1..=PEERS).map(|host| format!("10.2.0.{}", host + 20))
}

/// To be called before the daemon starts there. The router knows its neighbours, because 200 nodes would answer it
/// at the same time; one node that has so many addresses has to find the way to the router first, and loses most answers.
pub(crate) fn add_peers() -> Result<()> {
    let [_, there, _, router, _] = INTERFACES.map(|interface| interface.name);
    let shown: Value = serde_json::from_str(&rig::ip(B, &format!("-json link show {there}"))?)?;
    let hardware = shown[0]["address"].as_str().context("no hardware address")?;
    let (mut addresses, mut neighbours) = (String::new(), String::new());
    for peer in peers() {
        writeln!(addresses, "address add {peer}/24 dev {there}")?;
        writeln!(neighbours, "neighbour add {peer} lladdr {hardware} dev {router} nud permanent")?;
    }
    for (place, commands) in [(B, addresses), (R, neighbours)] {
        fs::write(COMMANDS, commands)?;
        rig::run(place, &["ip", "-batch", COMMANDS])?;
    }
    eventually(|| rig::run(B, &["ping", "-n", "-c", "1", "-W", "5", "10.2.0.254"])).map(drop)
}

/// A daemon that starts reads all tables of its ports, and again after a second. That takes 100 ms of the only processor.
const START: Duration = Duration::from_secs(3);

/// Two bursts, and what they took.
pub(crate) fn prove(here: &Ibarr) -> Result<()> {
    thread::sleep(START);
    for (time, name) in ["the first time", "again"].into_iter().enumerate() {
        let names = ["ip2gid.client.queries", "ip2gid.client.resends"];
        let before = counted(here, names)?;
        let times = burst()?;
        let [questions, resends] = differences(before, counted(here, names)?);
        ensure!(questions == u64::try_from(PEERS)?, "{questions} questions for {PEERS} addresses");
        let at = |percent: usize| times[(PEERS - 1) * percent / 100].as_secs_f64() * 1e3;
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        let queries = (questions + resends) as f64 / PEERS as f64;
        let said = format!(
            "{PEERS} peers at once, {name}: median {:.0} ms, 90th percentile {:.0} ms, last {:.0} ms; \
             {queries:.2} queries a question",
            at(50),
            at(90),
            at(100)
        );
        Report::note(&said);
        if time == 0 {
            let met = if queries <= 1.05 && at(50) <= 220.0 { "met" } else { "missed" };
            Report::figure(format!("{said}; the aims are at most 220 ms and 1.05: {met}"));
        }
        here.flush()?;
    }
    Ok(())
}

/// Asks for all, and returns how long after the first request each was answered, in their order.
fn burst() -> Result<Vec<Duration>> {
    let caller = Caller::patient()?;
    let began = Instant::now();
    for peer in peers() {
        caller.start(&peer)?;
    }
    (0..PEERS)
        .map(|_| {
            let (_, status) = caller.end(EventKind::AddrResolved, EventKind::AddrError)?;
            ensure!(status == 0, "not resolved: {status}");
            Ok(began.elapsed())
        })
        .collect()
}
