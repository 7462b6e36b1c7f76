// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The address requests that are held: those that wait, and those that were answered recently.

use alloc::collections::{BTreeSet, BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::Seq;

use super::queue::Ticket;
use super::types::{Counter, LATELY, MAX_NUDGES};
use crate::ip2gid::Question;
use crate::request::KernelRequest;

/// Requests by number. The only keys are the kernel's numbers and the times of the requests, so
/// that the same history gives the same order.
///
/// Most requests are answered at once. So a time that no longer counts stays in its queue until it is the first, or
/// most of the queue are such times.
#[derive(Debug)]
pub(super) struct Requests {
    max: usize,
    by_seq: HashMap<Seq, Request, FixedState>,
    next_id: u64,
    /// Requests that wait for an answer, by the time when the kernel last sent them.
    waiting: BTreeSet<(Instant, Seq)>,
    /// Each [`Request::due`], the earliest first.
    due: BinaryHeap<Reverse<(Instant, Seq)>>,
    /// Each [`Request::forget_at`], sorted; a new one comes last, or among others of the same time.
    memory: VecDeque<(Instant, Seq)>,
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
    /// The time of the next action for it. Each that waits or is not handed over has one.
    due: Option<Instant>,
    /// When it is forgotten. Each that is handed over has one.
    forget_at: Option<Instant>,
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
            by_seq: HashMap::default(),
            next_id: 0,
            waiting: BTreeSet::new(),
            due: BinaryHeap::new(),
            memory: VecDeque::new(),
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
    pub(super) fn oldest_answered(&self) -> Option<Seq> {
        self.memory.front().map(|&(_, seq)| seq)
    }

    /// Adds a request, for which a search begins.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        seq: Seq,
        question: Question,
        deadline: Instant,
    ) -> KernelRequest {
        let id = self.next_id(seq);
        let (state, due) = (State::Searching(id), Some(deadline));
        let (asked_at, mentioned_at, forget_at) = (now, now, None);
        let request = Request { question, asked_at, mentioned_at, deadline, state, due, forget_at };
        self.by_seq.insert(seq, request);
        self.waiting.insert((now, seq));
        self.due.push(Reverse((deadline, seq)));
        id
    }

    /// A search for the answer begins, until the deadline.
    pub(super) fn seek(&mut self, seq: Seq) -> KernelRequest {
        let id = self.next_id(seq);
        if let Some(request) = self.by_seq.get_mut(&seq) {
            request.state = State::Searching(id);
            let deadline = request.deadline;
            self.set_due(seq, Some(deadline));
        }
        id
    }

    /// The search has failed.
    pub(super) fn postpone(&mut self, seq: Seq, why: Counter, until: Instant) {
        if let Some(request) = self.by_seq.get_mut(&seq) {
            request.state = State::Postponed { why };
            let until = until.min(request.deadline);
            self.set_due(seq, Some(until));
        }
    }

    /// The request has its answer. Returns when it was made.
    pub(super) fn answer(&mut self, seq: Seq, gid: Gid) -> Option<Instant> {
        let request = self.by_seq.get_mut(&seq)?;
        self.waiting.remove(&(request.mentioned_at, seq));
        let answered = Answered { gid, queued: None, nudges: MAX_NUDGES, repeated: false };
        request.state = State::Answered(answered);
        Some(request.asked_at)
    }

    /// Sends the answer again at `at`, unless an earlier time is set.
    pub(super) fn answer_again(&mut self, seq: Seq, at: Instant) {
        if self.by_seq.get(&seq).is_some_and(|request| request.due.is_none()) {
            self.set_due(seq, Some(at));
        }
    }

    /// The first answer has been handed over; the request is remembered until `forget_at`.
    pub(super) fn remember(&mut self, seq: Seq, forget_at: Instant, repeat_at: Option<Instant>) {
        if let Some(request) = self.by_seq.get_mut(&seq) {
            request.forget_at = Some(forget_at);
            let time = (forget_at, seq);
            let later = self.memory.iter().rev().take_while(|other| **other > time).count();
            self.memory.insert(self.memory.len() - later, time);
            self.set_due(seq, repeat_at);
        }
    }

    pub(super) fn is_remembered(&self, seq: Seq) -> bool {
        self.by_seq.get(&seq).is_some_and(|request| request.forget_at.is_some())
    }

    /// Ends the search `id`, if it still goes on.
    pub(super) fn end(&self, id: KernelRequest) -> Option<Seq> {
        let request = self.by_seq.get(&id.seq)?;
        matches!(request.state, State::Searching(at) if at == id).then_some(id.seq)
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<Request> {
        let request = self.by_seq.remove(&seq)?;
        self.waiting.remove(&(request.mentioned_at, seq));
        self.drop_old_times();
        Some(request)
    }

    /// The numbers of all requests, in order.
    pub(super) fn seqs(&self) -> Vec<Seq> {
        let mut seqs: Vec<_> = self.by_seq.keys().copied().collect();
        seqs.sort_unstable();
        seqs
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let due = self.due.peek().map(|&Reverse((at, _))| at);
        due.into_iter().chain(self.memory.front().map(|&(at, _)| at)).min()
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Seq> {
        let &Reverse((_, seq)) = self.due.peek().filter(|Reverse((at, _))| *at <= now)?;
        self.set_due(seq, None);
        Some(seq)
    }

    /// A request that is to be forgotten.
    pub(super) fn next_forgotten(&self, now: Instant) -> Option<Seq> {
        self.memory.front().filter(|(at, _)| *at <= now).map(|&(_, seq)| seq)
    }

    fn next_id(&mut self, seq: Seq) -> KernelRequest {
        let number = self.next_id;
        self.next_id += 1;
        KernelRequest { number, seq }
    }

    fn set_due(&mut self, seq: Seq, at: Option<Instant>) {
        let Some(request) = self.by_seq.get_mut(&seq) else { return };
        if mem::replace(&mut request.due, at) != at {
            self.due.extend(at.map(|at| Reverse((at, seq))));
            self.drop_old_times();
        }
    }

    fn drop_old_times(&mut self) {
        let Self { by_seq, due, memory, .. } = self;
        let is_due = |Reverse((at, seq)): &Reverse<(Instant, Seq)>| {
            by_seq.get(seq).is_some_and(|request| request.due == Some(*at))
        };
        while due.peek().is_some_and(|time| !is_due(time)) {
            due.pop();
        }
        let is_kept = |(at, seq): &(Instant, Seq)| {
            by_seq.get(seq).is_some_and(|request| request.forget_at == Some(*at))
        };
        while memory.pop_front_if(|time| !is_kept(time)).is_some() {}
        if due.len() + memory.len() > 3 * by_seq.len() + Self::OLD_TIMES {
            due.retain(is_due);
            memory.retain(is_kept);
        }
    }

    /// So many times that no longer count may be queued in any case.
    const OLD_TIMES: usize = 64;
}
