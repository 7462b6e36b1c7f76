// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The answers that a client remembers, and which of them it uses.

use alloc::vec::Vec;
use core::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, SubnetPrefix};

use super::super::Question;
use super::flights::FlightId;
use super::{Cached, Client, Counter, Learned, Outcome, Settings, Source, outcome};
use crate::request::{Caller, Freshness};

impl Client {
    /// A port of this node has another subnet prefix: `before` is no longer the prefix of its
    /// subnet, and its peers, which have new GIDs too, notice that in seconds. Remembered answers
    /// with that prefix, or from before that time, are no longer used.
    pub(super) fn subnet_changed(&mut self, before: SubnetPrefix, after: SubnetPrefix) {
        self.old_prefixes.expire(self.now, self.config.settings().cache_ttl);
        self.old_prefixes.remove(after);
        if !self.old_prefixes.insert(before, self.now + SETTLING) {
            self.cache.clear();
            self.on_link.clear();
        }
        self.cache.tell_everything();
        self.counters.count(Counter::SubnetsLeft);
    }

    /// The remembered answer, however old it is. Sends nothing.
    pub fn lookup(&self, now: Instant, question: Question) -> Option<Cached> {
        let cached = self.cache.peek(question)?;
        (cached.expires_at > now && !self.old_prefixes.doubts(&cached)).then_some(cached)
    }

    /// The answer that is remembered or that the kernel's neighbour entry said, however old it is. Sends nothing.
    pub fn lookup_any(&self, now: Instant, question: Question) -> Option<Outcome> {
        let known = self.lookup(now, question);
        known.or_else(|| self.lookup_neighbour(now, question)).map(Outcome::from)
    }

    /// The remembered answer, if it is fresh: a caller may have it although the peer is not asked.
    /// In the second half of that time the peer is asked behind the answer, so that a caller that
    /// asks again and again never waits. A user is given what the kernel's
    /// neighbour entry said, too.
    pub(super) fn recall(&mut self, question: Question, caller: Caller) -> Option<Cached> {
        let mut cached = self.cache.peek(question).filter(|cached| self.is_fresh(self.now, cached));
        if cached.is_some_and(|cached| self.old_prefixes.doubts(&cached)) {
            self.counters.count(Counter::Doubted);
            cached = None;
        }
        if cached.is_none() && !caller.is_kernel() {
            let known = self.lookup_neighbour(self.now, question);
            cached = known.filter(|cached| self.is_fresh(self.now, cached));
        }
        let cached = cached?;
        let is_young = |at: Instant| self.now < at + self.config.settings().fresh_for / 2;
        if cached.gid.is_some() && !cached.heard_at.is_some_and(is_young) {
            self.ask_behind(question);
        }
        Some(cached)
    }

    /// Whether a GID is remembered that is too old to be given without asking the peer.
    pub fn is_older(&self, now: Instant, question: Question) -> bool {
        self.lookup(now, question).is_some_and(|cached| !self.is_fresh(now, &cached))
    }

    fn is_fresh(&self, now: Instant, cached: &Cached) -> bool {
        let fresh_for = self.config.settings().fresh_for;
        let is_lately = |at: Instant| now < at + fresh_for;
        let is_negative = cached.gid.is_none();
        now < cached.expires_at && (is_negative || cached.heard_at.is_some_and(is_lately))
    }

    fn ask_behind(&mut self, question: Question) {
        if self.flights.of_question(question).is_some() {
            return;
        }
        // Requests have priority.
        let most = self.config.settings().max_flights.get().div_ceil(4);
        let flight = if self.refreshing < most { self.start(question).ok() } else { None };
        let Some(flight) = flight.and_then(|id| self.flights.flight(id)) else {
            return self.counters.count(Counter::RefreshesSkipped);
        };
        flight.is_refresh = true;
        self.refreshing += 1;
        self.counters.count(Counter::Refreshes);
    }

    /// The target's host has no daemon. The requests of the flight are given the remembered GID,
    /// however old it is, but for those that want the peer's own word. Neither its age nor its
    /// expiry changes, and the next request asks again.
    pub(super) fn answer_refused(&mut self, id: FlightId) {
        let Some(question) = self.flights.flight(id).map(|flight| flight.question) else { return };
        let remembered = self.lookup(self.now, question);
        if let Some(cached) = remembered.filter(|cached| cached.gid.is_some()) {
            for request in self.flights.take(id, |waiter| waiter.freshness != Freshness::Fresh) {
                self.counters.count(Counter::CacheHits);
                self.answer(request, outcome(cached.gid, Source::Cache));
            }
        }
        self.answer_hinted(id, Outcome::Refused);
    }

    /// The next change of the cache.
    pub(super) fn poll_learned(&mut self) -> Option<Learned> {
        Some(match self.cache.poll_change()? {
            Learned::Known { question, .. }
                if self
                    .cache
                    .peek(question)
                    .is_some_and(|cached| self.old_prefixes.doubts(&cached)) =>
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
        let Cached { gid, expires_at, .. } = answer;
        let latest = self.now + self.config.settings().cache_ttl;
        let is_alive = expires_at > self.now && expires_at <= latest;
        let gid = gid.filter(|_| is_alive);
        let is_fit = gid.is_some_and(|gid| self.cache.restore(question, gid, expires_at));
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
        after: Option<Cursor>,
        count: usize,
    ) -> (Vec<(Question, Cached)>, Option<Cursor>) {
        let mut page: Vec<_> = match after {
            None => self.cache.iter().take(count).collect(),
            Some(Cursor { expires_at, question }) => {
                self.cache.iter_after((expires_at, question)).take(count).collect()
            }
        };
        let last = page.last().filter(|_| page.len() == count);
        let next =
            last.map(|&(question, Cached { expires_at, .. })| Cursor { expires_at, question });
        page.retain(|(_, cached)| self.is_given(cached));
        (page, next)
    }

    /// Drops all answers. Returns how many that was.
    pub fn flush(&mut self) -> usize {
        self.cache.clear() + self.on_link.clear()
    }

    pub(super) fn remember(&mut self, question: Question, gid: Option<Gid>) {
        let Settings { cache_ttl, negative_ttl, .. } = *self.config.settings();
        let ttl = if gid.is_some() { cache_ttl } else { negative_ttl };
        if ttl.is_zero() {
            self.cache.remove(question);
        } else {
            self.cache.expire(self.now);
            let evicted = self.cache.insert(question, gid, self.now);
            self.counters.add(Counter::CacheEvicted, evicted);
        }
    }

    fn is_given(&self, cached: &Cached) -> bool {
        cached.expires_at > self.now && !self.old_prefixes.doubts(cached)
    }
}

/// The end of a [page](Client::page).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cursor {
    /// The expiry of the last entry.
    pub expires_at: Instant,
    /// The question of the last entry.
    pub question: Question,
}

/// How long peers may take to answer with their new GIDs after a change of the subnet prefix: the
/// subnet manager has to reach them, and they check hardware addresses every 5 s (`local_view`).
pub(super) const SETTLING: Duration = Duration::from_secs(10);
