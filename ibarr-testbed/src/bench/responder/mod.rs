// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench responder`: the costs of an answer in the kernel, compared with other answers.
//!
//! There are two kinds of measurement. [`costs`] runs the programs by `BPF_PROG_TEST_RUN`, one frame a
//! run. Nanoseconds are the kernel's own account, which includes the cost of counting, so an empty program
//! is measured as well. [`wire`] has a daemon on a node and a client at the other end of its wire.

mod bulk;
mod costs;
mod flood;
mod frame;
mod programs;
mod report;
mod wire;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ibarr_proto::ip2gid::Family;

use self::bulk::{Attached, Streams};
use self::flood::Flooded;
pub use self::report::Report;
use self::wire::{Server, Wire};
use super::load::Latencies;
use crate::interrupt::Interrupt;
use crate::lab::Store;

/// Measures the responder, in a lab of its own, which is removed in any case.
///
/// # Errors
/// The kernel refuses something (it takes root, and Linux 5.18), or a query is not answered.
pub fn responder(
    store: &Store,
    ibarr: &Path,
    quick: bool,
    interrupt: &Interrupt,
) -> Result<Report> {
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let costs = costs::measure(&effort, interrupt)?;
    let mut wire = Wire::up(store, ibarr, interrupt)?;
    let bulk = bulk_rounds(&wire, &effort, interrupt)?;
    wire.tune()?;
    let served = serve_rounds(&mut wire, &effort, interrupt)?;
    let rests = [Server::Tc, Server::Xdp]
        .into_iter()
        .map(|server| at_rest(&mut wire, server, &effort, interrupt))
        .collect::<Result<Vec<_>>>()?;
    wire.down()?;
    Report::new(quick, &effort, &costs, &served, &rests, &bulk)
}

struct Effort {
    cost_rounds: usize,
    /// Runs of a program in a round.
    runs: u32,
    rounds: usize,
    flood: Duration,
    open_loop: Duration,
    bulk_rounds: usize,
    bulk: Duration,
    /// Answers in the kernel while the daemon is watched.
    answers: u64,
}

impl Effort {
    const FULL: Self = Self {
        cost_rounds: 101,
        runs: 10_000,
        rounds: 7,
        flood: Duration::from_millis(500),
        open_loop: Duration::from_millis(500),
        bulk_rounds: 9,
        bulk: Duration::from_millis(500),
        answers: 1_000_000,
    };
    /// Shows that the bench works, and the order of magnitude.
    const QUICK: Self = Self {
        cost_rounds: 3,
        runs: 1_000,
        rounds: 1,
        flood: Duration::from_millis(100),
        open_loop: Duration::from_millis(100),
        bulk_rounds: 1,
        bulk: Duration::from_millis(100),
        answers: 20_000,
    };
}

/// Queries a second: few enough that none waits for another.
const OPEN_LOOP_RATE: u32 = 10_000;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// One server, asked over one family. Rounds with the same index are neighbours in time.
struct Served {
    server: Server,
    family: Family,
    floods: Vec<Flooded>,
    /// Floods of the generator alone.
    generator: Vec<Flooded>,
    latencies: Latencies,
}

fn serve_rounds(wire: &mut Wire, effort: &Effort, interrupt: &Interrupt) -> Result<Vec<Served>> {
    eprintln!("bench: answers on a wire, {} rounds of each server …", effort.rounds);
    let mut all = Vec::new();
    for server in Server::ALL {
        for family in FAMILIES {
            let (floods, generator, latencies) = (Vec::new(), Vec::new(), Latencies::none());
            all.push(Served { server, family, floods, generator, latencies });
        }
    }
    for _ in 0..effort.rounds {
        wire.serve(Server::User, interrupt)?;
        let mut alone = Vec::new();
        for family in FAMILIES {
            alone.push(wire.generator(family, effort.flood, interrupt)?);
        }
        for of_server in all.chunks_mut(FAMILIES.len()) {
            wire.serve(of_server[0].server, interrupt)?;
            for (Served { family, floods, generator, latencies, .. }, alone) in
                of_server.iter_mut().zip(&alone)
            {
                interrupt.check()?;
                floods.push(wire.flood(*family, effort.flood, interrupt)?);
                generator.push(*alone);
                latencies.merge(wire.open_loop(*family, OPEN_LOOP_RATE, effort.open_loop)?);
            }
        }
    }
    Ok(all)
}

/// The daemon while the kernel answers, and for as long without queries.
struct Rest {
    server: Server,
    answers: u64,
    wall: Duration,
    /// CPU time and context switches.
    busy: (Duration, u64),
    idle: (Duration, u64),
}

fn at_rest(
    wire: &mut Wire,
    server: Server,
    effort: &Effort,
    interrupt: &Interrupt,
) -> Result<Rest> {
    eprintln!("bench: the daemon while {} gives {} answers …", server.name(), effort.answers);
    wire.serve(server, interrupt)?;
    wire.put_on_client("sink_xdp")?;
    // The daemon's work after the change is done.
    thread::sleep(SETTLED_AFTER);
    let used = |wire: &Wire, since: (Duration, u64)| -> Result<(Duration, u64)> {
        let (cpu, switches) = wire.daemon_use()?;
        Ok((cpu.saturating_sub(since.0), switches - since.1))
    };
    let (start, before) = (Instant::now(), wire.daemon_use()?);
    let mut answers = 0;
    while answers < effort.answers && start.elapsed() < AT_MOST {
        answers += wire.flood_sink(Family::V4, effort.flood, interrupt)?.answers;
    }
    let (wall, busy) = (start.elapsed(), used(wire, before)?);
    let before = wire.daemon_use()?;
    interrupt.sleep(wall)?;
    let idle = used(wire, before)?;
    wire.put_on_client("empty_xdp")?;
    Ok(Rest { server, answers, wall, busy, idle })
}

/// On a busy machine there are fewer answers in this time.
const AT_MOST: Duration = Duration::from_secs(30);

/// The daemon looks at its interfaces again for some time after a change.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Bytes a second with one attached program, over one family, round by round.
struct Bulk {
    attached: Attached,
    family: Family,
    rates: Vec<f64>,
}

fn bulk_rounds(wire: &Wire, effort: &Effort, interrupt: &Interrupt) -> Result<Vec<Bulk>> {
    eprintln!("bench: a TCP stream, {} rounds …", effort.bulk_rounds);
    let mut all = Vec::new();
    for family in FAMILIES {
        all.extend(Attached::ALL.map(|attached| Bulk { attached, family, rates: Vec::new() }));
    }
    let mut streams = Streams::load(wire)?;
    for _ in 0..effort.bulk_rounds {
        for Bulk { attached, family, rates } in &mut all {
            interrupt.check()?;
            rates.push(streams.measure(*attached, *family, effort.bulk)?);
        }
    }
    Ok(all)
}
