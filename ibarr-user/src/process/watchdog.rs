// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! When systemd's watchdog is to be fed. The engine asks in its turns, so an engine that hangs feeds none.

use std::time::Duration;

use ibarr_common::Instant;

/// Beats a third of the watchdog's time apart.
#[derive(Clone, Debug)]
pub(super) struct Watchdog {
    /// `None` if systemd has no watchdog for this process.
    interval: Option<Duration>,
    due: Instant,
}

impl Watchdog {
    /// The watchdog that systemd named in the environment (sd_watchdog_enabled(3)).
    pub(super) fn of_this_process(now: Instant) -> Self {
        Self::new(now, sd_notify::watchdog_enabled())
    }

    fn new(now: Instant, time: Option<Duration>) -> Self {
        let interval = time.map(|time| time / 3).filter(|interval| !interval.is_zero());
        Self { interval, due: now }
    }

    /// When the next beat is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.interval.map(|_| self.due)
    }

    /// Whether this turn is to feed the watchdog. It is if a beat is due.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let Some(interval) = self.interval.filter(|_| self.due <= now) else { return false };
        self.due = now + interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_nanos(5_000_000_000);

    #[test]
    fn watchdog_is_fed_three_times_in_its_time() {
        let mut watchdog = Watchdog::new(START, Some(Duration::from_secs(30)));
        let mut fed = Vec::new();
        let mut now = START;
        while let Some(due) = watchdog.poll_timeout().filter(|_| fed.len() < 4) {
            now = now.max(due);
            assert!(watchdog.take_due(now), "a beat that is due");
            assert!(!watchdog.take_due(now), "one beat, however many turns");
            fed.push(now.since(START).as_secs());
        }
        assert_eq!(fed, [0, 10, 20, 30]);
    }

    #[test]
    fn process_without_a_watchdog_never_wakes_for_it() {
        for time in [None, Some(Duration::ZERO)] {
            let mut watchdog = Watchdog::new(START, time);
            assert_eq!(watchdog.poll_timeout(), None);
            assert!(!watchdog.take_due(START + Duration::from_hours(1)));
        }
    }
}
