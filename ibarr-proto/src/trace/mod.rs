// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What happens to each request, for `ibarr trace`.
//!
//! The node reports requests and their ends, the driver reports what goes over the wire. Requests for the
//! same thing share one search, so their events form one *chain*, which ends with the last answer, or with
//! the nudge after it. While the trace is off, each report is one comparison.

#[cfg(test)]
mod tests;
mod types;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use ibarr_common::Instant;

use crate::durations::Elapsed;
use crate::local_service::{self, Nudged};
use crate::request;

pub use types::{Answered, Caller, Event, Filter, Id, Step, Subject, Tie, Verdict};

/// Records the steps of requests, see the [module](self).
#[derive(Debug, Default)]
pub struct Trace(Option<Box<Recorder>>);

/// The bounds of a trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Requests that wait for their answer. Of further ones the answer is lost.
    pub requests: usize,
    /// Chains. A further one replaces the oldest, whose later events get another number.
    pub chains: usize,
    /// Questions to peers and subnet administrators. The answer to a further one is lost.
    pub ties: usize,
    /// Events that the driver has not polled yet. Further ones are lost.
    pub events: usize,
}

impl Default for Limits {
    /// More than the cores have in flight by default; the driver polls in each turn.
    fn default() -> Self {
        Self { requests: 16_384, chains: 4096, ties: 16_384, events: 4096 }
    }
}

#[derive(Debug)]
struct Recorder {
    limits: Limits,
    last_chain: u64,
    chains: BTreeMap<Subject, Chain>,
    /// The subjects of the chains by age.
    ages: BTreeMap<u64, Subject>,
    requests: BTreeMap<Id, Request>,
    ties: BTreeMap<Tie, Subject>,
    /// Answers to the kernel that no nudge has covered yet, at most [`Limits::chains`].
    unnudged: Vec<(Subject, Name)>,
    /// Those that the nudge in progress covers.
    nudged: Vec<(Subject, Name)>,
    events: VecDeque<Event>,
    lost: u64,
}

#[derive(Debug)]
struct Chain {
    name: Name,
    /// Requests whose answer is being searched for.
    waiting: usize,
    /// Requests of the kernel whose search has failed and will be repeated.
    resting: usize,
    sent: u32,
    /// The ties of the last questions.
    ties: VecDeque<Tie>,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    number: u64,
    begun: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    by: Caller,
    subject: Subject,
    asked_at: Instant,
}

/// How many questions of a chain may be answered late: one for each resend.
const TIES_OF_CHAIN: usize = 8;

impl Trace {
    /// Begins, or ends and forgets.
    pub fn set(&mut self, on: bool) {
        self.set_with_limits(on, Limits::default());
    }

    /// For tests that reach the limits.
    pub fn set_with_limits(&mut self, on: bool, limits: Limits) {
        match (on, &self.0) {
            (true, None) => self.0 = Some(Box::new(Recorder::new(limits))),
            (true, Some(_)) => {}
            (false, _) => self.0 = None,
        }
    }

