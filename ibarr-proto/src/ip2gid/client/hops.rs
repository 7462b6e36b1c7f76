// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The gate in front of each next hop.
//!
//! The kernel queues the first datagrams to a next hop until it knows the hop's hardware address
//! and, on IPoIB, the path to it. IPoIB queues three datagrams for a path and drops the rest
//! (`IPOIB_MAX_PATH_REC_QUEUE`), so a burst of first questions through one gateway would lose
//! nearly all of them until the first resend. A hop that has not answered recently is therefore
//! *cold*: questions take turns in sending one datagram each, and the first reply through the hop
//! releases all others.
//!
//! The next turn goes to the question that has been sent least often, and among equals to the one
//! that has waited longest. A question that has never been sent thus precedes all those whose
//! target had a chance and may be dead. A turn lasts until the first resend (20 ms). If so many
//! questions wait that a *round* of one turn each would exceed `Limits::round` (0.5 s), only the
//! first fifth of the round has such turns, so that little is lost while the kernel looks for the
//! path; all questions share the rest. A live target behind a gateway is therefore asked within a
//! round of its question's arrival, however many dead targets are asked for at the same time. A
//! gateway that never answers is sent at most 50 datagrams a second, or 2.5 a second for each question.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use hashbrown::HashMap;
use ibarr_common::Instant;

use super::Route;
use super::flights::{Expected, FlightId};
use super::round_trips::{FRESH, RoundTrips};
use crate::hash::Seeded;
use crate::timer::Timers;

