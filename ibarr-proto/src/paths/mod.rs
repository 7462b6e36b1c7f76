// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Paths: which path leads to this GID? Asks the subnet administrators through [`sa`], each
//! question once, and remembers their answers. This file is long because every step of a question
//! (memory, doubt, flight, answer) changes the same tables.
//!
//! **The parts of a question** are port, both GIDs, partition, traffic class, and whether the path
//! must be reversible. rdma_cm puts the port number of a service into the service ID, so service
//! and class of service are part of the question only if the SA's answer may depend on them
//! ([`Qos`]).
//!
//! **Doubt.** The SA does not announce changes of its answers. The paths of a port are in doubt
//! after its port came up again, the subnet manager moved, or the kernel reported an event of the
//! port ([`PortEvent`]): a caller then waits for the SA, and gets the remembered path only if the
//! SA does not answer in time. If the port got another LID or GID, or lost a partition, its paths
//! are wrong.
//!
//! **Changes without an event.** A subnet manager that restarts at the same place makes all ports
//! *register again*, and may have given other ports new LIDs. The own port looks unchanged. Two
//! observations show the change. First, IPoIB keeps its paths until its port has to register again,
//! and then asks again. So a repeated request for one direction (IPoIB, SRP) shows that there was
//! an event, and all paths of the port are in doubt. Second, a GID with another LID than before
//! shows that the subnet has changed. Then all paths of the port are in doubt, because ports seldom
//! get new LIDs one at a time, and a router's LID is in many paths. A contradicted path is no
//! longer used. To notice such changes, the SA is asked from time to time for a path in use
//! (`canaries.rs`).

mod bucket;
mod cache;
mod canaries;
mod direct;
mod doubt;
mod endpoints;
mod fallback;
mod lids;
mod order;
mod partial;
mod ports;
mod records;
mod routers;
mod several;
mod slab;
pub mod snapshot;
mod spread;
#[cfg(test)]
mod tests;
mod types;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use hashbrown::HashMap;
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, PathRecord, SubnetPrefix};
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa::{PathQuestion, Question};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng as _;

use self::cache::{Cache, Key, Remembered};
use self::direct::Direct;
use self::ports::{BEFORE, Change, Port, Ports};
use self::snapshot::{RestoreResult, Restored, Restoring, Snapshot, Step, Walk};
use crate::counters::Counters;
use crate::hash::Seeded;
use crate::request::Freshness;
pub use crate::request::RequestId;
use crate::retry::Jitter;
use crate::sa::{self, Client, PortIndex, QuestionId, Rank};
use crate::timer::Timers;

pub use bucket::DOUBT_SPREAD;
pub(crate) use direct::Recalled;
pub use endpoints::{Endpoint, NoStart};
pub use partial::{Choice, CompleteQuestion, Incomplete, PKeyNumber, Partial};
pub use records::records;
pub use types::{
    Answered, Cached, Config, Counter, Device, Event, GidIndex, GidTable, Input, Load, NoPath,
    Outcome, PortChange, PortEvent, PortFacts, PortName, Qos, Request, Search, Source, Status,
};

/// The paths of all ports, see the [module](self). After each call that takes a time, call each
/// `poll_…` until it returns `None`, then wait until [`Self::poll_timeout`].
#[derive(Debug)]
pub struct Paths {
    config: Config,
    now: Instant,
    rng: ChaCha12Rng,
    ports: Ports,
    client: Client,
    cache: Cache,
    swept_at: Instant,
    flights: BTreeMap<QuestionId, Flight>,
    by_key: HashMap<Key, QuestionId, Seeded>,
    direct: Direct,
    /// Paths that an earlier daemon has left, or a file has.
    restoring: Restoring,
    /// Ports whose SA is being asked for its capabilities.
    infos: BTreeMap<QuestionId, PortIndex>,
    next_question: u64,
    /// How many times the use of a path has set when it is asked for again.
    canaries_set: u64,
    waiting: BTreeMap<RequestId, Waiting>,
    deadlines: Timers<RequestId>,
    /// The subnet of each port, or its last one if the port is gone.
    subnets: BTreeMap<PortIndex, SubnetPrefix>,
    changes: VecDeque<PortChange>,
    events: VecDeque<Event>,
    counters: Counters<Counter>,
}

/// A request that waits for a flight.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    flight: QuestionId,
    rank: Rank,
}

