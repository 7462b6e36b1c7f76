// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What peers have answered.
//!
//! A look-up touches one entry of one table and nothing else. Ten thousands of entries do not fit into
//! the caches of a processor, so what a look-up costs is their size: an entry for an IPv4 address
//! takes 32 bytes, key and all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;

use super::super::Question;
use super::table::{Entry, Table};
use crate::hash::Seeded;

/// Answers by question. Full, it forgets the one that would expire first.
#[derive(Debug)]
pub(super) struct Cache {
    table: Table,
    /// Every entry.
    by_expiry: BTreeSet<(Instant, Question)>,
    /// The entries to be asked for again, by when: those that have been used since they were learned.
    to_refresh: BTreeSet<(Instant, Question)>,
    /// Entries that are not what was told, each with who said so.
    untold: BTreeMap<Question, Option<IpAddr>>,
    /// More than `untold` can hold are not what was told.
    all_untold: bool,
    limits: Limits,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) entries: usize,
    /// From the refresh of an entry to its expiry.
    pub(super) refresh_ahead: Duration,
}

/// An answer that is remembered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cached {
    /// The GID, or `None` for "not here".
    pub gid: Option<Gid>,
    /// It is no longer given from this moment on.
    pub expires_at: Instant,
}

/// A change of what is remembered, as a mirror needs it: told one after the other, they add up to
/// the positive answers of the cache. "Not here" is remembered too shortly to be worth it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Learned {
    /// This is remembered now.
    Known {
        /// What was asked.
        question: Question,
        /// The answer.
        gid: Gid,
        /// When it is forgotten.
        expires_at: Instant,
        /// Who has answered, if that is still known.
        source: Option<IpAddr>,
    },
    /// Nothing of use is remembered any more.
    Forgotten {
        /// What was asked.
        question: Question,
    },
    /// More has changed than can be told one by one: [`Client::entries`](super::Client::entries) says
    /// what is remembered now.
    Everything,
}

impl Cache {
    pub(super) fn new(limits: Limits, hasher: &Seeded) -> Self {
        Self {
            table: Table::new(hasher),
            by_expiry: BTreeSet::new(),
            to_refresh: BTreeSet::new(),
            untold: BTreeMap::new(),
            all_untold: false,
            limits,
        }
    }

    /// Returns how many answers had to be forgotten.
    pub(super) fn reconfigure(&mut self, limits: Limits) -> u64 {
        self.limits = limits;
        let used = self.to_refresh.iter().filter_map(|&(_, question)| {
            let entry = self.table.get(question)?;
            Some((entry.refresh_at(&limits), question))
        });
        self.to_refresh = used.collect();
        self.make_room(limits.entries)
    }

    /// The answer, if it is remembered. Marks it as used.
    pub(super) fn lookup(&mut self, now: Instant, question: Question) -> Option<Cached> {
        let entry = self.table.get_mut(question)?;
        let cached = entry.cached();
        if cached.expires_at <= now {
            return None;
        }
        if cached.gid.is_some() && !entry.is_used() {
            entry.set_used();
            self.to_refresh.insert((entry.refresh_at(&self.limits), question));
        }
        Some(cached)
    }

    /// The answer, if it is remembered, without marking it.
    pub(super) fn peek(&self, question: Question) -> Option<Cached> {
        self.table.get(question).map(Entry::cached)
    }

    /// Remembers an answer in place of what was remembered, until a time that is exact to two
    /// nanoseconds. Returns how many other answers had to be forgotten.
    pub(super) fn insert(&mut self, question: Question, answer: Cached) -> u64 {
        self.remove(question);
        let forgotten = self.make_room(self.limits.entries.saturating_sub(1));
        let entry = Entry::new(answer);
        self.by_expiry.insert((entry.expires_at(), question));
        self.table.insert(question, entry);
        self.note(question, None);
        forgotten
    }

    /// Who has said what was just [inserted](Self::insert).
    pub(super) fn note_source(&mut self, question: Question, source: IpAddr) {
        self.note(question, Some(source));
    }

    /// Remembers what is known outside already; `false` if there is no room, or something newer.
    pub(super) fn restore(&mut self, question: Question, answer: Cached) -> bool {
        if self.len() >= self.limits.entries || self.table.get(question).is_some() {
            return false;
        }
        let was_untold = self.untold.contains_key(&question);
        self.insert(question, answer);
        if !was_untold {
            self.untold.remove(&question);
        }
        true
    }

    /// The next change since the last call. Several of one entry are told as one.
    pub(super) fn poll_change(&mut self) -> Option<Learned> {
        if std::mem::take(&mut self.all_untold) {
            self.untold.clear();
            return Some(Learned::Everything);
        }
        let (question, source) = self.untold.pop_first()?;
        let cached = self.table.get(question).map(Entry::cached);
        Some(match cached {
            Some(Cached { gid: Some(gid), expires_at }) => {
                Learned::Known { question, gid, expires_at, source }
            }
            _ => Learned::Forgotten { question },
        })
    }

