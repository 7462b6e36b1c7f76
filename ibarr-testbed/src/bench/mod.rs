// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench`: the costs of ibarr, compared with what the machine allows.
//!
//! Machines differ, so ratios within one run come first. [`ip2gid`](fn@ip2gid) compares the daemon with a
//! UDP echo server that runs beside it, is loaded in turn with it, and moves datagrams with the same code.

pub mod acm_echo;
pub mod echo;
pub mod like_c;

mod acm;
mod addresses;
mod answers;
mod cache;
mod fleet;
mod flood;
mod instructions;
mod load;
mod local_service;
mod metrics;
mod paths;
mod preload;
mod process;
mod report;
mod resolve;
mod responder;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::wire::ip2gid::PORT;

use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabName, Plan, Store, TemporaryLab};
use load::Load;
use process::Helper;
use report::{Round, Target};

pub use acm::{What, acm, clients as acm_clients};
pub use addresses::addresses;
pub use answers::answers;
pub use fleet::fleet;
pub use instructions::{Counted, instructions};
pub use local_service::echo as echo_local_service;
pub use paths::paths;
pub use preload::preload;
pub use report::Report;
pub use resolve::resolve;
pub use responder::responder;

/// Measures ip2gid in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or a server answers wrongly.
pub fn ip2gid(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let lab = lab(store, 2, false, ibarr, interrupt)?;
    let mut report = Report::new("ip2gid", quick)?;
    let [server, client] = lab.plan().nodes.as_slice() else { bail!("a lab of two nodes") };
    let echo = ["bench", "echo", "--port", &(PORT + 1).to_string()].map(str::to_owned);
    let echo = Helper::start(&server.namespace, &echo)?;
    let daemon = lab.state().daemons.iter().find(|daemon| daemon.node == server.name);
    let daemon = daemon.context("the daemon was started")?.process.pid;
    process::pin(&[daemon, echo.pid()])?;

    let [target, _] = server.addresses;
    let IpAddr::V4(octets) = target else { bail!("IPv4 comes first") };
    let load =
        |port, ending: &[u8]| Load::new(&client.namespace, SocketAddr::new(target, port), ending);
    // An echo ends as the query does, in the address that is asked for.
    let servers = [
        (daemon, load(PORT, &server.gid()?.octets())?),
        (echo.pid(), load(PORT + 1, &octets.octets())?),
    ];
    let [ours, theirs] = in_turn(quick, interrupt, |index, time| {
        let (pid, load) = &servers[index];
        let cpu = process::cpu_time(*pid)?;
        let (answers, wall) = load.closed_loop(time, interrupt)?;
        let cpu = process::cpu_time(*pid)?.saturating_sub(cpu);
        ensure!(!cpu.is_zero(), "a server answers without using a CPU");
        Ok(Round { answers: f64::from(u32::try_from(answers)?), wall, cpu })
    })?;
    report.compare("ibarr", &ours, &theirs, Some(Target::AtLeast(0.8)))?;
    drop((servers, echo));
    lab.down()?;
    metrics::metrics(store, ibarr, &mut report, quick, interrupt)?;
    cache::peers(quick, &mut report)?;
    Ok(report)
}

/// A lab that is removed in any case.
fn lab(
    store: &Store,
    nodes: u8,
    router: bool,
    ibarr: &Path,
    interrupt: &Interrupt,
) -> Result<TemporaryLab> {
    let name: LabName = format!("bench-{}", std::process::id()).parse()?;
    Ok(TemporaryLab::new(Lab::up(store, Plan::new(name, nodes, router)?, ibarr, interrupt)?))
}

/// Rounds of `N` servers in turn. Rounds with the same index are neighbours in time.
fn in_turn<const N: usize>(
    quick: bool,
    interrupt: &Interrupt,
    mut round: impl FnMut(usize, Duration) -> Result<Round>,
) -> Result<[Vec<Round>; N]> {
    let (count, time) =
        if quick { (3, Duration::from_millis(200)) } else { (11, Duration::from_secs(1)) };
    eprintln!("bench: {count} rounds of {time:?} for each of {N} …");
    let mut all = [const { Vec::new() }; N];
    // One more, because the first warms caches and neighbour tables.
    for turn in 0..=count {
        for (index, rounds) in all.iter_mut().enumerate() {
            interrupt.check()?;
            let measured = round(index, time)?;
            if turn > 0 {
                rounds.push(measured);
            }
        }
    }
    Ok(all)
}
