// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What peers have answered.

use std::collections::{BTreeSet, HashMap};

use ibarr_common::Instant;
use ibarr_common::ib::Gid;

use super::super::Question;
use crate::hash::Seeded;

/// Answers by question. Full, it forgets the one that would expire first.
#[derive(Debug)]
pub(super) struct Cache {
    entries: HashMap<Question, Entry, Seeded>,
    /// Every entry.
    by_expiry: BTreeSet<(Instant, Question)>,
    /// The entries to be asked for again: those that have been used since they were learned.
    to_refresh: BTreeSet<(Instant, Question)>,
    max: usize,
}

/// An answer that is remembered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cached {
    /// The GID, or `None` for "not here".
    pub gid: Option<Gid>,
    /// It is no longer given from this moment on.
    pub expires_at: Instant,
}

impl Cache {
    pub(super) fn new(max: usize, hasher: Seeded) -> Self {
        Self {
            entries: HashMap::with_hasher(hasher),
            by_expiry: BTreeSet::new(),
            to_refresh: BTreeSet::new(),
            max,
        }
    }

    /// Returns how many answers had to be forgotten.
    pub(super) fn reconfigure(&mut self, max: usize) -> u64 {
        self.max = max;
        self.make_room(max)
    }

    /// The answer, if it is remembered. Marks it as used.
    pub(super) fn lookup(&mut self, now: Instant, question: Question) -> Option<Cached> {
        let entry = self.entries.get_mut(&question)?;
        if entry.expires_at <= now {
            return None;
        }
        if entry.gid.is_some() && !entry.used {
            entry.used = true;
            self.to_refresh.insert((entry.refresh_at, question));
        }
        Some(entry.cached())
    }

    /// Remembers an answer in place of what was remembered. If it is positive and gets used, it is to
    /// be asked for again at `refresh_at`. Returns how many other answers had to be forgotten.
    pub(super) fn insert(
        &mut self,
        question: Question,
        answer: Cached,
        refresh_at: Instant,
    ) -> u64 {
        self.remove(question);
        let forgotten = self.make_room(self.max.saturating_sub(1));
        let Cached { gid, expires_at } = answer;
        self.by_expiry.insert((expires_at, question));
        self.entries.insert(question, Entry { expires_at, refresh_at, gid, used: false });
        forgotten
    }

    /// Whether there was something to forget.
    pub(super) fn remove(&mut self, question: Question) -> bool {
        let Some(entry) = self.entries.remove(&question) else { return false };
        self.by_expiry.remove(&(entry.expires_at, question));
        if entry.used {
            self.to_refresh.remove(&(entry.refresh_at, question));
        }
        true
    }

    /// Forgets everything. Returns how much that was.
    pub(super) fn clear(&mut self) -> usize {
        let cleared = self.entries.len();
        self.entries.clear();
        self.by_expiry.clear();
        self.to_refresh.clear();
        cleared
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

    /// An answer to be asked for again, once for each use.
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
        self.by_expiry.iter().filter_map(|&(_, question)| {
            self.entries.get(&question).map(|entry| (question, entry.cached()))
        })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn make_room(&mut self, len: usize) -> u64 {
        let mut forgotten = 0;
        while self.entries.len() > len
            && let Some(&(_, question)) = self.by_expiry.first()
        {
            self.remove(question);
            forgotten += 1;
        }
        forgotten
    }
}

/// With its key 64 bytes (asserted below), so that a million of them are no burden and a look-up touches one or two
/// lines of the processor's cache.
#[derive(Debug)]
struct Entry {
    expires_at: Instant,
    refresh_at: Instant,
    gid: Option<Gid>,
    used: bool,
}

impl Entry {
    fn cached(&self) -> Cached {
        Cached { gid: self.gid, expires_at: self.expires_at }
    }
}

const _: () = assert!(size_of::<(Question, Entry)>() == 64);

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use proptest::prelude::*;
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    fn cache(max: usize) -> Cache {
        Cache::new(max, Seeded::new(&mut ChaCha12Rng::seed_from_u64(1)))
    }

