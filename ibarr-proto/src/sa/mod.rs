// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The SA client: asks the subnet administrators, one for each port. It sends and resends, and
//! bounds the work that it causes for an SA at once. [`paths`](crate::paths) makes the questions
//! and interprets the answers.
//!
//! A question is a *flight*. It waits for its turn until the `Window` of its port has room. Its MAD
//! is then *in the air* until it is answered or counts as lost; after a loss the flight waits for
//! its turn again, until its deadline. Each MAD has its own transaction, because the kernel refuses
//! a transaction that still waits for an answer. An answer to any MAD of a flight is the answer to
//! the flight. A MAD stays in the air after its flight has ended, because the SA still has to
//! process it. It also stays if the SA is busy, or the kernel could not send it, so that an
//! overloaded SA or kernel gets a pause.
//!
//! The kernel's questions go first, because applications wait for them; others get at most half of
//! the window. Among equals, the question with the fewest losses goes first, so that a question
//! which is never answered does not block others. Next, the newest goes first: it has the most time
//! left. Otherwise an SA that cannot keep up would only answer questions whose callers have stopped
//! waiting.
//!
//! The client recognizes an SA that is silent, or only answers that it is busy (`gate`): new questions
//! of others than the kernel then end at once with that result. Those of the kernel, and others that
//! already wait, continue to wait, serve as probes, and are asked as usual when the SA answers anything.
//! A question whose MAD was lost while nothing was heard of the SA is *overdue*: the caller may have
//! another way.

mod flights;
mod gate;
#[cfg(test)]
mod tests;
mod types;
mod window;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use ibarr_common::Instant;
use ibarr_common::ib::{Lid, PathRecord};
use ibarr_common::wire::mad::{Header, Transaction};
use ibarr_common::wire::sa::{Answer, Question, Request, Response};
use rand_chacha::ChaCha12Rng;
use rand_core::Rng as _;

use self::flights::{Flight, Lane, OWN, SentMad, Turn};
use self::gate::Gate;
use self::window::Window;
use crate::counters::Counters;
use crate::retry::random;
use crate::timer::Timers;

pub use gate::Shut;
pub use types::{
    Answered, Ask, Config, Counter, Input, Load, Outcome, PortIndex, QuestionId, Rank, Sa, Tally,
    Transmit,
};

/// The SA client, see the [module](self). After each call that takes a time, call each `poll_…`
/// until it returns `None`, then wait until [`Self::poll_timeout`].
#[derive(Debug)]
pub struct Client {
    config: Config,
    now: Instant,
    rng: ChaCha12Rng,
    lanes: BTreeMap<PortIndex, Lane>,
    flights: BTreeMap<QuestionId, Flight>,
    /// Every MAD that is in the air or belongs to a flight.
    mads: BTreeMap<Transaction, SentMad>,
    next_transaction: u32,
    next_own: u64,
    /// When each MAD in the air counts as lost.
    losses: Timers<Transaction>,
    deadlines: Timers<QuestionId>,
    answered: VecDeque<Answered>,
    overdue: VecDeque<QuestionId>,
    tallies: BTreeMap<PortIndex, Tally>,
    counters: Counters<Counter>,
}

/// Maximum number of MADs of a flight whose late answers count. Its last one alone may be in the air.
const MOST_REMEMBERED: usize = 16;