/// A question that the SA is being asked.
#[derive(Debug)]
struct Flight {
    key: Key,
    question: PathQuestion,
    /// The epoch of the port when the question was asked.
    epoch: u32,
    waiters: BTreeSet<RequestId>,
    /// The answer if the SA does not answer, unless it becomes void by then.
    doubted: Option<Doubted>,
}

/// A path in doubt, when it was learned, and when it expires.
#[derive(Clone, Copy, Debug)]
struct Doubted {
    record: PathRecord,
    epoch: u32,
    expires_at: Instant,
}

/// The remembered answer to a question.
enum Memory {
    Sure(Remembered),
    Doubted(Doubted),
    Nothing,
}

/// Deadline of a question for the SA's capabilities.
const INFO_DEADLINE: Duration = Duration::from_secs(10);

/// Time until that question is repeated, varied by a quarter; an hour after an answer.
const INFO_AGAIN: Duration = Duration::from_secs(30);

/// Deadline of a refresh. A request that joins meanwhile waits as long as for a new question.
const REFRESH_DEADLINE: Duration = Duration::from_secs(2);

/// Expired answers are dropped together at this interval.
const SWEEP: Duration = Duration::from_secs(10);

impl Paths {
    /// Starts without ports.
    pub fn new(config: Config, mut rng: ChaCha12Rng) -> Self {
        let hasher = Seeded::new(&mut rng);
        Self {
            config,
            now: Instant::BOOT,
            ports: Ports::default(),
            client: Client::new(config.sa, ChaCha12Rng::from_rng(&mut rng)),
            cache: Cache::new(config.max_cached, hasher.clone()),
            swept_at: Instant::BOOT,
            flights: BTreeMap::new(),
            by_key: HashMap::with_hasher(hasher),
            direct: Direct::default(),
            restoring: Restoring::default(),
            infos: BTreeMap::new(),
            next_question: 0,
            canaries_set: 0,
            waiting: BTreeMap::new(),
            deadlines: Timers::default(),
            subnets: BTreeMap::new(),
            changes: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            rng,
        }
    }

    /// Replaces the configuration.
    pub fn reconfigure(&mut self, config: Config) {
        self.config = config;
        self.client.reconfigure(config.sa);
        let evicted = self.cache.set_max(config.max_cached);
        self.counters.add(Counter::Evicted, evicted);
    }

