// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The answers of the SA.
//!
//! A look-up hashes the question once, and reads one group of the index and one entry. With a
//! million entries neither is in the processor's cache, so both are as small as possible: the index
//! has only slots, and an entry does not repeat what its record says. A look-up writes nothing: use
//! does not prolong the life of an entry.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash, Hasher};
use core::num::NonZero;

use hashbrown::HashTable;
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, PKey, PathRecord, QosClass, ServiceId};
use ibarr_common::wire::path_record::PathRecordWire;
use ibarr_common::wire::sa::PathQuestion;

use super::lids::Lids;
use super::order::{Order, Position};
use super::slab::{Slab, Slot};
use super::spread::Spread;
use crate::hash::Seeded;
use crate::sa::PortIndex;

/// Answers by question. If the cache is full, it drops the entry that expires first.
#[derive(Debug)]
pub(super) struct Cache {
    hasher: Seeded,
    index: HashTable<Slot>,
    entries: Slab<Entry>,
    order: Order,
    lids: Lids,
    pub(super) spread: Spread,
    max: usize,
}

/// A question in the form of the cache, 48 bytes. A snapshot has the same values and flags.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Key {
    pub(super) gids: Gids,
    pub(super) terms: Terms,
}

/// The ends of a path.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Gids {
    pub(super) dgid: [u8; 16],
    pub(super) sgid: [u8; 16],
}

/// All of a question but its GIDs.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Terms {
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
        let terms = Terms {
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
        };
        let PathQuestion { dgid, sgid, .. } = question;
        Self { gids: Gids { dgid: dgid.octets(), sgid: sgid.octets() }, terms }
    }

    pub(super) fn port(&self) -> PortIndex {
        self.terms.port
    }

    /// Whether a record is one between the GIDs of the question. A kernel that is given another source connects and
    /// gets no data; peers refuse another destination.
    pub(super) fn has_gids_of(&self, record: PathRecord) -> bool {
        Gids::of(record) == self.gids
    }

    /// Whether the caller keeps the answer until it is told that the subnet has changed: IPoIB and
    /// SRP do, and ask for one direction.
    pub(super) fn is_kept(&self) -> bool {
        self.terms.flags & 1 == 0
    }

    /// The question that this key was made from.
    pub(super) fn question(&self) -> Option<PathQuestion> {
        let Self { gids, terms } = self;
        let flag = |bit: u8| terms.flags >> bit & 1 != 0;
        Some(PathQuestion {
            dgid: Gid::new(gids.dgid)?,
            sgid: Gid::new(gids.sgid)?,
            reversible: flag(0),
            pkey: PKey::new(terms.pkey),
            tclass: flag(3).then_some(terms.tclass),
            service_id: flag(1).then(|| ServiceId::new(terms.service_id)),
            qos_class: QosClass::new(terms.qos_class).filter(|_| flag(2)),
        })
    }
}

impl Hash for Key {
    /// In one piece: the overhead of a hasher per piece exceeds the cost of hashing.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { gids: Gids { dgid, sgid }, terms } = *self;
        let Terms { service_id, port, pkey, qos_class, tclass, flags } = terms;
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
            order: Order::default(),
            lids: Lids::new(hasher.clone()),
            spread: Spread::new(hasher.clone()),
            hasher,
            max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The answer, if it is remembered.
    pub(super) fn lookup(&self, now: Instant, key: &Key) -> Option<Remembered> {
        let entry = self.entries.get(self.slot(key)?)?;
        (entry.expires_at > now).then(|| entry.remembered())
    }

    /// Remembers an answer, in place of an older one, unless its record has other GIDs than the question. `lmc` is
    /// the port's. Returns how many others were dropped.
    pub(super) fn insert(&mut self, key: Key, remembered: Remembered, lmc: u8) -> u64 {
        if self.max == 0 || remembered.record.is_some_and(|record| !key.has_gids_of(record)) {
            return 0;
        }
        // This comes before the old answer is dropped, together with its statement about this host.
        if let Some(record) = &remembered.record {
            self.lids.add(key.port(), record, remembered.epoch, lmc);
        }
        let hash = self.hash(&key);
        if let Some(slot) = self.find(hash, &key) {
            self.forget(slot);
        }
        let forgotten = self.make_room(self.max - 1);
        let entry = Entry::new(hash, &key, &remembered);
        let Some(slot) = self.entries.insert(entry) else { return forgotten };
        let Self { index, entries, order, .. } = self;
        let hash_of = |&slot: &Slot| entries.get(slot).map_or(0, |entry| halves(entry.hash));
        index.insert_unique(halves(hash), slot, hash_of);
        order.insert(position(entries, slot), |slot| position(entries, slot));
        forgotten
    }

