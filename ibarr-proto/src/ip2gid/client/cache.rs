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

/// With its key 64 bytes, so that a million of them are no burden and a look-up touches one or two
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
