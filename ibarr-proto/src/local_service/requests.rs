// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The address requests that are held: those that wait, and those that were answered recently.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::Seq;

use super::queue::Ticket;
use super::types::{Counter, LATELY, MAX_NUDGES};
use crate::ip2gid::Question;
use crate::request::KernelRequest;
use crate::timer::Timers;

/// Requests by number. The only keys are the kernel's numbers and the times of the requests, so
/// that the same history gives the same order.
#[derive(Debug)]
pub(super) struct Requests {
    max: usize,
    by_seq: BTreeMap<Seq, Request>,
    ids: BTreeMap<KernelRequest, Seq>,
    next_id: u64,
    /// Requests that wait for an answer, by the time when the kernel last sent them.
    waiting: BTreeSet<(Instant, Seq)>,
    /// The time of the next action for a request. Each that waits or is not handed over has one.
    due: Timers<Seq>,
    /// When an answered request is forgotten. Each that is handed over has one.
    memory: Timers<Seq>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) question: Question,
    pub(super) asked_at: Instant,
    /// When the kernel last sent it.
    mentioned_at: Instant,
    /// When it is dropped without an answer.
    pub(super) deadline: Instant,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// Its answer is being looked for.
    Searching(KernelRequest),
    /// The search failed; it is tried again when due. After the deadline the request is counted
    /// under `why`.
    Postponed {
        why: Counter,
    },
    Answered(Answered),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) gid: Gid,
    /// Its position in the queue to the socket, if it is queued.
    pub(super) queued: Option<Ticket>,
    /// Number of nudges that it may still cause.
    pub(super) nudges: u8,
    /// The kernel has repeated it.
    pub(super) repeated: bool,
}

impl Requests {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            by_seq: BTreeMap::new(),
            ids: BTreeMap::new(),
            next_id: 0,
            waiting: BTreeSet::new(),
            due: Timers::default(),
            memory: Timers::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_seq.len()
    }

    pub(super) fn get_mut(&mut self, seq: Seq) -> Option<&mut Request> {
        self.by_seq.get_mut(&seq)
    }

    /// Number of requests that wait for an answer.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a request waits that the kernel has sent recently.
    pub(super) fn is_waited_for(&self, now: Instant) -> bool {
        self.waiting.last().is_some_and(|&(mentioned_at, _)| now.since(mentioned_at) < LATELY)
    }

    /// The waiting request that the kernel sent longest ago, if that was not recent.
    pub(super) fn probably_gone(&self, now: Instant) -> Option<Seq> {
        let &(mentioned_at, seq) = self.waiting.first()?;
        (now.since(mentioned_at) >= LATELY).then_some(seq)
    }

    /// The kernel has repeated a waiting request.
    pub(super) fn mention(&mut self, seq: Seq, now: Instant) {
        if let Some(request) = self.by_seq.get_mut(&seq)
            && self.waiting.remove(&(request.mentioned_at, seq))
        {
            request.mentioned_at = now;
            self.waiting.insert((now, seq));
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.by_seq.len() >= self.max
    }

    /// The request that was answered longest ago, if any is remembered.
    pub(super) fn oldest_answered(&mut self) -> Option<Seq> {
        self.memory.pop(Instant::from_nanos(u64::MAX))
    }

    /// Adds a request, for which a search begins.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        seq: Seq,
        question: Question,
        deadline: Instant,
    ) -> KernelRequest {
        let state = State::Postponed { why: Counter::TimedOut };
        let request = Request { question, asked_at: now, mentioned_at: now, deadline, state };
        self.by_seq.insert(seq, request);
        self.waiting.insert((now, seq));
        self.seek(seq)
    }

    /// A search for the answer begins, until the deadline.
    pub(super) fn seek(&mut self, seq: Seq) -> KernelRequest {
        let id = KernelRequest(self.next_id);
        self.next_id += 1;
        if let Some(request) = self.by_seq.get_mut(&seq) {
            request.state = State::Searching(id);
            self.ids.insert(id, seq);
            self.due.set(seq, Some(request.deadline));
        }
        id
    }

    /// The search has failed.
    pub(super) fn postpone(&mut self, seq: Seq, why: Counter, until: Instant) {
        if let Some(request) = self.by_seq.get_mut(&seq) {
            request.state = State::Postponed { why };
            self.due.set(seq, Some(until.min(request.deadline)));
        }
    }

    /// The request has its answer. Returns when it was made.
    pub(super) fn answer(&mut self, seq: Seq, gid: Gid) -> Option<Instant> {
        let request = self.by_seq.get_mut(&seq)?;
        self.waiting.remove(&(request.mentioned_at, seq));
        let answered = Answered { gid, queued: None, nudges: MAX_NUDGES, repeated: false };
        request.state = State::Answered(answered);
        self.due.set(seq, Some(request.deadline));
        Some(request.asked_at)
    }

    /// Sends the answer again at `at`, unless an earlier time is set.
    pub(super) fn answer_again(&mut self, seq: Seq, at: Instant) {
        if !self.due.contains(seq) {
            self.due.set(seq, Some(at));
        }
    }

    /// The first answer has been handed over; the request is remembered until `forget_at`.
    pub(super) fn remember(&mut self, seq: Seq, forget_at: Instant, repeat_at: Option<Instant>) {
        self.memory.set(seq, Some(forget_at));
        self.due.set(seq, repeat_at);
    }

    pub(super) fn is_remembered(&self, seq: Seq) -> bool {
        self.memory.contains(seq)
    }

    /// Ends the search `id`.
    pub(super) fn end(&mut self, id: KernelRequest) -> Option<Seq> {
        self.ids.remove(&id)
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<Request> {
        let request = self.by_seq.remove(&seq)?;
        self.waiting.remove(&(request.mentioned_at, seq));
        self.due.set(seq, None);
        self.memory.set(seq, None);
        if let State::Searching(id) = request.state {
            self.ids.remove(&id);
        }
        Some(request)
    }

    /// The numbers of all requests, in order.
    pub(super) fn seqs(&self) -> Vec<Seq> {
        self.by_seq.keys().copied().collect()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        [self.due.next(), self.memory.next()].into_iter().flatten().min()
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Seq> {
        self.due.pop(now)
    }

    pub(super) fn pop_forgotten(&mut self, now: Instant) -> Option<Seq> {
        self.memory.pop(now)
    }
}
