// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The answers of the SA.
//!
//! A look-up hashes the question once, and reads one group of the index and one entry. With a
//! million entries neither is in the processor's cache, so both are as small as possible, and an
//! entry is two adjacent cache lines. A look-up writes nothing: use does not prolong the life of an
//! entry.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash, Hasher};
use core::ops::Bound;

use hashbrown::HashTable;
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, PKey, PathRecord, QosClass, ServiceId};
use ibarr_common::wire::sa::PathQuestion;

use super::lids::Lids;
use super::slab::{Slab, Slot};
use crate::hash::Seeded;
use crate::sa::PortIndex;

/// Answers by question. If the cache is full, it drops the entry that expires first.
#[derive(Debug)]
pub(super) struct Cache {
    hasher: Seeded,
    index: HashTable<Indexed>,
    entries: Slab<Entry>,
    by_expiry: BTreeSet<(Instant, Slot)>,
    lids: Lids,
    max: usize,
}

/// A question in the form of the cache, 48 bytes. A snapshot has the same values and flags.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Key {
    pub(super) dgid: [u8; 16],
    pub(super) sgid: [u8; 16],
    pub(super) service_id: u64,
    pub(super) port: PortIndex,
    /// 0, which is not a legal P_Key, if the question has none.
    pub(super) pkey: u16,
    pub(super) qos_class: u16,
    pub(super) tclass: u8,
    /// 1 if the path is reversible; 2, 4, 8, 16 if there are a service id, a class of service, a
    /// traffic class, a P_Key.
    pub(super) flags: u8,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Remembered {
    /// `None` for "no such path".
    pub(super) record: Option<PathRecord>,
    /// The answer is not used from this time on.
    pub(super) expires_at: Instant,
    /// The epoch of the port when the answer was learned.
    pub(super) epoch: u32,
}

impl Key {
    pub(super) fn new(port: PortIndex, question: &PathQuestion) -> Self {
        let flag = |is_set: bool, bit: u8| u8::from(is_set) << bit;
        Self {
            dgid: question.dgid.octets(),
            sgid: question.sgid.octets(),
            service_id: question.service_id.map_or(0, ServiceId::get),
            port,
            pkey: question.pkey.map_or(0, PKey::get),
            qos_class: question.qos_class.map_or(0, QosClass::get),
            tclass: question.tclass.unwrap_or(0),
            flags: flag(question.reversible, 0)
                | flag(question.service_id.is_some(), 1)
                | flag(question.qos_class.is_some(), 2)
                | flag(question.tclass.is_some(), 3)
                | flag(question.pkey.is_some(), 4),
        }
    }

    pub(super) fn port(&self) -> PortIndex {
        self.port
    }

    /// Whether the caller keeps the answer until it is told that the subnet has changed: IPoIB and
    /// SRP do, and ask for one direction.
    pub(super) fn is_kept(&self) -> bool {
        self.flags & 1 == 0
    }

    /// The question that this key was made from.
    pub(super) fn question(&self) -> Option<PathQuestion> {
        let flag = |bit: u8| self.flags >> bit & 1 != 0;
        Some(PathQuestion {
            dgid: Gid::new(self.dgid)?,
            sgid: Gid::new(self.sgid)?,
            reversible: flag(0),
            pkey: PKey::new(self.pkey),
            tclass: flag(3).then_some(self.tclass),
            service_id: flag(1).then(|| ServiceId::new(self.service_id)),
            qos_class: QosClass::new(self.qos_class).filter(|_| flag(2)),
        })
    }
}

impl Hash for Key {
    /// In one piece: the overhead of a hasher per piece exceeds the cost of hashing.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { dgid, sgid, service_id, port, pkey, qos_class, tclass, flags } = *self;
        let of_port = u64::from(port.0) << 48 | u64::from(pkey) << 32;
        let rest = of_port | u64::from(qos_class) << 16 | u64::from(tclass) << 8 | u64::from(flags);
        let rest = u128::from(service_id) << 64 | u128::from(rest);
        let mut octets = [0; 48];
        octets[..16].copy_from_slice(&dgid);
        octets[16..32].copy_from_slice(&sgid);
        octets[32..].copy_from_slice(&rest.to_ne_bytes());
        state.write(&octets);
    }
}

