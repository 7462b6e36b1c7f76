// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The health core of a daemon, and what has happened to the daemon. `health.rs` compares the two.

use std::collections::BTreeMap;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::health::{Cause, Event, Facts, Health, State};
use ibarr_proto::local_service::Nudged;
use ibarr_proto::sa::Shut;

use crate::bugs::Bug;
use crate::dice::secs;

/// The causes of an SA that does not answer.
pub(super) const SILENCES: [Cause; 2] = [Cause::SaSilent, Cause::SaBusy];

/// The health of a daemon, and what has happened to it.
#[derive(Debug)]
pub(super) struct Monitor {
    health: Health,
    bug: Option<Bug>,
    pub(super) started: Instant,
    pub(super) nudges_fail: Option<String>,
    pub(super) deaf: Option<Deaf>,
    /// The daemon's port or SA has changed while the SA was silent, and it has not answered since.
    pub(super) unproven: Option<Unproven>,
    pub(super) spells: BTreeMap<Cause, Spell>,
    /// What the bug has kept.
    silence: Option<Shut>,
}

/// MADs that the SA has not answered since its last answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deaf {
    pub(super) since: Instant,
    /// When the last one left.
    pub(super) last: Instant,
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

/// A daemon looks at its health for the first time after this, even if it is not ready.
pub(super) const READY: Duration = secs(10);

impl Monitor {
    pub(super) fn new(now: Instant, bug: Option<Bug>) -> Self {
        Self {
            health: Health::default(),
            bug,
            started: now,
            nudges_fail: None,
            deaf: None,
            unproven: None,
            spells: BTreeMap::new(),
            silence: None,
        }
    }

    /// Whether an assessment is due at a turn.
    pub(super) fn is_due(&self, now: Instant, is_ready: bool) -> bool {
        match self.health.poll_timeout() {
            Some(_) => self.health.is_due(now),
            None => is_ready || self.started + READY <= now,
        }
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.health.poll_timeout().unwrap_or(self.started + READY)
    }

    /// A nudge was made.
    pub(super) fn nudges(&mut self, nudged: Nudged) {
        self.nudges_fail = match nudged {
            Nudged::Failed => Some("no right".to_owned()),
            Nudged::Done => None,
            Nudged::Postponed => return,
        };
    }

    /// A MAD leaves.
    pub(super) fn asks(&mut self, now: Instant) {
        let deaf = self.deaf.get_or_insert(Deaf {
            since: now,
            last: now,
            mads: 0,
            newest: 0,
            busy: false,
            told: false,
        });
        deaf.newest = if deaf.last == now { deaf.newest + 1 } else { 1 };
        deaf.last = now;
        deaf.mads += 1;
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
        // What may be told is not a spell that must be told.
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

    pub(super) fn assess(&mut self, now: Instant, mut facts: Facts) -> Vec<Event> {
        for port in &mut facts.ports {
            self.silence = port.silence.or(self.silence);
            match self.bug {
                Some(Bug::ForgottenRecovery) => port.silence = self.silence,
                Some(Bug::UnseenSilence) => port.silence = None,
                _ => {}
            }
        }
        self.health.assess(now, &facts);
        let tells_silence = self.tells_silence();
        if let Some(deaf) = &mut self.deaf {
            deaf.told |= tells_silence;
        }
        std::iter::from_fn(|| self.health.poll_event()).collect()
    }

    pub(super) fn tells_silence(&self) -> bool {
        SILENCES.iter().any(|cause| self.tells(*cause))
    }

    pub(super) fn tells(&self, cause: Cause) -> bool {
        self.told().any(|(told, _)| told == cause)
    }

    /// The reasons that make a subsystem worse than ok.
    pub(super) fn told(&self) -> impl Iterator<Item = (Cause, String)> {
        let reasons = self.health.report().flat_map(|report| report.reasons);
        let bad = reasons.filter(|(_, reason)| reason.state > State::Ok);
        bad.map(|(cause, reason)| (cause, reason.why.clone()))
    }
}