/// Next hops, by interface and address: those that a flight uses, and those that answered.
#[derive(Debug)]
pub(super) struct Hops {
    table: HashMap<Route, Hop, Seeded>,
    /// Hops that no flight uses, by the time of the last reply.
    unused: BTreeSet<(Instant, Route)>,
    turns: Timers<Route>,
    /// Of all warm hops together, and of all cold hops together, which the kernel must resolve
    /// first.
    warm: Option<RoundTrips>,
    cold: Option<RoundTrips>,
    /// Number of turns requested so far.
    tickets: u64,
    limits: Limits,
}

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
            warm: None,
            cold: None,
            tickets: 0,
            limits,
        }
    }

    /// Returns how many hops were dropped.
    pub(super) fn reconfigure(&mut self, limits: Limits) -> u64 {
        self.limits = limits;
        self.make_room(limits.hops)
    }

    /// Makes `flight` use `route`. Returns how many other hops were dropped.
    pub(super) fn join(&mut self, route: Route, flight: FlightId) -> u64 {
        let mut forgotten = 0;
        if !self.table.contains_key(&route) {
            // There is a flight for each hop in use, so an unused one exists while there are at
            // most as many flights as hops may be.
            forgotten = self.make_room(self.limits.hops.saturating_sub(1));
        }
        let hop = self.table.entry(route).or_default();
        if let Some(heard_at) = hop.heard_at {
            self.unused.remove(&(heard_at, route));
        }
        if hop.flights.insert(flight, None).is_none() && hop.flights.len() == 1 {
            hop.cold_from = None;
        }
        self.set_timer(route);
        forgotten
    }

    /// `flight` no longer uses `route`.
    pub(super) fn leave(&mut self, route: Route, flight: FlightId) {
        let Some(hop) = self.table.get_mut(&route) else { return };
        if let Some(Some(ticket)) = hop.flights.remove(&flight) {
            hop.waiting.remove(&(ticket, flight));
        }
        if hop.flights.is_empty() {
            // If a lower bound leaves no room, the hop is dropped.
            if let Some(heard_at) = hop.heard_at
                && self.table.len() <= self.limits.hops
            {
                self.unused.insert((heard_at, route));
            } else {
                self.table.remove(&route);
            }
        }
        self.set_timer(route);
    }

    /// Whether `flight`, which has been sent `sent` times, may send now. Otherwise
    /// [`Self::next_turn`] will return it, or [`Self::heard`] will release it.
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
            hop.cold_from.get_or_insert(now);
            return true;
        }
        let ticket = Ticket { sent, number: self.tickets };
        if let Some(place @ None) = hop.flights.get_mut(&flight) {
            *place = Some(ticket);
            hop.waiting.insert((ticket, flight));
            self.tickets += 1;
            self.set_timer(route);
        }
        false
    }

    /// When [`Self::next_turn`] will return a flight.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.turns.next()
    }

    /// The flight that may send now; one for each turn that has come.
    pub(super) fn next_turn(&mut self, now: Instant) -> Option<FlightId> {
        let due = self.turns.next()?;
        let route = self.turns.pop(now)?;
        let hop = self.table.get_mut(&route)?;
        let (_, flight) = hop.waiting.pop_first()?;
        hop.flights.insert(flight, None);
        // A coarse timer of the driver does not lower the pace; a long sleep is not made up for.
        let late = now.since(due);
        let began = if late < self.limits.round { due } else { now };
        hop.turn_began = Some(began);
        hop.cold_from.get_or_insert(began);
        self.set_timer(route);
        Some(flight)
    }

    /// A reply came through `route`. If that makes a cold hop warm, returns the flights that use
    /// it, each with whether it was waiting for its turn.
    pub(super) fn heard(&mut self, now: Instant, route: Route) -> Vec<(FlightId, bool)> {
        let Some(hop) = self.table.get_mut(&route) else { return Vec::new() };
        let was_warm = hop.is_warm(now, self.limits.hop_idle);
        // The hop is in use: the reply is for a flight that uses it.
        hop.heard_at = Some(now);
        if was_warm {
            return Vec::new();
        }
        hop.warm_since = Some(now);
        hop.waiting.clear();
        (hop.turn_began, hop.cold_from) = (None, None);
        self.turns.set(route, None);
        hop.flights.iter_mut().map(|(&flight, place)| (flight, place.take().is_some())).collect()
    }

    /// A reply came through `route` to a query sent at `sent_at`; `None` if it does not tell which
    /// of several sends it answers (Karn's rule). To be called before [`Self::heard`].
    pub(super) fn measured(&mut self, now: Instant, route: Route, sent_at: Option<Instant>) {
        let Some(hop) = self.table.get_mut(&route) else { return };
        let Some(sent_at) = sent_at else {
            hop.back_off = (hop.back_off_at(now) + 1).min(MAX_BACK_OFF);
            hop.backed_off_at = Some(now);
            return;
        };
        hop.back_off = 0;
        let sample = now.since(sent_at);
        let is_warm = hop.is_warm(now, self.limits.hop_idle);
        if is_warm && hop.warm_since.is_some_and(|since| since <= sent_at) {
            RoundTrips::add(&mut hop.round_trips, now, sample);
            RoundTrips::add(&mut self.warm, now, sample);
        } else {
            RoundTrips::add(&mut self.cold, now, sample);
        }
    }

    /// When an answer through `route` is expected, if `questions` wait for theirs.
    ///
    /// For a hop that has answered within the last second, its own round trips count. Any other hop
    /// may be asked in a burst, which queues at resources that hops share (processors, the subnet
    /// administrator): the round trips of all hops in the last second count too, of warm or of cold
    /// ones as the hop is itself. As long as no hop has answered, the time grows with the number of
    /// questions.
    pub(super) fn expected(&self, now: Instant, route: Route, questions: usize) -> Expected {
        let hop = self.table.get(&route);
        let warm = hop.filter(|hop| hop.is_warm(now, self.limits.hop_idle));
        let own = warm.and_then(|hop| hop.round_trips);
        let all = if warm.is_some() { self.warm } else { self.cold };
        let all = all.filter(|all| all.is_fresh(now));
        let all = all.filter(|_| !own.is_some_and(|own| own.is_fresh(now)));
        let timeout = own.iter().chain(&all).map(|known| known.timeout_at(now)).max();
        let is_crowd = questions > CROWD;
        let timeout = timeout.map(|timeout| if is_crowd { timeout } else { timeout.min(LONGEST) });
        let back_off = 1 << hop.map_or(0, |hop| hop.back_off_at(now));
        let crowd = u32::try_from(questions / CROWD).unwrap_or(u32::MAX).min(MAX_STRETCH);
        let factor = if timeout.is_some() { back_off } else { back_off.max(crowd) };
        Expected { timeout: timeout.unwrap_or_default(), factor }
    }

    /// Number of next hops remembered.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    fn set_timer(&mut self, route: Route) {
        let hop = self.table.get(&route);
        self.turns.set(route, hop.and_then(|hop| hop.turn_ends(&self.limits)));
    }

    /// Drops the hops whose last reply is oldest, until at most `len` are left or all are in use.
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

const MAX_BACK_OFF: u32 = 6;

/// Maximum time-out from round trips, except in a crowd, whose answers queue. Callers wait for 2 s;
/// with this limit a query is sent more than twice in that time even after a peer was stalled for a
/// second, since two queries may both be lost.
const LONGEST: Duration = Duration::from_millis(500);

/// Number of questions that can wait for their first answer before time-outs grow.
const CROWD: usize = 8;

