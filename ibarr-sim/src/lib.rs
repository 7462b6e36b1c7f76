// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The surroundings of a daemon without I/O: the kernel's RDMA core ([`kernel`]), a
//! subnet administrator ([`sa`]), and whole networks of nodes on a virtual clock.
//!
//! A seed determines a simulation: its nodes, their requests, and the faults. The cores are those
//! of the product, wired as in the product ([`ibarr_proto::node`]). The same seed gives the same
//! bytes at the same times, so a broken claim can be reproduced with a trace.

#![forbid(unsafe_code)]

pub mod kernel;
pub mod sa;
pub mod sa_load;

mod bugs;
mod counts;
mod dice;
mod netlink;
mod record;
mod runs;
mod world;

use std::fmt;
use std::time::Duration;

pub use bugs::Bug;
pub use counts::Counts;
pub use record::Netlink;
pub use runs::{Runs, run_all};

use crate::dice::Dice;
use crate::record::{Line, START};
use crate::world::Broken;

/// The size of a simulation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Plan {
    pub nodes: usize,
    /// Duration of the requests and faults.
    pub time: Duration,
    /// Duration of the following time without requests, in which everything ends.
    pub quiet: Duration,
    /// Crowds of callers, which take most of the time.
    pub crowds: bool,
}

impl Plan {
    /// A network for a fuzzer, which wants many and short histories.
    pub const SMALL: Self = Self {
        nodes: 3,
        time: Duration::from_secs(30),
        quiet: Duration::from_secs(230),
        crowds: false,
    };
}

impl Default for Plan {
    /// 20 nodes for 10 minutes.
    fn default() -> Self {
        Self {
            nodes: 20,
            time: Duration::from_mins(10),
            quiet: Duration::from_secs(200),
            crowds: true,
        }
    }
}

/// The result of a simulation in which every claim held.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Report {
    /// Hash of all events with their times.
    pub hash: u64,
    /// Counts of the events.
    pub counts: Counts,
}

#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Failure {
    /// Seed of the simulation.
    pub seed: u64,
    /// Time since its beginning.
    pub after: Duration,
    pub claim: String,
    /// The preceding events of the machines concerned.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        let Self { seed, after, claim, .. } = self;
        write!(f, "seed {seed}, after {:.6} s: {claim}", after.as_secs_f64())
    }
}

/// Runs a simulation.
///
/// # Errors
/// The first broken claim. The simulation is then run again for a trace.
pub fn run(seed: u64, plan: Plan, bug: Option<Bug>) -> Result<Report, Failure> {
    run_with(&|| Dice::new(seed), seed, plan, bug)
}

/// Runs the simulation that a script decides, byte by byte, and its first byte as a seed after the last one.
///
/// # Errors
/// The first broken claim. The simulation is then run again for a trace.
pub fn run_script(script: &[u8], plan: Plan, bug: Option<Bug>) -> Result<Report, Failure> {
    let seed = script.first().copied().unwrap_or_default().into();
    run_with(&|| Dice::of_script(script), seed, plan, bug)
}

fn run_with(
    dice: &dyn Fn() -> Dice,
    seed: u64,
    plan: Plan,
    bug: Option<Bug>,
) -> Result<Report, Failure> {
    let ended = world::run(dice(), plan, bug, false);
    let Some(broken) = ended.broken else {
        return Ok(Report { hash: ended.record.hash(), counts: ended.counts });
    };
    let lines = world::run(dice(), plan, bug, true).record.into_lines();
    let trace = end_of_trace(lines, &broken);
    Err(Failure { seed, after: broken.at.since(START), claim: broken.claim, trace })
}

/// All events of a simulation, one line each.
pub fn full_trace(seed: u64, plan: Plan, bug: Option<Bug>) -> Vec<String> {
    let lines = world::run(Dice::new(seed), plan, bug, true).record.into_lines();
    lines.into_iter().map(|line| line.text).collect()
}

/// The last lines about the machines concerned.
fn end_of_trace(lines: Vec<Line>, broken: &Broken) -> Vec<String> {
    const LINES: usize = 80;
    let concerns = |id: Option<usize>| id.is_some() && broken.about.contains(&id);
    let mut last: Vec<_> = lines
        .into_iter()
        .rev()
        .filter(|line| line.about.into_iter().any(concerns))
        .take(LINES)
        .map(|line| line.text)
        .collect();
    last.reverse();
    last
}
