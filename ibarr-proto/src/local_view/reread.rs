// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! When the kernel is asked for all links, and perhaps addresses, again.

use core::time::Duration;

use ibarr_common::Instant;

/// The schedule of dumps.
///
/// * A dump is requested at the start, and an interval after the last one was done, usually
///   [`INTERVAL`](Self::INTERVAL): the subnet manager can change the subnet prefix, and thereby the
///   hardware address of every IPoIB interface, without an event;
/// * also after an event of a link, which the kernel may send before a change is complete;
/// * but never sooner than [`GAP`](Self::GAP) after the last one was done, however many events there
///   are, and after a [`PAUSE`](Self::PAUSE) if the last dump exceeded the limit;
/// * again after a failure, but after several failures in a row only after growing pauses: otherwise
///   a machine whose links keep changing would be dumped without end;
/// * again, if none was done [`PATIENCE`](Self::PATIENCE) after it was requested or started.
pub(super) struct Reread {
    interval: Duration,
    due: Instant,
    waiting: Waiting,
    /// A link had an event since the awaited dump was started.
    repeats: bool,
    earliest: Instant,
    request: bool,
    /// Failures since the last success.
    failures: u32,
    /// When to request a dump again after a failure.
    retry: Option<Instant>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Waiting {
    No,
    /// A dump has to be requested; everything that arrives before belongs to an earlier one.
    ToRequest,
    Asked,
    Started,
}

impl Reread {
    pub(super) const INTERVAL: Duration = Duration::from_secs(5);
    /// For subjects with an event for every relevant change.
    pub(super) const LONG_INTERVAL: Duration = Duration::from_mins(1);
    pub(super) const GAP: Duration = Duration::from_millis(200);
    pub(super) const PATIENCE: Duration = Duration::from_secs(10);
    pub(super) const PAUSE: Duration = Duration::from_mins(1);

    pub(super) const fn new(interval: Duration) -> Self {
        Self {
            interval,
            due: Instant::BOOT,
            waiting: Waiting::No,
            repeats: false,
            earliest: Instant::BOOT,
            request: false,
            failures: 0,
            retry: None,
        }
    }

    pub(super) fn due(&self) -> Instant {
        self.retry.map_or(self.due, |retry| retry.min(self.due))
    }

    pub(super) fn poll_request(&mut self) -> bool {
        core::mem::take(&mut self.request)
    }

    /// Requests a dump as soon as the gap allows; earlier requests and their results are void.
    pub(super) fn restart(&mut self) {
        self.waiting = Waiting::ToRequest;
        self.repeats = false;
        self.request = false;
        self.retry = None;
        self.due = self.earliest;
    }

    /// Returns whether a requested dump is overdue.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        if self.retry.is_some_and(|retry| retry <= now) {
            self.retry = None;
            self.request = true;
        }
        if now < self.due {
            return false;
        }
        let overdue = matches!(self.waiting, Waiting::Asked | Waiting::Started);
        self.waiting = Waiting::Asked;
        self.request = true;
        self.retry = None;
        self.due = now + Self::PATIENCE;
        overdue
    }

    pub(super) fn wanted(&mut self, now: Instant) {
        match self.waiting {
            Waiting::No => self.due = self.due.min(self.earliest.max(now)),
            Waiting::ToRequest | Waiting::Asked => {}
            Waiting::Started => self.repeats = true,
        }
    }

    /// The dump has failed, or events were lost. The patience applies to all attempts together.
    pub(super) fn failed(&mut self, now: Instant) {
        const AT_ONCE: u32 = 3;
        const FIRST: Duration = Duration::from_millis(10);
        const LONGEST: Duration = Duration::from_secs(1);
        match self.waiting {
            // The dump that was requested has not begun.
            Waiting::ToRequest | Waiting::Asked => return,
            Waiting::No => self.due = now + Self::PATIENCE,
            Waiting::Started => {}
        }
        self.waiting = Waiting::Asked;
        self.failures = self.failures.saturating_add(1);
        let pause = self.failures.checked_sub(AT_ONCE);
        let pause = pause.map(|n| FIRST.saturating_mul(1 << n.min(10)).min(LONGEST));
        self.retry = Some(now + pause.unwrap_or_default());
    }

    /// Returns whether the dump counts.
    pub(super) fn started(&mut self, now: Instant) -> bool {
        match self.waiting {
            Waiting::ToRequest => return false,
            Waiting::No => self.due = now + Self::PATIENCE,
            Waiting::Asked | Waiting::Started => {}
        }
        self.waiting = Waiting::Started;
        self.repeats = false;
        self.retry = None;
        true
    }

    pub(super) fn done(&mut self, now: Instant) {
        self.waiting = Waiting::No;
        self.failures = 0;
        self.earliest = now + Self::GAP;
        let repeats = core::mem::take(&mut self.repeats);
        self.due = if repeats { self.earliest } else { now + self.interval };
    }

    /// The last dump exceeded the limit.
    pub(super) fn pause(&mut self, now: Instant) {
        self.waiting = Waiting::No;
        self.repeats = false;
        self.earliest = now + Self::PAUSE;
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
    fn dump_is_requested_at_the_start_and_every_interval() {
        let mut reread = Reread::new(Reread::INTERVAL);
        assert!(reread.due() <= T0);
        reread.handle_timeout(T0);
        assert!(reread.poll_request());
        reread.started(T0);
        reread.done(T0);
        assert_eq!(asked_at(&mut reread), T0 + Reread::INTERVAL);
    }

    #[test]
    fn link_events_cause_at_most_one_dump_per_gap() {
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
    fn only_an_event_during_a_dump_causes_another() {
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
    fn failed_dump_is_requested_again_after_a_growing_pause() {
        let mut reread = Reread::new(Reread::INTERVAL);
        reread.handle_timeout(T0);
        assert!(reread.poll_request());
        let mut pauses = Vec::new();
        let mut now = T0;
        for _ in 0..12 {
            reread.started(now);
            reread.failed(now);
            // The next dump also covers losses that come before it begins.
            reread.failed(now);
            let at = asked_at(&mut reread);
            pauses.push(at.since(now).as_millis());
            now = at;
        }
        assert_eq!(pauses, [0, 0, 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
        assert_eq!(reread.due(), T0 + Reread::PATIENCE);
        reread.started(now);
        reread.done(now);
        // A loss while nothing is dumped.
        reread.failed(now);
        assert_eq!(asked_at(&mut reread), now);
    }

    #[test]
    fn missing_dump_is_requested_again() {
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
