// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's side: receives the requests of the RDMA core over netlink
//! ([`ibarr_common::wire::ls`]), handles each once, and sends the answers. The
//! [`node`](crate::node) finds the answers.
//!
//! **An answer does not wake the caller** (`ib_nl_process_ip_rsep` in
//! drivers/infiniband/core/addr.c): the kernel looks at it when the caller's time-out expires, or
//! when any neighbour entry becomes valid. So a *nudge* follows each answer: the creation of such
//! an entry. The nudge also makes the kernel resend every request that still waits. That is its
//! cost, and it repairs two losses: an answer that arrived before the kernel had queued its
//! request, and a lost request. A nudge can also come too early, so it is repeated a few times
//! ([`FOLLOW_UPS`]). The daemon does not nudge while it has requests to read ([`Nudge::IfQuiet`]).
//!
//! **There is no negative answer to an address request.** A request that cannot be answered is
//! tried again until its deadline ([`Config::deadline`]), then dropped without an answer. **A path
//! request always gets an answer**: paths, or none, or that the kernel may ask the SA itself, which
//! the kernel would otherwise do after its time-out.
//!
//! **A listener whose answers are refused delays every caller**: the kernel waits for an answer
//! while the group has any member. The kernel refuses messages from any network namespace but the
//! first, and without CAP_NET_ADMIN. So the daemon first sends the time-out, joins when the kernel
//! has accepted that message ([`Transmit::Join`]), and leaves when the kernel refuses any message
//! ([`Transmit::Leave`]).

mod nudges;
mod paths;
mod queue;
mod requests;
#[cfg(test)]
mod tests;
mod types;

use alloc::collections::VecDeque;
use core::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::ls::{
    Answer, Emitted, Error, Kind, Message, PathUse, PortId, Request, ResolveIp, ResolvePath, Seq,
    SetTimeout, Timeout, messages,
};

use self::nudges::{Cause, Kind as NudgeKind, Nudges};
use self::paths::{PathRequests, Waiting};
use self::queue::{Item, Queue};
use self::requests::{Answered, Request as Held, Requests, State};
use self::types::Group;
use crate::counters::Counters;
use crate::ip2gid::Question;
use crate::paths::PortName;
use crate::request::{KernelRequest, Outcome, Source};

pub use types::{
    AnswerTimes, Closed, Config, Counter, DEADLINE, Event, FOLLOW_UPS, Input, LATELY, Limits, Load,
    MAX_NUDGES, MEMORY, NUDGE_BEHIND, NUDGE_INTERVAL, NUDGE_QUIET, NUDGE_WITHIN, Nudge, Nudged,
    OVERRUN_PAUSE, REPEAT_AFTER, RETRY, Sender, Transmit,
};

/// Answers the kernel.
///
/// After every `handle_…`, call each `poll_…` until it returns `None`, then
/// [`Self::poll_timeout`].
#[derive(Debug)]
pub struct LocalService {
    config: Config,
    now: Instant,
    port_id: Option<PortId>,
    /// When to open a socket.
    open_at: Option<Instant>,
    requests: Requests,
    path_requests: PathRequests,
    queue: Queue,
    timeout: Option<Timeout>,
    group: Group,
    nudges: Nudges,
    overruns_from: Instant,
    events: VecDeque<Event>,
    refusal: Option<i32>,
    answer_times: AnswerTimes,
    counters: Counters<Counter>,
}

impl LocalService {
    /// Starts without a socket.
    pub fn new(config: Config) -> Self {
        let Limits { requests, paths } = config.limits;
        Self {
            config,
            now: Instant::BOOT,
            port_id: None,
            open_at: None,
            requests: Requests::new(requests),
            path_requests: PathRequests::new(paths),
            queue: Queue::new(paths),
            timeout: None,
            group: Group::Outside,
            nudges: Nudges::default(),
            overruns_from: Instant::BOOT,
            events: VecDeque::new(),
            refusal: None,
            answer_times: AnswerTimes::default(),
            counters: Counters::default(),
        }
    }