    /// Processes an input.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        self.advance(now);
        match input {
            Input::Port { port, name, facts } => {
                self.note_subnet(port, &facts);
                let sa = facts.sa();
                let change = self.ports.set(self.now, port, name, facts, &mut self.rng);
                if change == Change::Void {
                    // Answers in transit may be wrong, and cannot be recognized.
                    self.client.handle_input(self.now, sa::Input::Sa { port, sa: None });
                }
                self.client.handle_input(self.now, sa::Input::Sa { port, sa });
                match change {
                    Change::None => {}
                    Change::Doubt => self.counters.count(Counter::Doubts),
                    Change::Void => self.counters.count(Counter::Voided),
                }
                self.decide(port);
            }
            Input::PortGone { port } => {
                self.ports.remove(port);
                self.changes.push_back(PortChange::Facts);
                self.client.handle_input(self.now, sa::Input::Sa { port, sa: None });
            }
            Input::Happened { port, event } => {
                self.counters.count(Counter::Events);
                if self.ports.happened(self.now, port, event, &mut self.rng) {
                    self.counters.count(Counter::Doubts);
                }
                self.client.handle_input(self.now, sa::Input::MayBeBack { port });
            }
            Input::Hearing { port, heard } => {
                if let Some(port) = self.ports.get_mut(port) {
                    port.hears_events = heard;
                }
            }
            Input::Mad { port, from, mad } => {
                self.client.handle_input(self.now, sa::Input::Mad { port, from, mad });
            }
            Input::Resolve(request) => match request.question {
                Search::Path(question) => self.resolve(&request, question),
                Search::Known(query) => self.ask_directly(&request, query),
            },
            Input::Recall(request) => self.remembered(request),
            Input::Overloaded { seq, port } => {
                let index = self.ports.by_name(&port).map(|(index, _)| index);
                let is_left_to_kernel = self.falls_back(index, &Outcome::Overloaded);
                self.events.push_back(Event::Overloaded { seq, is_left_to_kernel });
            }
            Input::Unanswered => self.client.handle_input(self.now, sa::Input::Unanswered),
            Input::NotSent => self.client.handle_input(self.now, sa::Input::NotSent),
        }
        self.settle();
    }

    fn resolve(&mut self, request: &Request, question: PathQuestion) {
        self.counters.count(Counter::Requests);
        let &Request { id, freshness, deadline, .. } = request;
        let rank = request.rank();
        let (index, key, question) = match self.key(&request.port, question) {
            Ok(found) => found,
            Err(outcome) => return self.answer(None, id, rank, outcome),
        };
        let is_under_way = self.by_key.contains_key(&key);
        self.note_asked_again(&key);
        let memory = match freshness {
            Freshness::Fresh => Memory::Nothing,
            Freshness::Any | Freshness::Memory => self.recall(&key),
        };
        let doubted = match memory {
            Memory::Sure(remembered) => {
                let outcome = self.given(key, question, &remembered);
                return self.answer(Some(index), id, rank, outcome);
            }
            Memory::Doubted(doubted)
                if self.client.load(index).shut.is_some()
                    || !key.is_kept()
                        && !is_under_way
                        && !self.was_doubted(index)
                        && !self.take_repeat(index) =>
            {
                return self.answer(Some(index), id, rank, doubted.given());
            }
            Memory::Doubted(doubted) => Some(doubted),
            Memory::Nothing => None,
        };
        if self.waiting.len() + self.direct.len() >= self.config.max_waiters {
            let outcome = doubted.map_or(Outcome::Overloaded, Doubted::given);
            return self.answer(Some(index), id, rank, outcome);
        }
        let flight = if is_under_way {
            self.counters.count(Counter::Joined);
            let flight = self.by_key.get(&key).copied();
            if let Some(id) = flight {
                self.client.handle_input(self.now, sa::Input::Join { id, rank, deadline });
            }
            flight
        } else {
            if doubted.is_some() {
                self.counters.count(Counter::DoubtsAsked);
            }
            Some(self.ask(key, question, doubted, rank, deadline))
        };
        if let Some(flight) = flight
            && let Some(Flight { waiters, .. }) = self.flights.get_mut(&flight)
        {
            waiters.insert(id);
            self.waiting.insert(id, Waiting { flight, rank });
            self.deadlines.set(id, Some(deadline));
            self.leave_overdue(flight);
        }
    }

    fn lookup(&mut self, port: &PortName, question: PathQuestion) -> Option<Outcome> {
        let (_, key, question) = self.key(port, question).ok()?;
        let Memory::Sure(remembered) = self.recall(&key) else { return None };
        let outcome = self.given(key, question, &remembered);
        self.counters.count(Counter::Requests);
        self.count(&outcome);
        Some(outcome)
    }

    /// Performs all actions that are due. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        if self.sweep_at().is_some_and(|at| at <= self.now) {
            self.cache.expire(self.now);
            self.swept_at = self.now;
        }
        if self.config.qos == Qos::Auto {
            while let Some(port) = self.ports.take_info_due(self.now) {
                let id = self.next_id();
                self.infos.insert(id, port);
                let deadline = self.now + INFO_DEADLINE;
                let question = Question::ClassPortInfo;
                self.ask_sa(id, port, question, Rank::Kernel, deadline);
            }
        }
        self.send_canaries();
        self.take_over();
        self.client.handle_timeout(self.now);
        self.settle();
        // Requests for a question that others wait for longer.
        while let Some(id) = self.deadlines.pop(self.now) {
            if let Some((question, rank, flight)) = self.stop_waiting(id) {
                let (port, doubted) = (flight.key.port(), flight.doubted);
                let is_busy = self.client.is_busy(question);
                let lack = if is_busy { Outcome::Busy } else { Outcome::Silent };
                let outcome = self.or_doubted(port, doubted, lack);
                self.answer(Some(port), id, rank, outcome);
            }
        }
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let info = self.ports.info_due().filter(|_| self.config.qos == Qos::Auto);
        let restoring = self.restoring.poll_timeout(self.now);
        let canary = self.ports.canary_due();
        let timeouts = [
            self.client.poll_timeout(),
            self.deadlines.next(),
            self.sweep_at(),
            info,
            restoring,
            canary,
        ];
        timeouts.into_iter().flatten().min()
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<sa::Transmit> {
        self.client.poll_transmit()
    }

    /// Whether [`Self::poll_transmit`] has a MAD.
    pub(crate) fn has_transmit(&self) -> bool {
        self.client.has_transmit()
    }

    /// The next answer.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next change of the ports.
    pub fn poll_change(&mut self) -> Option<PortChange> {
        self.changes.pop_front()
    }

    /// Drops every answer, but remembers which ones were given to callers that keep them, so that a
    /// repeated request still signals a change. Returns how many answers that was.
    pub fn flush(&mut self) -> usize {
        let flushed = self.entries().count() + core::mem::take(&mut self.restoring).len();
        self.ports.void();
        self.cache.retain(|key, remembered| key.is_kept() && remembered.record.is_some());
        flushed
    }

    /// Takes over the answers of an earlier daemon, from a snapshot of age `age`. Usable answers
    /// are taken over when their port is known, and are in doubt from the start.
    pub fn restore(&mut self, now: Instant, snapshot: Snapshot, age: Duration) {
        self.advance(now);
        let longest = self.config.ttl + self.config.ttl / 4;
        self.restoring.wait(self.now, snapshot, age, longest);
        let ports: Vec<_> = self.ports.iter().map(|(index, ..)| index).collect();
        for port in ports {
            self.decide(port);
        }
    }

    /// Takes paths that an administrator has listed, of ports that are as `listed` says. They are in doubt until the SA
    /// has confirmed them, as those of an earlier daemon.
    pub fn preload(&mut self, now: Instant, listed: Snapshot) {
        self.advance(now);
        let longest = self.config.ttl + self.config.ttl / 4;
        let Self { restoring, ports, config, .. } = self;
        restoring.preload(self.now, listed, longest, config.max_cached, |name| {
            let (index, port) = ports.by_name(name)?;
            Some((index, port.facts()?, port.valid_from))
        });
    }

    /// The next result for a port of the snapshot.
    pub fn poll_restored(&mut self) -> Option<Restored> {
        let restored = self.restoring.poll_told()?;
        if restored.result != RestoreResult::Taken {
            self.counters.add(Counter::NotRestored, restored.paths as u64);
        }
        Some(restored)
    }

    /// Begins to write the remembered paths for the next daemon. Answers without path are
    /// remembered too briefly to be written.
    pub fn walk(&self, now: Instant) -> Walk {
        Walk::new(self.now.max(now), &self.ports, &self.cache)
    }

    /// Continues the walk by about `count` paths.
    pub fn step(&self, walk: &mut Walk, count: usize) -> Step {
        walk.step(&self.ports, &self.cache, count)
    }

    /// The counters.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// The client that asks the SAs.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The sizes of the tables.
    pub fn load(&self) -> Load {
        Load {
            questions: self.flights.len() + self.direct.len(),
            waiters: self.waiting.len() + self.direct.len(),
            cached: self.cache.len(),
        }
    }

    /// The existing ports, in the order of their indices.
    pub fn ports(&self) -> impl Iterator<Item = (PortIndex, PortName, &PortFacts, bool)> {
        self.ports.iter()
    }

    /// The last event of a port that the kernel reported, and its time.
    pub fn last_event(&self, port: PortIndex) -> Option<(Instant, PortEvent)> {
        self.ports.get(port)?.last_event
    }

    /// The remembered answers, by expiry.
    pub fn entries(&self) -> impl Iterator<Item = Cached> + '_ {
        self.cache.after(None).filter_map(|(_, key, remembered)| self.cached(&key, &remembered))
    }

    /// At most `count` answers in no particular order, from a place on (0 at first), and the place
    /// to continue from if there may be more. A reader of all parts gets every answer that is
    /// remembered all the while exactly once; an answer that is learned or dropped meanwhile may be
    /// missing.
    pub fn page(&self, from: u32, count: usize) -> (Vec<Cached>, Option<u32>) {
        let (page, next) = self.cache.page(from, count);
        let cached = |(key, remembered)| self.cached(&key, &remembered);
        (page.into_iter().filter_map(cached).collect(), next)
    }

    fn cached(&self, key: &Key, remembered: &Remembered) -> Option<Cached> {
        let port = self.ports.get(key.port()).filter(|port| remembered.epoch >= port.valid_from)?;
        let Remembered { record, expires_at, epoch } = *remembered;
        let (question, is_doubted) = (key.question()?, epoch < port.epoch);
        let others = self.cache.others(key).to_vec();
        Some(Cached { port: port.name, question, record, others, expires_at, is_doubted })
    }

    fn note_subnet(&mut self, port: PortIndex, facts: &PortFacts) {
        self.changes.push_back(PortChange::Facts);
        if let Some(after) = facts.gids.first().map(Gid::subnet_prefix)
            && let Some(before) = self.subnets.insert(port, after)
            && before != after
        {
            self.changes.push_back(PortChange::Subnet { before, after });
        }
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn next_id(&mut self) -> QuestionId {
        self.next_question += 1;
        QuestionId(self.next_question)
    }

    /// Decides whether the saved paths of a port are usable, if the port is known well enough.
    fn decide(&mut self, index: PortIndex) {
        if let Some(port) = self.ports.get(index)
            && let Some(facts) = port.facts()
        {
            let unchanged = (port.valid_from == BEFORE).then_some(BEFORE);
            self.restoring.decide(index, port.name, facts, unchanged);
        }
    }

    fn take_over(&mut self) {
        for ready in self.restoring.take(self.now) {
            let (key, remembered) = ready.remembered();
            let is_valid = |port: &Port| port.valid_from == ready.epoch;
            // An answer to this daemon is newer, unless it has become wrong.
            let is_newer = |answer: Remembered| answer.epoch >= ready.epoch;
            if self.ports.get(key.port()).is_some_and(is_valid)
                && !self.cache.lookup(self.now, &key).is_some_and(is_newer)
                && remembered.expires_at > self.now
                && remembered.record.is_none_or(|record| key.has_gids_of(record))
            {
                self.counters.count(ready.counter());
                self.insert(key, remembered);
            }
        }
    }

    /// The key under which the answer is remembered, and the question that the SA is asked.
    // Each answer from memory takes 62 instructions more if this is a call.
    #[inline]
    fn key(
        &self,
        port: &PortName,
        mut question: PathQuestion,
    ) -> Result<(PortIndex, Key, PathQuestion), Outcome> {
        let (index, port) = self.ports.by_name(port).ok_or(Outcome::UnknownPort)?;
        if !port.can_ask() {
            return Err(Outcome::NoSa);
        }
        let has_qos = match self.config.qos {
            Qos::Auto => port.has_qos,
            Qos::On => true,
            Qos::Off => false,
        };
        if !has_qos {
            (question.service_id, question.qos_class) = (None, None);
        }
        Ok((index, Key::new(index, &question), question))
    }

    /// Gives the remembered answer, and counts it as used.
    fn given(&mut self, key: Key, question: PathQuestion, remembered: &Remembered) -> Outcome {
        self.refresh(key, question, remembered);
        self.note_used(&key, remembered);
        let source = Source::Cache;
        match remembered.record {
            Some(record) if self.cache.has_several() => {
                Outcome::Found { record: self.cache.take_turn(&key, record), source }
            }
            Some(record) => Outcome::Found { record, source },
            None => Outcome::NoRecord { source },
        }
    }

    fn recall(&self, key: &Key) -> Memory {
        let Some(remembered) = self.cache.lookup(self.now, key) else { return Memory::Nothing };
        let Some(port) = self.ports.get(key.port()) else { return Memory::Nothing };
        match remembered.record {
            _ if remembered.epoch < port.valid_from => Memory::Nothing,
            _ if remembered.epoch == port.epoch => Memory::Sure(remembered),
            Some(record) if self.is_overruled(key.port(), &record) => Memory::Nothing,
            Some(record) => {
                let Remembered { epoch, expires_at, .. } = remembered;
                Memory::Doubted(Doubted { record, epoch, expires_at })
            }
            None => Memory::Nothing,
        }
    }

    /// An answer used in the last eighth of its life is refreshed, if the rate allows it.
    fn refresh(&mut self, key: Key, question: PathQuestion, remembered: &Remembered) {
        let is_near_end = remembered.expires_at.since(self.now) < self.config.ttl / 8;
        if remembered.record.is_some()
            && is_near_end
            && !self.by_key.contains_key(&key)
            && self.take_repeat(key.port())
        {
            self.counters.count(Counter::Refreshes);
            self.ask(key, question, None, Rank::Other, self.now + REFRESH_DEADLINE);
        }
    }

    fn was_doubted(&self, port: PortIndex) -> bool {
        self.ports.get(port).is_some_and(Port::was_doubted)
    }

    fn take_repeat(&mut self, port: PortIndex) -> bool {
        let (now, rate) = (self.now, self.config.repeat_rate);
        self.ports.get_mut(port).is_some_and(|port| port.repeats.take(now, rate))
    }

    fn ask(
        &mut self,
        key: Key,
        question: PathQuestion,
        doubted: Option<Doubted>,
        rank: Rank,
        deadline: Instant,
    ) -> QuestionId {
        let id = self.next_id();
        let epoch = self.ports.get_mut(key.port()).map_or(0, Port::ask);
        let asked = self.asked(key.port(), question);
        let flight = Flight { key, question, epoch, waiters: BTreeSet::new(), doubted };
        self.flights.insert(id, flight);
        self.by_key.insert(key, id);
        self.ask_sa(id, key.port(), asked, rank, deadline);
        id
    }

    fn ask_sa(
        &mut self,
        id: QuestionId,
        port: PortIndex,
        question: Question,
        rank: Rank,
        deadline: Instant,
    ) {
        let ask = sa::Ask { id, port, question, rank, deadline };
        self.client.handle_input(self.now, sa::Input::Ask(ask));
    }

    /// Handles the answers of the SA client.
    fn settle(&mut self) {
        while let Some(question) = self.client.poll_overdue() {
            self.leave_overdue(question);
        }
        while let Some(sa::Answered { id, outcome, others }) = self.client.poll_event() {
            if let Some(port) = self.infos.remove(&id) {
                self.note_info(port, outcome);
            } else if let Some(flight) = self.flights.remove(&id) {
                self.land(&flight, outcome, others);
            } else {
                self.land_direct(id, outcome);
            }
        }
    }

    fn land(&mut self, flight: &Flight, outcome: sa::Outcome, others: Vec<PathRecord>) {
        self.by_key.remove(&flight.key);
        self.note_refusal(flight, &outcome);
        let mut outcome = self.as_the_sa_says(outcome, |record| leads(record, &flight.question));
        match outcome {
            Outcome::Found { record, .. } => {
                self.note_contradiction(&flight.key, &record);
                self.remember(flight, Some(record), self.config.ttl);
                if !others.is_empty() {
                    let lmc = self.lmc(flight.key.port());
                    self.cache.insert_others(&flight.key, record, others, lmc);
                }
            }
            Outcome::NoRecord { .. } => self.remember(flight, None, self.config.negative_ttl),
            Outcome::Busy | Outcome::Silent | Outcome::Overloaded => {
                outcome = self.or_doubted(flight.key.port(), flight.doubted, outcome);
            }
            _ => {}
        }
        let is_between_others =
            matches!(outcome, Outcome::Found { record, .. } if !flight.key.has_gids_of(record));
        for id in &flight.waiters {
            if let Some(Waiting { rank, .. }) = self.waiting.remove(id) {
                self.deadlines.set(*id, None);
                let is_kept_from_kernel = is_between_others && rank == Rank::Kernel;
                if is_kept_from_kernel {
                    self.counters.count(Counter::OtherGids);
                }
                let outcome = match outcome {
                    _ if is_kept_from_kernel => Outcome::Refused(None),
                    Outcome::Found { record, source: Source::Sa } if self.cache.has_several() => {
                        let record = self.cache.take_turn(&flight.key, record);
                        Outcome::Found { record, source: Source::Sa }
                    }
                    outcome => outcome,
                };
                self.answer(Some(flight.key.port()), *id, rank, outcome);
            }
        }
    }

    /// The answer to a question for which a path is right if `is_it`.
    fn as_the_sa_says(
        &mut self,
        outcome: sa::Outcome,
        is_it: impl FnOnce(&PathRecord) -> bool,
    ) -> Outcome {
        match outcome {
            sa::Outcome::Path(record) if is_it(&record) => {
                Outcome::Found { record, source: Source::Sa }
            }
            sa::Outcome::Path(_) => {
                self.counters.count(Counter::WrongPath);
                Outcome::Refused(None)
            }
            sa::Outcome::Refused(refusal) if refusal.is_final() => {
                Outcome::NoRecord { source: Source::Sa }
            }
            sa::Outcome::Refused(refusal) => Outcome::Refused(Some(refusal)),
            sa::Outcome::Unusable | sa::Outcome::ClassPortInfo(_) => Outcome::Refused(None),
            sa::Outcome::Busy => Outcome::Busy,
            sa::Outcome::Silent => Outcome::Silent,
            sa::Outcome::Overloaded => Outcome::Overloaded,
            sa::Outcome::NoSa => Outcome::NoSa,
        }
    }

    /// Returns the question of a waiting request, the request's rank, and the flight.
    fn stop_waiting(&mut self, id: RequestId) -> Option<(QuestionId, Rank, &Flight)> {
        let Waiting { flight: question, rank } = self.waiting.remove(&id)?;
        self.deadlines.set(id, None);
        let flight = self.flights.get_mut(&question)?;
        flight.waiters.remove(&id);
        Some((question, rank, flight))
    }

    fn remember(&mut self, flight: &Flight, record: Option<PathRecord>, ttl: Duration) {
        let expires_at = self.now + Jitter::QUARTER.spread(ttl, &mut self.rng);
        let remembered = Remembered { record, expires_at, epoch: flight.epoch };
        self.insert(flight.key, remembered);
    }

    fn insert(&mut self, key: Key, remembered: Remembered) {
        let lmc = self.lmc(key.port());
        let evicted = self.cache.insert(key, remembered, lmc);
        self.counters.add(Counter::Evicted, evicted);
    }

    fn lmc(&self, port: PortIndex) -> u8 {
        self.ports.get(port).map_or(0, Port::lmc)
    }

    fn note_info(&mut self, port: PortIndex, outcome: sa::Outcome) {
        let (info, again) = match outcome {
            sa::Outcome::ClassPortInfo(info) => (Some(info), self.config.ttl),
            _ => (None, INFO_AGAIN),
        };
        let again_at = self.now + Jitter::QUARTER.spread(again, &mut self.rng);
        if let Some(port) = self.ports.get_mut(port) {
            port.has_qos = info.map_or(port.has_qos, |info| info.has_qos);
            port.info_due = Some(again_at);
        }
    }

    fn answer(&mut self, port: Option<PortIndex>, id: RequestId, rank: Rank, outcome: Outcome) {
        let is_left_to_kernel = rank == Rank::Kernel && self.falls_back(port, &outcome);
        self.push(id, outcome, is_left_to_kernel);
    }

    fn push(&mut self, id: RequestId, outcome: Outcome, is_left_to_kernel: bool) {
        self.count(&outcome);
        let answered = Answered { id, outcome, is_left_to_kernel };
        self.events.push_back(Event::Answered(answered));
    }

    fn count(&mut self, outcome: &Outcome) {
        self.counters.count(match outcome {
            Outcome::Found { source: Source::Cache, .. } => Counter::FoundCache,
            Outcome::Found { source: Source::Doubted, .. } => Counter::FoundDoubted,
            Outcome::Found { source: Source::Sa, .. } => Counter::FoundSa,
            Outcome::NoRecord { source: Source::Sa } => Counter::NoRecordSa,
            Outcome::NoRecord { .. } => Counter::NoRecordCache,
            Outcome::Refused(_) => Counter::Refused,
            Outcome::Silent => Counter::Silent,
            Outcome::Busy => Counter::Busy,
            Outcome::UnknownPort => Counter::UnknownPort,
            Outcome::NoSa => Counter::NoSa,
            Outcome::Overloaded => Counter::Overloaded,
        });
    }

    fn sweep_at(&self) -> Option<Instant> {
        Some(self.cache.next_expiry()?.max(self.swept_at + SWEEP))
    }
}

impl Doubted {
    fn given(self) -> Outcome {
        Outcome::Found { record: self.record, source: Source::Doubted }
    }
}

/// Whether a record answers the question of a user. The SA may write a GID of its subnet with another prefix
/// than the question's (OpenSM does so for fe80::/64); then the kernel is not given it, and it is not remembered.
fn leads(record: &PathRecord, question: &PathQuestion) -> bool {
    Fields::parse(record).is_ok_and(|fields| {
        fields.dgid.guid() == question.dgid.guid() && fields.sgid.guid() == question.sgid.guid()
    })
}
