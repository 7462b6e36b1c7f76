// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Questions in flight, and the requests that wait for them.

#[cfg(test)]
mod tests;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use hashbrown::HashMap;
use ibarr_common::Instant;
use ibarr_common::wire::ip2gid::MsgId;
use rand_core::CryptoRng;

use super::super::Question;
use super::types::{Domain, Way};
use super::{Candidate, Request, RequestId, Route, SocketId};
use crate::hash::Seeded;
use crate::request::{Caller, Freshness};
use crate::retry::{Schedule, part};

/// The flights, by each of their keys. No two have the same question or msg_id, and each request
/// waits for one flight. A full table refuses new entries.
#[derive(Debug)]
pub(super) struct Flights {
    by_id: HashMap<FlightId, Flight, Seeded>,
    by_question: HashMap<Question, FlightId, Seeded>,
    by_msg_id: HashMap<MsgId, FlightId, Seeded>,
    by_request: HashMap<RequestId, Waiter, Seeded>,
    /// Flights by the arrival of their newest request of the kernel: the order in which they give
    /// way to newer questions. Flights without such a request come first.
    by_newest: BTreeSet<(Instant, FlightId)>,
    /// Number of flights that have had a refusal, or a round without an answer.
    settled: usize,
    /// Number of flights started so far.
    started: u64,
    limits: Limits,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) flights: usize,
    pub(super) waiters_per_flight: usize,
    pub(super) waiters: usize,
}

/// The bound that was reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Full {
    Flights,
    WaitersOfFlight,
    Waiters,
}

impl Flights {
    pub(super) fn new(limits: Limits, hasher: &Seeded) -> Self {
        Self {
            by_id: HashMap::with_hasher(hasher.clone()),
            by_question: HashMap::with_hasher(hasher.clone()),
            by_msg_id: HashMap::with_hasher(hasher.clone()),
            by_request: HashMap::with_hasher(hasher.clone()),
            by_newest: BTreeSet::new(),
            settled: 0,
            started: 0,
            limits,
        }
    }