    /// Sets the maximum number of answers. Returns how many were dropped.
    pub(super) fn set_max(&mut self, max: usize) -> u64 {
        self.max = max;
        self.make_room(max)
    }

    /// Drops all answers for which `is_kept` is false.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&Key, &Remembered) -> bool) {
        let entries = self.after(None).filter(|(_, key, remembered)| !is_kept(key, remembered));
        for slot in entries.map(|(Position(_, slot), ..)| slot).collect::<Vec<_>>() {
            self.forget(slot);
        }
    }

    /// The LIDs of ports in the subnets, according to the answers.
    pub(super) fn lids(&self) -> &Lids {
        &self.lids
    }

    /// When the next answer expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        Some(self.entries.get(self.order.first()?)?.expires_at)
    }

    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(slot) = self.order.first()
            && self.entries.get(slot).is_some_and(|entry| entry.expires_at <= now)
        {
            self.forget(slot);
        }
    }

    /// The entries after a place, or all, ordered by expiry.
    pub(super) fn after(
        &self,
        place: Option<Position>,
    ) -> impl Iterator<Item = (Position, Key, Remembered)> {
        let slots = self.order.after(place, |slot| position(&self.entries, slot));
        slots.filter_map(|slot| {
            let (key, remembered) = self.entry(slot)?;
            Some((Position(remembered.expires_at, slot), key, remembered))
        })
    }

    /// At most `count` entries from slot `from` on, and the slot to continue with, if there are
    /// more. An entry keeps its slot even when it is replaced, so a reader of all pages gets every
    /// entry that exists all the while exactly once. The cost of a page is bounded also if slots
    /// are empty.
    pub(super) fn page(&self, from: u32, count: usize) -> (Vec<(Key, Remembered)>, Option<u32>) {
        let mut page = Vec::new();
        let mut at = from;
        let (end, stop) = (self.entries.slots(), from.saturating_add(Self::SLOTS_OF_PAGE));
        while at < end {
            if at == stop || page.len() == count {
                return (page, Some(at));
            }
            page.extend(self.entry(Slot(at)));
            at += 1;
        }
        (page, None)
    }

    /// Maximum number of slots read for a page; an empty slot costs less than an answer.
    const SLOTS_OF_PAGE: u32 = 512;

    fn make_room(&mut self, len: usize) -> u64 {
        let mut forgotten = 0;
        while self.len() > len
            && let Some(slot) = self.order.first()
        {
            self.forget(slot);
            forgotten += 1;
        }
        forgotten
    }

    fn forget(&mut self, slot: Slot) {
        let Self { index, entries, order, lids, spread, .. } = self;
        spread.remove(slot);
        order.remove(position(entries, slot), |slot| position(entries, slot));
        let Some(entry) = entries.remove(slot) else { return };
        if let Ok(indexed) = index.find_entry(halves(entry.hash), |it| *it == slot) {
            indexed.remove();
        }
        if let Some(record) = entry.remembered().record {
            lids.remove(entry.terms.port, &record);
        }
    }

    pub(super) fn slot(&self, key: &Key) -> Option<Slot> {
        self.find(self.hash(key), key)
    }

    fn find(&self, hash: NonZero<u32>, key: &Key) -> Option<Slot> {
        let is_it = |&slot: &Slot| {
            let entry = self.entries.get(slot).filter(|entry| entry.hash == hash);
            entry.is_some_and(|entry| entry.key() == *key)
        };
        self.index.find(halves(hash), is_it).copied()
    }

    pub(super) fn entry(&self, slot: Slot) -> Option<(Key, Remembered)> {
        let entry = self.entries.get(slot)?;
        Some((entry.key(), entry.remembered()))
    }

    /// Never 0, so that an empty slot needs no mark of its own.
    fn hash(&self, key: &Key) -> NonZero<u32> {
        let [.., a, b, c, d] = self.hasher.hash_one(key).to_be_bytes();
        NonZero::new(u32::from_be_bytes([a, b, c, d])).unwrap_or(NonZero::<u32>::MIN)
    }
}

/// The hash as the index takes it: it selects a group by the lowest bits, and compares the highest.
fn halves(hash: NonZero<u32>) -> u64 {
    u64::from(hash.get()) << 32 | u64::from(hash.get())
}

fn position(entries: &Slab<Entry>, slot: Slot) -> Position {
    Position(entries.get(slot).map_or(Instant::BOOT, |entry| entry.expires_at), slot)
}

