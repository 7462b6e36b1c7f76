// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The answers of peers.
//!
//! A look-up reads one entry of one table. Tens of thousands of entries do not fit into the caches
//! of a processor, so the size of an entry decides how long a look-up takes: an entry for an IPv4
//! address has 32 bytes, with its key.

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;
use core::ops::Bound;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;

use super::super::Question;
use super::table::{Cached, Entry, Limits, Table};
use crate::hash::Seeded;

/// Answers by question. If the cache is full, it drops the entry that expires first.
#[derive(Debug)]
pub(super) struct Cache {
    table: Table,
    /// Every entry, ordered by expiry.
    by_expiry: BTreeSet<(Instant, Question)>,
    /// Entries with a change that is not reported yet, each with the peer that sent the answer.
    untold: BTreeMap<Question, Option<IpAddr>>,
    /// There were more changes than `untold` can hold.
    all_untold: bool,
    limits: Limits,
}

/// A change of the cache, for a mirror: applied in order, the changes give the positive answers of
/// the cache. Negative answers are remembered too briefly to be mirrored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Learned {
    /// A positive answer is remembered.
    Known {
        /// The question that was asked.
        question: Question,
        /// The GID of the target.
        gid: Gid,
        /// The time when the entry expires.
        expires_at: Instant,
        /// The peer that answered, if known.
        source: Option<IpAddr>,
    },
    /// No positive answer is remembered for the question any more.
    Forgotten {
        /// The question that was asked.
        question: Question,
    },
    /// Too much has changed to report single entries: read everything again from
    /// [`Client::entries`](super::Client::entries).
    Everything,
}

impl Cache {
    pub(super) fn new(limits: Limits, hasher: &Seeded) -> Self {
        Self {
            table: Table::new(hasher),
            by_expiry: BTreeSet::new(),
            untold: BTreeMap::new(),
            all_untold: false,
            limits,
        }
    }

    /// Returns how many answers were dropped. The others expire as the new limits say.
    pub(super) fn reconfigure(&mut self, limits: Limits) -> u64 {
        let old = core::mem::replace(&mut self.limits, limits);
        if (old.ttl, old.negative_ttl) != (limits.ttl, limits.negative_ttl) {
            let expiry = |&(_, question): &(Instant, Question)| {
                Some((self.table.get(question)?.expires_at(&limits), question))
            };
            self.by_expiry = self.by_expiry.iter().filter_map(expiry).collect();
            self.tell_everything();
        }
        self.make_room(limits.entries)
    }

    /// The answer, even if it has expired.
    pub(super) fn peek(&self, question: Question) -> Option<Cached> {
        self.table.get(question).map(|entry| entry.cached(&self.limits))
    }

    /// Remembers an answer, in place of an older one. Its times are exact to two nanoseconds.
    /// Returns how many other answers were dropped.
    pub(super) fn insert(&mut self, question: Question, gid: Option<Gid>, now: Instant) -> u64 {
        self.put(question, Entry::new(gid, now))
    }

    fn put(&mut self, question: Question, entry: Entry) -> u64 {
        self.remove(question);
        let forgotten = self.make_room(self.limits.entries.saturating_sub(1));
        self.by_expiry.insert((entry.expires_at(&self.limits), question));
        self.table.insert(question, entry);
        self.note(question, None);
        forgotten
    }

    /// Sets the peer that sent the answer which was just [inserted](Self::insert).
    pub(super) fn note_source(&mut self, question: Question, source: IpAddr) {
        self.note(question, Some(source));
    }

    /// Restores an answer that the mirror already has; `false` if there is no room, or the cache
    /// has an answer.
    pub(super) fn restore(&mut self, question: Question, gid: Gid, expires_at: Instant) -> bool {
        if self.len() >= self.limits.entries || self.table.get(question).is_some() {
            return false;
        }
        let was_untold = self.untold.contains_key(&question);
        self.put(question, Entry::restored(gid, expires_at, &self.limits));
        if !was_untold {
            self.untold.remove(&question);
        }
        true
    }

