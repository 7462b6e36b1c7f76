// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How long requests took, in buckets: for histograms of the metrics.

use core::time::Duration;

/// Counts of durations.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Histogram {
    sum: Duration,
    buckets: [u64; Histogram::BOUNDS.len() + 1],
}

impl Histogram {
    /// The longest duration of each bucket. One more bucket has all that is longer.
    pub const BOUNDS: [Duration; 11] = [
        Duration::from_micros(100),
        Duration::from_micros(500),
        Duration::from_millis(1),
        Duration::from_millis(5),
        Duration::from_millis(20),
        Duration::from_millis(100),
        Duration::from_millis(300),
        Duration::from_secs(1),
        Duration::from_secs(3),
        Duration::from_secs(10),
        Duration::from_secs(30),
    ];

    /// Adds one.
    pub fn add(&mut self, duration: Duration) {
        // Almost all answers come from memory, and are in the first bucket.
        let at = Self::BOUNDS.iter().position(|&bound| duration <= bound);
        if let Some(count) = self.buckets.get_mut(at.unwrap_or(Self::BOUNDS.len())) {
            *count = count.saturating_add(1);
        }
        self.sum = self.sum.saturating_add(duration);
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// How many there are in each bucket, which has no end if there is no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let bounds = Self::BOUNDS.into_iter().map(Some).chain([None]);
        bounds.zip(self.buckets.iter().copied())
    }
}

/// A duration that documents have in milliseconds with their fraction, to the nanosecond.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(transparent))]
pub struct Elapsed(#[cfg_attr(feature = "serde", serde(with = "millis"))] pub Duration);

impl Elapsed {
    /// The number in documents.
    pub fn millis(self) -> f64 {
        self.0.as_secs_f64() * 1000.0
    }
}

/// The form of an [`Elapsed`].
#[cfg(feature = "serde")]
pub mod millis {
    use core::time::Duration;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Writes a duration as this number.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(super::Elapsed(*time).millis())
    }

    /// Reads this number as a duration.
    ///
    /// # Errors
    /// If it is no number, negative or too large.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let millis = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(millis / 1000.0).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_counted_in_the_first_bucket_that_is_long_enough() {
        let mut durations = Histogram::default();
        let ms = Duration::from_millis;
        for duration in [Duration::ZERO, ms(1), ms(1) + Duration::from_nanos(1), ms(60_000)] {
            durations.add(duration);
        }
        let filled: Vec<_> = durations.buckets().filter(|(_, count)| *count > 0).collect();
        let expected =
            [(Some(Histogram::BOUNDS[0]), 1), (Some(ms(1)), 1), (Some(ms(5)), 1), (None, 1)];
        assert_eq!(filled, expected);
        assert_eq!(durations.sum(), ms(60_002) + Duration::from_nanos(1));
    }
}
