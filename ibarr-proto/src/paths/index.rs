// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An index of a table by hash: an open hash table in one piece of memory. A look-up usually reads
//! one line of the processor's cache, which is the minimum for a table of a million entries.

use std::num::NonZeroU32;

/// Slots by hash. The caller selects among several with the same hash.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// 2ⁿ places, or none. Each slot is at the place of its hash or after it, without a gap
    /// between.
    places: Vec<Option<Place>>,
    len: usize,
}

/// A position in a separate table. Tables have fewer than 2³² positions.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Slot(NonZeroU32);

#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    slot: Slot,
}

const _: () = assert!(size_of::<Option<Place>>() == 8);

impl Slot {
    /// `None` beyond the maximum of a table.
    pub(super) fn new(number: usize) -> Option<Self> {
        let number = u32::try_from(number).ok()?.checked_add(1)?;
        NonZeroU32::new(number).map(Self)
    }

    pub(super) fn number(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl Index {
    /// The first slot with that hash for which `is_it` is true.
    pub(super) fn find(&self, hash: u32, is_it: impl Fn(Slot) -> bool) -> Option<Slot> {
        let mut at = self.home(hash)?;
        loop {
            let place = self.get(at)?;
            if place.hash == hash && is_it(place.slot) {
                return Some(place.slot);
            }
            at = self.after(at);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a slot that is not in the index.
    pub(super) fn insert(&mut self, hash: u32, slot: Slot) {
        // A quarter of the places is always free, so that a slot is near the place of its hash.
        if (self.len + 1) * 4 > self.places.len() * 3 {
            self.grow();
        }
        self.put(Place { hash, slot });
        self.len += 1;
    }

    /// Removes a slot.
    pub(super) fn remove(&mut self, hash: u32, slot: Slot) {
        let Some(mut at) = self.home(hash) else { return };
        loop {
            match self.get(at) {
                None => return,
                Some(place) if place.slot == slot => break,
                Some(_) => at = self.after(at),
            }
        }
        self.len -= 1;
        // Later slots move up unless they are at the place of their hash: no gap may precede them.
        let mut gap = at;
        loop {
            at = self.after(at);
            let Some(place) = self.get(at) else { break };
            let Some(home) = self.home(place.hash) else { break };
            if self.distance(home, at) >= self.distance(gap, at) {
                self.set(gap, Some(place));
                gap = at;
            }
        }
        self.set(gap, None);
    }

    fn grow(&mut self) {
        let larger = vec![None; (self.places.len() * 2).max(16)];
        // In order, so they are inserted one after another.
        for place in std::mem::replace(&mut self.places, larger).into_iter().flatten() {
            self.put(place);
        }
    }

    fn put(&mut self, place: Place) {
        let Some(mut at) = self.home(place.hash) else { return };
        while self.get(at).is_some() {
            at = self.after(at);
        }
        self.set(at, Some(place));
    }

    /// `None` in a table without places.
    fn home(&self, hash: u32) -> Option<usize> {
        Some(hash as usize & self.places.len().checked_sub(1)?)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.places.len() - 1)
    }

    fn get(&self, at: usize) -> Option<Place> {
        *self.places.get(at)?
    }

    fn set(&mut self, at: usize, place: Option<Place>) {
        if let Some(it) = self.places.get_mut(at) {
            *it = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Only a few hashes, so that many collide and wrap around the end.
        #[test]
        fn index_does_what_a_plain_list_does(ops: Vec<(bool, u8, u8)>) {
            let mut index = Index::default();
            let mut model: Vec<(u32, Slot)> = Vec::new();
            let mut next = 0;
            for (is_insert, hash, which) in ops {
                if is_insert || model.is_empty() {
                    let hash = (u32::from(hash % 8) * 0x2000_0001) | 0xc;
                    let slot = Slot::new(next).unwrap();
                    next += 1;
                    index.insert(hash, slot);
                    model.push((hash, slot));
                } else {
                    let (hash, slot) = model.remove(usize::from(which) % model.len());
                    index.remove(hash, slot);
                    prop_assert_eq!(index.find(hash, |it| it == slot), None);
                    // A second removal has no effect.
                    index.remove(hash, slot);
                }
                prop_assert_eq!(index.len, model.len());
                for &(hash, slot) in &model {
                    prop_assert_eq!(index.find(hash, |it| it == slot), Some(slot));
                    prop_assert!(index.find(!hash, |_| true).is_none());
                }
            }
        }
    }
}