/// Maximum factor of that growth.
const MAX_STRETCH: u32 = 25;

#[derive(Debug, Default)]
struct Hop {
    heard_at: Option<Instant>,
    /// The time of the first answer after it had been cold.
    warm_since: Option<Instant>,
    /// Measured since then.
    round_trips: Option<RoundTrips>,
    /// Number of successive replies that did not tell which send they answer.
    back_off: u32,
    backed_off_at: Option<Instant>,
    turn_began: Option<Instant>,
    /// The first turn of those that use it.
    cold_from: Option<Instant>,
    /// The flights that use it, with the ticket of those that wait for a turn.
    flights: BTreeMap<FlightId, Option<Ticket>>,
    waiting: BTreeSet<(Ticket, FlightId)>,
}

impl Hop {
    fn is_warm(&self, now: Instant, hop_idle: Duration) -> bool {
        self.heard_at.is_some_and(|heard_at| now.since(heard_at) < hop_idle)
    }

    /// How often time-outs double. A delay of more than a second ago may be over.
    fn back_off_at(&self, now: Instant) -> u32 {
        let is_fresh = self.backed_off_at.is_some_and(|at| now.since(at) < FRESH);
        if is_fresh { self.back_off } else { 0 }
    }

    /// When the first waiting flight may send.
    fn turn_ends(&self, limits: &Limits) -> Option<Instant> {
        if self.waiting.is_empty() {
            return None;
        }
        Some(self.turn_began.map_or(Instant::BOOT, |began| began + self.turn(limits)))
    }

    /// How long the others wait after one has sent.
    fn turn(&self, limits: &Limits) -> Duration {
        let (began, cold_from) = (self.turn_began, self.cold_from);
        let first = limits.round / 5;
        if began.zip(cold_from).is_none_or(|(began, from)| began < from + first) {
            return limits.turn;
        }
        let flights = u32::try_from(self.flights.len()).unwrap_or(u32::MAX);
        let rest = limits.round.saturating_sub(first);
        rest.checked_div(flights).unwrap_or(limits.turn).min(limits.turn)
    }
}

