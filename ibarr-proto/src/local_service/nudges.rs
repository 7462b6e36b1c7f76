// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! When to nudge, and to nudge again.

use ibarr_common::Instant;

use super::types::{FOLLOW_UPS, NUDGE_INTERVAL, NUDGE_QUIET, NUDGE_WITHIN};

/// One nudge covers everything that was handed to the socket before it, so that at most one is
/// wanted at a time.
#[derive(Debug, Default)]
pub(super) struct Nudges {
    wanted: Option<Wanted>,
    /// When the last one is repeated.
    follow_up_at: Option<Instant>,
    /// How often it has been.
    follow_ups: usize,
    last_at: Option<Instant>,
    last: Last,
    /// The last one was for several, or there was something new while it was under way: there may be
    /// more callers than one.
    crowd: bool,
    /// The socket may hold more requests, whose answers the same nudge can cover.
    more_to_come: bool,
    /// The daemon ends: no time for intervals.
    last_one: bool,
}

/// There is something that no nudge covers.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    since: Instant,
    /// When it became more the last time.
    last: Instant,
    /// The last nudge was long before.
    is_late: bool,
    /// It is for one request, not for several.
    is_single: bool,
}

/// Who wants a nudge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Whom {
    /// Somebody who asked for the first time, and nobody else waits.
    One,
    /// Others.
    Anybody,
}

/// What a nudge is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Nudge {
    /// For answers.
    First,
    /// For another nudge.
    Repeated,
}

/// What became of the last one.
#[derive(Debug, Default)]
enum Last {
    /// There has been none, or it was noticed.
    #[default]
    Done,
    Failed,
    UnderWay {
        /// Whether the one before failed.
        after_failure: bool,
    },
}

impl Nudges {
    pub(super) fn want(&mut self, now: Instant, whom: Whom) {
        self.crowd |= self.is_under_way();
        self.wanted = Some(match self.wanted {
            Some(wanted) => Wanted { last: now, is_single: false, ..wanted },
            None => Wanted {
                since: now,
                last: now,
                is_late: self.last_at.is_none_or(|last| now >= last + NUDGE_INTERVAL),
                is_single: whom == Whom::One,
            },
        });
        self.follow_up_at = None;
        self.follow_ups = 0;
    }

    pub(super) fn unwant(&mut self) {
        self.wanted = None;
        self.follow_up_at = None;
    }

    /// The kernel asks for an address, for the first time or again.
    pub(super) fn asked(&mut self) {
        self.crowd |= self.is_under_way();
    }

    pub(super) fn more_to_come(&mut self, more: bool) {
        self.more_to_come = more;
    }

    pub(super) fn end(&mut self) {
        self.last_one = true;
    }

    /// When the next is due; while one is under way, nobody knows.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.is_under_way() {
            return None;
        }
        let Some(wanted) = self.wanted else { return self.follow_up_at };
        let Wanted { since, last, is_late, is_single } = wanted;
        if self.last_one {
            return Some(since);
        }
        let due = match self.more_to_come {
            true => since + NUDGE_WITHIN,
            // See `NUDGE_INTERVAL`.
            false if is_late || (is_single && !self.crowd) => return Some(since),
            false => (last + NUDGE_QUIET).min(since + NUDGE_WITHIN),
        };
        Some(self.last_at.map_or(due, |last| due.max(last + NUDGE_INTERVAL)))
    }

    /// The nudge that is due now; it has begun.
    pub(super) fn take(&mut self, now: Instant) -> Option<Nudge> {
        self.due().filter(|&due| due <= now)?;
        let nudge = match self.wanted.take() {
            Some(wanted) => {
                self.crowd = !wanted.is_single;
                Nudge::First
            }
            None => Nudge::Repeated,
        };
        self.follow_up_at = FOLLOW_UPS.get(self.follow_ups).map(|&pause| now + pause);
        self.follow_ups += 1;
        self.last_at = Some(now);
        self.last = Last::UnderWay { after_failure: self.failed() };
        Some(nudge)
    }

    pub(super) fn ended(&mut self, done: bool) {
        self.last = if done { Last::Done } else { Last::Failed };
    }

    pub(super) fn failed(&self) -> bool {
        matches!(self.last, Last::Failed | Last::UnderWay { after_failure: true })
    }

    /// Whether one is wanted or under way; to repeat it can be left to others.
    pub(super) fn is_busy(&self) -> bool {
        self.is_under_way() || self.wanted.is_some()
    }

    fn is_under_way(&self) -> bool {
        matches!(self.last, Last::UnderWay { .. })
    }
}
