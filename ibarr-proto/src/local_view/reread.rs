// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::time::Duration;

use ibarr_common::Instant;

/// When to ask for a dump.
///
/// * At the start, and an interval after the last was done, mostly [`INTERVAL`](Self::INTERVAL): the
///   subnet manager can change the subnet prefix, and so the hardware address of every IPoIB
///   interface, without an event;
/// * after an event of a link, which may have been sent before all of a change was made;
/// * never sooner than [`GAP`](Self::GAP) after the last was done, however many events there are,
///   and not for a [`REST`](Self::REST) if there was more than can be kept;
/// * again, if none was done [`PATIENCE`](Self::PATIENCE) after it was asked for or started.
pub(super) struct Reread {
    interval: Duration,
    due: Instant,
    waiting: Waiting,
    /// A link had an event since the dump that is awaited was started.
    again: bool,
    earliest: Instant,
    request: bool,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Waiting {
    No,
    /// Until it is asked for, all that comes was begun too early.
    Owed,
    Asked,
    Started,
}

impl Reread {
    pub(super) const INTERVAL: Duration = Duration::from_secs(5);
    /// Of what has an event for every change that matters.
    pub(super) const LONG_INTERVAL: Duration = Duration::from_mins(1);
    pub(super) const GAP: Duration = Duration::from_millis(200);
    pub(super) const PATIENCE: Duration = Duration::from_secs(10);
    pub(super) const REST: Duration = Duration::from_mins(1);

    pub(super) const fn new(interval: Duration) -> Self {
        Self {
            interval,
            due: Instant::BOOT,
            waiting: Waiting::No,
            again: false,
            earliest: Instant::BOOT,
            request: false,
        }
    }

    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn poll_request(&mut self) -> bool {
        std::mem::take(&mut self.request)
    }

    /// Asks as soon as the gap allows, whatever was asked before, and whatever of that still comes.
    pub(super) const fn restart(&mut self) {
        self.waiting = Waiting::Owed;
        self.again = false;
        self.request = false;
        self.due = self.earliest;
    }

    /// Tells whether a dump that was asked for is overdue.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        if now < self.due {
            return false;
        }
        let overdue = matches!(self.waiting, Waiting::Asked | Waiting::Started);
        self.waiting = Waiting::Asked;
        self.request = true;
        self.due = now + Self::PATIENCE;
        overdue
    }

    pub(super) fn wanted(&mut self, now: Instant) {
        match self.waiting {
            Waiting::No => self.due = self.due.min(self.earliest.max(now)),
            Waiting::Owed | Waiting::Asked => {}
            Waiting::Started => self.again = true,
        }
    }

    /// One that fails is started again, but the patience is with all of them together. Tells whether
    /// it counts.
    pub(super) fn started(&mut self, now: Instant) -> bool {
        match self.waiting {
            Waiting::Owed => return false,
            Waiting::No => self.due = now + Self::PATIENCE,
            Waiting::Asked | Waiting::Started => {}
        }
        self.waiting = Waiting::Started;
        self.again = false;
        true
    }

    pub(super) fn done(&mut self, now: Instant) {
        self.waiting = Waiting::No;
        self.earliest = now + Self::GAP;
        let again = std::mem::take(&mut self.again);
        self.due = if again { self.earliest } else { now + self.interval };
    }

    /// The last dump was more than can be kept.
    pub(super) fn rest(&mut self, now: Instant) {
        self.waiting = Waiting::No;
        self.again = false;
        self.earliest = now + Self::REST;
        self.due = self.earliest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant::from_nanos(1_000_000_000_000);

    fn asked_at(reread: &mut Reread) -> Instant {
        let due = reread.due();
        reread.handle_timeout(due);
        assert!(reread.poll_request());
        assert!(!reread.poll_request(), "asked twice");
        due
    }

    #[test]
    fn asks_at_the_start_and_every_interval() {
        let mut reread = Reread::new(Reread::INTERVAL);
        assert!(reread.due() <= T0);
        reread.handle_timeout(T0);
        assert!(reread.poll_request());
        reread.started(T0);
        reread.done(T0);
        assert_eq!(asked_at(&mut reread), T0 + Reread::INTERVAL);
    }

    #[test]
    fn a_link_event_brings_a_reread_at_once_but_not_more_than_one_a_gap() {
        let mut reread = Reread::new(Reread::INTERVAL);
        reread.handle_timeout(T0);
        reread.started(T0);
        reread.done(T0);
        reread.wanted(T0);
        reread.wanted(T0);
        assert_eq!(asked_at(&mut reread), T0 + Reread::GAP);
        let later = T0 + Duration::from_secs(1);
        reread.started(later);
        reread.done(later);
        let event = later + Duration::from_secs(1);
        reread.wanted(event);
        assert_eq!(reread.due(), event);
    }

    #[test]
    fn an_event_during_a_dump_brings_another_one_before_it_none() {
        let mut reread = Reread::new(Reread::INTERVAL);
        reread.handle_timeout(T0);
        reread.wanted(T0);
        reread.started(T0);
        reread.done(T0);
        assert_eq!(reread.due(), T0 + Reread::INTERVAL);
        reread.started(T0);
        reread.wanted(T0);
        reread.done(T0);
        assert_eq!(reread.due(), T0 + Reread::GAP);
    }

    #[test]
    fn a_dump_that_does_not_come_is_asked_for_again() {
        let mut reread = Reread::new(Reread::INTERVAL);
        assert!(!reread.handle_timeout(T0));
        reread.wanted(T0);
        assert_eq!(reread.due(), T0 + Reread::PATIENCE);
        assert!(reread.handle_timeout(T0 + Reread::PATIENCE));
        reread.started(T0 + Reread::PATIENCE);
        reread.started(T0 + Reread::PATIENCE + Reread::GAP);
        assert!(reread.handle_timeout(T0 + 2 * Reread::PATIENCE), "however often it is started");
    }
}