/// Position in the queue for a turn, ordered by its fields.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Ticket {
    sent: usize,
    number: u64,
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ibarr_common::IfIndex;
    use proptest::prelude::*;
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    const LIMITS: Limits = Limits { hops: 6, hop_idle: ms(200), turn: ms(20), round: ms(50) };

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn hops() -> Hops {
        Hops::new(LIMITS, Seeded::new(&mut ChaCha12Rng::seed_from_u64(1)))
    }

    fn route(n: u8) -> Route {
        Route { ifindex: IfIndex::new(1).unwrap(), next_hop: IpAddr::from([10, 1, 0, n]) }
    }

    fn at(time: u64) -> Instant {
        Instant::BOOT + ms(1000 + time)
    }

    #[test]
    fn cold_hop_is_sent_one_datagram_a_turn_until_it_answers() {
        let mut hops = hops();
        for n in 1..=2 {
            hops.join(route(1), FlightId(n));
        }
        assert!(hops.may_send(at(0), route(1), FlightId(1), 0));
        assert!(!hops.may_send(at(0), route(1), FlightId(2), 0));
        assert_eq!(hops.next_timeout(), Some(at(20)));
        assert_eq!(hops.next_turn(at(19)), None);
        assert_eq!(hops.next_turn(at(20)), Some(FlightId(2)));
        assert!(!hops.may_send(at(39), route(1), FlightId(1), 1));
        assert_eq!(hops.heard(at(39), route(1)), [(FlightId(1), true), (FlightId(2), false)]);
        assert_eq!(hops.next_timeout(), None);
        assert!(hops.may_send(at(39), route(1), FlightId(1), 1));
        assert!(hops.may_send(at(39), route(1), FlightId(2), 1));
        assert_eq!(hops.heard(at(40), route(1)), [], "was already warm");
    }

    #[test]
    fn burst_for_a_cold_hop_starts_slowly_and_ends_within_a_round() {
        let limits = Limits { round: ms(500), ..LIMITS };
        let mut hops = Hops::new(limits, Seeded::new(&mut ChaCha12Rng::seed_from_u64(1)));
        for n in 1..=200 {
            hops.join(route(1), FlightId(n));
            hops.may_send(at(0), route(1), FlightId(n), 0);
        }
        let mut sent_at = vec![0];
        for time in 0..=500 {
            sent_at.extend(std::iter::from_fn(|| hops.next_turn(at(time))).map(|_| time));
        }
        assert_eq!(sent_at[..6], [0, 20, 40, 60, 80, 100]);
        assert_eq!(sent_at.len(), 200);
    }

    #[test]
    fn burst_within_a_turn_of_an_ended_question_ends_within_a_round() {
        let limits = Limits { round: ms(500), ..LIMITS };
        let mut hops = Hops::new(limits, Seeded::new(&mut ChaCha12Rng::seed_from_u64(1)));
        hops.join(route(1), FlightId(1));
        hops.heard(at(0), route(1));
        assert!(hops.may_send(at(500), route(1), FlightId(1), 0));
        hops.leave(route(1), FlightId(1));
        for n in 2..=200 {
            hops.join(route(1), FlightId(n));
            assert!(!hops.may_send(at(510), route(1), FlightId(n), 0));
        }
        let sent = (510..=1020).flat_map(|time| std::iter::repeat_n(time, 200));
        let sent = sent.filter(|&time| hops.next_turn(at(time)).is_some()).count();
        assert_eq!(sent, 199);
    }

    #[test]
    fn hop_that_has_been_silent_is_cold_again() {
        let mut hops = hops();
        hops.join(route(1), FlightId(1));
        hops.heard(at(0), route(1));
        hops.leave(route(1), FlightId(1));
        for n in 2..=5 {
            hops.join(route(1), FlightId(n));
        }
        assert!(hops.may_send(at(199), route(1), FlightId(2), 0));
        assert!(hops.may_send(at(199), route(1), FlightId(3), 0));
        assert!(hops.may_send(at(200), route(1), FlightId(4), 0));
        assert!(!hops.may_send(at(200), route(1), FlightId(5), 0));
    }

    #[test]
    fn turns_go_to_the_least_sent_then_to_the_longest_waiting() {
        let mut hops = hops();
        for n in 1..=4 {
            hops.join(route(1), FlightId(n));
        }
        assert!(hops.may_send(at(0), route(1), FlightId(1), 0));
        for (n, sent) in [(2, 2), (3, 1), (4, 1), (1, 2)] {
            assert!(!hops.may_send(at(0), route(1), FlightId(n), sent));
        }
        let turns: Vec<_> = std::iter::from_fn(|| hops.next_turn(at(1000))).collect();
        assert_eq!(turns, [FlightId(3)], "a long sleep is not made up for");
        let turns: Vec<_> = std::iter::from_fn(|| hops.next_turn(at(1040))).collect();
        assert_eq!(turns, [4, 2, 1].map(FlightId), "a coarse timer is");
    }

    #[test]
    fn hop_heard_longest_ago_makes_room_and_hops_in_use_stay() {
        let mut hops = hops();
        for n in 1..=6 {
            assert_eq!(hops.join(route(n), FlightId(n.into())), 0);
            hops.heard(at(10 - u64::from(n)), route(n));
        }
        hops.leave(route(1), FlightId(1));
        hops.leave(route(2), FlightId(2));
        assert_eq!(hops.join(route(7), FlightId(7)), 1);
        assert_eq!(hops.len(), 6);
        hops.join(route(1), FlightId(8));
        assert!(hops.heard(at(11), route(1)).is_empty(), "1 was remembered as warm");
        hops.leave(route(7), FlightId(7));
        assert_eq!(hops.len(), 5, "a hop that never answered is not worth remembering");
    }

    /// A model of the same rules with plain lists.
    #[derive(Default)]
    struct Model {
        hops: BTreeMap<Route, ModelHop>,
        tickets: u64,
    }

    #[derive(Default)]
    struct ModelHop {
        heard: Option<Instant>,
        began: Option<Instant>,
        cold_from: Option<Instant>,
        /// The flight, and its ticket if it waits: the number of its sends, and a sequence number.
        flights: Vec<(FlightId, Option<(usize, u64)>)>,
    }

    impl ModelHop {
        fn turn(&self) -> Duration {
            let rest = self.began >= self.cold_from.map(|from| from + LIMITS.round / 5);
            if self.cold_from.is_none() || !rest {
                return LIMITS.turn;
            }
            let flights = u32::try_from(self.flights.len().max(1)).unwrap();
            LIMITS.turn.min(LIMITS.round * 4 / 5 / flights)
        }

        fn is_warm(&self, now: Instant) -> bool {
            self.heard.is_some_and(|heard| now < heard + LIMITS.hop_idle)
        }

        fn first(&self) -> Option<((usize, u64), FlightId)> {
            self.flights.iter().filter_map(|&(id, ticket)| Some((ticket?, id))).min()
        }

        fn due(&self) -> Option<Instant> {
            self.first().map(|_| self.began.map_or(Instant::BOOT, |began| began + self.turn()))
        }
    }

    impl Model {
        fn join(&mut self, route: Route, flight: FlightId) -> u64 {
            let mut forgotten = 0;
            while !self.hops.contains_key(&route) && self.hops.len() >= LIMITS.hops {
                let unused = self.hops.iter().filter(|(_, hop)| hop.flights.is_empty());
                let oldest = unused.min_by_key(|&(route, hop)| (hop.heard, *route));
                let Some((&oldest, _)) = oldest else { break };
                self.hops.remove(&oldest);
                forgotten += 1;
            }
            let hop = self.hops.entry(route).or_default();
            if hop.flights.is_empty() {
                hop.cold_from = None;
            }
            hop.flights.push((flight, None));
            forgotten
        }

        fn leave(&mut self, route: Route, flight: FlightId) {
            if let Some(hop) = self.hops.get_mut(&route) {
                hop.flights.retain(|&(id, _)| id != flight);
            }
            self.hops.retain(|_, hop| !hop.flights.is_empty() || hop.heard.is_some());
        }

        fn may_send(&mut self, now: Instant, route: Route, flight: FlightId, sent: usize) -> bool {
            let hop = self.hops.get_mut(&route).unwrap();
            if hop.is_warm(now) {
                return true;
            }
            if hop.first().is_none() && hop.began.is_none_or(|began| began + hop.turn() <= now) {
                hop.began = Some(now);
                hop.cold_from = hop.cold_from.or(Some(now));
                return true;
            }
            let place = hop.flights.iter_mut().find(|(id, _)| *id == flight).unwrap();
            if place.1.is_none() {
                place.1 = Some((sent, self.tickets));
                self.tickets += 1;
            }
            false
        }

        fn next_turn(&mut self, now: Instant) -> Option<FlightId> {
            let due = self.hops.iter().filter_map(|(&route, hop)| Some((hop.due()?, route)));
            let (due, route) = due.min().filter(|&(due, _)| due <= now)?;
            let hop = self.hops.get_mut(&route)?;
            let (_, first) = hop.first()?;
            hop.flights.iter_mut().find(|(id, _)| *id == first)?.1 = None;
            hop.began = Some(if now.since(due) < LIMITS.round { due } else { now });
            Some(first)
        }

        fn heard(&mut self, now: Instant, route: Route) -> Vec<(FlightId, bool)> {
            let hop = self.hops.get_mut(&route).unwrap();
            let was_warm = hop.is_warm(now);
            hop.heard = Some(now);
            if was_warm {
                return Vec::new();
            }
            (hop.began, hop.cold_from) = (None, None);
            let mut released: Vec<_> =
                hop.flights.iter_mut().map(|(id, place)| (*id, place.take().is_some())).collect();
            released.sort_unstable();
            released
        }
    }

    proptest! {
        #[test]
        fn gate_does_what_a_plain_list_does(ops: Vec<(u8, u8, u8)>) {
            let (mut hops, mut model) = (hops(), Model::default());
            let mut now = at(0);
            let mut flights: Vec<(FlightId, Route)> = Vec::new();
            let mut started = 0;
            for (op, which, time) in ops {
                now += ms(u64::from(time % 16));
                let chosen = flights.get(usize::from(which) % flights.len().max(1)).copied();
                match (op % 6, chosen) {
                    (0, _) | (_, None) if flights.len() < LIMITS.hops => {
                        started += 1;
                        let (id, route) = (FlightId(started), route(which % 9));
                        let model_forgets = model.join(route, id);
                        prop_assert_eq!(hops.join(route, id), model_forgets);
                        flights.push((id, route));
                    }
                    (1, Some((id, route))) => {
                        hops.leave(route, id);
                        model.leave(route, id);
                        flights.retain(|&(other, _)| other != id);
                    }
                    (2 | 3, Some((id, route))) => {
                        let sent = usize::from(time) / 64;
                        let expected = model.may_send(now, route, id, sent);
                        prop_assert_eq!(hops.may_send(now, route, id, sent), expected);
                    }
                    (4, Some((_, route))) => {
                        prop_assert_eq!(hops.heard(now, route), model.heard(now, route));
                    }
                    _ => prop_assert_eq!(hops.next_turn(now), model.next_turn(now)),
                }
                prop_assert_eq!(hops.len(), model.hops.len());
                prop_assert_eq!(
                    hops.next_timeout(),
                    model.hops.values().filter_map(ModelHop::due).min()
                );
                prop_assert!(hops.len() <= LIMITS.hops);
            }
        }
    }
}