    /// Whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<Event> {
        self.0.as_mut()?.events.pop_front()
    }

    /// How many events were lost since the last call.
    pub fn take_lost(&mut self) -> u64 {
        self.0.as_mut().map_or(0, |recorder| core::mem::take(&mut recorder.lost))
    }

    /// A request has arrived, at `asked_at`. The kernel's request for an address arrives with each repetition
    /// of its search.
    #[inline]
    pub fn asked(
        &mut self,
        now: Instant,
        id: Id,
        by: Caller,
        subject: impl Into<Subject>,
        asked_at: Instant,
    ) {
        if let Some(recorder) = &mut self.0 {
            recorder.asked(now, id, Request { by, subject: subject.into(), asked_at });
        }
    }

    /// The core has found the answer to a request.
    #[inline]
    pub fn answered(&mut self, now: Instant, answered: Answered) {
        if let Some(recorder) = &mut self.0 {
            recorder.answered(now, answered);
        }
    }

    /// The kernel's request is dropped without an answer.
    #[inline]
    pub fn dropped(
        &mut self,
        now: Instant,
        subject: impl Into<Subject>,
        asked_at: Instant,
        cause: local_service::Counter,
    ) {
        if let Some(recorder) = &mut self.0 {
            let (subject, took_ms) = (subject.into(), Elapsed(now.since(asked_at)));
            let chain = recorder.chain(subject, asked_at);
            chain.resting = chain.resting.saturating_sub(1);
            recorder.add(now, subject, Step::Dropped { cause, took_ms });
            recorder.end_if_idle(subject);
        }
    }

    /// A request is no longer searched for.
    #[inline]
    pub fn forget(&mut self, id: Id) {
        if let Some(recorder) = &mut self.0 {
            recorder.take(id);
        }
    }

    /// A step of the search for `subject`.
    #[inline]
    pub fn step(&mut self, now: Instant, subject: impl Into<Subject>, step: Step) {
        if let Some(recorder) = &mut self.0 {
            let subject = subject.into();
            recorder.chain(subject, now);
            recorder.add(now, subject, step);
        }
    }

    /// A question goes to the network. `step` is told how many of its chain were sent, with this one.
    #[inline]
    pub fn sent(
        &mut self,
        now: Instant,
        tie: Tie,
        subject: impl Into<Subject>,
        step: impl FnOnce(u32) -> Step,
    ) {
        if let Some(recorder) = &mut self.0 {
            recorder.sent(now, tie, subject.into(), step);
        }
    }

    /// An answer has come from the network. If its question is unknown, it is about `otherwise`, or about
    /// nothing that is traced. `step` is told whether the question is known.
    #[inline]
    pub fn came(
        &mut self,
        now: Instant,
        tie: Tie,
        otherwise: Option<Subject>,
        step: impl FnOnce(bool) -> Step,
    ) {
        let Some(recorder) = &mut self.0 else { return };
        let asked = recorder.ties.get(&tie).copied();
        let Some(subject) = asked.or(otherwise) else { return };
        let step = step(asked.is_some());
        recorder.chain(subject, now);
        recorder.add(now, subject, step);
        recorder.end_if_idle(subject);
    }

    /// A step that is a chain of its own.
    pub fn alone(&mut self, now: Instant, subject: impl Into<Subject>, step: Step) {
        if let Some(recorder) = &mut self.0 {
            recorder.last_chain += 1;
            let name = Name { number: recorder.last_chain, begun: now };
            recorder.push(now, subject.into(), name, step);
        }
    }

    /// A nudge begins.
    pub fn nudge(&mut self, now: Instant) {
        if let Some(recorder) = &mut self.0 {
            recorder.nudged = core::mem::take(&mut recorder.unnudged);
            recorder.add_to_nudged(now, &Step::Nudge);
        }
    }

    /// The outcome of the last nudge.
    pub fn nudged(&mut self, now: Instant, outcome: Nudged) {
        if let Some(recorder) = &mut self.0 {
            recorder.add_to_nudged(now, &Step::Nudged { outcome });
            let mut covered = core::mem::take(&mut recorder.nudged);
            if outcome == Nudged::Postponed {
                covered.append(&mut recorder.unnudged);
                covered.truncate(recorder.limits.chains);
                recorder.unnudged = covered;
            }
        }
    }
}

