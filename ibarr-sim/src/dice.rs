// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The only source of randomness in a simulation, derived from its seed or from the bytes of a script.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Range;
use std::time::Duration;

use ibarr_proto::retry::{below, random};
use rand_chacha::{ChaCha8Rng, ChaCha12Rng};
use rand_core::{Rng as _, SeedableRng as _, TryRng};

#[derive(Debug)]
pub(crate) struct Dice(Source);

/// Each number takes one byte of the script, so that another byte changes one number. The first byte is a seed;
/// it decides what the bytes leave open, and all numbers after the last byte.
#[derive(Debug)]
struct Source {
    script: VecDeque<u8>,
    rng: ChaCha8Rng,
}

impl TryRng for Source {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let number = self.rng.next_u32();
        Ok(self.script.pop_front().map_or(number, u32::from))
    }

    /// A byte is the highest one of the number, see [`below`].
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let number = self.rng.next_u64();
        Ok(self.script.pop_front().map_or(number, |byte| u64::from(byte) << 56 | number >> 8))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.rng.try_fill_bytes(bytes)
    }
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Source { script: VecDeque::new(), rng: ChaCha8Rng::seed_from_u64(seed) })
    }

    pub(crate) fn of_script(bytes: &[u8]) -> Self {
        let mut script = VecDeque::from(bytes.to_vec());
        let seed = script.pop_front().unwrap_or_default();
        Self(Source { script, rng: ChaCha8Rng::seed_from_u64(seed.into()) })
    }

    /// A generator for a core: numbers that the core draws change nothing here.
    pub(crate) fn seed_core(&mut self) -> ChaCha12Rng {
        ChaCha12Rng::seed_from_u64(self.0.next_u64())
    }

    /// A number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX);
        usize::try_from(below(bound, &mut self.0)).unwrap_or_default()
    }

    /// True with probability 1 / `one_in`.
    pub(crate) fn once_in(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub(crate) fn permille(&mut self, permille: u16) -> bool {
        permille > 0 && self.below(1000) < usize::from(permille)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap_or_default()
    }

    /// Any bytes, fewer than `bound`.
    pub(crate) fn bytes(&mut self, bound: usize) -> Vec<u8> {
        (0..self.below(bound)).map(|_| self.byte()).collect()
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.0.next_u32() & 1 == 0
    }

    pub(crate) fn within(&mut self, range: Range<Duration>) -> Duration {
        range.start + random(range.end.saturating_sub(range.start), &mut self.0)
    }

    /// A random time with the mean `mean`, never more than twice that.
    pub(crate) fn around(&mut self, mean: Duration) -> Duration {
        random(mean.saturating_mul(2), &mut self.0)
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

pub(crate) const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
