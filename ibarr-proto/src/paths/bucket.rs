// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How often something may be done.

use std::time::Duration;

use ibarr_common::Instant;
use rand_core::Rng;

use crate::retry::random;

/// At most `rate` times a second, and as many at once after a pause.
#[derive(Debug)]
pub(super) struct Bucket {
    /// When it was, or would have been, empty.
    empty_at: Instant,
}

impl Bucket {
    /// Empty, and anywhere before its next use.
    pub(super) fn emptied(now: Instant, rate: u32, rng: &mut impl Rng) -> Self {
        Self { empty_at: now + random(interval(rate), rng) }
    }

    /// Whether it may be done now.
    pub(super) fn take(&mut self, now: Instant, rate: u32) -> bool {
        if rate == 0 {
            return false;
        }
        let interval = interval(rate);
        let full = Instant::from_nanos(now.as_nanos().saturating_sub(1_000_000_000));
        let empty_at = self.empty_at.max(full) + interval;
        let has_one = empty_at <= now;
        if has_one {
            self.empty_at = empty_at;
        }
        has_one
    }
}

fn interval(rate: u32) -> Duration {
    Duration::from_secs(1) / rate.max(1)
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn no_more_than_the_rate_is_taken_and_a_pause_saves_a_second_of_it() {
        let mut now = Instant::from_nanos(1 << 40);
        let mut bucket = Bucket::emptied(now, 10, &mut ChaCha12Rng::seed_from_u64(1));
        let mut take = |now| (0..100).filter(|_| bucket.take(now, 10)).count();
        assert_eq!(take(now), 0);
        let mut taken = 0;
        for _ in 0..1_000 {
            now += Duration::from_millis(10);
            taken += take(now);
        }
        assert!((98..=100).contains(&taken), "{taken}");
        assert_eq!(take(now + Duration::from_hours(1)), 10);
        assert!(!bucket.take(now + Duration::from_hours(2), 0));
    }
}
