// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench responder`: what an answer in the kernel costs.
//!
//! Nanoseconds are the kernel's own account of the programs' runs, which also counts what the
//! counting takes: hence an empty program beside ours. Each run has a frame of its own, from
//! another peer, and no two programs run at once.

mod frame;
mod programs;
mod report;

use anyhow::{Result, ensure};

use self::programs::{Hook, Programs};
pub use self::report::Report;
use crate::interrupt::Interrupt;

/// Measures the programs, which it loads without attaching them.
///
/// # Errors
/// The kernel refuses them (it takes root), or a query is not answered.
pub fn responder(quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let (rounds, runs) = if quick { (3, 2_000) } else { (51, 20_000) };
    eprintln!("bench: {ENTRIES} entries, {rounds} rounds of {runs} runs of each program …");
    let mut programs = Programs::load(ENTRIES)?;
    let mut costs = CASES.map(|case| Cost { case, rounds: Vec::new() });
    // One more: the first warms caches.
    for round in 0..=rounds {
        for cost in &mut costs {
            interrupt.check()?;
            let nanos = programs.run(&cost.case, runs)?;
            if round > 0 {
                cost.rounds.push(nanos);
            }
        }
    }
    let answered = programs.answered()?;
    let queries = u64::from(runs) * u64::try_from(rounds + 1)?;
    let expected = queries * u64::try_from(CASES.iter().filter(|case| case.is_ours()).count())?;
    ensure!(answered == expected, "{answered} of {expected} queries were answered");
    Report::new(quick, rounds, runs, &costs)
}

/// What is run, and on what.
#[derive(Clone, Copy, Debug)]
struct Case {
    hook: Hook,
    program: &'static str,
    ipv6: bool,
    /// Whether each query is for another address of the whole map, in no order, or all for one.
    scattered: bool,
}

impl Case {
    fn is_ours(&self) -> bool {
        self.program.starts_with("ip2gid_")
    }
}

/// Nanoseconds a run of a case, round by round; those of the same index are neighbours in time.
#[derive(Clone, Debug)]
struct Cost {
    case: Case,
    rounds: Vec<f64>,
}

/// Addresses that the node has, half of them of either family.
const ENTRIES: u32 = 100_000;

const CASES: [Case; 12] = {
    const fn case(hook: Hook, program: &'static str, ipv6: bool, scattered: bool) -> Case {
        Case { hook, program, ipv6, scattered }
    }
    [
        case(Hook::Tc, "empty_tc", false, false),
        case(Hook::Tc, "bounce_tc", false, false),
        case(Hook::Tc, "ip2gid_tc", false, false),
        case(Hook::Tc, "ip2gid_tc", false, true),
        case(Hook::Tc, "ip2gid_tc", true, false),
        case(Hook::Tc, "ip2gid_tc", true, true),
        case(Hook::Xdp, "empty_xdp", false, false),
        case(Hook::Xdp, "bounce_xdp", false, false),
        case(Hook::Xdp, "ip2gid_xdp", false, false),
        case(Hook::Xdp, "ip2gid_xdp", false, true),
        case(Hook::Xdp, "ip2gid_xdp", true, false),
        case(Hook::Xdp, "ip2gid_xdp", true, true),
    ]
};
