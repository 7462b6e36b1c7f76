// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Expected time of an answer: the estimate of RFC 6298, from measured round trips.

use core::time::Duration;

use ibarr_common::Instant;

/// Smoothed round trip and its variation (RFC 6298, section 2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RoundTrips {
    smoothed: Duration,
    variation: Duration,
    measured_at: Instant,
}

impl RoundTrips {
    pub(super) fn first(now: Instant, sample: Duration) -> Self {
        Self { smoothed: sample, variation: sample / 2, measured_at: now }
    }

    /// The estimate with one more sample.
    pub(super) fn and(self, now: Instant, sample: Duration) -> Self {
        let deviation = self.smoothed.abs_diff(sample);
        Self {
            variation: self.variation / 4 * 3 + deviation / 4,
            smoothed: self.smoothed / 8 * 7 + sample / 8,
            measured_at: now,
        }
    }

    /// Adds a sample to an estimate that may be empty.
    pub(super) fn add(to: &mut Option<Self>, now: Instant, sample: Duration) {
        *to = Some(to.map_or_else(|| Self::first(now, sample), |known| known.and(now, sample)));
    }

    /// The time after which an answer counts as lost.
    pub(super) fn timeout(&self) -> Duration {
        self.smoothed + GRANULARITY.max(4 * self.variation)
    }

    /// The same time-out, but limited if the samples are old: one peer that was late must not delay
    /// the resend of the next lost query through its gateway.
    pub(super) fn timeout_at(&self, now: Instant) -> Duration {
        if self.is_fresh(now) { self.timeout() } else { self.timeout().min(STALE) }
    }

    /// Whether the last sample is so recent that the cause of a delay may persist.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now.since(self.measured_at) < FRESH
    }
}

/// The delay that timers and schedulers add.
const GRANULARITY: Duration = Duration::from_millis(5);

/// Older samples may no longer apply.
pub(super) const FRESH: Duration = Duration::from_secs(1);
const STALE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The values of RFC 6298, 2.2 and 2.3, computed separately.
    #[test]
    fn estimate_follows_the_rfc() {
        let now = Instant::BOOT;
        let first = RoundTrips::first(now, ms(80));
        assert_eq!(first.timeout(), ms(80 + 4 * 40));
        let second = first.and(now, ms(160));
        assert_eq!((second.smoothed, second.variation), (ms(90), ms(50)));
        let third = second.and(now, ms(90));
        assert_eq!((third.smoothed, third.variation), (ms(90), Duration::from_micros(37_500)));
    }

    #[test]
    fn old_late_answer_does_not_delay_later_resends() {
        let measured_at = Instant::BOOT;
        let late = RoundTrips::first(measured_at, ms(1)).and(measured_at, ms(900));
        assert!(late.timeout_at(measured_at) > ms(900));
        assert_eq!(late.timeout_at(measured_at + FRESH), STALE);
    }

    #[test]
    fn steady_round_trips_leave_only_the_granularity() {
        let mut steady = RoundTrips::first(Instant::BOOT, ms(300));
        for _ in 0..100 {
            steady = steady.and(Instant::BOOT, ms(2));
        }
        assert!((ms(7)..ms(8)).contains(&steady.timeout()), "{steady:?}");
    }
}
