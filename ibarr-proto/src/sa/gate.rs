// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The gate of an SA: whether it answers at all.
//!
//! While the gate is *shut*, the SA is silent, or only answers that it is busy. One MAD at a time
//! probes the SA, with growing pauses, and the first answer opens the gate. A question of the kernel
//! waits for that, and its caller not for long: meanwhile the pauses are short. Other questions end
//! at once.
//!
//! A lost MAD, or a question that an SA never answers, must not shut the gate. So after the first
//! lost MAD the SA is asked a second question, the *witness*: the last question that it answered,
//! or else the one for its capabilities, which every SA has to answer (IBA vol. 1 §13.4.8.1). The
//! gate shuts if the witness is not answered either, and nothing else has been for the longest time
//! that an answer may take. A question that was lost before the SA last answered has no first loss any
//! more: there the witness is asked at the end of that time. BUSY comes from the SA itself and needs no
//! witness.
//!
//! After a silent SA has changed, the gate is open, and the client probes: another SA gets the
//! questions at once, and the silence ends soon even if there are none.

use core::time::Duration;

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

/// Time between two probes while a question of the kernel waits. A kernel that asks by itself sends a
/// MAD every 200 ms for each of its callers, and does not wait as long as we do.
pub(super) const SHORT_PAUSE: Duration = Duration::from_millis(400);

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
    /// Whether the next probe is the witness; alternately with the newest question, because the SA
    /// may be unable to answer one of them.
    witness_is_next: bool,
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
    /// When the last probe left.
    from: Instant,
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
            witness_is_next: true,
        }
    }

    /// The same, after an SA that was silent: it is probed at `at`.
    pub(super) fn unproven(now: Instant, at: Instant, config: &Config) -> Self {
        let pause = config.longest_patience();
        Self { probing: Some(Probing { from: now, at, pause }), ..Self::new(now) }
    }

    pub(super) fn shut(&self) -> Option<&Shut> {
        self.shut.as_ref()
    }

    /// When the next probe leaves, if the SA is probed; whether the kernel waits for it.
    pub(super) fn probe_at(&self, kernel_waits: bool) -> Option<Instant> {
        let Probing { from, at, .. } = self.probing?;
        let is_hurried = kernel_waits && self.shut.is_some();
        Some(if is_hurried { at.min(from + SHORT_PAUSE) } else { at })
    }

    /// Whether nothing was heard of the SA since then, not even that it is busy.
    pub(super) fn is_silent_since(&self, then: Instant) -> bool {
        !self.has_answered_since(then) && !self.vain.is_some_and(|vain| vain.busy)
    }

    /// Whether the SA has answered anything, or appeared, since then.
    pub(super) fn has_answered_since(&self, then: Instant) -> bool {
        self.heard_at > then
    }

    /// The SA was asked this question, or would have been.
    pub(super) fn asked(&mut self, question: Question) {
        self.newest = Some(question);
    }

    /// A question other than `than` that an SA which works will answer.
    pub(super) fn witness(&self, than: Option<&Question>) -> Question {
        let answered = self.answered.filter(|answered| Some(answered) != than);
        answered.unwrap_or(Question::ClassPortInfo)
    }

    /// Whether the next probe of a shut SA is the witness, although questions wait.
    pub(super) fn wants_witness(&self) -> bool {
        self.shut.is_some() && self.witness_is_next
    }

    /// The next probe, if no question waits.
    pub(super) fn probe(&self) -> Question {
        let witness = self.witness(None);
        if self.witness_is_next { witness } else { self.newest.unwrap_or(witness) }
    }

    /// The SA has answered, with anything but BUSY. Returns whether the gate was shut.
    pub(super) fn heard(&mut self, now: Instant, question: Question) -> bool {
        self.answered = Some(question);
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

    /// Whether the gate would shut, had the witness been asked.
    pub(super) fn lacks_witness(&self, now: Instant, config: &Config) -> bool {
        self.is_in_vain(now, config) && self.vain.is_some_and(|vain| !vain.busy && !vain.witness)
    }

    fn is_in_vain(&self, now: Instant, config: &Config) -> bool {
        let Some(Vain { since, mads, busy, .. }) = self.vain else { return false };
        let patience = if busy { config.patience } else { config.longest_patience() };
        self.shut.is_none() && mads >= VAIN && now.since(since) >= patience
    }

    /// Shuts the gate if there was no answer for too long. Returns whether it has just shut.
    pub(super) fn judge(&mut self, now: Instant, config: &Config, rng: &mut impl Rng) -> bool {
        if !self.is_in_vain(now, config) || self.lacks_witness(now, config) {
            return false;
        }
        let Some(Vain { since, busy, .. }) = self.vain else { return false };
        let pause = config.longest_patience();
        self.probing = Some(Probing { from: now, at: now + spread(pause, rng), pause });
        self.shut = Some(Shut { busy, since });
        true
    }

    pub(super) fn probed(&mut self, now: Instant, rng: &mut impl Rng) {
        if let Some(Probing { from, at, pause }) = &mut self.probing {
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            (*from, *at) = (now, now + spread(*pause, rng));
            self.witness_is_next = !self.witness_is_next;
        }
    }

    /// There are signs that the SA is back: the next probe leaves at `at` at the latest.
    pub(super) fn hurry(&mut self, at: Instant) {
        if let Some(probing) = &mut self.probing {
            probing.at = probing.at.min(at);
        }
    }
}

fn spread(pause: Duration, rng: &mut impl Rng) -> Duration {
    Jitter::QUARTER.spread(pause, rng)
}