    fn question(n: u8) -> Question {
        Question::new(IpAddr::from([10, 2, 0, n]), None).unwrap()
    }

    fn answer(gid: Option<u8>, expires_at: u64) -> Cached {
        let gid = gid.map(|n| format!("fe80::{n:x}").parse().unwrap());
        Cached { gid, expires_at: Instant::from_nanos(expires_at) }
    }

    #[test]
    fn full_cache_forgets_what_would_expire_first() {
        let mut cache = cache(2);
        let later = Instant::from_nanos(100);
        assert_eq!(cache.insert(question(1), answer(Some(1), 30), later), 0);
        assert_eq!(cache.insert(question(2), answer(None, 20), later), 0);
        assert_eq!(cache.insert(question(2), answer(None, 25), later), 0, "in its own place");
        assert_eq!(cache.insert(question(3), answer(Some(3), 40), later), 1);
        assert_eq!(cache.lookup(Instant::BOOT, question(2)), None);
        assert_eq!(cache.reconfigure(1), 1);
        assert_eq!(cache.lookup(Instant::BOOT, question(1)), None);
        assert_eq!(cache.lookup(Instant::BOOT, question(3)), Some(answer(Some(3), 40)));
    }

    #[test]
    fn answer_is_given_until_the_moment_it_expires() {
        let mut cache = cache(2);
        cache.insert(question(1), answer(Some(1), 30), Instant::BOOT);
        assert!(cache.lookup(Instant::from_nanos(29), question(1)).is_some());
        assert_eq!(cache.lookup(Instant::from_nanos(30), question(1)), None);
    }

    #[test]
    fn only_positive_answers_that_were_used_are_to_be_refreshed_and_once() {
        let mut cache = cache(4);
        let (start, at) = (Instant::BOOT, Instant::from_nanos(20));
        cache.insert(question(1), answer(Some(1), 30), at);
        cache.insert(question(2), answer(None, 30), at);
        cache.insert(question(3), answer(Some(3), 30), at);
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

    proptest! {
        #[test]
        fn cache_does_what_a_plain_list_does(ops: Vec<(u8, u8, u8)>) {
            struct Row { question: Question, cached: Cached, refresh_at: Instant, used: bool, due: bool }
            const MAX: usize = 5;
            let mut cache = cache(MAX);
            let mut model: Vec<Row> = Vec::new();
            let mut now = Instant::from_nanos(1);
            for (op, n, time) in ops {
                let of = question(n % 8);
                now += Duration::from_nanos(u64::from(time % 8));
                match op % 8 {
                    0..=2 => {
                        let gid = (op % 3 != 0).then_some(n);
                        let cached = answer(gid, now.as_nanos() + u64::from(time % 32));
                        let refresh_at = now + Duration::from_nanos(u64::from(time % 32) * 3 / 4);
                        model.retain(|row| row.question != of);
                        let forgotten = (model.len() + 1).saturating_sub(MAX);
                        model.drain(..forgotten);
                        model.push(Row { question: of, cached, refresh_at, used: false, due: false });
                        model.sort_by_key(|row| (row.cached.expires_at, row.question));
                        prop_assert_eq!(
                            cache.insert(of, cached, refresh_at),
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
                            .filter(|row| row.due && row.refresh_at <= now)
                            .min_by_key(|row| (row.refresh_at, row.question));
                        let expected = due.map(|row| {
                            row.due = false;
                            row.question
                        });
                        prop_assert_eq!(cache.refresh(now), expected);
                    }
                    _ if n > 250 => {
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
                prop_assert!(cache.len() <= MAX);
                let listed: Vec<_> = cache.iter().collect();
                let expected: Vec<_> = model.iter().map(|row| (row.question, row.cached)).collect();
                prop_assert_eq!(listed, expected);
                prop_assert_eq!(cache.next_expiry(), model.first().map(|row| row.cached.expires_at));
                let due = model.iter().filter(|row| row.due).map(|row| row.refresh_at);
                prop_assert_eq!(cache.next_refresh(), due.min());
            }
        }
    }
}
