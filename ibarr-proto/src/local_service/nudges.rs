// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! When to nudge, and when to repeat a nudge.
//!
//! A nudge makes the kernel resend the requests that have no answer yet. So the daemon does not
//! nudge while the kernel asks faster than the daemon reads. The thread may be delayed between the
//! decision and the nudge, so the driver checks once more for unread requests right before it.

use ibarr_common::Instant;

use super::types::{
    FOLLOW_UPS, NUDGE_BEHIND, NUDGE_INTERVAL, NUDGE_QUIET, NUDGE_WITHIN, Nudge, Nudged,
};

/// One nudge covers all answers handed to the socket before it, so at most one is wanted at a time.
#[derive(Debug, Default)]
pub(super) struct Nudges {
    wanted: Option<PendingNudge>,
    follow_up: Option<FollowUp>,
    last_at: Option<Instant>,
    last: Last,
    /// As far as the last nudge shows.
    callers: Callers,
    /// The socket may hold more requests, whose answers the same nudge can cover.
    more_to_come: bool,
    /// The daemon ends: intervals no longer apply.
    last_one: bool,
}

/// The number of callers. A single caller that asks for one address after another asks at most once
/// during a nudge, after that nudge has woken it, and the kernel resends none of its requests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Callers {
    #[default]
    One,
    /// It has asked during the last nudge.
    OneAgain,
    /// Several have asked, or the last nudge was for several requests.
    Several,
}

/// There are answers that no nudge has covered.
#[derive(Clone, Copy, Debug)]
struct PendingNudge {
    since: Instant,
    /// The time of the last such answer.
    last: Instant,
    /// The last nudge was at least an interval ago.
    is_late: bool,
    /// There is only one such answer.
    is_single: bool,
}

/// A pending repetition of the last nudge.
#[derive(Clone, Copy, Debug)]
struct FollowUp {
    due: Instant,
    /// Its original time, if it was postponed.
    since: Instant,
    /// Number of repetitions before it.
    number: usize,
}

/// The cause of a nudge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Cause {
    /// The first answer to a request, while no other request waits.
    FirstAnswer,
    Other,
}

/// The purpose of a nudge.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    First,
    Repeated,
}

/// The state of the last nudge.
#[derive(Debug, Default)]
enum Last {
    /// There was none, or it succeeded.
    #[default]
    Done,
    Failed,
    UnderWay {
        why: Why,
        /// Whether the nudge before it failed.
        after_failure: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Why {
    Wanted(PendingNudge),
    FollowUp(FollowUp),
    /// Its purpose has gone.
    Nothing,
}

impl Nudges {
    pub(super) fn want(&mut self, now: Instant, cause: Cause) {
        if self.is_under_way() && cause != Cause::FirstAnswer {
            self.callers = Callers::Several;
        }
        self.wanted = Some(match self.wanted {
            Some(wanted) => PendingNudge { last: now, is_single: false, ..wanted },
            None => PendingNudge {
                since: now,
                last: now,
                is_late: self.last_at.is_none_or(|last| now >= last + NUDGE_INTERVAL),
                is_single: cause == Cause::FirstAnswer,
            },
        });
        self.follow_up = None;
    }

    pub(super) fn unwant(&mut self) {
        self.wanted = None;
        self.follow_up = None;
        // A nudge in progress is not made later either if it is postponed.
        if let Last::UnderWay { why, .. } = &mut self.last {
            *why = Why::Nothing;
        }
    }

    /// The kernel asks for an address, for the first time or again.
    pub(super) fn asked(&mut self, is_repeated: bool) {
        if let Some(wanted) = &mut self.wanted {
            wanted.is_single = false;
        }
        if self.is_under_way() {
            self.callers = match self.callers {
                Callers::One if !is_repeated => Callers::OneAgain,
                _ => Callers::Several,
            };
        }
    }

    pub(super) fn more_to_come(&mut self, more: bool) {
        self.more_to_come = more;
    }

    pub(super) fn end(&mut self) {
        self.last_one = true;
    }

    /// When the next nudge is due; unknown during a nudge.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.is_under_way() {
            return None;
        }
        let Some(wanted) = self.wanted else { return Some(self.follow_up?.due) };
        let PendingNudge { since, last, is_late, is_single } = wanted;
        if self.last_one {
            return Some(since);
        }
        let due = match self.more_to_come {
            true => since + NUDGE_BEHIND,
            // See `NUDGE_INTERVAL`.
            false if is_late || (is_single && self.callers != Callers::Several) => {
                return Some(since);
            }
            false => (last + NUDGE_QUIET).min(since + NUDGE_WITHIN),
        };
        Some(self.last_at.map_or(due, |last| due.max(last + NUDGE_INTERVAL)))
    }

    /// The nudge that is due now; it counts as begun.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Nudge, Kind)> {
        self.due().filter(|&due| due <= now)?;
        let follow_up = self.follow_up.take();
        let (why, since, kind, number) = if let Some(wanted) = self.wanted.take() {
            self.callers = if wanted.is_single { Callers::One } else { Callers::Several };
            (Why::Wanted(wanted), wanted.since, Kind::First, 0)
        } else {
            let follow_up = follow_up?;
            (Why::FollowUp(follow_up), follow_up.since, Kind::Repeated, follow_up.number + 1)
        };
        self.follow_up = FOLLOW_UPS.get(number).map(|&pause| FollowUp::at(now + pause, number));
        self.last_at = Some(now);
        self.last = Last::UnderWay { why, after_failure: self.failed() };
        let is_overdue = self.last_one || now >= since + NUDGE_BEHIND;
        Some((if is_overdue { Nudge::Anyway } else { Nudge::IfQuiet }, kind))
    }

    pub(super) fn ended(&mut self, now: Instant, nudged: Nudged) {
        let (why, failed) = match core::mem::take(&mut self.last) {
            Last::UnderWay { why, after_failure } => (why, after_failure),
            _ => (Why::Nothing, false),
        };
        match nudged {
            Nudged::Done => {}
            Nudged::Failed => self.last = Last::Failed,
            Nudged::Postponed => {
                if failed {
                    self.last = Last::Failed;
                }
                self.postpone(now, why);
            }
        }
    }

    /// Restores the state before the nudge, except that there are several callers.
    fn postpone(&mut self, now: Instant, why: Why) {
        self.callers = Callers::Several;
        match (why, self.wanted) {
            (Why::Wanted(old), new) => {
                let last = new.map_or(old.last, |new| new.last);
                self.wanted = Some(PendingNudge { last, is_late: false, is_single: false, ..old });
                self.follow_up = None;
            }
            (Why::FollowUp(old), None) => {
                self.follow_up = Some(FollowUp { due: now + NUDGE_INTERVAL, ..old });
            }
            (Why::FollowUp(_) | Why::Nothing, _) => {}
        }
    }

    pub(super) fn failed(&self) -> bool {
        matches!(self.last, Last::Failed | Last::UnderWay { after_failure: true, .. })
    }

    /// Whether a nudge is wanted or in progress. Pending repetitions do not count.
    pub(super) fn is_busy(&self) -> bool {
        self.is_under_way() || self.wanted.is_some()
    }

    fn is_under_way(&self) -> bool {
        matches!(self.last, Last::UnderWay { .. })
    }
}

impl FollowUp {
    fn at(due: Instant, number: usize) -> Self {
        Self { due, since: due, number }
    }
}
