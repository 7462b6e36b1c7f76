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
    pub(super) deaf: Option<Deaf>,
    /// The daemon's port or SA has changed while the SA was silent, and it has not answered since.
    pub(super) unproven: Option<Unproven>,
    pub(super) spells: BTreeMap<Cause, Spell>,
}

/// MADs that the SA has not answered since its last answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deaf {
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
pub(super) struct Spell {
    pub(super) since: Option<Instant>,
    pub(super) until: Instant,
}

impl Monitor {
    pub(super) fn new(now: Instant, patience: Duration) -> Self {
        Self {
            started: now,
            patience,
            nudges_fail: None,
            deaf: None,
            unproven: None,
            spells: BTreeMap::new(),
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
        let deaf = self.deaf.get_or_insert(Deaf {
            since: now,
            last: now,
            again: None,
            mads: 0,
            newest: 0,
            busy: false,
            told: false,
        });
        deaf.newest = if deaf.last == now { deaf.newest + 1 } else { 1 };
        deaf.last = now;
        deaf.mads += 1;
        if deaf.since + self.patience <= now {
            deaf.again.get_or_insert(now);
        }
    }

    /// The SA has answered. That says nothing of the MADs which left in the same turn.
    pub(super) fn hears(&mut self, now: Instant) {
        self.unproven = None;
        let newest = self.deaf.filter(|deaf| deaf.last == now).map_or(0, |deaf| deaf.newest);
        self.deaf = None;
        for _ in 0..newest {
            self.asks(now);
        }
    }

    /// The daemon does not know any more what it has asked its SA. Without facts, the port has gone.
    pub(super) fn forgets_sa(&mut self, has_port: bool) {
        let deaf = self.deaf.take();
        let was_deaf = deaf.is_some() || self.unproven.is_some();
        let is_told = deaf.is_some_and(|deaf| deaf.told) || self.unproven == Some(Unproven::Must);
        let unproven = if is_told && has_port { Unproven::Must } else { Unproven::May };
        self.unproven = was_deaf.then_some(unproven);
    }

    pub(super) fn observe(&mut self, now: Instant, wrong: &[Cause]) {
        // A cause of these may be reported here. Only a cause that is there must be.
        let may_be_silent = if self.unproven.is_some() { &SILENCES[..] } else { &[] };
        for &cause in wrong.iter().chain(may_be_silent) {
            let new = Spell { since: None, until: now };
            let spell = self.spells.entry(cause).or_insert(new);
            spell.until = spell.until.max(now);
        }
        for (cause, spell) in &mut self.spells {
            spell.since = wrong.contains(cause).then(|| spell.since.unwrap_or(now));
        }
    }
}
