// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Rounds of servers that are loaded in turn, and their ratios and medians.

use std::time::Duration;

use serde::Serialize;

use super::report::median;

/// One server's share of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) answers: f64,
    pub(super) wall: Duration,
    /// CPU time of all threads of the server.
    pub(super) cpu: Duration,
}

impl Round {
    pub(super) fn rate(&self) -> f64 {
        self.answers / self.wall.as_secs_f64()
    }

    pub(super) fn rate_per_cpu(&self) -> f64 {
        self.answers / self.cpu.as_secs_f64()
    }
}

/// The median of the ratios of neighbouring rounds, so that a disturbance of both does not count.
pub(super) fn ratio(ours: &[Round], theirs: &[Round], of: fn(&Round) -> f64) -> Option<f64> {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| of(ours) / of(theirs)))
}

/// Medians over a server's rounds.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    pub(super) answers_per_second: f64,
    pub(super) cpu_us_per_answer: f64,
    /// CPU time divided by wall time.
    pub(super) busy: f64,
}

impl Rates {
    pub(super) fn new(rounds: &[Round]) -> Option<Self> {
        Some(Self {
            answers_per_second: median(rounds.iter().map(Round::rate))?,
            cpu_us_per_answer: median(rounds.iter().map(|round| 1e6 / round.rate_per_cpu()))?,
            busy: median(rounds.iter().map(|r| r.cpu.as_secs_f64() / r.wall.as_secs_f64()))?,
        })
    }
}
