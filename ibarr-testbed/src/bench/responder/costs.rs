// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a run of each program takes, by the kernel's own account.

use anyhow::Result;

use super::Effort;
use super::programs::{Hook, Maps, Programs};
use crate::interrupt::Interrupt;

/// What is run, and on what.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Case {
    pub(super) hook: Hook,
    pub(super) program: &'static str,
    pub(super) ipv6: bool,
    /// Whose maps it has.
    pub(super) maps: Maps,
    /// Whether each query is for another address of the whole map, in no order, or all for one.
    pub(super) scattered: bool,
}

impl Case {
    /// Whether it is the responder, whole.
    pub(super) fn is_ours(&self) -> bool {
        self.program.starts_with("ip2gid_")
    }

    /// What the program says to be done with each frame: one that passes it flatters itself.
    pub(super) fn action(&self) -> u32 {
        let passes = self.program.starts_with("empty_");
        match self.hook {
            Hook::Tc if passes => TC_ACT_UNSPEC,
            Hook::Tc => TC_ACT_REDIRECT,
            Hook::Xdp if passes => XDP_PASS,
            Hook::Xdp => XDP_TX,
        }
    }

    /// The part that the responder lacks here, or nothing.
    pub(super) fn lacks(&self) -> Option<&'static str> {
        PARTS.iter().find(|(program, _)| *program == self.program).map(|(_, part)| *part)
    }
}

/// Nanoseconds a run of a case, round by round; those of the same index are neighbours in time.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    pub(super) case: Case,
    pub(super) rounds: Vec<f64>,
}

/// Programs that lack one part of the responder, and what that is.
pub(super) const PARTS: [(&str, &str); 10] = [
    ("whole_xdp", "nothing"),
    ("no_source_xdp", "is the source ours?"),
    ("no_lease_xdp", "is the lease over?"),
    ("no_interface_xdp", "interface look-up"),
    ("no_entry_xdp", "address look-up"),
    ("no_count_xdp", "the counter"),
    ("no_maps_xdp", "all of these"),
    ("no_own_bits_xdp", "own_bits: the source is looked up"),
    ("no_tick_xdp", "the tick: the clock is read"),
    ("routed_xdp", "a way back for all: routes are asked"),
];

/// Of include/uapi/linux/pkt_cls.h and bpf.h.
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_REDIRECT: u32 = 7;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

/// Runs every program in turn, round by round.
pub(super) fn measure(effort: &Effort, interrupt: &Interrupt) -> Result<Vec<Cost>> {
    let (rounds, runs) = (effort.cost_rounds, effort.runs);
    let mut programs = Programs::load()?;
    let mut costs: Vec<_> =
        cases().into_iter().map(|case| Cost { case, rounds: Vec::new() }).collect();
    eprintln!("bench: {} programs, {rounds} rounds of {runs} runs of each …", costs.len());
    // One more: the first warms caches.
    for round in 0..=rounds {
        for cost in &mut costs {
            interrupt.check()?;
            // What parts cost is a difference of neighbours: a quarter of the runs is enough.
            let runs = if cost.case.lacks().is_some() { runs / 4 } else { runs };
            let nanos = programs.run(&cost.case, runs)?;
            if round > 0 {
                cost.rounds.push(nanos);
            }
        }
    }
    Ok(costs)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |hook, program, ipv6, maps, scattered| {
        cases.push(Case { hook, program, ipv6, maps, scattered });
    };
    for (hook, [empty, bounce, rewrite, ours]) in [
        (Hook::Tc, ["empty_tc", "bounce_tc", "rewrite_tc", "ip2gid_tc"]),
        (Hook::Xdp, ["empty_xdp", "bounce_xdp", "rewrite_xdp", "ip2gid_xdp"]),
    ] {
        for ipv6 in [false, true] {
            for program in [empty, bounce, rewrite] {
                add(hook, program, ipv6, Maps::Bench, false);
            }
            for maps in [Maps::Small, Maps::Large] {
                for scattered in [false, true] {
                    add(hook, ours, ipv6, maps, scattered);
                }
            }
        }
    }
    for ipv6 in [false, true] {
        for (program, _) in PARTS {
            add(Hook::Xdp, program, ipv6, Maps::Bench, false);
        }
    }
    cases
}