impl Recorder {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            last_chain: 0,
            chains: BTreeMap::new(),
            ages: BTreeMap::new(),
            requests: BTreeMap::new(),
            ties: BTreeMap::new(),
            unnudged: Vec::new(),
            nudged: Vec::new(),
            events: VecDeque::new(),
            lost: 0,
        }
    }

    fn asked(&mut self, now: Instant, id: Id, request: Request) {
        let Request { by, subject, asked_at } = request;
        if self.requests.len() >= self.limits.requests {
            self.lost += 1;
            return;
        }
        let is_again = asked_at < now;
        if !is_again && self.chains.get(&subject).is_some_and(Chain::is_idle) {
            // A question without a request is in the air. The request waits for its answer, too.
            let ties = self.remove(subject);
            self.ties.extend(ties.iter().map(|tie| (*tie, subject)));
            self.chain(subject, asked_at).ties = ties;
        }
        let chain = self.chain(subject, asked_at);
        chain.waiting += 1;
        if is_again {
            chain.resting = chain.resting.saturating_sub(1);
        }
        self.requests.insert(id, request);
        self.add(now, subject, if is_again { Step::SearchedAgain } else { Step::Asked(by) });
    }

    fn answered(&mut self, now: Instant, answered: Answered) {
        // The request may have arrived before the trace began.
        let Some(Request { by, subject, asked_at }) = self.take(answered.id()) else { return };
        let chain = self.chain(subject, asked_at);
        if let (Caller::Kernel, Answered::Address(_, outcome)) = (by, answered) {
            if !matches!(outcome, request::Outcome::Found { .. }) {
                chain.resting += 1;
                let (status, ..) = outcome.parts();
                return self.add(now, subject, Step::Failed { status });
            }
            let name = chain.name;
            if self.unnudged.len() < self.limits.chains {
                self.unnudged.push((subject, name));
            }
        }
        self.add(now, subject, answered.step(by, Elapsed(now.since(asked_at))));
        self.end_if_idle(subject);
    }

    fn sent(&mut self, now: Instant, tie: Tie, subject: Subject, step: impl FnOnce(u32) -> Step) {
        self.chain(subject, now);
        let has_room = self.ties.len() < self.limits.ties;
        let Some(chain) = self.chains.get_mut(&subject) else { return };
        chain.sent += 1;
        let step = step(chain.sent);
        if chain.ties.contains(&tie) {
            // A resend.
        } else if has_room {
            if chain.ties.len() >= TIES_OF_CHAIN
                && let Some(oldest) = chain.ties.pop_front()
            {
                self.ties.remove(&oldest);
            }
            chain.ties.push_back(tie);
            self.ties.insert(tie, subject);
        } else {
            self.lost += 1;
        }
        self.add(now, subject, step);
    }

    /// The chain of `subject`; a new one begins at `begun`.
    fn chain(&mut self, subject: Subject, begun: Instant) -> &mut Chain {
        if !self.chains.contains_key(&subject) {
            if self.chains.len() >= self.limits.chains
                && let Some((_, &oldest)) = self.ages.first_key_value()
            {
                self.remove(oldest);
            }
            self.last_chain += 1;
            self.ages.insert(self.last_chain, subject);
        }
        let name = Name { number: self.last_chain, begun };
        self.chains.entry(subject).or_insert_with(|| Chain {
            name,
            waiting: 0,
            resting: 0,
            sent: 0,
            ties: VecDeque::new(),
        })
    }

    fn add(&mut self, now: Instant, subject: Subject, step: Step) {
        if let Some(Chain { name, .. }) = self.chains.get(&subject) {
            self.push(now, subject, *name, step);
        }
    }

    fn add_to_nudged(&mut self, now: Instant, step: &Step) {
        let nudged = core::mem::take(&mut self.nudged);
        for &(subject, name) in &nudged {
            self.push(now, subject, name, step.clone());
        }
        self.nudged = nudged;
    }

    fn push(&mut self, now: Instant, subject: Subject, name: Name, step: Step) {
        let Name { number: chain, begun } = name;
        if self.events.len() < self.limits.events {
            let since = now.since(begun);
            self.events.push_back(Event { chain, since, at: now, subject, lost: 0, step });
        } else {
            self.lost += 1;
        }
    }

    fn take(&mut self, id: Id) -> Option<Request> {
        let request = self.requests.remove(&id)?;
        if let Some(chain) = self.chains.get_mut(&request.subject) {
            chain.waiting = chain.waiting.saturating_sub(1);
        }
        Some(request)
    }

    fn end_if_idle(&mut self, subject: Subject) {
        if self.chains.get(&subject).is_some_and(Chain::is_idle) {
            self.remove(subject);
        }
    }

    fn remove(&mut self, subject: Subject) -> VecDeque<Tie> {
        let Some(Chain { name, ties, .. }) = self.chains.remove(&subject) else {
            return VecDeque::new();
        };
        self.ages.remove(&name.number);
        for tie in &ties {
            self.ties.remove(tie);
        }
        ties
    }
}

impl Chain {
    /// Whether no request belongs to it.
    fn is_idle(&self) -> bool {
        self.waiting == 0 && self.resting == 0
    }
}