impl Cache {
    pub(super) fn new(max: usize, hasher: Seeded) -> Self {
        Self {
            index: HashTable::new(),
            entries: Slab::default(),
            by_expiry: BTreeSet::new(),
            lids: Lids::new(hasher.clone()),
            hasher,
            max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_expiry.len()
    }

    /// The answer, if it is remembered.
    pub(super) fn lookup(&self, now: Instant, key: &Key) -> Option<Remembered> {
        let entry = self.entries.get(self.find(self.hash(key), key)?)?;
        (entry.remembered.expires_at > now).then_some(entry.remembered)
    }

    /// Remembers an answer, in place of an older one. `lmc` is the port's. Returns how many others
    /// were dropped.
    pub(super) fn insert(&mut self, key: Key, remembered: Remembered, lmc: u8) -> u64 {
        if self.max == 0 {
            return 0;
        }
        // This comes before the old answer is dropped, together with its statement about this host.
        if let Some(record) = &remembered.record {
            self.lids.add(key.port, record, remembered.epoch, lmc);
        }
        let hash = self.hash(&key);
        if let Some(slot) = self.find(hash, &key) {
            self.forget(hash, slot);
        }
        let forgotten = self.make_room(self.max - 1);
        if let Some(slot) = self.entries.insert(Entry { key, remembered }) {
            let rehash = |it: &Indexed| spread(it.hash);
            self.index.insert_unique(spread(hash), Indexed { hash, slot }, rehash);
            self.by_expiry.insert((remembered.expires_at, slot));
        }
        forgotten
    }

    /// Sets the maximum number of answers. Returns how many were dropped.
    pub(super) fn set_max(&mut self, max: usize) -> u64 {
        self.max = max;
        self.make_room(max)
    }

    /// Drops all answers for which `is_kept` is false.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&Key, &Remembered) -> bool) {
        let is_kept = |entry: &Entry| is_kept(&entry.key, &entry.remembered);
        let slots = self.by_expiry.iter().map(|&(_, slot)| slot);
        let slots = slots.filter(|&slot| !self.entries.get(slot).is_some_and(is_kept));
        for slot in slots.collect::<Vec<_>>() {
            self.forget_slot(slot);
        }
    }

    /// The LIDs of ports in the subnets, according to the answers.
    pub(super) fn lids(&self) -> &Lids {
        &self.lids
    }

