// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Schedules of resends and of repairs, and random times.

use core::time::Duration;

use ibarr_common::Instant;
use rand_core::Rng;

/// Times of the resends of a question, counted from its first send. Jitter separates nodes that
/// started together.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    offsets: &'static [Duration],
    jitter: Jitter,
}

impl Schedule {
    /// `offsets` are the resends without jitter. They grow by more than their jitter.
    pub const fn new(offsets: &'static [Duration], jitter: Jitter) -> Self {
        Self { offsets, jitter }
    }

    /// The pause before the `n`th resend (from 0), counted from the send before it; `None` after
    /// the last. `luck` is any random number.
    pub fn pause(&self, n: usize, luck: u32) -> Option<Duration> {
        let before = n.checked_sub(1).and_then(|n| self.offsets.get(n)).copied();
        let pause = self.offsets.get(n)?.saturating_sub(before.unwrap_or_default());
        Some(self.jitter.spread_by(pause, luck))
    }

    /// The time of the first resend, without jitter.
    pub fn first(&self) -> Duration {
        self.offsets.first().copied().unwrap_or_default()
    }
}

/// The maximum change of a time in both directions: 0 to 50 per cent of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Jitter(u8);

impl Jitter {
    /// A tenth of the time.
    pub const TENTH: Self = Self(10);
    /// A quarter of the time.
    pub const QUARTER: Self = Self(25);

    /// `duration` with a random change.
    pub fn spread(self, duration: Duration, rng: &mut impl Rng) -> Duration {
        let width = self.most(duration).abs_diff(self.least(duration));
        self.least(duration).saturating_add(random(width, rng))
    }

    /// `duration` changed by `luck`, which is any random number.
    fn spread_by(self, duration: Duration, luck: u32) -> Duration {
        let width = self.most(duration).abs_diff(self.least(duration));
        self.least(duration).saturating_add(part(width, luck))
    }

    fn least(self, duration: Duration) -> Duration {
        duration.saturating_sub(self.part_of(duration))
    }

    fn most(self, duration: Duration) -> Duration {
        duration.saturating_add(self.part_of(duration))
    }

    fn part_of(self, duration: Duration) -> Duration {
        (duration / 100).saturating_mul(self.0.into())
    }
}

/// When to make again what others remove: at once, and after growing pauses if they remove it again and again.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Repair {
    made_at: Instant,
    pause: Duration,
}

impl Repair {
    const SHORTEST: Duration = Duration::from_secs(2);
    /// The longest pause. What has lasted for twice as long is made again at once.
    pub const LONGEST: Duration = Duration::from_mins(1);

    /// When what is missing now may be made again. If that is now, it counts as made.
    pub fn due(&mut self, now: Instant) -> Instant {
        if now.since(self.made_at) >= Self::LONGEST * 2 {
            self.pause = Duration::ZERO;
        }
        let due = self.made_at + self.pause;
        if due <= now {
            self.made_at = now;
            self.pause = (self.pause * 2).clamp(Self::SHORTEST, Self::LONGEST);
        }
        due
    }

    /// Like [`due`](Self::due), for a caller that makes it at that time and does not ask again before.
    pub fn schedule(&mut self, now: Instant) -> Instant {
        let due = self.due(now).max(now);
        if due > now {
            self.due(due);
        }
        due
    }
}

/// A part of `duration`: `luck` as a fraction of its range.
pub fn part(duration: Duration, luck: u32) -> Duration {
    let nanos = (u128::from(luck) * duration.as_nanos()) >> 32;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A random duration of at most `longest`, and at most 584 years.
pub fn random(longest: Duration, rng: &mut impl Rng) -> Duration {
    let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(below(nanos.saturating_add(1), rng))
}

/// A random number below `bound`, or zero if `bound` is zero. The distribution is uniform except
/// for a bias below `bound` in 2⁶⁴.
pub fn below(bound: u64, rng: &mut impl Rng) -> u64 {
    let product = u128::from(rng.next_u64()) * u128::from(bound);
    u64::try_from(product >> 64).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    proptest! {
        #[test]
        fn resends_stay_within_their_jitter(luck: u32, percent in 0_u8..=20) {
            let jitter = Jitter(percent);
            let schedule = Schedule::new(const { &[ms(20), ms(60), ms(180)] }, jitter);
            let mut last = Duration::ZERO;
            for (n, offset) in [ms(20), ms(60), ms(180)].into_iter().enumerate() {
                let resend = last + schedule.pause(n, luck).unwrap();
                prop_assert!(resend > last);
                prop_assert!(resend.abs_diff(offset) <= offset * u32::from(percent) / 100);
                last = resend;
            }
            prop_assert_eq!(schedule.pause(3, luck), None);
        }

        #[test]
        fn random_number_is_below_its_bound(seed: u64, bound: u64) {
            let below = below(bound, &mut ChaCha12Rng::seed_from_u64(seed));
            prop_assert!(below < bound || bound == 0);
        }
    }

    #[test]
    fn what_is_removed_again_and_again_is_made_after_growing_pauses() {
        let at = |secs| Instant::from_nanos(secs * 1_000_000_000);
        let mut repair = Repair::default();
        let mut made = |seconds: std::ops::Range<u64>| -> Vec<u64> {
            seconds.filter(|&now| repair.due(at(now)) <= at(now)).collect()
        };
        assert_eq!(made(3..200), [3, 5, 9, 17, 33, 65, 125, 185]);
        // It has lasted until now.
        assert_eq!(made(305..309), [305, 307]);
    }

    #[test]
    fn jitter_uses_its_whole_width() {
        let rng = &mut ChaCha12Rng::seed_from_u64(1);
        let spread: Vec<_> =
            (0..1000).map(|_| Jitter(10).spread(ms(1000), rng).as_millis()).collect();
        assert!(spread.iter().min().unwrap() < &905);
        assert!(spread.iter().max().unwrap() > &1095);
    }
}