    /// Replaces the configuration, but for the limits.
    pub fn reconfigure(&mut self, config: Config) {
        if config.timeout != self.config.timeout && self.port_id.is_some() {
            self.timeout = Some(config.timeout);
        }
        self.config = config;
        if !config.nudge {
            self.nudges.unwant();
        }
    }

    /// Processes an event.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        self.advance(now);
        match input {
            Input::Opened { port_id, is_member } => {
                (self.port_id, self.open_at) = (Some(port_id), None);
                self.refusal = None;
                self.timeout = Some(self.config.timeout);
                if is_member {
                    self.listen();
                } else {
                    self.group = Group::Outside;
                }
            }
            Input::Closed(why) => {
                self.close();
                self.open_at = why.pause().map(|pause| self.now + pause);
            }
            Input::Datagram { sender, bytes, cut } => {
                self.nudges.more_to_come(true);
                self.datagram(sender, bytes, cut);
            }
            Input::Drained => self.nudges.more_to_come(false),
            Input::Overrun => {
                self.counters.count(Counter::Overruns);
                if self.group == Group::Outside && self.port_id.is_some() {
                    // The verdict was lost.
                    self.timeout = Some(self.config.timeout);
                }
                if self.overruns_from <= self.now {
                    self.overruns_from = self.now + OVERRUN_PAUSE;
                    self.want_nudge(Cause::Other);
                }
            }
            Input::Nudged(nudged) => {
                self.nudges.ended(self.now, nudged);
                match nudged {
                    Nudged::Done => {}
                    Nudged::Postponed => self.counters.count(Counter::NudgesPostponed),
                    Nudged::Failed => self.counters.count(Counter::NudgesFailed),
                }
            }
            Input::Answered { id, outcome } => self.answered(id, outcome),
            Input::PathAnswered { id, outcome, is_left_to_kernel } => {
                self.path_answered(id, outcome, is_left_to_kernel);
            }
            Input::PathOverloaded { seq, is_left_to_kernel } => {
                let outcome = &crate::paths::Outcome::Overloaded;
                let (answer, counter) = paths::answer(PathUse::All, outcome, is_left_to_kernel);
                self.counters.count(counter);
                self.answer_path(seq, answer);
            }
            Input::Stop => {
                self.open_at = None;
                self.nudges.end();
                if self.port_id.is_some() {
                    self.timeout = Some(Timeout::DEFAULT);
                }
                self.abandon();
                for seq in self.path_requests.take_all() {
                    self.counters.count(Counter::PathsAbandoned);
                    self.answer_path(seq, Answer::Error);
                }
            }
        }
    }

    fn answered(&mut self, id: KernelRequest, outcome: Outcome) {
        // The request may have ended meanwhile.
        let Some(seq) = self.requests.end(id) else { return };
        let postponed_as = match outcome {
            Outcome::Found { gid, source } => {
                self.counters.count(match source {
                    Source::Local => Counter::AnsweredLocal,
                    Source::Cache => Counter::AnsweredCache,
                    // The kernel's requests are never answered from neighbour entries.
                    Source::Peer | Source::Neighbour => Counter::AnsweredPeer,
                });
                if let Some(asked_at) = self.requests.answer(seq, gid) {
                    self.answer_times.addresses.add(self.now.since(asked_at));
                }
                return self.enqueue(seq);
            }
            Outcome::NotFound => Counter::NotFound,
            Outcome::TimedOut | Outcome::Refused => Counter::TimedOut,
            Outcome::Unreachable => Counter::Unreachable,
            Outcome::Overloaded => Counter::Overloaded,
        };
        let until = self.now + self.retry_after(seq);
        self.requests.postpone(seq, postponed_as, until);
    }

    fn path_answered(&mut self, id: KernelRequest, outcome: &crate::paths::Outcome, left: bool) {
        let Some(waiting) = self.path_requests.take(id) else { return };
        let Waiting { path_use, asked_at, .. } = waiting;
        self.answer_times.paths.add(self.now.since(asked_at));
        let (answer, counter) = paths::answer(path_use, outcome, left);
        self.counters.count(counter);
        self.answer_path(id.seq, answer);
    }

    /// Performs all actions that are due. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        while let Some(seq) = self.requests.pop_due(self.now) {
            self.due(seq);
        }
        while let Some(seq) = self.requests.next_forgotten(self.now) {
            self.remove(seq);
        }
    }

    /// When to call [`Self::handle_timeout`] and poll again. A driver whose socket is full polls
    /// when there is room.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let polled = [self.nudges.due(), self.open_at].into_iter().flatten();
        polled.filter(|&due| due > self.now).chain(self.requests.next_timeout()).min()
    }

    /// The next action. The driver must perform actions in order: a nudge has to follow every
    /// answer.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        if let Group::Leaving(errno) = self.group {
            self.group = Group::Outside;
            return Some(Transmit::Leave(errno));
        }
        if self.open_at.take_if(|at| *at <= self.now).is_some() {
            return Some(Transmit::Open);
        }
        let port_id = self.port_id?;
        if let Some(timeout) = self.timeout.take() {
            let message = SetTimeout::new(timeout).emit(Seq(0), port_id);
            return Some(Transmit::Message(message));
        }
        if self.group == Group::Joining {
            self.group = Group::Inside;
            return Some(Transmit::Join);
        }
        while let Some(item) = self.queue.pop() {
            let message = match item {
                Item::Path(seq, answer) => Some(answer.emit(seq, port_id)),
                Item::Answer(seq) => self.hand_over(seq, port_id),
            };
            if let Some(message) = message {
                return Some(Transmit::Message(message));
            }
        }
        let (nudge, kind) = self.nudges.take(self.now)?;
        self.counters.count(match kind {
            NudgeKind::First => Counter::Nudges,
            NudgeKind::Repeated => Counter::NudgesRepeated,
        });
        Some(Transmit::Nudge(nudge))
    }

    /// The next event for the node.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The counters.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// The number of waiting address requests, and of all that are held.
    pub fn load(&self) -> Load {
        Load {
            waiting: self.requests.waiting(),
            held: self.requests.len(),
            paths: self.path_requests.len(),
        }
    }

    /// The last error number with which the kernel refused a message since the socket was opened:
    /// `-EPERM` (-1) without CAP_NET_ADMIN, `-EINVAL` (-22) from a socket outside the initial
    /// network namespace.
    pub fn refusal(&self) -> Option<i32> {
        self.refusal
    }

    /// How long requests waited for their answer.
    pub fn answer_times(&self) -> &AnswerTimes {
        &self.answer_times
    }

    /// Whether there is nothing to do before the next input, and no nudge is in progress.
    pub fn is_idle(&self) -> bool {
        self.port_id.is_none()
            || (self.timeout.is_none() && self.queue.is_empty() && !self.nudges.is_busy())
    }

    /// The kernel sends its requests to our socket from now on.
    fn listen(&mut self) {
        self.group = Group::Inside;
        // Some waiting requests may have been sent to an earlier listener.
        self.want_nudge(Cause::Other);
    }

    fn close(&mut self) {
        self.abandon();
        for seq in self.requests.seqs() {
            self.remove(seq);
        }
        let abandoned = self.path_requests.take_all();
        self.counters.add(Counter::PathsAbandoned, abandoned.len() as u64);
        self.port_id = None;
        self.timeout = None;
        self.group = Group::Outside;
        self.queue.clear();
        self.nudges.unwant();
        self.nudges.more_to_come(false);
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn datagram(&mut self, sender: Sender, bytes: &[u8], cut: bool) {
        if sender == Sender::Other {
            return self.counters.count(Counter::NotFromKernel);
        }
        if cut {
            self.counters.count(Counter::DatagramsCut);
        }
        let mut messages = messages(bytes);
        // Messages after a refusal belong to a socket that is about to be closed.
        while !matches!(self.group, Group::Leaving(_))
            && let Some(message) = messages.next()
        {
            match message {
                Ok(message) => self.message(&message),
                Err(error) => self.malformed(messages.broken().as_ref(), error),
            }
        }
    }

    fn message(&mut self, message: &Message<'_>) {
        if message.kind() == Kind::Verdict {
            return self.verdict(message.errno());
        }
        if !message.is_request() {
            return self.counters.count(Counter::NotARequest);
        }
        match Request::parse(message) {
            Ok(Request::ResolveIp(request)) => self.address_request(message.seq(), request),
            Ok(Request::ResolvePath(request)) => self.path_request(message.seq(), request),
            Err(error) => self.malformed(Some(message), error),
        }
    }

    fn verdict(&mut self, errno: Option<i32>) {
        match errno {
            Some(errno) if errno < 0 => {
                self.counters.count(Counter::Refusals);
                self.refusal = Some(errno);
                if self.port_id.is_some() {
                    self.close();
                    self.group = Group::Leaving(errno);
                }
            }
            Some(_) => {
                self.counters.count(Counter::Confirmations);
                if self.group == Group::Outside && self.port_id.is_some() {
                    self.listen();
                    self.group = Group::Joining;
                }
            }
            None => self.counters.count(Counter::MalformedTruncated),
        }
    }

    /// A malformed path request is answered too, because its caller would wait.
    fn malformed(&mut self, message: Option<&Message<'_>>, error: Error) {
        self.counters.count(error.into());
        if let Some(message) = message
            && message.kind() == Kind::ResolvePath
            && message.is_request()
        {
            self.counters.count(Counter::PathsMalformed);
            self.answer_path(message.seq(), Answer::Error);
        }
    }

    fn path_request(&mut self, seq: Seq, request: ResolvePath) {
        self.counters.count(Counter::PathRequests);
        // If two requests have the same number, the kernel has forgotten the first.
        if self.path_requests.forget(seq) {
            self.counters.count(Counter::PathsAbandoned);
        }
        let port = PortName { device: request.device, port: request.port };
        let Some(id) = self.path_requests.insert(self.now, seq, &request) else {
            return self.events.push_back(Event::PathOverloaded { seq, port });
        };
        let deadline = self.now + self.config.timeout.get() * 4 / 5;
        let question = paths::question(&request);
        self.events.push_back(Event::PathWanted { id, port, question, deadline });
    }

    fn answer_path(&mut self, seq: Seq, answer: Answer) {
        if !self.queue.push_path(seq, answer) {
            self.counters.count(Counter::PathsFull);
        }
    }

    fn address_request(&mut self, seq: Seq, request: ResolveIp) {
        let Some(question) = Question::new(request.target, Some(request.ifindex)) else {
            return self.counters.count(Counter::MalformedTarget);
        };
        let held = self.requests.get_mut(seq);
        let is_repeated = held.as_ref().is_some_and(|held| held.question == question);
        self.nudges.asked(is_repeated);
        if let Some(held) = held {
            if is_repeated {
                return self.duplicate(seq);
            }
            if matches!(held.state, State::Answered(_)) {
                self.remove(seq);
            } else {
                self.drop_request(seq, Counter::Superseded);
            }
        }
        self.counters.count(Counter::Requests);
        if self.requests.is_full() {
            if let Some(oldest) = self.requests.oldest_answered() {
                self.counters.count(Counter::MemoryEvicted);
                self.remove(oldest);
            } else {
                let Some(gone) = self.requests.probably_gone(self.now) else {
                    let (asked_at, why) = (self.now, Counter::RequestsFull);
                    self.counters.count(why);
                    return self.events.push_back(Event::Dropped { question, asked_at, why });
                };
                self.drop_request(gone, Counter::RequestsFull);
            }
        }
        let (asked_at, deadline) = (self.now, self.now + self.config.deadline);
        let id = self.requests.insert(asked_at, seq, question, deadline);
        self.events.push_back(Event::Wanted { id, question, asked_at, deadline });
    }

    fn duplicate(&mut self, seq: Seq) {
        if !self.requests.is_remembered(seq) {
            self.requests.mention(seq, self.now);
            return self.counters.count(Counter::DuplicatesWaiting);
        }
        self.counters.count(Counter::DuplicatesAnswered);
        let Some(request) = self.requests.get_mut(seq) else { return };
        let State::Answered(answered) = &mut request.state else { return };
        if answered.queued.is_some() {
            return;
        }
        // Two answers were lost, perhaps because the daemon is always faster than the kernel.
        if core::mem::replace(&mut answered.repeated, true) {
            self.requests.answer_again(seq, self.now + REPEAT_AFTER);
        } else {
            self.enqueue(seq);
        }
    }

    fn due(&mut self, seq: Seq) {
        if self.requests.is_remembered(seq) {
            self.counters.count(Counter::AnswersRepeated);
            return self.enqueue(seq);
        }
        let Some(request) = self.requests.get_mut(seq).copied() else { return };
        let too_late = match request.state {
            State::Postponed { .. } if self.now < request.deadline => {
                let id = self.requests.seek(seq);
                let Held { question, asked_at, deadline, .. } = request;
                return self.events.push_back(Event::Wanted { id, question, asked_at, deadline });
            }
            State::Postponed { why } => why,
            State::Searching(_) => Counter::TimedOut,
            State::Answered(_) => Counter::AnswersLate,
        };
        self.drop_request(seq, too_late);
    }

    fn enqueue(&mut self, seq: Seq) {
        if let Some(request) = self.requests.get_mut(seq)
            && let State::Answered(answered) = &mut request.state
            && answered.queued.is_none()
        {
            answered.queued = Some(self.queue.push_answer(seq));
        }
    }

    /// Takes the answer from the queue to the socket; the kernel has an answer to look at now.
    fn hand_over(&mut self, seq: Seq, port_id: PortId) -> Option<Emitted> {
        let request = self.requests.get_mut(seq)?;
        let State::Answered(answered) = &mut request.state else { return None };
        let Answered { gid, nudges, .. } = *answered;
        answered.queued = None;
        answered.nudges = nudges.saturating_sub(1);
        let is_first = !self.requests.is_remembered(seq);
        if nudges > 0 {
            let is_alone = is_first && !self.requests.is_waited_for(self.now);
            self.want_nudge(if is_alone { Cause::FirstAnswer } else { Cause::Other });
        }
        if is_first {
            let no_nudges = !self.config.nudge || self.nudges.failed();
            let repeat_at = no_nudges.then_some(self.now + REPEAT_AFTER);
            self.requests.remember(seq, self.now + MEMORY, repeat_at);
        }
        Some(Answer::Gid(gid).emit(seq, port_id))
    }

    fn retry_after(&mut self, seq: Seq) -> Duration {
        let is_new = |request: &mut Held| self.now.since(request.asked_at) < LATELY;
        if self.requests.get_mut(seq).is_some_and(is_new) { RETRY } else { 2 * RETRY }
    }

    fn want_nudge(&mut self, cause: Cause) {
        if self.config.nudge {
            self.nudges.want(self.now, cause);
        }
    }

    /// Stops all searches; requests that have an answer stay.
    fn abandon(&mut self) {
        for seq in self.requests.seqs() {
            let waits = |state| !matches!(state, State::Answered(_));
            if self.requests.get_mut(seq).is_some_and(|request| waits(request.state)) {
                self.drop_request(seq, Counter::Abandoned);
            }
        }
    }

    /// Ends a request that has had no answer.
    fn drop_request(&mut self, seq: Seq, why: Counter) {
        self.counters.count(why);
        let request = self.requests.get_mut(seq).copied();
        self.remove(seq);
        if let Some(Held { question, asked_at, .. }) = request {
            self.events.push_back(Event::Dropped { question, asked_at, why });
        }
    }

    fn remove(&mut self, seq: Seq) {
        let Some(request) = self.requests.remove(seq) else { return };
        let question = request.question;
        match request.state {
            State::Searching(id) => {
                self.events.push_back(Event::Unwanted { id, question });
            }
            State::Answered(Answered { queued: Some(ticket), .. }) => self.queue.remove(ticket),
            State::Answered(_) | State::Postponed { .. } => {}
        }
    }
}
