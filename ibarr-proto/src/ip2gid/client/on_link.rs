// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Targets on the link that do not run ibarr: the kernel's neighbour entry on an IPoIB interface holds
//! their GID, and a query to the target makes the kernel resolve the entry.
//!
//! A peer's own answer is preferred. The driver is asked for the entry when ICMP refuses the query,
//! and with each resend after [`SENDS`] sends without an answer. Only requests that heed hints are
//! answered from the entry: the kernel reads its own entries.

use alloc::collections::BTreeSet;

use hashbrown::HashMap;
use ibarr_common::Instant;
use ibarr_common::ib::Gid;

use super::super::Question;
use super::flights::FlightId;
use super::{Cached, Client, Counter, Outcome, Output, Source};
use crate::hash::Seeded;

/// The flights that wait for the driver's look-up, and the GIDs that look-ups have found.
#[derive(Debug)]
pub(super) struct OnLink {
    requested: BTreeSet<FlightId>,
    known: HashMap<Question, Cached, Seeded>,
    by_expiry: BTreeSet<(Instant, Question)>,
}

impl OnLink {
    pub(super) fn new(hasher: Seeded) -> Self {
        let known = HashMap::with_hasher(hasher);
        Self { requested: BTreeSet::new(), known, by_expiry: BTreeSet::new() }
    }

    pub(super) fn forget_flight(&mut self, id: FlightId) {
        self.requested.remove(&id);
    }

    /// Drops all that is known. Returns how many entries that was.
    pub(super) fn clear(&mut self) -> usize {
        self.by_expiry.clear();
        self.known.drain().count()
    }

    fn lookup(&self, now: Instant, question: Question) -> Option<Cached> {
        self.known.get(&question).copied().filter(|cached| cached.expires_at > now)
    }

    /// Drops expired entries, and in a full table the one that expires first.
    fn insert(&mut self, now: Instant, question: Question, cached: Cached, limit: usize) {
        if let Some(old) = self.known.remove(&question) {
            self.by_expiry.remove(&(old.expires_at, question));
        }
        while let Some(&(expires_at, first)) = self.by_expiry.first()
            && (expires_at <= now || self.known.len() >= limit)
        {
            self.by_expiry.pop_first();
            self.known.remove(&first);
        }
        self.known.insert(question, cached);
        self.by_expiry.insert((cached.expires_at, question));
    }
}

impl Client {
    pub(super) fn poll_neighbour(&mut self) -> Option<Output> {
        let id = self.on_link.requested.pop_first()?;
        let flight = self.flights.flight(id)?;
        Some(Output::Neighbour(flight.question, flight.joined?))
    }

    /// The remembered answer of a look-up, however old it is. Sends nothing.
    pub fn lookup_neighbour(&self, now: Instant, question: Question) -> Option<Cached> {
        let cached = self.on_link.lookup(now, question)?;
        (!self.old_prefixes.doubts(&cached)).then_some(cached)
    }

    /// Has the driver look up the target of `id`, if that is on the link. Returns whether it is.
    pub(super) fn request_neighbour(&mut self, id: FlightId) -> bool {
        let Some(flight) = self.flights.flight(id) else { return false };
        let target = flight.question.target();
        let is_on_link = flight.joined.is_some_and(|route| route.next_hop == target);
        if is_on_link {
            self.on_link.requested.insert(id);
        }
        is_on_link
    }

    /// Does so if the target has been silent for long enough.
    pub(super) fn request_neighbour_if_silent(&mut self, id: FlightId) {
        if self.flights.flight(id).is_some_and(|flight| flight.is_slow || flight.sent >= SENDS) {
            self.request_neighbour(id);
        }
    }

    /// The driver has looked up the target.
    pub(super) fn neighbour_answered(&mut self, question: Question, gid: Option<Gid>) {
        let Some(id) = self.flights.of_question(question) else { return };
        let Some(flight) = self.flights.flight(id) else { return };
        let is_refused = core::mem::take(&mut flight.is_refused);
        let expires_at = self.now + self.config.settings().cache_ttl;
        let cached = Cached { gid, heard_at: Some(self.now), expires_at };
        if let Some(gid) = gid.filter(|_| !self.old_prefixes.doubts(&cached)) {
            let limit = self.config.settings().max_cached.get();
            self.on_link.insert(self.now, question, cached, limit);
            self.counters.count(Counter::Neighbours);
            self.answer_hinted(id, Outcome::Found { gid, source: Source::Neighbour });
        }
        if is_refused {
            self.answer_refused(id);
        }
    }

    /// Answers the requests of a flight that end on a hint.
    pub(super) fn answer_hinted(&mut self, id: FlightId, outcome: Outcome) {
        for request in self.flights.take(id, |waiter| !waiter.caller.is_kernel()) {
            self.answer(request, outcome);
        }
        self.set_timer(id);
        self.end_if_unwanted(id);
    }
}

/// How many sends of a query have no answer before the neighbour entry counts: as many as replace a
/// lost datagram, 180 ms by default.
const SENDS: usize = 3;
