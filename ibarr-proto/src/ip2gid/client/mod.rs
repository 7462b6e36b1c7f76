// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The client: sends queries to peers, and remembers their answers.
//!
//! A *request* that the cache cannot answer waits for the *flight* of its question; one flight
//! serves all requests for a question. A flight asks the driver for a route, passes the gate of its
//! next hop (`hops`), leaves by a random socket (`sockets`), and is resent until a reply comes or
//! no request waits any more. This file is long because every step of a question changes the same
//! tables.
//!
//! **What a forged reply must guess.** It needs the 32-bit msg_id of a waiting query, and the
//! random port (one of 28,000) of a socket which that query left from: a chance of one in 2⁴⁶ for a
//! query sent once. A query waits for a millisecond if its target is alive. If the target is dead,
//! it waits for 30 seconds in rounds of three, each with its own msg_id; up to seven sockets send
//! it in the first round, three in each other. A million forged replies a second during all that
//! time succeed for one in a million such queries. An attacker that knows our ports (each lives for
//! a minute) has to guess one of the 32 ports and the msg_id, and succeeds for one in a thousand.
//! Each waiting query is a separate chance. (On the same link an attacker can also claim the
//! address by ARP.) A forged reply costs one look-up, wherever it fails, and changes nothing but a
//! counter.

mod cache;
mod candidates;
mod config;
mod flights;
mod hops;
mod limits;
mod memory;
pub mod mirror;
mod old_prefixes;
mod on_link;
mod round_trips;
mod slowest;
mod sockets;
pub mod survey;
mod table;
mod types;

