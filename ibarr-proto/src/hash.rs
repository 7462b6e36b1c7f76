// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Hash maps for cores: fast, with a seed that peers cannot know.

use core::fmt;
use core::hash::{BuildHasher, Hasher as _};

use rand_core::CryptoRng;
use siphasher::sip::SipHasher13;

/// SipHash that has absorbed a random 128-bit seed, so that no peer can choose keys that collide.
///
/// The order of a map is not reproducible: no code may iterate over a map with this hasher and let
/// the order have an effect.
#[derive(Clone)]
pub struct Seeded(SipHasher13);

impl Seeded {
    /// Takes the seed from `rng`.
    pub fn new(rng: &mut impl CryptoRng) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write_u64(rng.next_u64());
        hasher.write_u64(rng.next_u64());
        Self(hasher)
    }
}

impl BuildHasher for Seeded {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        self.0
    }
}

impl fmt::Debug for Seeded {
    /// Does not print the seed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seeded")
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn hash_depends_only_on_seed_and_key() {
        let hash = |seed| Seeded::new(&mut ChaCha12Rng::seed_from_u64(seed)).hash_one(7_u32);
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }
}
