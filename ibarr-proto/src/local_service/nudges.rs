// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! When to nudge, and to nudge again.

use ibarr_common::Instant;

use super::types::{FOLLOW_UPS, NUDGE_INTERVAL, NUDGE_WITHIN};

/// One nudge covers everything that was handed to the socket before it, so that at most one is
/// wanted at a time.
#[derive(Debug, Default)]
pub(super) struct Nudges {
    /// Since when there is something that no nudge covers.
    wanted_since: Option<Instant>,
    /// When the last one is repeated.
    follow_up_at: Option<Instant>,
    /// How often it has been.
    follow_ups: usize,
    last_at: Option<Instant>,
    last: Last,
    /// The socket may hold more requests, whose answers the same nudge can cover.
    more_to_come: bool,
    /// The daemon ends: no time for intervals.
    last_one: bool,
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
    pub(super) fn want(&mut self, now: Instant) {
        self.wanted_since.get_or_insert(now);
        self.follow_up_at = None;
        self.follow_ups = 0;
    }

    pub(super) fn unwant(&mut self) {
        self.wanted_since = None;
        self.follow_up_at = None;
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
        let Some(wanted) = self.wanted_since else { return self.follow_up_at };
        if self.last_one {
            return Some(wanted);
        }
        let quiet = if self.more_to_come { wanted + NUDGE_WITHIN } else { wanted };
        Some(self.last_at.map_or(quiet, |last| quiet.max(last + NUDGE_INTERVAL)))
    }

    /// The nudge that is due now; it has begun.
    pub(super) fn take(&mut self, now: Instant) -> Option<Nudge> {
        self.due().filter(|&due| due <= now)?;
        let nudge = if self.wanted_since.take().is_some() { Nudge::First } else { Nudge::Repeated };
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
        self.is_under_way() || self.wanted_since.is_some()
    }

    fn is_under_way(&self) -> bool {
        matches!(self.last, Last::UnderWay { .. })
    }
}
