// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Keeps `own_bits` consistent with the GID cache: the bit of every address is set before the
//! address is added to the cache, and stays until the address is removed.

use std::borrow::{Borrow, BorrowMut};
use std::collections::BTreeSet;

use aya::maps::{Array, MapData, MapError};
use ibarr_common::map::{GidKey, OwnBit};

/// The addresses in the GID cache, ordered by their bits.
#[derive(Debug)]
pub(super) struct OwnAddresses<W> {
    words: W,
    held: BTreeSet<(OwnBit, [u8; 16], u32)>,
}

/// The map; the tests replace it.
pub(super) trait Words {
    fn word(&self, index: u32) -> Result<u64, MapError>;
    fn set_word(&mut self, index: u32, word: u64) -> Result<(), MapError>;
}

impl<D: Borrow<MapData> + BorrowMut<MapData>> Words for Array<D, u64> {
    fn word(&self, index: u32) -> Result<u64, MapError> {
        self.get(&index, 0)
    }

    fn set_word(&mut self, index: u32, word: u64) -> Result<(), MapError> {
        self.set(index, word, 0)
    }
}

impl<W: Words> OwnAddresses<W> {
    /// For an empty cache.
    pub(super) fn new(words: W) -> Self {
        Self { words, held: BTreeSet::new() }
    }

    /// Call it before `key` is added to the cache.
    pub(super) fn add(&mut self, key: &GidKey) -> Result<(), MapError> {
        let bit = OwnBit::of(key);
        let word = self.words.word(bit.word())?;
        if word & bit.mask() == 0 {
            self.words.set_word(bit.word(), word | bit.mask())?;
        }
        self.held.insert((bit, key.address, key.scope));
        Ok(())
    }

    /// Call it after `key` is removed from the cache.
    pub(super) fn remove(&mut self, key: &GidKey) -> Result<(), MapError> {
        let bit = OwnBit::of(key);
        self.held.remove(&(bit, key.address, key.scope));
        let of_this_bit = (bit, [0; 16], 0)..=(bit, [0xff; 16], u32::MAX);
        if self.held.range(of_this_bit).next().is_none() {
            let word = self.words.word(bit.word())?;
            self.words.set_word(bit.word(), word & !bit.mask())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};
    use std::net::{IpAddr, Ipv4Addr};

    use ibarr_common::IfIndex;
    use proptest::prelude::*;

    use super::*;

    impl Words for BTreeMap<u32, u64> {
        fn word(&self, index: u32) -> Result<u64, MapError> {
            Ok(self.get(&index).copied().unwrap_or_default())
        }

        fn set_word(&mut self, index: u32, word: u64) -> Result<(), MapError> {
            self.insert(index, word);
            Ok(())
        }
    }

    fn key(number: u32) -> GidKey {
        GidKey::new(IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + number)), IfIndex::MIN)
    }

    /// Addresses, some of which share a bit.
    fn keys() -> Vec<GidKey> {
        let first = OwnBit::of(&key(0));
        let is_near = |key: &GidKey| OwnBit::of(key).word() == first.word();
        let mut keys: Vec<_> = (0..10_000_000).map(key).filter(is_near).take(200).collect();
        keys.sort_by_key(OwnBit::of);
        let shared =
            keys.windows(2).filter(|pair| OwnBit::of(&pair[0]) == OwnBit::of(&pair[1])).count();
        assert!(shared > 50, "{shared} of {} share a bit", keys.len());
        keys
    }

    #[test]
    fn exactly_the_bits_of_cached_addresses_are_set() {
        let keys = keys();
        let changes = prop::collection::vec((any::<bool>(), 0..keys.len()), 0..500);
        proptest!(|(changes in changes)| {
            let mut own = OwnAddresses::new(BTreeMap::new());
            let mut cache = HashSet::new();
            for (add, index) in changes {
                let key = keys[index];
                if add {
                    own.add(&key).unwrap();
                    cache.insert(key);
                } else {
                    cache.remove(&key);
                    own.remove(&key).unwrap();
                }
                let mut wanted: BTreeMap<u32, u64> = BTreeMap::new();
                for bit in cache.iter().map(OwnBit::of) {
                    *wanted.entry(bit.word()).or_default() |= bit.mask();
                }
                let mut words = own.words.clone();
                words.retain(|_, word| *word != 0);
                prop_assert_eq!(words, wanted);
            }
        });
    }
}
