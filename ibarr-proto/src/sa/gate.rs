// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The gate of an SA: whether it answers at all.
//!
//! While the gate is *shut*, new questions are answered at once: the SA is silent, or only answers
//! that it is busy. One MAD at a time probes the SA, with growing pauses, and the first answer
//! opens the gate.
//!
//! A lost MAD, or a question that an SA never answers, must not shut the gate. So after the first
//! lost MAD the SA is asked a second question, the *witness*: the last question that it answered,
//! or else the one for its capabilities, which every SA has to answer (IBA vol. 1 §13.4.8.1). The
//! gate shuts if the witness is not answered either, and nothing else has been for the longest time
//! that an answer may take. BUSY comes from the SA itself and needs no witness.
//!
//! After a silent SA has changed, the gate is open, and the client probes: another SA gets the
//! questions at once, and the silence ends soon even if there are none.

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::sa::Question;
use rand_core::Rng;

use super::types::Config;
use crate::retry::Jitter;

/// Number of successive unanswered MADs that shut the gate.
const VAIN: u32 = 3;

/// Maximum time between two probes. A silent SA that returns gets one MAD of each port in this
/// time.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The gate of the SA of one port.
#[derive(Debug)]
pub(super) struct Gate {
    /// When the SA last answered, or appeared.
    heard_at: Instant,
    vain: Option<Vain>,
    shut: Option<Shut>,
    /// The SA is shut or unproven, and is probed.
    probing: Option<Probing>,
    /// The last question that it answered.
    answered: Option<Question>,
    /// The last question, even if it was not sent.
    newest: Option<Question>,
    probes: u32,
}

/// Unanswered MADs since the last answer.
#[derive(Clone, Copy, Debug)]
struct Vain {
    /// When the first of them was sent.
    since: Instant,
    mads: u32,
    /// Whether the witness is among them.
    witness: bool,
    busy: bool,
}

/// Why, and since when, an SA is not asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shut {
    /// Whether the SA answers that it is busy; otherwise it is silent.
    pub busy: bool,
    /// When the first unanswered MAD was sent.
    pub since: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Probing {
    at: Instant,
    pause: Duration,
}

impl Gate {
    /// The gate of an SA that has just appeared.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            heard_at: now,
            vain: None,
            shut: None,
            probing: None,
            answered: None,
            newest: None,
            probes: 0,
        }
    }

    /// The same, after an SA that was silent: it is probed at `at`.
    pub(super) fn unproven(now: Instant, at: Instant, config: &Config) -> Self {
        let pause = config.longest_patience();
        Self { probing: Some(Probing { at, pause }), ..Self::new(now) }
    }

    pub(super) fn shut(&self) -> Option<&Shut> {
        self.shut.as_ref()
    }

    /// When the next probe leaves, if the SA is probed.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        self.probing.map(|probing| probing.at)
    }

    /// Whether the SA has answered anything, or appeared, since then.
    pub(super) fn has_answered_since(&self, then: Instant) -> bool {
        self.heard_at > then
    }

    /// The SA was asked this question, or would have been.
    pub(super) fn asked(&mut self, question: Question) {
        if changes_nothing(&question) {
            self.newest = Some(question);
        }
    }

    /// A question other than `than` that an SA which works will answer.
    pub(super) fn witness(&self, than: Option<&Question>) -> Question {
        let answered = self.answered.filter(|answered| Some(answered) != than);
        answered.unwrap_or(Question::ClassPortInfo)
    }

    /// The next probe: the witness and the newest question alternately, because the SA may be
    /// unable to answer one of them.
    pub(super) fn probe(&mut self) -> Question {
        self.probes = self.probes.wrapping_add(1);
        let witness = self.witness(None);
        if self.probes.is_multiple_of(2) { self.newest.unwrap_or(witness) } else { witness }
    }

    /// The SA has answered, with anything but BUSY. Returns whether the gate was shut.
    pub(super) fn heard(&mut self, now: Instant, question: Question) -> bool {
        if changes_nothing(&question) {
            self.answered = Some(question);
        }
        self.heard_at = now;
        (self.vain, self.probing) = (None, None);
        self.shut.take().is_some()
    }

    /// The MAD sent at `sent_at` was not answered in time, or with BUSY.
    pub(super) fn missed(&mut self, sent_at: Instant, is_witness: bool, busy: bool) {
        let first = Vain { since: sent_at, mads: 0, witness: false, busy: false };
        let vain = self.vain.get_or_insert(first);
        vain.since = vain.since.min(sent_at);
        vain.mads = vain.mads.saturating_add(1);
        vain.witness |= is_witness;
        vain.busy |= busy;
        if let Some(shut) = &mut self.shut {
            shut.busy |= busy;
        }
    }

    /// Shuts the gate if there was no answer for too long. Returns whether it has just shut.
    pub(super) fn judge(&mut self, now: Instant, config: &Config, rng: &mut impl Rng) -> bool {
        let Some(Vain { since, mads, witness, busy }) = self.vain else { return false };
        let (is_known, patience) =
            if busy { (true, config.patience) } else { (witness, config.longest_patience()) };
        if self.shut.is_some() || !is_known || mads < VAIN || now.since(since) < patience {
            return false;
        }
        let pause = config.longest_patience();
        self.probing = Some(Probing { at: now + spread(pause, rng), pause });
        self.shut = Some(Shut { busy, since });
        true
    }

    /// A probe leaves.
    pub(super) fn probed(&mut self, now: Instant, rng: &mut impl Rng) {
        if let Some(Probing { at, pause }) = &mut self.probing {
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            *at = now + spread(*pause, rng);
        }
    }

    /// There are signs that the SA is back: the next probe leaves at `at` at the latest.
    pub(super) fn hurry(&mut self, at: Instant) {
        if let Some(probing) = &mut self.probing {
            probing.at = probing.at.min(at);
        }
    }
}

/// Whether the question can be repeated at any time without effect.
fn changes_nothing(question: &Question) -> bool {
    !matches!(question, Question::Inform(_))
}

fn spread(pause: Duration, rng: &mut impl Rng) -> Duration {
    Jitter::percent(25).unwrap_or_default().spread(pause, rng)
}