impl Client {
    /// Starts without ports.
    pub fn new(config: Config, mut rng: ChaCha12Rng) -> Self {
        Self {
            config,
            now: Instant::BOOT,
            // An earlier daemon may have sent MADs whose answers arrive here.
            next_transaction: rng.next_u32(),
            next_own: OWN,
            rng,
            lanes: BTreeMap::new(),
            flights: BTreeMap::new(),
            mads: BTreeMap::new(),
            losses: Timers::default(),
            deadlines: Timers::default(),
            answered: VecDeque::new(),
            overdue: VecDeque::new(),
            tallies: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// Replaces the configuration. Existing windows keep their bound.
    pub fn reconfigure(&mut self, config: Config) {
        self.config = config;
    }

    /// Processes an event.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        self.advance(now);
        match input {
            Input::Sa { port, sa } => self.set_sa(port, sa),
            Input::MayBeBack { port } => self.hurry(port),
            Input::Ask(ask) => self.ask(ask),
            Input::Join { id, rank, deadline } => self.join(id, rank, deadline),
            Input::Mad { port, from, mad } => self.handle_mad(port, from, mad),
            Input::Unanswered => self.counters.count(Counter::Unanswered),
            Input::NotSent => self.counters.count(Counter::NotSent),
        }
    }

    fn ask(&mut self, ask: Ask) {
        let Ask { id, port, question, rank, deadline } = ask;
        self.counters.count(Counter::Questions);
        let Some(lane) = self.lanes.get_mut(&port) else {
            self.counters.count(Counter::NoSa);
            return self.answered.push_back(Answered::new(id, Outcome::NoSa));
        };
        lane.gate.asked(question);
        let is_kernels = rank == Rank::Kernel && question.is_between_gids();
        let waits = is_kernels && lane.flights < self.config.patient;
        if let Some(shut) = lane.gate.shut().filter(|_| !waits) {
            self.counters.count(Counter::AtOnce);
            let (outcome, counter) = if shut.busy {
                (Outcome::Busy, Counter::Busy)
            } else {
                (Outcome::Silent, Counter::Silent)
            };
            self.counters.count(counter);
            return self.answered.push_back(Answered::new(id, outcome));
        }
        if lane.flights >= self.config.flights {
            self.counters.count(Counter::Overloaded);
            return self.answered.push_back(Answered::new(id, Outcome::Overloaded));
        }
        lane.flights += 1;
        self.take_off(id, port, question, rank, deadline);
    }

    fn join(&mut self, id: QuestionId, rank: Rank, deadline: Instant) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let before = flight.turn(id);
        flight.rank = flight.rank.min(rank);
        flight.deadline = flight.deadline.max(deadline);
        self.deadlines.set(id, Some(flight.deadline));
        if let Some(lane) = self.lanes.get_mut(&flight.port)
            && lane.turns.remove(&before)
        {
            lane.turns.insert(flight.turn(id));
        }
    }

    /// Whether the kernel may ask the SA of `port` once, outside our window: the number of answers
    /// in time shows how much load the SA can take.
    pub fn take_spare(&mut self, now: Instant, port: PortIndex) -> bool {
        self.advance(now);
        let lane = self.lanes.get_mut(&port).filter(|lane| lane.gate.shut().is_none());
        lane.is_some_and(|lane| lane.window.take_spare(self.now))
    }

    fn set_sa(&mut self, port: PortIndex, sa: Option<Sa>) {
        let Some(sa) = sa else { return self.close(port) };
        let holds_until = self.now + random(self.config.start_spread, &mut self.rng);
        // The state of the new SA is unknown. A silence lasts until something answers.
        let gate = match self.tally(port).silence {
            Some(_) => Gate::unproven(self.now, holds_until, &self.config),
            None => Gate::new(self.now),
        };
        match self.lanes.get_mut(&port) {
            Some(lane) if lane.sa == sa => return,
            Some(lane) => {
                (lane.sa, lane.holds_until, lane.gate) = (sa, holds_until, gate);
            }
            None => {
                let window = Window::new(self.config.outstanding);
                let turns = BTreeSet::new();
                let lane = Lane { sa, holds_until, window, gate, own: None, flights: 0, turns };
                self.lanes.insert(port, lane);
            }
        }
        // MADs to the old SA are sent again; an answer to the old ones still counts.
        for transaction in self.in_air(port) {
            self.land(transaction);
            if let Some(flight) = self.try_again(transaction) {
                flight.next = Counter::ResendsMoved;
            }
        }
    }

    fn hurry(&mut self, port: PortIndex) {
        let at = self.now + random(self.config.start_spread, &mut self.rng);
        if let Some(lane) = self.lanes.get_mut(&port) {
            lane.gate.hurry(at);
        }
    }

    fn take_off(
        &mut self,
        id: QuestionId,
        port: PortIndex,
        question: Question,
        rank: Rank,
        deadline: Instant,
    ) {
        let flight = Flight::new(port, question, rank, deadline);
        if let Some(lane) = self.lanes.get_mut(&port) {
            lane.turns.insert(flight.turn(id));
        }
        self.flights.insert(id, flight);
        self.deadlines.set(id, Some(deadline));
    }