    /// When the next answer expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.by_expiry.first().map(|&(at, _)| at)
    }

    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(at, slot)) = self.by_expiry.first()
            && at <= now
        {
            self.forget_slot(slot);
        }
    }

    /// Every entry, ordered by expiry.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Remembered)> {
        let entries = self.by_expiry.iter().filter_map(|&(_, slot)| self.entries.get(slot));
        entries.map(|entry| (&entry.key, &entry.remembered))
    }

    /// The entries after a place.
    pub(super) fn after(
        &self,
        place: Option<Position>,
    ) -> impl Iterator<Item = (Position, &Key, &Remembered)> {
        let start =
            place.map_or(Bound::Unbounded, |Position(at, slot)| Bound::Excluded((at, slot)));
        self.by_expiry.range((start, Bound::Unbounded)).filter_map(|&(at, slot)| {
            let entry = self.entries.get(slot)?;
            Some((Position(at, slot), &entry.key, &entry.remembered))
        })
    }

    /// At most `count` entries from slot `from` on, and the slot to continue with, if there are
    /// more. An entry keeps its slot even when it is replaced, so a reader of all pages gets every
    /// entry that exists all the while exactly once. The cost of a page is bounded also if slots
    /// are empty.
    pub(super) fn page(&self, from: u32, count: usize) -> (Vec<(&Key, &Remembered)>, Option<u32>) {
        let mut page = Vec::new();
        let mut at = from;
        let (end, stop) = (self.entries.slots(), from.saturating_add(Self::SLOTS_OF_PAGE));
        while at < end {
            if at == stop || page.len() == count {
                return (page, Some(at));
            }
            if let Some(entry) = self.entries.get(Slot(at)) {
                page.push((&entry.key, &entry.remembered));
            }
            at += 1;
        }
        (page, None)
    }

    /// Maximum number of slots read for a page; an empty slot costs less than an answer.
    const SLOTS_OF_PAGE: u32 = 512;

    fn make_room(&mut self, len: usize) -> u64 {
        let mut forgotten = 0;
        while self.len() > len
            && let Some(&(_, slot)) = self.by_expiry.first()
        {
            self.forget_slot(slot);
            forgotten += 1;
        }
        forgotten
    }

    fn forget_slot(&mut self, slot: Slot) {
        if let Some(entry) = self.entries.get(slot) {
            self.forget(self.hash(&entry.key), slot);
        }
    }

    fn forget(&mut self, hash: u32, slot: Slot) {
        if let Ok(indexed) = self.index.find_entry(spread(hash), |it| it.slot == slot) {
            indexed.remove();
        }
        if let Some(entry) = self.entries.remove(slot) {
            self.by_expiry.remove(&(entry.remembered.expires_at, slot));
            if let Some(record) = &entry.remembered.record {
                self.lids.remove(entry.key.port, record);
            }
        }
    }

    fn find(&self, hash: u32, key: &Key) -> Option<Slot> {
        let is_it = |it: &Indexed| {
            it.hash == hash && self.entries.get(it.slot).is_some_and(|entry| entry.key == *key)
        };
        self.index.find(spread(hash), is_it).map(|it| it.slot)
    }

    fn hash(&self, key: &Key) -> u32 {
        let [.., a, b, c, d] = self.hasher.hash_one(key).to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

/// An element of the index. It has the hash, so that the index can grow without reading entries.
#[derive(Clone, Copy, Debug)]
struct Indexed {
    hash: u32,
    slot: Slot,
}

const _: () = assert!(size_of::<Indexed>() == 8);

/// The hash as the index takes it: it selects a group by the lowest bits, and compares the highest.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// An entry with its slot. Aligned so that it fills two adjacent cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(128))]
struct Entry {
    key: Key,
    remembered: Remembered,
}

const _: () = assert!(size_of::<Option<Entry>>() == 128);

/// The position of a reader of all entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position(Instant, Slot);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    fn key(n: u32) -> Key {
        let gid =
            |n: u32| Gid::new((0xfe80_u128 << 112 | u128::from(n + 1)).to_be_bytes()).unwrap();
        let question = PathQuestion {
            dgid: gid(n / 8),
            sgid: gid(0),
            reversible: n & 1 != 0,
            pkey: PKey::new(u16::from(n & 2 != 0) * 0x8001),
            tclass: (n & 4 != 0).then_some(0),
            service_id: None,
            qos_class: None,
        };
        Key::new(PortIndex(0), &question)
    }

    fn remembered(n: u8, expires_at: u64) -> Remembered {
        let record = (n != 0).then(|| PathRecord::from_octets([n; PathRecord::LEN]));
        Remembered { record, expires_at: Instant::from_nanos(expires_at), epoch: n.into() }
    }

    fn cache(max: usize) -> Cache {
        Cache::new(max, Seeded::new(&mut ChaCha12Rng::seed_from_u64(1)))
    }

    #[test]
    fn optional_part_of_zero_differs_from_none() {
        let keys: BTreeSet<_> = (0..16).map(key).collect();
        assert_eq!(keys.len(), 16);
    }

    #[test]
    fn hash_depends_on_every_part_of_the_question() {
        let seeded = Seeded::new(&mut ChaCha12Rng::seed_from_u64(1));
        let (key, one) = (key(0), [1; 16]);
        let others = [
            Key { dgid: one, ..key },
            Key { sgid: one, ..key },
            Key { service_id: 1, ..key },
            Key { port: PortIndex(1), ..key },
            Key { pkey: 1, ..key },
            Key { qos_class: 1, ..key },
            Key { tclass: 1, ..key },
            Key { flags: key.flags ^ 2, ..key },
        ];
        let hashes: BTreeSet<_> =
            others.iter().chain([&key]).map(|key| seeded.hash_one(key)).collect();
        assert_eq!(hashes.len(), others.len() + 1);
    }

    #[test]
    fn full_cache_drops_the_path_that_expires_first() {
        let mut cache = cache(2);
        assert_eq!(cache.insert(key(1), remembered(1, 30), 0), 0);
        assert_eq!(cache.insert(key(2), remembered(0, 20), 0), 0);
        assert_eq!(cache.insert(key(2), remembered(2, 26), 0), 0, "replaces its own entry");
        assert_eq!(cache.insert(key(3), remembered(3, 40), 0), 1);
        assert_eq!(cache.lookup(Instant::BOOT, &key(2)), None);
        assert_eq!(cache.set_max(1), 1);
        assert_eq!(cache.lookup(Instant::BOOT, &key(3)), Some(remembered(3, 40)));
        assert_eq!(cache.lookup(Instant::from_nanos(40), &key(3)), None);
        cache.retain(|_, _| false);
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn questions_with_equal_hashes_are_distinguished() {
        let mut cache = cache(8);
        cache.insert(key(1), remembered(1, 30), 0);
        cache.insert(key(2), remembered(2, 40), 0);
        let [one, two] = [1, 2].map(|n| cache.hash(&key(n)));
        let slot = cache.find(one, &key(1)).unwrap();
        cache.index.find_entry(spread(one), |it| it.slot == slot).unwrap().remove();
        cache.index.insert_unique(spread(two), Indexed { hash: two, slot }, |it| spread(it.hash));
        assert_eq!(cache.lookup(Instant::BOOT, &key(2)), Some(remembered(2, 40)));
        assert_eq!(cache.lookup(Instant::BOOT, &key(1)), None);
        cache.expire(Instant::from_nanos(40));
        assert_eq!(cache.lookup(Instant::BOOT, &key(2)), None);
    }

    proptest! {
        #[test]
        fn pages_contain_each_lasting_entry_once(
            ops: Vec<(u8, u8, bool)>,
            count in 1_usize..4,
        ) {
            let mut cache = cache(8);
            let (mut from, mut seen) = (Some(0), Vec::new());
            let mut always = BTreeSet::new();
            let forget_gone = |always: &mut BTreeSet<Key>, cache: &Cache| {
                always.retain(|key| cache.lookup(Instant::BOOT, key).is_some());
            };
            for n in 0..8 {
                cache.insert(key(n), remembered(1, u64::from(n) + 1), 0);
                always.insert(key(n));
            }
            for (n, time, reads) in ops {
                // Replaces an entry by one with any other expiry.
                cache.insert(key(u32::from(n % 12)), remembered(n, u64::from(time) + 1), 0);
                forget_gone(&mut always, &cache);
                if time % 16 == 0 {
                    cache.expire(Instant::from_nanos(u64::from(time / 2)));
                    forget_gone(&mut always, &cache);
                }
                if let Some(at) = from.filter(|_| reads) {
                    let (page, next) = cache.page(at, count);
                    prop_assert!(page.len() <= count);
                    seen.extend(page.iter().map(|(key, _)| **key));
                    from = next;
                }
            }
            while let Some(at) = from {
                let (page, next) = cache.page(at, count);
                prop_assert!(page.len() <= count);
                prop_assert!(next.is_none_or(|next| next > at && next - at <= 512));
                seen.extend(page.iter().map(|(key, _)| **key));
                from = next;
            }
            for key in always {
                prop_assert_eq!(seen.iter().filter(|seen| **seen == key).count(), 1);
            }
        }

        #[test]
        fn cache_does_what_a_plain_list_does(ops: Vec<(u8, u8, u8)>) {
            let mut cache = cache(5);
            let mut max = 5;
            let mut model: Vec<(Key, Remembered)> = Vec::new();
            let mut now = Instant::from_nanos(1);
            for (op, n, time) in ops {
                let of = key(u32::from(n % 12));
                now += Duration::from_nanos((time % 8).into());
                match op % 6 {
                    0 | 1 => {
                        let new = remembered(n, now.as_nanos() + u64::from(time % 32));
                        // Equal times are ordered by slot, which a plain list does not have.
                        let is_taken = |at| model.iter().any(|(_, other)| other.expires_at == at);
                        if !is_taken(new.expires_at) {
                            model.retain(|(key, _)| *key != of);
                            let forgotten = (model.len() + 1).saturating_sub(max);
                            model.drain(..forgotten);
                            model.push((of, new));
                            model.sort_by_key(|(_, remembered)| remembered.expires_at);
                            prop_assert_eq!(cache.insert(of, new, 0), forgotten as u64);
                        }
                    }
                    2 => {
                        let live = model.iter().find(|(key, it)| *key == of && it.expires_at > now);
                        prop_assert_eq!(cache.lookup(now, &of), live.map(|(_, it)| *it));
                    }
                    3 => {
                        cache.expire(now);
                        model.retain(|(_, it)| it.expires_at > now);
                    }
                    4 if time % 8 == 0 => {
                        max = usize::from(n % 7) + 1;
                        let forgotten = model.len().saturating_sub(max);
                        model.drain(..forgotten);
                        prop_assert_eq!(cache.set_max(max), forgotten as u64);
                    }
                    4 if time % 8 == 1 => {
                        cache.retain(|_, it| it.epoch % 2 == 0);
                        model.retain(|(_, it)| it.epoch % 2 == 0);
                    }
                    _ => {}
                }
                prop_assert_eq!(cache.len(), model.len());
                prop_assert_eq!(cache.index.len(), model.len());
                prop_assert!(cache.entries.slots() <= 1024);
                let listed: Vec<_> = cache.iter().map(|(key, it)| (*key, *it)).collect();
                prop_assert_eq!(listed, model.clone());
                let first = model.first().map(|(_, it)| it.expires_at);
                prop_assert_eq!(cache.next_expiry(), first);
            }
        }
    }
}