#[cfg(test)]
mod tests;

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{Query, Reply, Version};
use ibarr_common::{IfIndex, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::Rng as _;

use self::cache::{Cache, Learned};
use self::candidates::Candidates;
use self::config::RESENDS;
use self::flights::{Flight, FlightId, Flights, Full};
use self::hops::Hops;
use self::limits::{cache_limits, flight_limits, hop_limits};
use self::mirror::Mirror;
use self::old_prefixes::OldPrefixes;
use self::on_link::OnLink;
use self::slowest::Slowest;
use self::sockets::{Outlet, Outlets, Pool};
use self::types::Way;
use super::{Question, is_link_local};
use crate::counters::Counters;
use crate::hash::Seeded;
use crate::request::Freshness;
use crate::retry::random;
use crate::timer::Timers;

pub use crate::request::{Outcome, RequestId, Source};
pub use config::{Config, ConfigError, Settings, SourceCheck};
pub use memory::Cursor;
pub use slowest::Slow;
pub use sockets::SocketId;
pub use table::Cached;
pub use types::{
    Candidate, Counter, Egress, Event, Input, Output, Request, Route, SocketEvent, Transmit,
};

/// Resolves IP addresses to GIDs by asking their owners.
///
/// After every `handle_…`, call each `poll_…` until it returns `None`, then [`Self::poll_timeout`].
#[derive(Debug)]
pub struct Client {
    config: Config,
    rng: ChaCha12Rng,
    /// The time of the last call of the driver.
    now: Instant,
    flights: Flights,
    timers: Timers<FlightId>,
    /// Flights that need a route from the driver.
    unrouted: BTreeSet<FlightId>,
    candidates: Candidates,
    hops: Hops,
    outlets: Outlets,
    cache: Cache,
    old_prefixes: OldPrefixes,
    on_link: OnLink,
    slowest: Slowest,
    mirror: Mirror,
    swept_at: Instant,
    /// Flights that ask behind an answer.
    refreshing: usize,
    sockets: VecDeque<SocketEvent>,
    events: VecDeque<Event>,
    counters: Counters<Counter>,
}

impl Client {
    /// Sends and opens nothing before the first request.
    pub fn new(config: Config, mut rng: ChaCha12Rng) -> Self {
        let hasher = Seeded::new(&mut rng);
        Self {
            rng,
            now: Instant::BOOT,
            flights: Flights::new(flight_limits(&config), &hasher),
            timers: Timers::default(),
            unrouted: BTreeSet::new(),
            candidates: Candidates::default(),
            hops: Hops::new(hop_limits(&config), hasher.clone()),
            outlets: Outlets::default(),
            cache: Cache::new(cache_limits(&config), &hasher),
            old_prefixes: OldPrefixes::default(),
            on_link: OnLink::new(hasher),
            slowest: Slowest::default(),
            mirror: Mirror::default(),
            swept_at: Instant::BOOT,
            refreshing: 0,
            sockets: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            config,
        }
    }

    /// Replaces the configuration. Questions in flight keep their deadlines. Entries beyond lower
    /// bounds stay until they end, but answers are dropped at once.
    /// After a change of `udp_port`, only replies from the new port count, and resends go there.
    pub fn reconfigure(&mut self, now: Instant, config: Config) {
        self.advance(now);
        self.flights.reconfigure(flight_limits(&config));
        let hops = self.hops.reconfigure(hop_limits(&config));
        self.counters.add(Counter::HopsEvicted, hops);
        self.cache.expire(self.now);
        let cached = self.cache.reconfigure(cache_limits(&config));
        self.counters.add(Counter::CacheEvicted, cached);
        self.outlets.pools_mut().for_each(|pool| pool.reconfigure(now, config.settings()));
        self.config = config;
    }

    /// Processes an event.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        self.advance(now);
        match input {
            Input::Resolve(request) if request.freshness == Freshness::Fresh => {
                self.ask_peer(&request);
            }
            Input::Resolve(request) => self.resolve(&request),
            Input::Recall(request) => {
                if !self.answer_from_memory(&request) {
                    self.events.push_back(Event::NotRemembered(request));
                }
            }
            Input::Network(egresses) => self.network_changed(egresses),
            Input::Cancel { id } => self.cancel(id),
            Input::Route { candidate, route } => self.route(candidate, route),
            Input::Neighbour { question, gid } => self.neighbour_answered(question, gid),
            Input::Datagram { socket, from, ingress, payload } => {
                if let Err(counter) = self.datagram(socket, from, ingress, payload) {
                    self.counters.count(counter);
                }
            }
            Input::Refused { socket, to, quoted } => {
                if self.refused(socket, to, quoted).is_none() {
                    self.counters.count(Counter::RefusalsUnasked);
                }
            }
            Input::NotSent { query } => self.not_sent(query),
            Input::SocketOpened { socket } => {
                self.counters.count(Counter::SocketsOpened);
                match self.outlets.of(socket.domain()) {
                    Some(Outlet { pool, .. }) => {
                        pool.opened(self.now, socket, &mut self.rng, &mut self.sockets);
                    }
                    None => self.sockets.push_back(SocketEvent::Close(socket)),
                }
            }
            Input::SocketFailed { socket } => {
                self.counters.count(Counter::SocketsFailed);
                if let Some(outlet) = self.outlets.of(socket.domain()) {
                    outlet.pool.failed(self.now, socket);
                }
            }
            Input::Subnet { before, after } => self.subnet_changed(before, after),
            Input::Mirror(input) => self.mirror_input(input),
        }
        self.send_due();
    }

    /// Performs all actions that are due. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        for pool in self.outlets.pools_mut() {
            pool.handle_timeout(self.now, &mut self.sockets);
        }
        self.send_due();
        self.make_equal();
        if self.sweep_at().is_some_and(|at| at <= self.now) {
            self.cache.expire(self.now);
            self.swept_at = self.now;
        }
    }

    /// When to call [`Self::handle_timeout`] next: no later than the first action.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let mirror = self.mirror.poll_timeout(self.now);
        let times = [self.timers.next(), self.hops.next_timeout(), self.sweep_at(), mirror];
        let of_pools = self.outlets.pools().filter_map(Pool::next_timeout);
        times.into_iter().flatten().chain(of_pools).min()
    }

    /// The next socket, look-up or datagram. Resends count from the time of the last `handle_…`: a driver
    /// that has waited until its socket had room calls [`Self::handle_timeout`] first.
    pub fn poll_transmit(&mut self) -> Option<Output> {
        self.poll_look_up().or_else(|| self.poll_query().map(Output::Query))
    }

    fn poll_look_up(&mut self) -> Option<Output> {
        if let Some(event) = self.sockets.pop_front() {
            return Some(Output::Socket(event));
        }
        if let Some(id) = self.unrouted.pop_first() {
            return self.flights.flight(id)?.sought.map(Output::Route);
        }
        self.poll_neighbour()
    }

    fn poll_query(&mut self) -> Option<Transmit> {
        let outlet = self.outlets.first_ready()?;
        let (_, id) = outlet.ready.pop_first()?;
        let flight = self.flights.flight(id)?;
        let used = |socket| flight.send(socket).is_some();
        let socket = outlet.pool.pick(&mut self.rng, used)?;
        let (question, way) = (flight.question, *flight.way()?);

        let first_time = flight.sends.is_empty();
        self.counters.count(if first_time { Counter::Queries } else { Counter::Resends });
        flight.sent_from(self.now, socket, self.rng.next_u32());
        let payload = Query::new(Version::V1, flight.msg_id, question.target())?.emit();
        self.schedule_resend(id);
        self.set_timer(id);

        let Candidate { egress, source, .. } = way.candidate;
        let needs_interface = egress.is_some() || is_link_local(question.target());
        Some(Transmit {
            socket,
            to: SocketAddr::new(question.target(), self.config.settings().udp_port.get()),
            egress: needs_interface.then_some(way.route.ifindex),
            source,
            payload,
        })
    }

    /// The next event for another core.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The counters.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// The current size of the tables.
    pub fn load(&self) -> Load {
        Load {
            flights: self.flights.len(),
            waiters: self.flights.waiters(),
            hops: self.hops.len(),
            cached: self.cache.len(),
        }
    }

    /// The peers that took longest to answer lately, the slowest first.
    pub fn slowest(&self, now: Instant) -> Vec<Slow> {
        self.slowest.list(now)
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn resolve(&mut self, request: &Request) {
        if !self.flights.is_waiting(request.id) {
            if self.answer_from_memory(request) {
                return;
            }
            self.counters.add(Counter::Older, self.is_older(self.now, request.question).into());
        }
        self.ask_peer(request);
    }

    fn answer_from_memory(&mut self, request: &Request) -> bool {
        let Some(cached) = self.recall(request.question, request.caller) else { return false };
        self.counters.count(Counter::Requests);
        self.counters.count(Counter::CacheHits);
        self.answer(request.id, cached.into());
        true
    }

    fn ask_peer(&mut self, request: &Request) {
        let &Request { id, .. } = request;
        self.counters.count(Counter::Requests);
        if self.flights.is_waiting(id) {
            return self.counters.count(Counter::RepeatedRequest);
        }
        if let Err(full) = self.wait_for_flight(request) {
            self.counters.count(match full {
                Full::Flights => Counter::FlightsFull,
                Full::WaitersOfFlight => Counter::WaitersOfFlightFull,
                Full::Waiters => Counter::WaitersFull,
            });
            self.answer(id, Outcome::Overloaded);
        }
    }

    fn wait_for_flight(&mut self, request: &Request) -> Result<(), Full> {
        let &Request { question, asked_at, .. } = request;
        let under_way = self.flights.of_question(question);
        let first = under_way
            .filter(|&id| self.flights.flight(id).is_some_and(|flight| flight.waiters.is_empty()));
        let id = if let Some(id) = under_way {
            id
        } else {
            self.make_room(asked_at);
            self.start(question)?
        };
        if let Err(full) = self.flights.wait(id, request) {
            if under_way.is_none() {
                self.end(id);
            }
            return Err(full);
        }
        if under_way.is_some() {
            self.counters.count(Counter::Joined);
            self.request_neighbour_if_silent(id);
        }
        if let Some(flight) = first.and_then(|id| self.flights.flight(id)) {
            // No request has waited: the schedule begins again, with the last send as its first.
            flight.sent = flight.sent.min(1);
            flight.is_slow = false;
            if flight.resend_at.is_some() {
                self.schedule_resend(id);
            }
        }
        self.set_timer(id);
        Ok(())
    }

    /// If the flights are full, ends the one whose callers are the most likely to be gone.
    fn make_room(&mut self, asked_at: Instant) {
        let Some(id) = self.flights.to_evict(asked_at) else { return };
        let Some(flight) = self.end(id) else { return };
        for (_, request) in flight.waiters {
            self.counters.count(Counter::GaveWay);
            self.answer(request, Outcome::Overloaded);
        }
    }

    fn start(&mut self, question: Question) -> Result<FlightId, Full> {
        let round_ends = self.now + self.config.round();
        let id = self.flights.start(question, round_ends, &mut self.rng)?;
        self.take_next_way(id);
        self.set_timer(id);
        Ok(id)
    }

    fn cancel(&mut self, request: RequestId) {
        let Some(id) = self.flights.cancel(request) else { return };
        self.counters.count(Counter::Cancelled);
        self.set_timer(id);
        self.end_if_unwanted(id);
    }

    fn datagram(
        &mut self,
        socket: SocketId,
        from: SocketAddr,
        ingress: IfIndex,
        payload: &[u8],
    ) -> Result<(), Counter> {
        let settings = self.config.settings();
        if !self.outlets.of(socket.domain()).is_some_and(|outlet| outlet.pool.receives(socket)) {
            return Err(Counter::ClosedSocket);
        }
        if from.port() != settings.udp_port.get() {
            return Err(Counter::SourcePort);
        }
        let reply = Reply::parse(payload)?;
        let id = self.flights.of_msg_id(reply.msg_id).ok_or(Counter::Unasked)?;
        let flight = self.flights.flight(id).ok_or(Counter::Unasked)?;
        let send = *flight.send(socket).ok_or(Counter::WrongSocket)?;
        let Way { candidate, route, .. } =
            *flight.ways.get(send.way).ok_or(Counter::WrongSocket)?;
        if settings.source_check == SourceCheck::Strict {
            if from.ip() != flight.question.target() {
                return Err(Counter::SourceAddress);
            }
            if ingress != route.ifindex {
                return Err(Counter::WrongIngress);
            }
        }
        self.counters.count(Counter::Replies);
        let question = flight.question;
        let sent_at = (!send.is_repeated).then_some(send.at);
        let asked_at = flight.sends.iter().map(|send| send.at).min().unwrap_or(self.now);
        let took = self.now.since(asked_at);
        self.slowest.note(Slow { question, took, at: self.now });
        self.take_way(id, send.way);
        self.note_answered(candidate);
        self.hops.measured(self.now, route, sent_at);
        let released = self.hops.heard(self.now, route);
        self.remember(question, reply.gid);
        self.cache.note_source(question, from.ip());
        self.conclude(id, outcome(reply.gid, Source::Peer));
        for (id, was_waiting) in released {
            self.release(id, was_waiting);
        }
        Ok(())
    }

    fn not_sent(&mut self, query: &[u8]) {
        let msg_id = Query::parse(query).ok().map(|query| query.msg_id());
        let id = msg_id.and_then(|msg_id| self.flights.of_msg_id(msg_id));
        let flight = id.and_then(|id| self.flights.flight(id));
        if let Some(flight) = flight {
            flight.forget_send();
            let is_first = flight.sends.is_empty();
            self.counters.take_back(if is_first { Counter::Queries } else { Counter::Resends });
        }
    }

    /// Ends the requests that end on a refusal, and delays the resend for the others. `None` if the
    /// quote matches no waiting query.
    fn refused(&mut self, socket: SocketId, to: SocketAddr, quoted: &[u8]) -> Option<()> {
        let query = Query::parse(quoted).ok()?;
        let id = self.flights.of_msg_id(query.msg_id())?;
        let flight = self.flights.flight(id)?;
        flight.send(socket)?;
        let port = self.config.settings().udp_port.get();
        let target = flight.question.target();
        if query.target() != target || (to.ip(), to.port()) != (target, port) {
            return None;
        }
        self.counters.count(Counter::Refusals);
        self.slow_down(id);
        if self.request_neighbour(id) {
            if let Some(flight) = self.flights.flight(id) {
                flight.is_refused = true;
            }
        } else {
            self.answer_refused(id);
        }
        Some(())
    }

    /// Delays the resend of the flight to a second after its last send, if it waits for one.
    fn slow_down(&mut self, id: FlightId) {
        let Some(flight) = self.flights.flight(id) else { return };
        flight.is_slow = true;
        if flight.resend_at.is_some() {
            self.schedule_resend(id);
        }
        self.set_timer(id);
    }

    /// The next hop of the flight has answered another flight.
    fn release(&mut self, id: FlightId, was_waiting: bool) {
        let Some(flight) = self.flights.flight(id) else { return };
        // Earlier datagrams may have been lost while the hop was unresolved: the schedule restarts.
        flight.restart(RESENDS.first());
        if was_waiting {
            flight.resend_at = None;
            self.make_ready(id);
        }
        self.set_timer(id);
    }

    fn flight_due(&mut self, id: FlightId) {
        while let Some(request) = self.flights.pop_expired(id, self.now) {
            self.answer(request, Outcome::TimedOut);
        }
        let now = self.now;
        let Some(flight) = self.flights.flight(id) else { return };
        if flight.round_ends <= now {
            if core::mem::take(&mut flight.is_refresh) {
                self.refreshing -= 1;
            }
            if !flight.waiters.is_empty() {
                return self.renew(id);
            }
        } else if flight.resend_at.is_some_and(|at| at <= now) {
            // Round trips measured since the last send count.
            self.schedule_resend(id);
            if let Some(flight) = self.flights.flight(id)
                && flight.resend_at.is_some_and(|at| at <= now)
            {
                flight.resend_at = None;
                self.request_neighbour_if_silent(id);
                self.take_next_way(id);
            }
        }
        self.set_timer(id);
        self.end_if_unwanted(id);
    }

    /// Starts another round, for requests that wait longer than one.
    fn renew(&mut self, id: FlightId) {
        self.detach(id);
        // A random offset separates questions that started together.
        let round = self.config.round();
        let round_ends = self.now + round.saturating_sub(random(round / 10, &mut self.rng));
        self.flights.renew(id, round_ends, &mut self.rng);
        self.take_next_way(id);
        self.set_timer(id);
    }

    /// Sends what is due: one request or flight more can bring a time forward to one that has passed.
    fn send_due(&mut self) {
        while let Some(id) = self.timers.pop(self.now) {
            self.flight_due(id);
        }
        while let Some(id) = self.hops.next_turn(self.now) {
            self.make_ready(id);
        }
    }

    fn send_when_allowed(&mut self, id: FlightId) {
        let Some(flight) = self.flights.flight(id) else { return };
        let Some(route) = flight.joined else { return };
        if self.hops.may_send(self.now, route, id, flight.sent) {
            self.make_ready(id);
        } else {
            self.counters.count(Counter::Queued);
        }
    }

    /// Queues the flight until there is a socket.
    fn make_ready(&mut self, id: FlightId) {
        let Some(flight) = self.flights.flight(id) else { return };
        if let Some(outlet) = self.outlets.enqueue(self.config.settings(), id, flight) {
            outlet.pool.want(self.now, &mut self.sockets);
        } else {
            self.counters.count(Counter::DomainsFull);
            self.conclude(id, Outcome::Overloaded);
        }
    }

    /// Sets the time of the next resend, or of the next look at it: the resend may have moved by
    /// then.
    fn schedule_resend(&mut self, id: FlightId) {
        let questions = self.flights.unsettled();
        let Some(flight) = self.flights.flight(id) else { return };
        let (Some(route), Some(last_sent)) = (flight.joined, flight.last_sent) else { return };
        let expected = self.hops.expected(self.now, route, questions);
        let at = last_sent + flight.pause(&RESENDS, expected);
        let again = self.now + self.now.since(last_sent).max(RESENDS.first());
        flight.resend_at = Some(if flight.is_slow { at } else { at.min(again) });
    }

    fn end_if_unwanted(&mut self, id: FlightId) {
        let flight = self.flights.flight(id);
        if flight.is_some_and(|flight| flight.waiters.is_empty() && !flight.is_refresh) {
            self.end(id);
        }
    }

    fn conclude(&mut self, id: FlightId, outcome: Outcome) {
        let Some(flight) = self.end(id) else { return };
        for (_, request) in flight.waiters {
            self.answer(request, outcome);
        }
    }

    fn end(&mut self, id: FlightId) -> Option<Flight> {
        self.detach(id);
        self.timers.set(id, None);
        let flight = self.flights.end(id)?;
        if flight.is_refresh {
            self.refreshing -= 1;
        }
        Some(flight)
    }

    fn detach(&mut self, id: FlightId) {
        self.unrouted.remove(&id);
        self.on_link.forget_flight(id);
        let Some(flight) = self.flights.flight(id) else { return };
        self.outlets.dequeue(flight);
        if let Some(route) = flight.joined.take() {
            self.hops.leave(route, id);
        }
    }

    fn answer(&mut self, id: RequestId, outcome: Outcome) {
        self.counters.count(match outcome {
            Outcome::Found { .. } => Counter::Found,
            Outcome::NotFound => Counter::NotFound,
            Outcome::TimedOut => Counter::TimedOut,
            Outcome::Refused => Counter::Refused,
            Outcome::Unreachable => Counter::Unreachable,
            Outcome::Overloaded => Counter::Overloaded,
        });
        self.events.push_back(Event::Answered { id, outcome });
    }

    fn set_timer(&mut self, id: FlightId) {
        let due = self.flights.flight(id).map(|flight| flight.due());
        self.timers.set(id, due);
    }

    /// Expired answers are not used, so they need not be removed at once.
    fn sweep_at(&self) -> Option<Instant> {
        self.cache.next_expiry().map(|at| at.max(self.swept_at + SWEEP_INTERVAL))
    }
}

/// The sizes of a client's tables.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Load {
    pub flights: usize,
    pub waiters: usize,
    pub hops: usize,
    pub cached: usize,
}

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

fn outcome(gid: Option<Gid>, source: Source) -> Outcome {
    gid.map_or(Outcome::NotFound, |gid| Outcome::Found { gid, source })
}