/// A question and its answer. Aligned so that it is in two cache lines and no third.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Entry {
    /// It has the GIDs of the question. Without a record, one that has nothing else.
    record: PathRecord,
    /// With the flags below, too.
    terms: Terms,
    expires_at: Instant,
    epoch: u32,
    /// The index can grow without hashing every question again.
    hash: NonZero<u32>,
}

const _: () = assert!(size_of::<Option<Entry>>() == 96);

impl Entry {
    const NO_RECORD: u8 = 1 << 6;

    fn new(hash: NonZero<u32>, key: &Key, remembered: &Remembered) -> Self {
        let Remembered { record, expires_at, epoch } = *remembered;
        let Key { gids, mut terms } = *key;
        if record.is_none() {
            terms.flags |= Self::NO_RECORD;
        }
        let record = record.unwrap_or_else(|| gids.alone());
        Self { record, terms, expires_at, epoch, hash }
    }

    /// The record has the GIDs of the question.
    fn key(&self) -> Key {
        let flags = self.terms.flags & !Self::NO_RECORD;
        Key { gids: Gids::of(self.record), terms: Terms { flags, ..self.terms } }
    }

    fn remembered(&self) -> Remembered {
        let Self { record, terms, expires_at, epoch, .. } = *self;
        let record = (terms.flags & Self::NO_RECORD == 0).then_some(record);
        Remembered { record, expires_at, epoch }
    }
}

impl Gids {
    fn of(record: PathRecord) -> Self {
        let PathRecordWire { dgid, sgid, .. } = record.into();
        Self { dgid, sgid }
    }

    /// A record that has nothing else.
    fn alone(self) -> PathRecord {
        let mut octets = [0; PathRecord::LEN];
        octets[8..24].copy_from_slice(&self.dgid);
        octets[24..40].copy_from_slice(&self.sgid);
        PathRecord::from_octets(octets)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
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

    fn between(Gids { dgid, sgid }: Gids, n: u8) -> PathRecord {
        let mut octets = [n; PathRecord::LEN];
        octets[8..24].copy_from_slice(&dgid);
        octets[24..40].copy_from_slice(&sgid);
        PathRecord::from_octets(octets)
    }

    fn remembered(key: &Key, n: u8, expires_at: u64) -> Remembered {
        let record = (n != 0).then(|| between(key.gids, n));
        Remembered { record, expires_at: Instant::from_nanos(expires_at), epoch: n.into() }
    }

    /// None, or a record with the GIDs of the question or another destination or source.
    fn said(key: &Key, n: u8, expires_at: u64) -> Remembered {
        let mut gids = key.gids;
        gids.dgid[0] -= u8::from(n % 5 == 1);
        gids.sgid[0] -= u8::from(n % 5 == 2);
        let record = (!n.is_multiple_of(5)).then(|| between(gids, n % 2 + 1));
        Remembered { record, ..remembered(key, n, expires_at) }
    }

    fn check_that_parts_agree(cache: &Cache) {
        let entries: Vec<_> = (0..cache.entries.slots())
            .filter_map(|slot| Some((Slot(slot), cache.entry(Slot(slot))?)))
            .collect();
        for (slot, (key, _)) in &entries {
            assert_eq!(cache.find(cache.hash(key), key), Some(*slot), "{key:?}");
        }
        assert_eq!(cache.index.len(), entries.len());
        let is_there =
            |slot| entries.iter().any(|(it, (_, answer))| *it == slot && answer.record.is_some());
        assert!(cache.spread.slots().all(is_there));
        let mut positions: Vec<_> =
            entries.iter().map(|(slot, (_, it))| Position(it.expires_at, *slot)).collect();
        positions.sort_unstable();
        let ordered: Vec<_> = cache.after(None).map(|(position, ..)| position).collect();
        assert_eq!(ordered, positions);
        let records = || entries.iter().filter_map(|(_, (key, it))| Some((key, it.record?)));
        cache.lids.check_count(records().map(|(key, record)| (key.port(), record)));
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
            Key { gids: Gids { dgid: one, ..key.gids }, ..key },
            Key { gids: Gids { sgid: one, ..key.gids }, ..key },
            Key { terms: Terms { service_id: 1, ..key.terms }, ..key },
            Key { terms: Terms { port: PortIndex(1), ..key.terms }, ..key },
            Key { terms: Terms { pkey: 1, ..key.terms }, ..key },
            Key { terms: Terms { qos_class: 1, ..key.terms }, ..key },
            Key { terms: Terms { tclass: 1, ..key.terms }, ..key },
            Key { terms: Terms { flags: key.terms.flags ^ 2, ..key.terms }, ..key },
        ];
        let hashes: BTreeSet<_> =
            others.iter().chain([&key]).map(|key| seeded.hash_one(key)).collect();
        assert_eq!(hashes.len(), others.len() + 1);
    }

