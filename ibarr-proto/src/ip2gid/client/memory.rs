// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a client remembers, and what of it is given.

use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, SubnetPrefix};
use rand_core::CryptoRng;

use super::super::Question;
use super::{Cached, Client, Counter, Learned, Settings};
use crate::retry::random;

impl<R: CryptoRng> Client<R> {
    /// A port of this node has another subnet prefix: `before` is none of its subnet any more, and
    /// its peers, who have other GIDs now as well, notice that in seconds. What is remembered with
    /// that prefix, or answered until then, is not given from memory.
    pub fn subnet_changed(&mut self, now: Instant, before: SubnetPrefix, after: SubnetPrefix) {
        self.advance(now);
        self.left.expire(self.now);
        self.left.remove(after);
        let settled = self.now + SETTLING + self.config.settings().cache_ttl;
        // Answers may have been remembered for longer than they are now.
        let until = self.cache.last_expiry().map_or(settled, |last| last.max(settled));
        if !self.left.insert(before, until) {
            self.cache.clear();
        }
        self.cache.tell_everything();
        self.counters.count(Counter::SubnetsLeft);
    }

    /// What the cache knows. Sends nothing, but the entry counts as used.
    pub fn lookup(&mut self, now: Instant, question: Question) -> Option<Cached> {
        self.advance(now);
        let cached = self.cache.lookup(self.now, question)?;
        if self.left.doubts(&cached) {
            self.counters.count(Counter::Doubted);
            return None;
        }
        Some(cached)
    }

    /// The next change of what the cache gives. Whoever does not ask loses nothing but that.
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

    /// Remembers what a client before this one has learned, unless it is over, believed for longer
    /// than anything is, or there is no room for it; tells whether.
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

    /// What the cache gives, the soonest to expire first.
    pub fn entries(&self) -> impl Iterator<Item = (Question, Cached)> + '_ {
        self.cache.iter().filter(|(_, cached)| self.is_given(cached))
    }

    /// Those that come after one that was there, whatever has become of it.
    pub fn entries_after(
        &self,
        (question, answer): (Question, Cached),
    ) -> impl Iterator<Item = (Question, Cached)> + '_ {
        let rest = self.cache.iter_after((answer.expires_at, question));
        rest.filter(|(_, cached)| self.is_given(cached))
    }

    /// What the cache gives of the `count` entries after a place, or of the first, and the place to go on
    /// after if there may be more. Who reads all parts meets what is remembered all the while: once, if
    /// it is not learned anew meanwhile; else it may be met twice, or not at all if it now expires before
    /// what was read already.
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

    /// One of them. It does not count as used.
    pub fn entry(&self, question: Question) -> Option<Cached> {
        self.cache.peek(question).filter(|cached| self.is_given(cached))
    }

    /// Forgets what the cache knows of `target`, or everything. Returns how many answers that was.
    pub fn flush(&mut self, target: Option<IpAddr>) -> usize {
        let Some(target) = target else { return self.cache.clear() };
        let of_target: Vec<Question> = self
            .cache
            .iter()
            .map(|(question, _)| question)
            .filter(|question| question.target() == target)
            .collect();
        of_target.into_iter().filter(|&question| self.cache.remove(question)).count()
    }

    pub(super) fn remember(&mut self, question: Question, gid: Option<Gid>) -> Cached {
        let Settings { cache_ttl, negative_ttl, .. } = *self.config.settings();
        let ttl = match gid {
            // What is learned together is not to be asked for again together.
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

/// Where a [page](Client::page) has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// When the last entry expires.
    pub expires_at: Instant,
    /// The last entry.
    pub question: Question,
}

/// How long peers may take to answer with their new GIDs when a subnet has another prefix: the subnet
/// manager has to reach them, and they look for new hardware addresses every 5 s (`local_view`).
pub(super) const SETTLING: Duration = Duration::from_secs(10);

/// The part of its time to live that an answer may lose by chance.
const TTL_SPREAD: u32 = 10;