    /// Whether there was something to forget.
    pub(super) fn remove(&mut self, question: Question) -> bool {
        let Some(entry) = self.table.remove(question) else { return false };
        self.note(question, None);
        self.by_expiry.remove(&(entry.expires_at(), question));
        if entry.is_used() {
            self.to_refresh.remove(&(entry.refresh_at(&self.limits), question));
        }
        true
    }

    /// Forgets everything. Returns how much that was.
    pub(super) fn clear(&mut self) -> usize {
        let cleared = self.len();
        self.table.clear();
        self.by_expiry.clear();
        self.to_refresh.clear();
        self.tell_everything();
        cleared
    }

    /// What was told so far is to be told anew.
    pub(super) fn tell_everything(&mut self) {
        self.all_untold = true;
        self.untold.clear();
    }

    /// When the last answer expires.
    pub(super) fn last_expiry(&self) -> Option<Instant> {
        self.by_expiry.last().map(|&(at, _)| at)
    }

    /// When the next answer expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.by_expiry.first().map(|&(at, _)| at)
    }

    /// Forgets what has expired.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(expires_at, question)) = self.by_expiry.first()
            && expires_at <= now
        {
            self.remove(question);
        }
    }

    /// When [`Self::refresh`] will have something.
    pub(super) fn next_refresh(&self) -> Option<Instant> {
        self.to_refresh.first().map(|&(at, _)| at)
    }

    /// An answer to be asked for again, once for each answer.
    pub(super) fn refresh(&mut self, now: Instant) -> Option<Question> {
        let &(at, question) = self.to_refresh.first()?;
        if at > now {
            return None;
        }
        self.to_refresh.pop_first();
        Some(question)
    }

    /// Everything that is remembered, the soonest to expire first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Question, Cached)> + '_ {
        self.by_expiry.iter().filter_map(|&(_, question)| Some((question, self.peek(question)?)))
    }

    /// What comes after an entry that there was, in the order of [`Self::iter`].
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

    const AHEAD: Duration = Duration::from_nanos(10);

    fn limits(entries: usize) -> Limits {
        Limits { entries, refresh_ahead: AHEAD }
    }

    fn cache(entries: usize) -> Cache {
        Cache::new(limits(entries), &Seeded::new(&mut ChaCha12Rng::seed_from_u64(1)))
    }

    /// Of both families, with and without an interface.
    fn question(n: u8) -> Question {
        let target = match n % 2 {
            0 => IpAddr::from([10, 2, 0, n / 4]),
            _ => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n / 4)]),
        };
        Question::new(target, IfIndex::new((n / 2 % 2).into())).unwrap()
    }

    fn answer(gid: Option<u8>, expires_at: u64) -> Cached {
        let gid = gid.map(|n| format!("fe80::{n:x}").parse().unwrap());
        Cached { gid, expires_at: Instant::from_nanos(expires_at) }
    }

    #[test]
    fn full_cache_forgets_what_would_expire_first() {
        let mut cache = cache(2);
        assert_eq!(cache.insert(question(1), answer(Some(1), 30)), 0);
        assert_eq!(cache.insert(question(2), answer(None, 20)), 0);
        assert_eq!(cache.insert(question(2), answer(None, 26)), 0, "in its own place");
        assert_eq!(cache.insert(question(3), answer(Some(3), 40)), 1);
        assert_eq!(cache.lookup(Instant::BOOT, question(2)), None);
        assert_eq!(cache.reconfigure(limits(1)), 1);
        assert_eq!(cache.lookup(Instant::BOOT, question(1)), None);
        assert_eq!(cache.lookup(Instant::BOOT, question(3)), Some(answer(Some(3), 40)));
    }

    #[test]
    fn answer_is_given_until_the_moment_it_expires() {
        let mut cache = cache(2);
        cache.insert(question(1), answer(Some(1), 30));
        assert!(cache.lookup(Instant::from_nanos(29), question(1)).is_some());
        assert_eq!(cache.lookup(Instant::from_nanos(30), question(1)), None);
    }

    #[test]
    fn only_positive_answers_that_were_used_are_to_be_refreshed_and_once() {
        let mut cache = cache(4);
        let (start, at) = (Instant::BOOT, Instant::from_nanos(30 - 10));
        cache.insert(question(1), answer(Some(1), 30));
        cache.insert(question(2), answer(None, 30));
        cache.insert(question(3), answer(Some(3), 30));
        assert!(cache.lookup(start, question(1)).is_some());
        assert!(cache.lookup(start, question(2)).is_some());
        assert_eq!(cache.next_refresh(), Some(at));
        assert_eq!(cache.refresh(Instant::from_nanos(19)), None);
        assert_eq!(cache.refresh(at), Some(question(1)));
        assert!(cache.lookup(at, question(1)).is_some());
        assert_eq!(cache.refresh(at), None, "once for each answer");
        assert!(cache.lookup(at, question(3)).is_some());
        assert_eq!(cache.refresh(at), Some(question(3)), "used late, so refreshed at once");
    }

    #[test]
    fn expiry_is_exact_to_two_nanoseconds_used_or_not() {
        let mut cache = cache(2);
        cache.insert(question(1), answer(Some(1), 31));
        for _ in 0..2 {
            assert_eq!(cache.lookup(Instant::BOOT, question(1)), Some(answer(Some(1), 30)));
        }
        assert_eq!(cache.next_expiry(), Some(Instant::from_nanos(30)));
    }

    fn positive((question, cached): (Question, Cached)) -> Option<(Question, (Gid, Instant))> {
        Some((question, (cached.gid?, cached.expires_at)))
    }

    #[test]
    fn more_changes_than_the_cache_has_room_for_are_told_as_one() {
        let mut cache = cache(2);
        for n in 0..3 {
            cache.insert(question(n), answer(Some(n), 30));
        }
        assert_eq!(cache.poll_change(), Some(Learned::Everything));
        assert_eq!(cache.poll_change(), None);
        cache.insert(question(9), answer(Some(9), 30));
        cache.note_source(question(9), [10, 2, 0, 9].into());
        let told: Vec<_> = std::iter::from_fn(|| cache.poll_change()).collect();
        assert!(told.iter().any(|change| matches!(
            change,
            Learned::Known { question: of, source: Some(_), .. } if *of == question(9)
        )));
        assert_eq!(told.len(), 2, "and the one that it took the place of: {told:?}");
        assert_eq!(cache.clear(), 2);
        assert_eq!(cache.poll_change(), Some(Learned::Everything));
    }

    #[test]
    fn what_is_restored_is_told_to_nobody_and_takes_no_place() {
        let mut cache = cache(2);
        assert!(cache.restore(question(1), answer(Some(1), 30)));
        assert!(!cache.restore(question(1), answer(Some(2), 40)), "something is known");
        assert!(cache.restore(question(2), answer(Some(2), 30)));
        assert!(!cache.restore(question(3), answer(Some(3), 30)), "full");
        assert_eq!(cache.poll_change(), None);
        assert_eq!(cache.lookup(Instant::BOOT, question(1)), Some(answer(Some(1), 30)));
    }

    struct Row {
        question: Question,
        cached: Cached,
        used: bool,
        /// Used, and not yet asked for again.
        due: bool,
    }

    impl Row {
        fn refresh_at(&self, limits: Limits) -> Instant {
            let ahead = u64::try_from(limits.refresh_ahead.as_nanos()).unwrap();
            Instant::from_nanos(self.cached.expires_at.as_nanos().saturating_sub(ahead))
        }
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
                    0..=2 => {
                        let gid = (op % 3 != 0).then_some(n | 1);
                        let cached = answer(gid, now.as_nanos() + u64::from(time % 32) * 2);
                        model.retain(|row| row.question != of);
                        let forgotten = (model.len() + 1).saturating_sub(limits.entries);
                        model.drain(..forgotten);
                        model.push(Row { question: of, cached, used: false, due: false });
                        model.sort_by_key(|row| (row.cached.expires_at, row.question));
                        prop_assert_eq!(
                            cache.insert(of, cached),
                            u64::try_from(forgotten).unwrap()
                        );
                    }
                    3 | 4 => {
                        let row = model
                            .iter_mut()
                            .find(|row| row.question == of && row.cached.expires_at > now);
                        let expected = row.map(|row| {
                            if row.cached.gid.is_some() && !row.used {
                                (row.used, row.due) = (true, true);
                            }
                            row.cached
                        });
                        prop_assert_eq!(cache.lookup(now, of), expected);
                    }
                    5 => {
                        cache.expire(now);
                        model.retain(|row| row.cached.expires_at > now);
                    }
                    6 => {
                        let due = model
                            .iter_mut()
                            .filter(|row| row.due && row.refresh_at(limits) <= now)
                            .min_by_key(|row| (row.refresh_at(limits), row.question));
                        let expected = due.map(|row| {
                            row.due = false;
                            row.question
                        });
                        prop_assert_eq!(cache.refresh(now), expected);
                    }
                    7 if time % 8 == 0 => {
                        let ahead = Duration::from_nanos(u64::from(n % 16) * 2);
                        limits = Limits { entries: usize::from(n % 7) + 1, refresh_ahead: ahead };
                        let forgotten = model.len().saturating_sub(limits.entries);
                        model.drain(..forgotten);
                        prop_assert_eq!(
                            cache.reconfigure(limits),
                            u64::try_from(forgotten).unwrap()
                        );
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
                prop_assert_eq!(cache.len(), model.len());
                prop_assert!(cache.len() <= limits.entries);
                prop_assert_eq!(cache.table.len(), model.len());
                let listed: Vec<_> = cache.iter().collect();
                let expected: Vec<_> = model.iter().map(|row| (row.question, row.cached)).collect();
                prop_assert_eq!(listed, expected);
                prop_assert_eq!(cache.next_expiry(), model.first().map(|row| row.cached.expires_at));
                let due = model.iter().filter(|row| row.due).map(|row| row.refresh_at(limits));
                prop_assert_eq!(cache.next_refresh(), due.min());
                prop_assert!(cache.untold.len() <= 7, "as bounded as the cache has ever been");
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
