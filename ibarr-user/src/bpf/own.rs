// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Keeps `own_bits` consistent with the GID cache and the routes: the bit of every address, and of
//! every first or last address of a subnet, is set before the element is written, and stays until it
//! is removed.

use std::borrow::{Borrow, BorrowMut};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;

use aya::maps::{Array, MapData, MapError};
use ibarr_common::map::{GidKey, OwnBit};
use ibarr_proto::responder::RouteKey;

/// The addresses that have bits, ordered by these.
#[derive(Debug)]
pub(super) struct OwnAddresses<W> {
    words: W,
    held: BTreeSet<(OwnBit, Marked)>,
}

/// An element whose address has a bit.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Marked {
    /// An entry of the GID cache: the fields of its key.
    Cached([u8; 16], u32),
    /// The first or last address of an IPv4 subnet, and the interface of the subnet.
    Edge([u8; 16], u32),
}

impl Marked {
    const FIRST: Self = Self::Cached([0; 16], 0);
    const LAST: Self = Self::Edge([0xff; 16], u32::MAX);

    /// `None` for a prefix with other addresses: an interface that leads to some sources is asked for each.
    pub(super) fn edge(route: &RouteKey) -> Option<Self> {
        let (address, bits) = route.prefix.prefix(route.bits);
        let is_edge = address.is_ipv4() && bits == Ipv4Addr::BITS;
        is_edge.then_some(Self::Edge(route.prefix.address, route.prefix.ifindex))
    }

    fn bit(self) -> OwnBit {
        let (address, scope) = match self {
            Self::Cached(address, scope) => (address, scope),
            Self::Edge(address, _) => (address, 0),
        };
        OwnBit::of(&GidKey { address, scope })
    }
}

impl From<GidKey> for Marked {
    fn from(key: GidKey) -> Self {
        Self::Cached(key.address, key.scope)
    }
}

/// The map; the tests replace it.
pub(super) trait Words {
    fn word(&mut self, index: u32) -> Result<u64, MapError>;
    fn set_word(&mut self, index: u32, word: u64) -> Result<(), MapError>;
}

impl<D: Borrow<MapData> + BorrowMut<MapData>> Words for Array<D, u64> {
    fn word(&mut self, index: u32) -> Result<u64, MapError> {
        self.get(&index, 0)
    }

    fn set_word(&mut self, index: u32, word: u64) -> Result<(), MapError> {
        self.set(index, word, 0)
    }
}

/// Reads each word once: no other process writes them.
#[derive(Debug)]
pub(super) struct Known<W> {
    words: W,
    known: HashMap<u32, u64>,
}

impl<W: Words> Known<W> {
    pub(super) fn new(words: W) -> Self {
        Self { words, known: HashMap::new() }
    }
}

impl<W: Words> Words for Known<W> {
    fn word(&mut self, index: u32) -> Result<u64, MapError> {
        Ok(match self.known.entry(index) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => *unknown.insert(self.words.word(index)?),
        })
    }

    fn set_word(&mut self, index: u32, word: u64) -> Result<(), MapError> {
        self.words.set_word(index, word)?;
        self.known.insert(index, word);
        Ok(())
    }
}

impl<W: Words> OwnAddresses<W> {
    /// For an empty cache.
    pub(super) fn new(words: W) -> Self {
        Self { words, held: BTreeSet::new() }
    }

    /// Call it before the element is written.
    pub(super) fn add(&mut self, marked: Marked) -> Result<(), MapError> {
        let bit = marked.bit();
        let word = self.words.word(bit.word())?;
        if word & bit.mask() == 0 {
            self.words.set_word(bit.word(), word | bit.mask())?;
        }
        self.held.insert((bit, marked));
        Ok(())
    }

    /// Call it after the element is removed.
    pub(super) fn remove(&mut self, marked: Marked) -> Result<(), MapError> {
        let bit = marked.bit();
        self.held.remove(&(bit, marked));
        let of_this_bit = (bit, Marked::FIRST)..=(bit, Marked::LAST);
        if self.held.range(of_this_bit).next().is_none() {
            let word = self.words.word(bit.word())?;
            self.words.set_word(bit.word(), word & !bit.mask())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use ibarr_common::IfIndex;
    use proptest::prelude::*;

    use super::*;

    impl Words for BTreeMap<u32, u64> {
        fn word(&mut self, index: u32) -> Result<u64, MapError> {
            Ok(self.get(&index).copied().unwrap_or_default())
        }

        fn set_word(&mut self, index: u32, word: u64) -> Result<(), MapError> {
            self.insert(index, word);
            Ok(())
        }
    }

    /// Entries and edges, many of the same address, some of which share a bit with another one.
    fn elements() -> Vec<Marked> {
        let entry = |number: u32| {
            let address = IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + number));
            Marked::from(GidKey::new(address, IfIndex::MIN))
        };
        let first = entry(0).bit();
        let is_near = |entry: &Marked| entry.bit().word() == first.word();
        let entries: Vec<_> = (0..10_000_000).map(entry).filter(is_near).take(200).collect();
        let mut elements = entries.clone();
        for entry in &entries[..100] {
            let Marked::Cached(address, _) = *entry else { panic!("{entry:?}") };
            elements.extend([1, 2].map(|ifindex| Marked::Edge(address, ifindex)));
        }
        elements.sort_by_key(|element| element.bit());
        let shared = elements.windows(2).filter(|pair| pair[0].bit() == pair[1].bit()).count();
        assert!(shared > 150, "{shared} of {} share a bit", elements.len());
        elements
    }

    #[test]
    fn exactly_the_bits_of_cached_addresses_and_edges_are_set() {
        let elements = elements();
        let changes = prop::collection::vec((any::<bool>(), 0..elements.len()), 0..500);
        proptest!(|(changes in changes)| {
            let mut own = OwnAddresses::new(Known::new(BTreeMap::new()));
            let mut there = BTreeSet::new();
            for (add, index) in changes {
                let element = elements[index];
                if add {
                    own.add(element).unwrap();
                    there.insert(element);
                } else {
                    there.remove(&element);
                    own.remove(element).unwrap();
                }
                let mut wanted: BTreeMap<u32, u64> = BTreeMap::new();
                for bit in there.iter().map(|element| element.bit()) {
                    *wanted.entry(bit.word()).or_default() |= bit.mask();
                }
                let mut words = own.words.words.clone();
                words.retain(|_, word| *word != 0);
                prop_assert_eq!(words, wanted);
            }
        });
    }

    #[test]
    fn each_word_is_read_once() {
        struct Counted(BTreeMap<u32, u64>, u32);
        impl Words for Counted {
            fn word(&mut self, index: u32) -> Result<u64, MapError> {
                self.1 += 1;
                self.0.word(index)
            }

            fn set_word(&mut self, index: u32, word: u64) -> Result<(), MapError> {
                self.0.set_word(index, word)
            }
        }
        let mut own = OwnAddresses::new(Known::new(Counted(BTreeMap::new(), 0)));
        let elements = elements();
        for &element in elements.iter().chain(&elements) {
            own.add(element).unwrap();
        }
        for &element in &elements {
            own.remove(element).unwrap();
        }
        assert_eq!(own.words.words.1, 1, "all are in one word");
    }
}
