// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The gate in front of each next hop.
//!
//! The first datagrams to a next hop wait in the kernel for its hardware address and, on IPoIB, for
//! the path to it. IPoIB parks three datagrams for a path and drops the rest
//! (`IPOIB_MAX_PATH_REC_QUEUE`), so a burst of first questions through one gateway would lose nearly
//! all of them to the first resend. Therefore a hop that has not answered lately is *cold*: questions
//! take turns in sending one datagram each, and the first reply through the hop lets all others go.
//!
//! Whose turn it is: the question that has been sent least often, and among those the one that waits
//! longest. So a question that has never been sent goes before every one whose target had its chance
//! and may be dead. A turn lasts as long as the first resend is away (20 ms), or shorter if so many
//! leave by the hop that a *round* of one turn each would last longer than `probe_round` (0.5 s). So a target
//! that lives behind a gateway is asked within a round of its question's arrival, however many dead
//! ones are asked for at the same time; and a gateway that never answers is sent at most 50 datagrams
//! a second, or two a second for each question.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use ibarr_common::Instant;

use super::Route;
use super::flights::FlightId;
use crate::hash::Seeded;
use crate::timer::Timers;

/// Next hops, by interface and address: those that a flight leaves by, and those that answered.
#[derive(Debug)]
pub(super) struct Hops {
    table: HashMap<Route, Hop, Seeded>,
    /// Those that no flight leaves by, by when they were heard.
    unused: BTreeSet<(Instant, Route)>,
    turns: Timers<Route>,
    /// Turns asked for so far.
    tickets: u64,
    limits: Limits,
}

/// How large, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) hops: usize,
    pub(super) hop_idle: Duration,
    /// The longest turn.
    pub(super) turn: Duration,
    pub(super) round: Duration,
}

impl Hops {
    pub(super) fn new(limits: Limits, hasher: Seeded) -> Self {
        Self {
            table: HashMap::with_hasher(hasher),
            unused: BTreeSet::new(),
            turns: Timers::default(),
            tickets: 0,
            limits,
        }
    }

    /// Returns how many hops had to be forgotten.
    pub(super) fn reconfigure(&mut self, limits: Limits) -> u64 {
        self.limits = limits;
        self.make_room(limits.hops)
    }

    /// `flight` leaves by `route` from now on. Returns how many other hops had to be forgotten.
    pub(super) fn join(&mut self, route: Route, flight: FlightId) -> u64 {
        let mut forgotten = 0;
        if !self.table.contains_key(&route) {
            // There is a flight for each hop in use, so one that is not in use can be found here as
            // long as flights are not more than hops may be.
            forgotten = self.make_room(self.limits.hops.saturating_sub(1));
        }
        let hop = self.table.entry(route).or_default();
        if let Some(heard_at) = hop.heard_at {
            self.unused.remove(&(heard_at, route));
        }
        hop.flights.insert(flight, None);
        forgotten
    }

    /// `flight` no longer leaves by `route`.
    pub(super) fn leave(&mut self, route: Route, flight: FlightId) {
        let Some(hop) = self.table.get_mut(&route) else { return };
        if let Some(Some(ticket)) = hop.flights.remove(&flight) {
            hop.waiting.remove(&(ticket, flight));
            self.turns.set(route, hop.turn_ends(&self.limits));
        }
        if hop.flights.is_empty() {
            if let Some(heard_at) = hop.heard_at {
                self.unused.insert((heard_at, route));
            } else {
                self.table.remove(&route);
            }
        }
    }

    /// Whether `flight`, which has been sent `sent` times, may send now. If not, its turn comes from
    /// [`Self::next_turn`] or its release from [`Self::heard`].
    pub(super) fn may_send(
        &mut self,
        now: Instant,
        route: Route,
        flight: FlightId,
        sent: usize,
    ) -> bool {
        let Some(hop) = self.table.get_mut(&route) else { return true };
        if hop.is_warm(now, self.limits.hop_idle) {
            return true;
        }
        let turn_is_free = hop.waiting.is_empty()
            && hop.turn_began.is_none_or(|began| began + hop.turn(&self.limits) <= now);
        if turn_is_free {
            hop.turn_began = Some(now);
            return true;
        }
        let ticket = Ticket { sent, number: self.tickets };
        if let Some(place @ None) = hop.flights.get_mut(&flight) {
            *place = Some(ticket);
            hop.waiting.insert((ticket, flight));
            self.tickets += 1;
            self.turns.set(route, hop.turn_ends(&self.limits));
        }
        false
    }

    /// When [`Self::next_turn`] will have something.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.turns.next()
    }

    /// The flight whose turn it is to send, once for each turn that has come.
    pub(super) fn next_turn(&mut self, now: Instant) -> Option<FlightId> {
        let due = self.turns.next()?;
        let route = self.turns.pop(now)?;
        let hop = self.table.get_mut(&route)?;
        let (_, flight) = hop.waiting.pop_first()?;
        hop.flights.insert(flight, None);
        // The pace holds though the driver's timer is coarse; a long sleep is not made up for.
        let late = now.since(due);
        hop.turn_began = Some(if late < self.limits.round { due } else { now });
        self.turns.set(route, hop.turn_ends(&self.limits));
        Some(flight)
    }

    /// A reply came through `route`. If that makes a cold hop warm, returns the flights that leave by
    /// it, and of each whether it was waiting for its turn.
    pub(super) fn heard(&mut self, now: Instant, route: Route) -> Vec<(FlightId, bool)> {
        let Some(hop) = self.table.get_mut(&route) else { return Vec::new() };
        let was_warm = hop.is_warm(now, self.limits.hop_idle);
        // It is in use: the reply is for a flight that leaves by it.
        hop.heard_at = Some(now);
        if was_warm {
            return Vec::new();
        }
        hop.waiting.clear();
        hop.turn_began = None;
        self.turns.set(route, None);
        hop.flights.iter_mut().map(|(&flight, place)| (flight, place.take().is_some())).collect()
    }

    /// Next hops remembered.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Forgets the hops heard longest ago, until at most `len` are left or all are in use.
    fn make_room(&mut self, len: usize) -> u64 {
        let mut forgotten = 0;
        while self.table.len() > len
            && let Some((_, route)) = self.unused.pop_first()
        {
            self.table.remove(&route);
            forgotten += 1;
        }
        forgotten
    }
}

#[derive(Debug, Default)]
struct Hop {
    heard_at: Option<Instant>,
    turn_began: Option<Instant>,
    /// Those that leave by it, with the ticket of those that wait for a turn.
    flights: BTreeMap<FlightId, Option<Ticket>>,
    waiting: BTreeSet<(Ticket, FlightId)>,
}

impl Hop {
    fn is_warm(&self, now: Instant, hop_idle: Duration) -> bool {
        self.heard_at.is_some_and(|heard_at| now.since(heard_at) < hop_idle)
    }

    /// When the first that waits may send.
    fn turn_ends(&self, limits: &Limits) -> Option<Instant> {
        if self.waiting.is_empty() {
            return None;
        }
        Some(self.turn_began.map_or(Instant::BOOT, |began| began + self.turn(limits)))
    }

    /// How long the others wait after one has sent.
    fn turn(&self, limits: &Limits) -> Duration {
        let flights = u32::try_from(self.flights.len()).unwrap_or(u32::MAX);
        limits.round.checked_div(flights).unwrap_or(limits.turn).min(limits.turn)
    }
}

/// Place in the queue for a turn: in the order of the fields.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Ticket {
    sent: usize,
    number: u64,
}
