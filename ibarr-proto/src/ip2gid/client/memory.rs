// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The answers that a client remembers, and which of them it uses.

use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, SubnetPrefix};
use rand_core::CryptoRng;

use super::super::Question;
use super::{Cached, Client, Counter, Learned, Settings};
use crate::retry::random;

impl<R: CryptoRng> Client<R> {
    /// A port of this node has another subnet prefix: `before` is no longer the prefix of its
    /// subnet, and its peers, which have new GIDs too, notice that in seconds. Remembered answers
    /// with that prefix, or from before that time, are no longer used.
    pub fn subnet_changed(&mut self, now: Instant, before: SubnetPrefix, after: SubnetPrefix) {
        self.advance(now);
        self.left.expire(self.now);
        self.left.remove(after);
        let settled = self.now + SETTLING + self.config.settings().cache_ttl;
        // Entries may have been learned with a longer time to live than is configured now.
        let until = self.cache.last_expiry().map_or(settled, |last| last.max(settled));
        if !self.left.insert(before, until) {
            self.cache.clear();
            self.next_door.flush(None);
        }
        self.cache.tell_everything();
        self.counters.count(Counter::SubnetsLeft);
    }

    /// The remembered answer, if any. Sends nothing, but the entry counts as used.
    pub fn lookup(&mut self, now: Instant, question: Question) -> Option<Cached> {
        self.advance(now);
        let cached = self.cache.lookup(self.now, question)?;
        if self.left.doubts(&cached) {
            self.counters.count(Counter::Doubted);
            return None;
        }
        Some(cached)
    }

    /// The next change of the cache. A caller that needs no mirror need not call this.
    pub fn poll_learned(&mut self) -> Option<Learned> {
        Some(match self.cache.poll_change()? {
            Learned::Known { question, gid, expires_at, .. }
                if self.left.doubts(&Cached { gid: Some(gid), expires_at }) =>
            {
                Learned::Forgotten { question }
            }
            change => change,
        })
    }

    /// Remembers an answer that an earlier client has learned. Returns `false` if it has expired,
    /// has a longer time to live than any answer, or finds no room.
    pub fn restore(&mut self, now: Instant, question: Question, answer: Cached) -> bool {
        self.advance(now);
        let latest = self.now + self.config.settings().cache_ttl;
        let is_fit = answer.gid.is_some()
            && answer.expires_at > self.now
            && answer.expires_at <= latest
            && self.cache.restore(question, answer);
        self.counters.count(if is_fit { Counter::Restored } else { Counter::NotRestored });
        is_fit
    }

    /// The remembered answers, by expiry.
    pub fn entries(&self) -> impl Iterator<Item = (Question, Cached)> + '_ {
        self.cache.iter().filter(|(_, cached)| self.is_given(cached))
    }

    /// The answers that follow a given entry, which may be gone.
    pub fn entries_after(
        &self,
        (question, answer): (Question, Cached),
    ) -> impl Iterator<Item = (Question, Cached)> + '_ {
        let rest = self.cache.iter_after((answer.expires_at, question));
        rest.filter(|(_, cached)| self.is_given(cached))
    }

    /// At most `count` remembered answers after a place, or the first ones; and the place to
    /// continue from if there may be more. A caller that reads all parts gets every answer that was
    /// remembered all the while: once, unless it was learned again meanwhile. Then the caller may
    /// get it twice, or not at all if it now expires before the place.
    pub fn page(
        &self,
        after: Option<Place>,
        count: usize,
    ) -> (Vec<(Question, Cached)>, Option<Place>) {
        let mut page: Vec<_> = match after {
            None => self.cache.iter().take(count).collect(),
            Some(Place { expires_at, question }) => {
                self.cache.iter_after((expires_at, question)).take(count).collect()
            }
        };
        let last = page.last().filter(|_| page.len() == count);
        let next =
            last.map(|&(question, Cached { expires_at, .. })| Place { expires_at, question });
        page.retain(|(_, cached)| self.is_given(cached));
        (page, next)
    }

    /// The remembered answer to `question`. It does not count as used.
    pub fn entry(&self, question: Question) -> Option<Cached> {
        self.cache.peek(question).filter(|cached| self.is_given(cached))
    }

    /// Drops the answers for `target`, or all answers. Returns how many that was.
    pub fn flush(&mut self, target: Option<IpAddr>) -> usize {
        let neighbours = self.next_door.flush(target);
        let Some(target) = target else { return self.cache.clear() + neighbours };
        let of_target: Vec<Question> = self
            .cache
            .iter()
            .map(|(question, _)| question)
            .filter(|question| question.target() == target)
            .collect();
        neighbours + of_target.into_iter().filter(|&question| self.cache.remove(question)).count()
    }

    pub(super) fn remember(&mut self, question: Question, gid: Option<Gid>) -> Cached {
        let Settings { cache_ttl, negative_ttl, .. } = *self.config.settings();
        let ttl = match gid {
            // Answers learned together are not refreshed together.
            Some(_) => cache_ttl.saturating_sub(random(cache_ttl / TTL_SPREAD, &mut self.rng)),
            None => negative_ttl,
        };
        let cached = Cached { gid, expires_at: self.now + ttl };
        if ttl.is_zero() {
            self.cache.remove(question);
            return cached;
        }
        self.cache.expire(self.now);
        let evicted = self.cache.insert(question, cached);
        self.counters.add(Counter::CacheEvicted, evicted);
        cached
    }

    fn is_given(&self, cached: &Cached) -> bool {
        cached.expires_at > self.now && !self.left.doubts(cached)
    }
}

/// The end of a [page](Client::page).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// The expiry of the last entry.
    pub expires_at: Instant,
    /// The question of the last entry.
    pub question: Question,
}

/// How long peers may take to answer with their new GIDs after a change of the subnet prefix: the
/// subnet manager has to reach them, and they check hardware addresses every 5 s (`local_view`).
pub(super) const SETTLING: Duration = Duration::from_secs(10);

/// The random part by which the time to live of an answer is shortened: at most 1/10.
const TTL_SPREAD: u32 = 10;