    /// Asks a question of the client's own, unless one is in flight.
    fn ask_ourselves(&mut self, port: PortIndex, question: Question) {
        let Some(lane) = self.lanes.get_mut(&port).filter(|lane| lane.own.is_none()) else {
            return;
        };
        self.next_own += 1;
        let id = QuestionId(self.next_own);
        lane.own = Some(id);
        let deadline = self.now + self.config.longest_patience();
        self.take_off(id, port, question, Rank::Kernel, deadline);
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.next = Counter::Probes;
        }
    }

    fn handle_mad(&mut self, port: PortIndex, from: Option<Lid>, mad: &[u8]) {
        let (tid, response) = match Response::parse(mad) {
            Ok(response) => (response.tid, Some(response)),
            Err(error) => {
                self.counters.count(error.into());
                // A malformed MAD may still show which question it answers.
                match Header::parse(mad) {
                    Ok((header, _)) if header.method.is_response() => (header.tid, None),
                    _ => return,
                }
            }
        };
        let transaction = tid.transaction();
        let Some(sent) = self.mads.get(&transaction).filter(|sent| sent.port == port).copied()
        else {
            return self.counters.count(Counter::Unasked);
        };
        if from != Some(sent.to) {
            return self.counters.count(Counter::WrongLid);
        }
        let is_busy = |response: &Response| matches!(response.answer, Answer::Refused(refusal) if refusal.is_temporary());
        if response.is_some_and(|response| is_busy(&response)) {
            self.counters.count(Counter::BusyAnswers);
            self.leave_alone(sent, transaction);
            return self.miss(sent, true);
        }
        let is_in_time = self.land(transaction);
        if let Some(lane) = self.lanes.get_mut(&port) {
            lane.window.grow();
            if is_in_time {
                lane.window.kept_up(self.now);
            }
            if sent.to == lane.sa.lid {
                let tally = self.tallies.entry(sent.port).or_default();
                tally.answered_at = Some(self.now);
                tally.answers += 1;
                tally.took = tally.took.saturating_add(self.now.since(sent.at));
                tally.silence = None;
            }
            if sent.to == lane.sa.lid && lane.gate.heard(self.now, sent.question) {
                self.counters.count(Counter::Opened);
            }
        }
        let Some(flight) = self.flights.get(&sent.id) else {
            self.mads.remove(&transaction);
            return self.counters.count(Counter::Late);
        };
        let is_for = |response: &Response| response.is_for(&flight.question);
        if response.is_some_and(|response| !is_for(&response)) {
            self.counters.count(Counter::MalformedKind);
        }
        let (outcome, others) = flight.outcome(response.filter(is_for), mad);
        self.end_with(sent.id, outcome, others);
    }

    /// Performs all actions that are due. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        while let Some(transaction) = self.losses.pop(self.now) {
            self.lose(transaction);
        }
        while let Some(id) = self.deadlines.pop(self.now) {
            self.expire(id);
        }
        let ready = |lane: &Lane| {
            let is_due = lane.probe_at().is_some_and(|at| at <= self.now);
            is_due && (lane.turns.is_empty() || lane.gate.wants_witness())
        };
        let to_probe: Vec<_> =
            self.lanes.iter().filter(|(_, lane)| ready(lane)).map(|(port, _)| *port).collect();
        for port in to_probe {
            if let Some(lane) = self.lanes.get_mut(&port) {
                let question = lane.gate.probe();
                self.ask_ourselves(port, question);
            }
        }
    }

    /// When to call [`Self::handle_timeout`] next, and poll again.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let held = |lane: &Lane| {
            let probe_at = lane.probe_at().map(|at| at.max(lane.holds_until));
            let has_turns = !lane.turns.is_empty() && lane.gate.shut().is_none();
            let turn_at = has_turns.then_some(lane.holds_until);
            probe_at.into_iter().chain(turn_at).filter(|&at| at > self.now).min()
        };
        let held = self.lanes.values().filter_map(held);
        held.chain(self.deadlines.next()).chain(self.losses.next()).min()
    }

    /// Whether [`Self::poll_transmit`] has a MAD.
    pub(crate) fn has_transmit(&self) -> bool {
        self.lanes.values().any(|lane| lane.is_ready(self.now))
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let now = self.now;
        let mut ready = self.lanes.iter_mut().filter(|(_, lane)| lane.is_ready(now));
        let (&port, lane, turn) = ready.find_map(|(port, lane)| {
            let turn = lane.turns.pop_first()?;
            Some((port, lane, turn))
        })?;
        let Turn { id: Reverse(id), .. } = turn;
        let flight = self.flights.get_mut(&id)?;
        lane.window.sent(self.now, flight.rank);
        lane.gate.probed(self.now, &mut self.rng);
        let to = lane.sa.lid;
        let transaction = Transaction(self.next_transaction);
        self.next_transaction = self.next_transaction.wrapping_add(1);
        let sent = SentMad {
            port,
            to,
            question: flight.question,
            rank: flight.rank,
            is_own: lane.own == Some(id),
            was_busy: false,
            id,
            at: self.now,
            in_air: true,
        };
        self.mads.insert(transaction, sent);
        // A probe is one of many: the next one need not wait for it, and a late answer counts as well.
        let losses = match lane.gate.shut() {
            Some(_) => 0,
            None => flight.lost.max(lane.window.lost()),
        };
        let patience = self.config.patience_after(losses);
        let slack = random(patience / 6, &mut self.rng);
        let lost_at = self.now + (patience * 5 / 6).saturating_add(slack);
        self.losses.set(transaction, Some(lost_at));
        if flight.sent.len() == MOST_REMEMBERED {
            self.mads.remove(&flight.sent.remove(0));
        }
        flight.sent.push(transaction);
        flight.in_air = Some(transaction);
        let again = if sent.is_own { Counter::Probes } else { Counter::Resends };
        self.counters.count(core::mem::replace(&mut flight.next, again));
        self.tallies.entry(port).or_default().mads += 1;
        let request = Request { tid: transaction.into(), question: flight.question };
        let timeout = flight.deadline.max(lost_at).since(self.now);
        let (is_probe, is_for_table) = (lane.own == Some(id), flight.question.is_for_table());
        let (sa, mad) = (lane.sa, request.emit());
        Some(Transmit { port, sa, timeout, mad, is_for_table, transaction, is_probe })
    }

    /// The next answer.
    pub fn poll_event(&mut self) -> Option<Answered> {
        self.answered.pop_front()
    }

    /// The next question that may be overdue, see [`Self::is_overdue`].
    pub fn poll_overdue(&mut self) -> Option<QuestionId> {
        self.overdue.pop_front()
    }

    /// Whether the SA has said that it is busy, instead of an answer to this question.
    pub fn is_busy(&self, question: QuestionId) -> bool {
        let Some(flight) = self.flights.get(&question) else { return false };
        match self.lanes.get(&flight.port).and_then(|lane| lane.gate.shut()) {
            Some(shut) => shut.busy,
            None => flight.next == Counter::ResendsBusy,
        }
    }

    /// Whether the SA shows no sign of life: it is known to be silent, or a MAD of this question was lost,
    /// and nothing was heard of the SA since it was sent.
    pub fn is_overdue(&self, question: QuestionId) -> bool {
        let Some(flight) = self.flights.get(&question) else { return false };
        let gate = self.lanes.get(&flight.port).map(|lane| &lane.gate);
        gate.is_some_and(|gate| match gate.shut() {
            Some(shut) => !shut.busy,
            None => flight.lost_since.is_some_and(|then| gate.is_silent_since(then)),
        })
    }

    /// The counters.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// The load of `port`.
    pub fn load(&self, port: PortIndex) -> Load {
        self.lanes.get(&port).map_or_else(Load::default, |lane| Load {
            questions: lane.flights,
            in_air: lane.window.in_air(),
            window: lane.window.size(),
            shut: lane.gate.shut().copied(),
        })
    }

    /// What was sent to the SAs of `port` since the start, and answered.
    pub fn tally(&self, port: PortIndex) -> Tally {
        self.tallies.get(&port).copied().unwrap_or_default()
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn in_air(&self, port: PortIndex) -> Vec<Transaction> {
        let in_air = self.mads.iter().filter(|(_, sent)| sent.in_air && sent.port == port);
        in_air.map(|(transaction, _)| *transaction).collect()
    }

    /// The deadline of a flight has passed.
    fn expire(&mut self, id: QuestionId) {
        let Some(flight) = self.flights.get(&id) else { return };
        if flight.sent.is_empty() && id.0 <= OWN {
            self.counters.count(Counter::NeverSent);
        }
        let port = flight.port;
        let is_busy = self.is_busy(id);
        self.end(id, if is_busy { Outcome::Busy } else { Outcome::Silent });
        self.judge(port);
    }

    /// A MAD has not been answered in time.
    fn lose(&mut self, transaction: Transaction) {
        let Some(sent) = self.mads.get(&transaction).copied() else { return };
        self.land(transaction);
        if let Some(lane) = self.lanes.get_mut(&sent.port) {
            lane.window.shrink(self.now, sent.at);
        }
        if let Some(flight) = self.flights.get_mut(&sent.id) {
            flight.lost += 1;
            flight.lost_since = Some(sent.at);
        }
        self.try_again(transaction);
        if !sent.was_busy {
            self.miss(sent, false);
        }
        if !sent.is_own {
            self.overdue.push_back(sent.id);
        }
    }

    /// A MAD was not answered, or with BUSY.
    fn miss(&mut self, sent: SentMad, busy: bool) {
        let Some(lane) = self.lanes.get_mut(&sent.port) else { return };
        // MADs to another SA, or from before the last answer of this one, do not count.
        if sent.to != lane.sa.lid || lane.gate.has_answered_since(sent.at) {
            return;
        }
        lane.gate.missed(sent.at, sent.is_own, busy);
        // Not after each loss: an unanswerable question is often repeated.
        let is_first = self.flights.get(&sent.id).is_none_or(|flight| flight.lost <= 1);
        let is_wanted = is_first || lane.gate.lacks_witness(self.now, &self.config);
        if !busy && is_wanted && !sent.is_own && lane.gate.shut().is_none() {
            let witness = lane.gate.witness(Some(&sent.question));
            self.ask_ourselves(sent.port, witness);
        }
        self.judge(sent.port);
    }

    fn judge(&mut self, port: PortIndex) {
        let Some(lane) = self.lanes.get_mut(&port) else { return };
        if lane.gate.judge(self.now, &self.config, &mut self.rng) {
            self.counters.count(Counter::Shut);
        }
        if let Some(&shut) = lane.gate.shut() {
            let silence = self.tallies.entry(port).or_default().silence.get_or_insert(shut);
            silence.busy = shut.busy;
        }
    }

    /// The SA is busy.
    fn leave_alone(&mut self, sent: SentMad, transaction: Transaction) {
        if let Some(sent) = self.mads.get_mut(&transaction) {
            sent.was_busy = true;
        }
        if let Some(lane) = self.lanes.get_mut(&sent.port) {
            lane.window.shrink(self.now, sent.at);
        }
        if let Some(flight) = self.flights.get_mut(&sent.id)
            && flight.in_air == Some(transaction)
        {
            flight.next = Counter::ResendsBusy;
        }
    }

    /// The MAD is no longer in the air. Returns whether it was.
    fn land(&mut self, transaction: Transaction) -> bool {
        let Some(sent) = self.mads.get_mut(&transaction).filter(|sent| sent.in_air) else {
            return false;
        };
        sent.in_air = false;
        self.losses.set(transaction, None);
        if let Some(lane) = self.lanes.get_mut(&sent.port) {
            lane.window.landed(sent.rank);
        }
        true
    }

    /// If this is its last MAD, its flight waits for its turn again.
    fn try_again(&mut self, transaction: Transaction) -> Option<&mut Flight> {
        let &SentMad { port, id, .. } = self.mads.get(&transaction)?;
        let Some(flight) = self.flights.get_mut(&id) else {
            self.mads.remove(&transaction);
            return None;
        };
        if flight.in_air != Some(transaction) {
            return None;
        }
        flight.in_air = None;
        // While the gate is shut, the next probe is a question that waits, or a new one of our own.
        if let Some(lane) = self.lanes.get_mut(&port)
            && (id.0 <= OWN || lane.gate.shut().is_none())
        {
            lane.turns.insert(flight.turn(id));
        }
        Some(flight)
    }

    fn end(&mut self, id: QuestionId, outcome: Outcome) {
        self.end_with(id, outcome, Vec::new());
    }

    fn end_with(&mut self, id: QuestionId, outcome: Outcome, others: Vec<PathRecord>) {
        let Some(flight) = self.flights.remove(&id) else { return };
        self.deadlines.set(id, None);
        for transaction in &flight.sent {
            if self.mads.get(transaction).is_some_and(|sent| !sent.in_air) {
                self.mads.remove(transaction);
            }
        }
        let is_own = id.0 > OWN;
        if let Some(lane) = self.lanes.get_mut(&flight.port) {
            if is_own {
                lane.own = None;
            } else {
                lane.flights -= 1;
            }
            lane.turns.remove(&flight.turn(id));
        }
        if is_own {
            return;
        }
        if let Outcome::Refused(refusal) = outcome
            && refusal.status().is_redirect()
        {
            self.counters.count(Counter::Redirects);
        }
        self.counters.count(outcome.counter());
        self.answered.push_back(Answered { id, outcome, others });
    }

    fn close(&mut self, port: PortIndex) {
        for transaction in self.in_air(port) {
            self.land(transaction);
        }
        let of_port = self.flights.iter().filter(|(_, flight)| flight.port == port);
        let ids: Vec<_> = of_port.map(|(id, _)| *id).collect();
        for id in ids {
            self.end(id, Outcome::NoSa);
        }
        self.mads.retain(|_, sent| sent.port != port);
        self.lanes.remove(&port);
    }
}
