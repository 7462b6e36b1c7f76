// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The claims about what a daemon says to its kernel: each request has one answer, and no nudge is
//! without a reason.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::wire::ls::Seq;
use ibarr_proto::local_service::{FOLLOW_UPS, NUDGE_INTERVAL, OVERRUN_PAUSE};

use crate::kernel::IP_RESOLVE;

/// The history of a daemon and its kernel.
#[derive(Debug, Default)]
pub(super) struct KernelClaims {
    last_nudge: Option<Instant>,
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
    requests: BTreeMap<(u16, Seq), Dealt>,
}

/// The history of a request of the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dealt {
    heard: u32,
    answered: u32,
    pub(super) asked_at: Instant,
    pub(super) target: Option<IpAddr>,
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
        if let Some(key) = header(bytes).filter(|_| from_kernel) {
            let dealt =
                self.requests.entry(key).or_insert(Dealt { asked_at: now, ..Dealt::default() });
            dealt.heard += 1;
            dealt.target = target(bytes);
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
    ) -> (Dealt, Option<String>) {
        self.reasons += 1;
        self.since_nudge += u64::from(kind == IP_RESOLVE);
        let dealt = self.requests.entry((kind, seq)).or_default();
        dealt.answered += 1;
        let Dealt { heard, answered, .. } = *dealt;
        let is_wrong = u64::from(answered) > u64::from(heard) + repeated;
        let claim = is_wrong
            .then(|| format!("request {} came {heard} times, answered {answered} times", seq.0));
        (*dealt, claim)
    }

    /// The daemon orders a nudge; returns what is wrong with that.
    pub(super) fn orders_nudge(&mut self, now: Instant) -> Option<String> {
        let last = self.last_nudge.replace(now);
        let is_alone = std::mem::take(&mut self.since_nudge) == 1;
        let is_soon = last.is_some_and(|last| now.since(last) < NUDGE_INTERVAL);
        (is_soon && !is_alone)
            .then(|| "two nudges within a millisecond, for several requests".to_owned())
    }

    /// A nudge was made or tried.
    pub(super) fn nudges(&mut self) {
        self.nudges += 1;
    }

    /// Each answer, loss and start allows one nudge and its repetitions; says if there were more.
    pub(super) fn excess(&self) -> Option<String> {
        let most = (1 + FOLLOW_UPS.len() as u64) * self.reasons;
        (self.nudges > most).then(|| format!("{} nudges for {} answers", self.nudges, self.reasons))
    }
}

impl Dealt {
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

/// The address that an address request asks for.
fn target(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        28 => Some(IpAddr::from(*bytes.last_chunk::<4>()?)),
        40 => Some(IpAddr::from(*bytes.last_chunk::<16>()?)),
        _ => None,
    }
}