    /// Entries beyond lower limits stay until they end.
    pub(super) fn reconfigure(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The flight to end for a question of `asked_at`; `None` if there is room, or if none gives way.
    pub(super) fn to_evict(&self, asked_at: Instant) -> Option<FlightId> {
        if self.by_id.len() < self.limits.flights {
            return None;
        }
        let &(newest, flight) = self.by_newest.first()?;
        (newest + CHANCE <= asked_at).then_some(flight)
    }

    /// Starts a flight for `question`, which must not have one.
    pub(super) fn start(
        &mut self,
        question: Question,
        round_ends: Instant,
        rng: &mut impl CryptoRng,
    ) -> Result<FlightId, Full> {
        if self.by_id.len() >= self.limits.flights {
            return Err(Full::Flights);
        }
        self.started += 1;
        let id = FlightId(self.started);
        let msg_id = self.unused_msg_id(rng);
        self.by_msg_id.insert(msg_id, id);
        self.by_newest.insert((Instant::BOOT, id));
        self.by_question.insert(question, id);
        self.by_id.insert(id, Flight::new(question, msg_id, round_ends));
        Ok(id)
    }

    /// Makes `request` wait for `flight` until its deadline.
    pub(super) fn wait(&mut self, flight: FlightId, request: &Request) -> Result<(), Full> {
        let &Request { id: request, caller, asked_at, deadline, freshness, .. } = request;
        if self.by_request.len() >= self.limits.waiters {
            return Err(Full::Waiters);
        }
        let waited_for = self.by_id.get_mut(&flight).ok_or(Full::Flights)?;
        if waited_for.waiters.len() >= self.limits.waiters_per_flight {
            return Err(Full::WaitersOfFlight);
        }
        // The request that starts a flight does not count as joining it.
        waited_for.is_joined |= waited_for.is_refresh || !waited_for.waiters.is_empty();
        waited_for.is_of_kernel |= caller.is_kernel();
        waited_for.waiters.insert((deadline, request));
        if asked_at > waited_for.newest {
            self.by_newest.remove(&(waited_for.newest, flight));
            self.by_newest.insert((asked_at, flight));
            waited_for.newest = asked_at;
        }
        self.by_request.insert(request, Waiter { flight, deadline, caller, freshness });
        Ok(())
    }

    pub(super) fn is_waiting(&self, request: RequestId) -> bool {
        self.by_request.contains_key(&request)
    }

    /// Makes `request` wait no longer. Returns its flight.
    pub(super) fn cancel(&mut self, request: RequestId) -> Option<FlightId> {
        let waiter = self.by_request.remove(&request)?;
        if let Some(flight) = self.by_id.get_mut(&waiter.flight) {
            flight.waiters.remove(&(waiter.deadline, request));
        }
        Some(waiter.flight)
    }

    /// Removes and returns a request of `flight` whose deadline has passed.
    pub(super) fn pop_expired(&mut self, flight: FlightId, now: Instant) -> Option<RequestId> {
        let waiters = &mut self.by_id.get_mut(&flight)?.waiters;
        let &(deadline, request) = waiters.first()?;
        if deadline > now {
            return None;
        }
        waiters.pop_first();
        self.by_request.remove(&request);
        Some(request)
    }

    /// Removes and returns the requests of `flight` that a hint ends, by deadline.
    pub(super) fn take(&mut self, id: FlightId, ends: impl Fn(&Waiter) -> bool) -> Vec<RequestId> {
        let Some(flight) = self.by_id.get_mut(&id) else { return Vec::new() };
        self.settled += usize::from(!core::mem::replace(&mut flight.is_settled, true));
        let mut ended = Vec::new();
        flight.waiters.retain(|&(_, request)| {
            let is_ended = self.by_request.get(&request).is_some_and(&ends);
            if is_ended {
                self.by_request.remove(&request);
                ended.push(request);
            }
            !is_ended
        });
        ended
    }

    /// Starts a new round with a new msg_id, so that only answers to this round match. The round is
    /// slow, unless a request has joined since the last round began.
    pub(super) fn renew(&mut self, id: FlightId, round_ends: Instant, rng: &mut impl CryptoRng) {
        let msg_id = self.unused_msg_id(rng);
        let Some(flight) = self.by_id.get_mut(&id) else { return };
        self.by_msg_id.remove(&flight.msg_id);
        self.by_msg_id.insert(msg_id, id);
        let renewed = Flight::new(flight.question, msg_id, round_ends);
        let old = core::mem::replace(flight, renewed);
        flight.waiters = old.waiters;
        flight.is_refresh = old.is_refresh;
        flight.is_of_kernel = old.is_of_kernel;
        flight.newest = old.newest;
        flight.is_slow = !old.is_joined;
        flight.is_settled = true;
        self.settled += usize::from(!old.is_settled);
    }

    /// Removes a flight with all of its keys.
    pub(super) fn end(&mut self, id: FlightId) -> Option<Flight> {
        let flight = self.by_id.remove(&id)?;
        self.by_question.remove(&flight.question);
        self.by_msg_id.remove(&flight.msg_id);
        self.by_newest.remove(&(flight.newest, id));
        self.settled -= usize::from(flight.is_settled);
        for (_, request) in &flight.waiters {
            self.by_request.remove(request);
        }
        Some(flight)
    }

    pub(super) fn flight(&mut self, id: FlightId) -> Option<&mut Flight> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn of_question(&self, question: Question) -> Option<FlightId> {
        self.by_question.get(&question).copied()
    }

    pub(super) fn of_msg_id(&self, msg_id: MsgId) -> Option<FlightId> {
        self.by_msg_id.get(&msg_id).copied()
    }

    /// Number of flights that have had neither a refusal nor a round without an answer.
    pub(super) fn unsettled(&self) -> usize {
        self.by_id.len().saturating_sub(self.settled)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Number of requests that wait.
    pub(super) fn waiters(&self) -> usize {
        self.by_request.len()
    }

    fn unused_msg_id(&self, rng: &mut impl CryptoRng) -> MsgId {
        // At most a small part of the 2^32 values is in use, so the loop ends soon.
        loop {
            let msg_id = MsgId(rng.next_u32());
            if !self.by_msg_id.contains_key(&msg_id) {
                return msg_id;
            }
        }
    }
}

/// Identifies a flight. Never reused; ordered by the start of the flights.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct FlightId(pub(super) u64);

impl fmt::Display for FlightId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A question in flight. A flight lasts as long as a request waits for it, in rounds; each round
/// has its own msg_id, route and resends. The first round, and each round that a request has
/// joined, resends by the schedule; the others resend once a second.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is set and read by itself")]
pub(super) struct Flight {
    pub(super) question: Question,
    pub(super) msg_id: MsgId,
    /// Requests that wait, by deadline.
    pub(super) waiters: BTreeSet<(Instant, RequestId)>,
    /// It asks behind an answer from the cache, whether or not a request waits too.
    pub(super) is_refresh: bool,
    /// A request of the kernel has joined.
    pub(super) is_of_kernel: bool,
    /// The arrival of its newest request.
    newest: Instant,
    /// A request has joined since the round began.
    is_joined: bool,
    /// The round resends once a second.
    pub(super) is_slow: bool,
    /// The flight has had a refusal, or a round without an answer.
    is_settled: bool,
    /// Its refusal is not passed on yet, because the target may be a neighbour.
    pub(super) is_refused: bool,
    pub(super) round_ends: Instant,
    /// The candidate that the driver looks up.
    pub(super) sought: Option<Candidate>,
    /// How many candidates the round has looked up.
    pub(super) looked_up: usize,
    /// Those that count.
    pub(super) ways: Vec<Way>,
    /// Which of them the next send takes.
    pub(super) current: usize,
    /// The next hop in whose line it is.
    pub(super) joined: Option<Route>,
    pub(super) last_sent: Option<Instant>,
    /// Number of sends in this round.
    pub(super) sent: usize,
    /// `None` while it waits for a route, a turn or a socket.
    pub(super) resend_at: Option<Instant>,
    /// Its position among the flights that wait for a socket.
    pub(super) ready: Option<u64>,
    /// Random part of its resend time, so that queries sent together are not resent together.
    luck: u32,
    /// The sockets at which its reply may arrive.
    pub(super) sends: Vec<Send>,
}

impl Flight {
    fn new(question: Question, msg_id: MsgId, round_ends: Instant) -> Self {
        Self {
            question,
            msg_id,
            waiters: BTreeSet::new(),
            is_refresh: false,
            is_of_kernel: false,
            newest: Instant::BOOT,
            is_joined: false,
            is_slow: false,
            is_settled: false,
            is_refused: false,
            round_ends,
            sought: None,
            looked_up: 0,
            ways: Vec::new(),
            current: 0,
            joined: None,
            last_sent: None,
            sent: 0,
            resend_at: None,
            ready: None,
            luck: 0,
            sends: Vec::new(),
        }
    }

    /// Where its next send leaves from.
    pub(super) fn domain(&self) -> Domain {
        let vrf = self.way().and_then(|way| way.vrf);
        Domain { family: self.question.family(), vrf }
    }

    /// The way of the next send.
    pub(super) fn way(&self) -> Option<&Way> {
        self.ways.get(self.current)
    }

    /// Records that it was sent.
    pub(super) fn sent_from(&mut self, now: Instant, socket: SocketId, luck: u32) {
        self.ready = None;
        let way = self.current;
        if let Some(send) = self.sends.iter_mut().find(|send| send.socket == socket) {
            (send.way, send.is_repeated) = (way, true);
        } else {
            self.sends.push(Send { socket, at: now, way, is_repeated: false });
        }
        self.last_sent = Some(now);
        self.sent += 1;
        self.luck = luck;
    }

    /// The last send did not happen.
    pub(super) fn forget_send(&mut self) {
        // If its socket has sent before, its place in the list is that of the earlier send.
        self.sends.pop_if(|send| Some(send.at) == self.last_sent && !send.is_repeated);
    }

    /// Its send from `socket`.
    pub(super) fn send(&self, socket: SocketId) -> Option<&Send> {
        self.sends.iter().find(|send| send.socket == socket)
    }

    /// The time from its last send to its next one.
    pub(super) fn pause(&self, schedule: &Schedule, expected: Expected) -> Duration {
        let slowest = SLOWEST + part(SLOWEST / 10, self.luck);
        if self.is_slow {
            return slowest;
        }
        // It has not been sent since its next hop answered.
        let Some(n) = self.sent.checked_sub(1) else { return schedule.first() };
        let Some(pause) = schedule.pause(n, self.luck) else { return slowest };
        let Expected { timeout, factor } = expected;
        let timeout = timeout.saturating_mul(factor);
        let doubled = timeout.saturating_mul(1 << n.min(16)).min(timeout.max(DOUBLED));
        let unmeasured = pause.saturating_mul(factor).min(slowest);
        pause
            .max(unmeasured)
            .max(doubled.saturating_add(part(timeout / 10, self.luck)).min(slowest))
    }

    /// Restarts the schedule with the next send, which comes `after` the last one.
    pub(super) fn restart(&mut self, after: Duration) {
        self.sent = 0;
        self.is_slow = false;
        if self.ready.is_none() {
            self.resend_at = self.last_sent.map(|last_sent| last_sent + after);
        }
    }

    /// The time of its next action.
    pub(super) fn due(&self) -> Instant {
        let gives_up = self.waiters.first().map(|&(deadline, _)| deadline);
        [gives_up, self.resend_at].into_iter().flatten().fold(self.round_ends, Instant::min)
    }
}

/// A flight does not give way before this long after its newest request: by then the question was
/// sent and resent, even if it had to wait for its turn at a cold next hop.
const CHANCE: Duration = Duration::from_secs(1);

/// The first send of a flight from a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Send {
    pub(super) socket: SocketId,
    pub(super) at: Instant,
    /// The way of the last one.
    pub(super) way: usize,
    /// There was another send from this socket: a reply does not tell which one it answers.
    pub(super) is_repeated: bool,
}

/// The expected time of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Time-out after the send; zero if nothing has been measured.
    pub(super) timeout: Duration,
    /// Factor for all pauses.
    pub(super) factor: u32,
}

/// The doubling of pauses in a round stops here: a round lasts three seconds.
const DOUBLED: Duration = Duration::from_millis(500);

/// Maximum time between two sends of a query. A random part of up to a tenth is added, so that
/// nodes that start together drift apart.
const SLOWEST: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    flight: FlightId,
    deadline: Instant,
    pub(super) caller: Caller,
    pub(super) freshness: Freshness,
}
