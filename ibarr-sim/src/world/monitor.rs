// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What has happened to a daemon. `health.rs` compares it with what the health of the daemon says.

use std::collections::BTreeMap;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::Fault;
use ibarr_proto::health::Cause;
use ibarr_proto::local_service::Nudged;

use crate::bugs::SILENCES;

/// What has happened to a daemon.
#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) started: Instant,
    /// How long the daemon waits for its SA at first.
    patience: Duration,
    pub(super) nudges_fail: Option<Fault>,
    pub(super) unanswered: Option<Unanswered>,
    /// The daemon's port or SA has changed while the SA was silent, and it has not answered since.
    pub(super) unproven: Option<Unproven>,
    pub(super) periods: BTreeMap<Cause, Period>,
    /// When the daemon was last seen to tell that no programs are loaded.
    pub(super) not_loaded_told: Instant,
}

/// MADs that the SA has not answered since its last answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unanswered {
    pub(super) since: Instant,
    /// When the last one left.
    pub(super) last: Instant,
    /// When the first one left for which the daemon knew that earlier ones had waited too long.
    pub(super) again: Option<Instant>,
    pub(super) mads: u32,
    /// How many of them left with the last one.
    pub(super) newest: u32,
    pub(super) busy: bool,
    /// Whether an assessment since then has told it.
    pub(super) told: bool,
}

/// What the daemon says of an SA whose state is unknown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Unproven {
    /// It may say that the SA is silent, or not.
    May,
    /// It has said so, and must not say that the silence has ended.
    Must,
}

/// When a cause was there: since when it is there now, and when it was last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    pub(super) since: Option<Instant>,
    pub(super) until: Instant,
}

impl Monitor {
    pub(super) fn new(now: Instant, patience: Duration) -> Self {
        Self {
            started: now,
            patience,
            nudges_fail: None,
            unanswered: None,
            unproven: None,
            periods: BTreeMap::new(),
            not_loaded_told: Instant::BOOT,
        }
    }

    /// A nudge was made.
    pub(super) fn nudges(&mut self, nudged: Nudged) {
        self.nudges_fail = match nudged {
            Nudged::Failed => Some(Fault::new("no right")),
            Nudged::Done => None,
            Nudged::Postponed => return,
        };
    }

    /// A MAD leaves.
    pub(super) fn asks(&mut self, now: Instant) {
        let unanswered = self.unanswered.get_or_insert(Unanswered {
            since: now,
            last: now,
            again: None,
            mads: 0,
            newest: 0,
            busy: false,
            told: false,
        });
        unanswered.newest = if unanswered.last == now { unanswered.newest + 1 } else { 1 };
        unanswered.last = now;
        unanswered.mads += 1;
        if unanswered.since + self.patience <= now {
            unanswered.again.get_or_insert(now);
        }
    }

    /// The SA has answered. That says nothing of the MADs which left in the same turn.
    pub(super) fn hears(&mut self, now: Instant) {
        self.unproven = None;
        let newest = self
            .unanswered
            .filter(|unanswered| unanswered.last == now)
            .map_or(0, |unanswered| unanswered.newest);
        self.unanswered = None;
        for _ in 0..newest {
            self.asks(now);
        }
    }

    /// The daemon does not know any more what it has asked its SA. Without facts, the port has gone.
    pub(super) fn forgets_sa(&mut self, has_port: bool) {
        let unanswered = self.unanswered.take();
        let was_unanswered = unanswered.is_some() || self.unproven.is_some();
        let is_told = unanswered.is_some_and(|unanswered| unanswered.told)
            || self.unproven == Some(Unproven::Must);
        let unproven = if is_told && has_port { Unproven::Must } else { Unproven::May };
        self.unproven = was_unanswered.then_some(unproven);
    }

    pub(super) fn observe(&mut self, now: Instant, wrong: &[Cause]) {
        // A cause of these may be reported here. Only a cause that is there must be.
        let may_be_silent = if self.unproven.is_some() { &SILENCES[..] } else { &[] };
        for &cause in wrong.iter().chain(may_be_silent) {
            let new = Period { since: None, until: now };
            let period = self.periods.entry(cause).or_insert(new);
            period.until = period.until.max(now);
        }
        for (cause, period) in &mut self.periods {
            period.since = wrong.contains(cause).then(|| period.since.unwrap_or(now));
        }
    }
}
