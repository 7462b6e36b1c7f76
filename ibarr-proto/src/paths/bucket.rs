// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Rates: how often something may be done.

use core::time::Duration;

use ibarr_common::Instant;
use rand_core::Rng;

use crate::retry::{Jitter, random};

/// Paths in doubt are asked for again only after a random time up to this: ten thousand nodes
/// notice a change of the subnet manager at once, and must not all ask in the same second.
pub const DOUBT_SPREAD: Duration = Duration::from_secs(5);

/// At most `rate` times a second, evenly spaced: a pause does not allow a burst.
#[derive(Debug)]
pub(super) struct Bucket {
    held_until: Instant,
    next_at: Instant,
}

impl Bucket {
    /// May first be taken after a random time up to [`DOUBT_SPREAD`].
    pub(super) fn held(now: Instant, rng: &mut impl Rng) -> Self {
        let mut this = Self { held_until: Instant::BOOT, next_at: Instant::BOOT };
        this.hold(now, rng);
        this
    }

    /// The same from now on; a bucket that is held already is not delayed again.
    pub(super) fn hold(&mut self, now: Instant, rng: &mut impl Rng) {
        if self.held_until <= now {
            self.held_until = now + random(DOUBT_SPREAD, rng);
        }
    }

    /// Whether it may be done now; if so, counts it.
    pub(super) fn take(&mut self, now: Instant, rate: u32) -> bool {
        if rate == 0 || now < self.held_until.max(self.next_at) {
            return false;
        }
        self.next_at = now + Duration::from_secs(1) / rate;
        true
    }
}

/// Once per interval, varied by a random quarter: ten thousand nodes that start together drift
/// apart. A pause does not allow a burst.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    next_at: Option<Instant>,
}

impl Seldom {
    /// Whether it may be done now; if so, counts it.
    pub(super) fn take(&mut self, now: Instant, every: Duration, rng: &mut impl Rng) -> bool {
        if self.next_at.is_some_and(|next_at| now < next_at) {
            return false;
        }
        self.next_at = Some(now + Jitter::QUARTER.spread(every, rng));
        true
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn no_more_than_the_rate_is_taken_and_a_pause_saves_nothing() {
        let rng = &mut ChaCha12Rng::seed_from_u64(1);
        let start = Instant::from_nanos(1 << 40);
        let mut bucket = Bucket::held(start, rng);
        let mut now = start + DOUBT_SPREAD;
        let take = |bucket: &mut Bucket, now| (0..100).filter(|_| bucket.take(now, 10)).count();
        let mut taken = 0;
        for _ in 0..1_000 {
            now += Duration::from_millis(10);
            taken += take(&mut bucket, now);
        }
        assert_eq!(taken, 100);
        assert_eq!(take(&mut bucket, now + Duration::from_hours(1)), 1);
        assert!(!bucket.take(now + Duration::from_hours(2), 0));
    }

    #[test]
    fn seldom_is_once_in_its_time_and_never_twice_at_once() {
        let rng = &mut ChaCha12Rng::seed_from_u64(1);
        let (start, every) = (Instant::from_nanos(1 << 40), Duration::from_secs(4));
        let mut seldom = Seldom::default();
        let times: Vec<_> = (0..100_000)
            .map(|n| start + Duration::from_millis(10) * n)
            .filter(|now| seldom.take(*now, every, rng) && !seldom.take(*now, every, rng))
            .collect();
        assert_eq!(times[0], start);
        let pauses = times.windows(2).map(|pair| pair[1].since(pair[0]));
        assert!(pauses.clone().all(|it| it >= every * 3 / 4 && it <= every * 5 / 4 + every / 100));
        assert!(pauses.min() < pauses_max(&times));
        assert!(seldom.take(start + Duration::from_hours(9), every, rng));
    }

    fn pauses_max(times: &[Instant]) -> Option<Duration> {
        times.windows(2).map(|pair| pair[1].since(pair[0])).max()
    }

    #[test]
    fn who_is_held_again_and_again_has_his_turn_all_the_same() {
        let rng = &mut ChaCha12Rng::seed_from_u64(1);
        let start = Instant::from_nanos(1 << 40);
        let waits: Vec<_> = (0..100)
            .map(|_| {
                let mut bucket = Bucket::held(start, rng);
                let mut now = start;
                while !bucket.take(now, 10) {
                    bucket.hold(now, rng);
                    now += Duration::from_millis(10);
                }
                now.since(start)
            })
            .collect();
        assert!(waits.iter().all(|wait| *wait <= DOUBT_SPREAD + Duration::from_millis(10)));
        assert!(waits.iter().max() > Some(&(DOUBT_SPREAD * 4 / 5)), "{waits:?}");
        assert!(waits.iter().min() < Some(&(DOUBT_SPREAD / 5)), "{waits:?}");
    }
}
