// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The claims about what a daemon says to its kernel: each request has one answer, and no nudge is
//! without a reason.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::wire::ls::{Kind, Request, Seq, messages};
use ibarr_proto::counters::Counters;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::local_service::{
    Counter, FOLLOW_UPS, Load, NUDGE_INTERVAL, Nudged, OVERRUN_PAUSE,
};

use crate::kernel::{IP_RESOLVE, RESOLVE};

/// The history of a daemon and its kernel.
#[derive(Debug, Default)]
pub(super) struct KernelClaims {
    last_nudge: Option<Instant>,
    is_nudging: bool,
    /// Answers to address requests since the last nudge.
    since_nudge: u64,
    /// Nudges that were made or tried.
    nudges: u64,
    /// Reasons for nudges: answers, overruns, the start.
    reasons: u64,
    counts_overruns_from: Instant,
    /// Datagrams read from the kernel's socket.
    read: u64,
    /// By message type and sequence number.
    requests: BTreeMap<(u16, Seq), History>,
}

/// The history of a request of the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct History {
    heard: u32,
    answered: u32,
    pub(super) asked_at: Instant,
    pub(super) target: Option<IpAddr>,
    /// Another request has had the number, and its answer may still wait for room.
    pub(super) is_reused: bool,
}

impl KernelClaims {
    pub(super) fn starts(&mut self) {
        self.reasons += 1;
    }

    /// Overruns in a row count once: the repetitions of the first nudge cover them.
    pub(super) fn overrun(&mut self, now: Instant) {
        if self.counts_overruns_from <= now {
            self.counts_overruns_from = now + OVERRUN_PAUSE;
            self.reasons += 1;
        }
    }

    /// The daemon reads a datagram.
    pub(super) fn reads(&mut self, now: Instant, bytes: &[u8], from_kernel: bool) {
        self.read += 1;
        let mut read = messages(bytes);
        while from_kernel && let Some(message) = read.next() {
            let Some(message) = message.ok().or(read.broken()) else { continue };
            let kind = match message.kind() {
                Kind::ResolvePath if message.is_request() => RESOLVE,
                Kind::ResolveIp if message.is_request() => IP_RESOLVE,
                _ => continue,
            };
            let target = match Request::parse(&message) {
                Ok(Request::ResolveIp(request)) => Question::new(request.target, None),
                _ => None,
            };
            let target = target.map(|question| question.target());
            let new = History { asked_at: now, ..History::default() };
            let history = self.requests.entry((kind, message.seq())).or_insert(new);
            history.heard += 1;
            let last = history.target;
            history.target = target.or(last);
            history.is_reused |= last.is_some() && history.target != last;
        }
    }

    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// The daemon answers, and has answered `repeated` times from memory. Returns the history of
    /// the request, or what is wrong with the answer.
    pub(super) fn answered(
        &mut self,
        kind: u16,
        seq: Seq,
        repeated: u64,
    ) -> (History, Option<String>) {
        self.reasons += 1;
        self.since_nudge += u64::from(kind == IP_RESOLVE);
        let history = self.requests.entry((kind, seq)).or_default();
        history.answered += 1;
        let History { heard, answered, .. } = *history;
        let is_wrong = u64::from(answered) > u64::from(heard) + repeated;
        let claim = is_wrong
            .then(|| format!("request {} came {heard} times, answered {answered} times", seq.0));
        (*history, claim)
    }

    /// The daemon orders a nudge; returns what is wrong with that.
    pub(super) fn orders_nudge(&mut self, now: Instant) -> Option<String> {
        if std::mem::replace(&mut self.is_nudging, true) {
            return Some("two nudges at once".to_owned());
        }
        let last = self.last_nudge.replace(now);
        let is_alone = std::mem::take(&mut self.since_nudge) == 1;
        let is_soon = last.is_some_and(|last| now.since(last) < NUDGE_INTERVAL);
        (is_soon && !is_alone)
            .then(|| "two nudges within a millisecond, for several requests".to_owned())
    }

    /// A nudge was made or tried, or postponed.
    pub(super) fn nudges(&mut self, nudged: Nudged) {
        self.is_nudging = false;
        self.nudges += u64::from(nudged != Nudged::Postponed);
    }

    /// Each answer, loss and start allows one nudge and its repetitions; says if there were more.
    pub(super) fn excess(&self) -> Option<String> {
        let most = (1 + FOLLOW_UPS.len() as u64) * self.reasons;
        (self.nudges > most).then(|| format!("{} nudges for {} answers", self.nudges, self.reasons))
    }
}

/// Whether each address request has ended for one reason, or waits.
pub(super) fn are_complete(counters: &Counters<Counter>, load: Load) -> bool {
    let ended = [
        Counter::AnsweredLocal,
        Counter::AnsweredCache,
        Counter::AnsweredPeer,
        Counter::NotFound,
        Counter::TimedOut,
        Counter::Unreachable,
        Counter::Overloaded,
        Counter::Superseded,
        Counter::Abandoned,
        Counter::RequestsFull,
    ];
    let ended: u64 = ended.into_iter().map(|counter| counters.get(counter)).sum();
    counters.get(Counter::Requests) == ended + load.waiting as u64 && load.waiting <= load.held
}

impl History {
    /// Whether the request had no answer before.
    pub(super) fn is_first(&self) -> bool {
        self.answered == 1
    }
}

/// Type and sequence number of a netlink message.
pub(super) fn header(bytes: &[u8]) -> Option<(u16, Seq)> {
    let kind = bytes.get(4..6)?.first_chunk::<2>()?;
    let seq = bytes.get(8..12)?.first_chunk::<4>()?;
    Some((u16::from_ne_bytes(*kind), Seq(u32::from_ne_bytes(*seq))))
}