    #[test]
    fn full_cache_drops_the_path_that_expires_first() {
        let mut cache = cache(2);
        assert_eq!(cache.insert(key(1), remembered(&key(1), 1, 30), 0), 0);
        assert_eq!(cache.insert(key(2), remembered(&key(2), 0, 20), 0), 0);
        assert_eq!(
            cache.insert(key(2), remembered(&key(2), 2, 26), 0),
            0,
            "replaces its own entry"
        );
        assert_eq!(cache.insert(key(3), remembered(&key(3), 3, 40), 0), 1);
        assert_eq!(cache.lookup(Instant::BOOT, &key(2)), None);
        assert_eq!(cache.set_max(1), 1);
        assert_eq!(cache.lookup(Instant::BOOT, &key(3)), Some(remembered(&key(3), 3, 40)));
        assert_eq!(cache.lookup(Instant::from_nanos(40), &key(3)), None);
        cache.retain(|_, _| false);
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn questions_with_equal_hashes_are_distinguished() {
        let mut cache = cache(8);
        cache.insert(key(1), remembered(&key(1), 1, 30), 0);
        cache.insert(key(2), remembered(&key(2), 2, 40), 0);
        let [one, two] = [1, 2].map(|n| cache.hash(&key(n)));
        let slot = cache.find(one, &key(1)).unwrap();
        cache.index.find_entry(halves(one), |it| *it == slot).unwrap().remove();
        cache.index.insert_unique(halves(two), slot, |_| halves(two));
        cache.entries.get_mut(slot).unwrap().hash = two;
        assert_eq!(cache.lookup(Instant::BOOT, &key(2)), Some(remembered(&key(2), 2, 40)));
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
                cache.insert(key(n), remembered(&key(n), 1, u64::from(n) + 1), 0);
                always.insert(key(n));
            }
            for (n, time, reads) in ops {
                // Replaces an entry by one with any other expiry.
                let of = key(u32::from(n % 12));
                cache.insert(of, remembered(&of, n, u64::from(time) + 1), 0);
                forget_gone(&mut always, &cache);
                if time % 16 == 0 {
                    cache.expire(Instant::from_nanos(u64::from(time / 2)));
                    forget_gone(&mut always, &cache);
                }
                if let Some(at) = from.filter(|_| reads) {
                    let (page, next) = cache.page(at, count);
                    prop_assert!(page.len() <= count);
                    seen.extend(page.iter().map(|(key, _)| *key));
                    from = next;
                }
            }
            while let Some(at) = from {
                let (page, next) = cache.page(at, count);
                prop_assert!(page.len() <= count);
                prop_assert!(next.is_none_or(|next| next > at && next - at <= 512));
                seen.extend(page.iter().map(|(key, _)| *key));
                from = next;
            }
            for key in always {
                prop_assert_eq!(seen.iter().filter(|seen| **seen == key).count(), 1);
            }
        }

        #[test]
        fn cache_does_what_a_plain_list_does(ops: Vec<(u8, u8, u8)>) {
            let mut max = 20;
            let mut cache = cache(max);
            let mut model: Vec<(Key, Remembered)> = Vec::new();
            let mut now = Instant::from_nanos(1);
            for (op, n, time) in ops {
                let of = key(u32::from(n % 48));
                now += Duration::from_nanos((time % 8).into());
                match op % 6 {
                    0 | 1 => {
                        let new = said(&of, n, now.as_nanos() + u64::from(time));
                        // Equal times are ordered by slot, which a plain list does not have.
                        let is_taken = |at| model.iter().any(|(_, other)| other.expires_at == at);
                        if new.record.is_some_and(|record| !of.has_gids_of(record)) {
                            prop_assert_eq!(cache.insert(of, new, 0), 0);
                        } else if !is_taken(new.expires_at) {
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
                        max = usize::from(n % 24) + 1;
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
                prop_assert!(cache.entries.slots() <= 1024);
                check_that_parts_agree(&cache);
                let listed: Vec<_> = cache.after(None).map(|(_, key, it)| (key, it)).collect();
                prop_assert_eq!(listed, model.clone());
                let first = model.first().map(|(_, it)| it.expires_at);
                prop_assert_eq!(cache.next_expiry(), first);
            }
        }
    }
}