    /// The next unreported change. Several changes of one entry are reported as one.
    pub(super) fn poll_change(&mut self) -> Option<Learned> {
        if core::mem::take(&mut self.all_untold) {
            self.untold.clear();
            return Some(Learned::Everything);
        }
        let (question, source) = self.untold.pop_first()?;
        Some(match self.peek(question) {
            Some(Cached { gid: Some(gid), expires_at, .. }) => {
                Learned::Known { question, gid, expires_at, source }
            }
            _ => Learned::Forgotten { question },
        })
    }

    /// Returns whether there was an entry.
    pub(super) fn remove(&mut self, question: Question) -> bool {
        let Some(entry) = self.table.remove(question) else { return false };
        self.note(question, None);
        self.by_expiry.remove(&(entry.expires_at(&self.limits), question));
        true
    }

    /// Drops everything. Returns how many answers that was.
    pub(super) fn clear(&mut self) -> usize {
        let cleared = self.len();
        self.table.clear();
        self.by_expiry.clear();
        self.tell_everything();
        cleared
    }

    pub(super) fn tell_everything(&mut self) {
        self.all_untold = true;
        self.untold.clear();
    }

    /// When the next answer expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.by_expiry.first().map(|&(at, _)| at)
    }

    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(expires_at, question)) = self.by_expiry.first()
            && expires_at <= now
        {
            self.remove(question);
        }
    }

    /// Every entry, ordered by expiry.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Question, Cached)> + '_ {
        self.by_expiry.iter().filter_map(|&(_, question)| Some((question, self.peek(question)?)))
    }

    /// The entries after a given one, which may be gone, in the order of [`Self::iter`].
    pub(super) fn iter_after(
        &self,
        after: (Instant, Question),
    ) -> impl Iterator<Item = (Question, Cached)> + '_ {
        let rest = self.by_expiry.range((Bound::Excluded(after), Bound::Unbounded));
        rest.filter_map(|&(_, question)| Some((question, self.peek(question)?)))
    }

    pub(super) fn len(&self) -> usize {
        self.by_expiry.len()
    }

    fn note(&mut self, question: Question, source: Option<IpAddr>) {
        if self.all_untold {
            return;
        }
        self.untold.insert(question, source);
        if self.untold.len() > self.limits.entries {
            self.tell_everything();
        }
    }

    fn make_room(&mut self, len: usize) -> u64 {
        let mut forgotten = 0;
        while self.len() > len
            && let Some(&(_, question)) = self.by_expiry.first()
        {
            self.remove(question);
            forgotten += 1;
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use ibarr_common::IfIndex;
    use proptest::prelude::*;
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    const TTL: Duration = Duration::from_nanos(60);
    const NEGATIVE_TTL: Duration = Duration::from_nanos(20);

    fn limits(entries: usize) -> Limits {
        Limits { entries, ttl: TTL, negative_ttl: NEGATIVE_TTL }
    }

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn cache(entries: usize) -> Cache {
        Cache::new(limits(entries), &Seeded::new(&mut ChaCha12Rng::seed_from_u64(1)))
    }

    /// A question of either family, with or without an interface.
    fn question(n: u8) -> Question {
        let target = match n % 2 {
            0 => IpAddr::from([10, 2, 0, n / 4]),
            _ => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n / 4)]),
        };
        Question::new(target, IfIndex::new((n / 2 % 2).into())).unwrap()
    }

    fn gid(n: u8) -> Gid {
        format!("fe80::{n:x}").parse().unwrap()
    }

    #[test]
    fn full_cache_drops_the_entry_that_expires_first() {
        let mut cache = cache(2);
        assert_eq!(cache.insert(question(1), Some(gid(1)), at(0)), 0);
        assert_eq!(cache.insert(question(2), None, at(10)), 0);
        assert_eq!(cache.insert(question(2), None, at(20)), 0, "replaces its own entry");
        assert_eq!(cache.insert(question(3), Some(gid(3)), at(30)), 1);
        assert_eq!(cache.peek(question(2)), None);
        assert_eq!(cache.reconfigure(limits(1)), 1);
        assert_eq!(cache.peek(question(1)), None);
        assert_eq!(cache.peek(question(3)).unwrap().gid, Some(gid(3)));
    }

    #[test]
    fn times_are_exact_to_two_nanoseconds() {
        let mut cache = cache(2);
        cache.insert(question(1), Some(gid(1)), at(31));
        let (heard_at, expires_at) = (Some(at(30)), at(30) + TTL);
        let expected = Cached { gid: Some(gid(1)), heard_at, expires_at };
        assert_eq!(cache.peek(question(1)), Some(expected));
        assert_eq!(cache.next_expiry(), Some(expires_at));
    }

    #[test]
    fn new_lives_apply_to_what_is_remembered() {
        let mut cache = cache(2);
        cache.insert(question(1), Some(gid(1)), at(10));
        cache.insert(question(2), None, at(10));
        while cache.poll_change().is_some() {}
        let none = Duration::ZERO;
        cache.reconfigure(Limits { entries: 2, ttl: 2 * TTL, negative_ttl: none });
        let listed: Vec<_> = cache.iter().map(|(of, cached)| (of, cached.expires_at)).collect();
        assert_eq!(listed, [(question(2), at(10)), (question(1), at(10) + 2 * TTL)]);
        assert_eq!(cache.poll_change(), Some(Learned::Everything));
        assert!(cache.remove(question(1)) && cache.remove(question(2)));
        assert_eq!(cache.next_expiry(), None);
    }

    fn positive((question, cached): (Question, Cached)) -> Option<(Question, (Gid, Instant))> {
        Some((question, (cached.gid?, cached.expires_at)))
    }

    #[test]
    fn too_many_changes_are_reported_as_one() {
        let mut cache = cache(2);
        for n in 0..3 {
            cache.insert(question(n), Some(gid(n)), at(0));
        }
        assert_eq!(cache.poll_change(), Some(Learned::Everything));
        assert_eq!(cache.poll_change(), None);
        cache.insert(question(9), Some(gid(9)), at(0));
        cache.note_source(question(9), [10, 2, 0, 9].into());
        let told: Vec<_> = std::iter::from_fn(|| cache.poll_change()).collect();
        assert!(told.iter().any(|change| matches!(
            change,
            Learned::Known { question: of, source: Some(_), .. } if *of == question(9)
        )));
        assert_eq!(told.len(), 2, "and the entry that it replaced: {told:?}");
        assert_eq!(cache.clear(), 2);
        assert_eq!(cache.poll_change(), Some(Learned::Everything));
    }

    #[test]
    fn restored_answers_are_not_reported_and_replace_none() {
        let mut cache = cache(2);
        assert!(cache.restore(question(1), gid(1), at(90)));
        assert!(!cache.restore(question(1), gid(2), at(100)), "the cache has an answer");
        assert!(cache.restore(question(2), gid(2), at(92)));
        assert!(!cache.restore(question(3), gid(3), at(90)), "full");
        assert_eq!(cache.poll_change(), None);
        let restored = Cached { gid: Some(gid(1)), heard_at: None, expires_at: at(90) };
        assert_eq!(cache.peek(question(1)), Some(restored));
    }

    struct Row {
        question: Question,
        gid: Option<Gid>,
        heard_at: Instant,
        is_restored: bool,
    }

    impl Row {
        fn cached(&self, limits: Limits) -> Cached {
            let ttl = if self.gid.is_some() { limits.ttl } else { limits.negative_ttl };
            let heard_at = (!self.is_restored).then_some(self.heard_at);
            Cached { gid: self.gid, heard_at, expires_at: self.heard_at + ttl }
        }
    }

    /// Puts the rows in order, and drops the first ones so that `len` remain.
    fn keep(model: &mut Vec<Row>, limits: Limits, len: usize) -> u64 {
        model.sort_by_key(|row| (row.cached(limits).expires_at, row.question));
        let forgotten = model.len().saturating_sub(len);
        model.drain(..forgotten);
        forgotten.try_into().unwrap()
    }

    proptest! {
        #[test]
        fn cache_does_what_a_plain_list_does(ops: Vec<(u8, u8, u8)>) {
            let mut limits = limits(5);
            let mut cache = cache(5);
            let mut model: Vec<Row> = Vec::new();
            let mut now = Instant::from_nanos(2);
            let mut mirror = BTreeMap::new();
            for (op, n, time) in ops {
                let of = question(n % 12);
                now += Duration::from_nanos(u64::from(time % 8) * 2);
                match op % 9 {
                    0..=3 => {
                        let gid = (op % 4 != 0).then(|| gid(n | 1));
                        model.retain(|row| row.question != of);
                        let forgotten = keep(&mut model, limits, limits.entries - 1);
                        let is_restored = false;
                        model.push(Row { question: of, gid, heard_at: now, is_restored });
                        prop_assert_eq!(cache.insert(of, gid, now), forgotten);
                    }
                    4 => {
                        let heard_at = now + Duration::from_nanos(u64::from(n) * 2);
                        let has_room = model.len() < limits.entries;
                        let is_fit = has_room && model.iter().all(|row| row.question != of);
                        let gid = gid(n | 1);
                        if is_fit {
                            let is_restored = true;
                            model.push(Row { question: of, gid: Some(gid), heard_at, is_restored });
                            // The mirror has it already.
                            mirror.insert(of, (gid, heard_at + limits.ttl));
                        }
                        prop_assert_eq!(cache.restore(of, gid, heard_at + limits.ttl), is_fit);
                    }
                    5 => {
                        cache.expire(now);
                        model.retain(|row| row.cached(limits).expires_at > now);
                    }
                    6 => {
                        let row = model.iter().find(|row| row.question == of);
                        prop_assert_eq!(cache.peek(of), row.map(|row| row.cached(limits)));
                    }
                    7 if time % 8 == 0 => {
                        let lives = [n % 16, n % 5].map(|n| Duration::from_nanos(u64::from(n) * 20));
                        let [ttl, negative_ttl] = lives;
                        limits = Limits { entries: usize::from(n % 7) + 1, ttl, negative_ttl };
                        let forgotten = keep(&mut model, limits, limits.entries);
                        prop_assert_eq!(cache.reconfigure(limits), forgotten);
                    }
                    7 if time % 8 == 1 => {
                        prop_assert_eq!(cache.clear(), model.len());
                        model.clear();
                    }
                    _ => {
                        let before = model.len();
                        model.retain(|row| row.question != of);
                        prop_assert_eq!(cache.remove(of), model.len() < before);
                    }
                }
                keep(&mut model, limits, usize::MAX);
                prop_assert_eq!(cache.len(), model.len());
                prop_assert!(cache.len() <= limits.entries);
                prop_assert_eq!(cache.table.len(), model.len());
                let listed: Vec<_> = cache.iter().collect();
                let expected: Vec<_> =
                    model.iter().map(|row| (row.question, row.cached(limits))).collect();
                prop_assert_eq!(cache.next_expiry(), expected.first().map(|(_, it)| it.expires_at));
                prop_assert_eq!(listed, expected);
                prop_assert!(cache.untold.len() <= 7, "never more than the largest limit of the cache");
                if time % 4 == 0 {
                    continue;
                }
                while let Some(change) = cache.poll_change() {
                    match change {
                        Learned::Known { question, gid, expires_at, .. } => {
                            mirror.insert(question, (gid, expires_at));
                        }
                        Learned::Forgotten { question } => drop(mirror.remove(&question)),
                        Learned::Everything => {
                            mirror = cache.iter().filter_map(positive).collect();
                        }
                    }
                }
                prop_assert_eq!(&mirror, &cache.iter().filter_map(positive).collect());
            }
        }
    }
}
