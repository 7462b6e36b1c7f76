// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The time of a run of each program, by the kernel's own account.

use anyhow::Result;

use super::Effort;
use super::programs::{Hook, Maps, Programs};
use crate::interrupt::Interrupt;

/// A program and its frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Case {
    pub(super) hook: Hook,
    pub(super) program: &'static str,
    pub(super) ipv6: bool,
    /// The maps of the program.
    pub(super) maps: Maps,
    /// Whether each query is for another address of the whole map, in no order, or all are for one.
    pub(super) scattered: bool,
}

impl Case {
    /// Whether it is the whole responder.
    pub(super) fn is_ours(&self) -> bool {
        self.program.starts_with("ip2gid_")
    }

    /// The program's verdict for each frame. A program that passes a frame would look too fast.
    pub(super) fn action(&self) -> u32 {
        let passes = self.program.starts_with("empty_");
        match self.hook {
            Hook::Tc if passes => TC_ACT_UNSPEC,
            Hook::Tc => TC_ACT_REDIRECT,
            Hook::Xdp if passes => XDP_PASS,
            Hook::Xdp => XDP_TX,
        }
    }
}

/// Nanoseconds a run of a case, round by round. Rounds with the same index are neighbours in time.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    pub(super) case: Case,
    pub(super) rounds: Vec<f64>,
}

/// From include/uapi/linux/pkt_cls.h and bpf.h.
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
    // One more, because the first warms caches.
    for round in 0..=rounds {
        for cost in &mut costs {
            interrupt.check()?;
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
    cases
}
