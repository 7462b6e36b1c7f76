// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Inputs and outputs of the SA client.

use alloc::vec::Vec;
use core::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Lid, PathRecord, Sl};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::mad::{Mad, Transaction};
use ibarr_common::wire::sa::{Question, Refusal};
use ibarr_common::wire::umad::PKeyIndex;

use super::Shut;

/// Bounds and times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Maximum number of MADs at once for the SA of a port.
    pub outstanding: u32,
    /// Maximum number of questions held for one port. Further ones are refused at once.
    pub flights: usize,
    /// Maximum number of questions held for one port while its SA is known to be silent or busy, of the kernel alone.
    /// Further ones end at once.
    pub patient: usize,
    /// How long to wait for an answer before the question is sent again. Doubled with each loss of
    /// the question, or each successive loss of its SA, so that a slow SA gets more time; but only
    /// twice, because with a window of one no other question can be sent meanwhile. Up to a sixth
    /// shorter, at random.
    pub patience: Duration,
    /// The first question of a port waits for a random time up to this after its SA appeared or
    /// changed: ten thousand nodes notice that at once.
    pub start_spread: Duration,
}

impl Default for Config {
    /// The kernel waits for 3 s before it asks the SA itself: this leaves time for three tries.
    fn default() -> Self {
        Self {
            outstanding: 64,
            flights: 16_384,
            patient: 1_024,
            patience: Duration::from_millis(300),
            start_spread: Duration::from_millis(500),
        }
    }
}

impl Config {
    const MOST_DOUBLINGS: u32 = 2;

    /// [`Self::patience`] after `lost` losses.
    pub(super) fn patience_after(&self, lost: u32) -> Duration {
        self.patience.saturating_mul(1 << lost.min(Self::MOST_DOUBLINGS))
    }

    /// No MAD counts as in the air for longer: 1.4 s by default.
    pub fn longest_patience(&self) -> Duration {
        let longest = self.patience_after(Self::MOST_DOUBLINGS);
        longest.saturating_add(longest / 6)
    }
}

/// An event for the client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Input<'a> {
    /// A port has a new SA, has it at another place, or has none any more.
    Sa {
        port: PortIndex,
        /// The SA; `None` if the port has none.
        sa: Option<Sa>,
    },
    /// There is a sign of life of the subnet manager of a port: if its SA was silent, it may be
    /// back.
    MayBeBack { port: PortIndex },
    /// A caller asks. One [`poll_event`](super::Client::poll_event) follows, at the latest at the deadline.
    Ask(Ask),
    /// Another caller waits for a question.
    Join {
        id: QuestionId,
        /// The priority of this caller.
        rank: Rank,
        /// When this caller stops waiting.
        deadline: Instant,
    },
    /// A MAD arrived at our agent. It counts as an answer only if it comes from the LID that its
    /// question went to, wherever the SA is by now: an answer of the last SA shortly after a move
    /// counts, an answer of any other port of the subnet does not.
    Mad {
        port: PortIndex,
        /// LID of the sending port.
        from: Option<Lid>,
        mad: &'a [u8],
    },
    /// The kernel returned a MAD that was not answered. This does not hasten the resend: without an
    /// SA, the next MAD is not answered either.
    Unanswered,
    /// The driver could not send a MAD of [`Client::poll_transmit`](super::Client::poll_transmit).
    /// It counts as lost when its time is over.
    NotSent,
}

/// A question of a caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Ask {
    /// Repeated in the answer.
    pub id: QuestionId,
    /// The port whose SA is asked.
    pub port: PortIndex,
    pub question: Question,
    pub rank: Rank,
    /// When the caller stops waiting.
    pub deadline: Instant,
}

/// The driver's number of a port. Not reused for another port while it has questions in flight.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortIndex(pub u16);

/// The caller's number of a question. It may be reused after the answer.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QuestionId(pub u64);

/// The priority of a question.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Rank {
    /// The kernel's question: an application waits for it.
    Kernel,
    /// A question of a user, or one without a caller.
    Other,
}

/// The address of a port's SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sa {
    /// LID of its port, which is the subnet manager's.
    pub lid: Lid,
    /// Service level of packets to it.
    pub sl: Sl,
    /// The partition of packets to it.
    pub pkey_index: PKeyIndex,
}

/// A MAD to send.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Transmit {
    pub port: PortIndex,
    pub sa: Sa,
    /// How long an answer is useful.
    pub timeout: Duration,
    pub mad: Mad,
    /// Whether the answer may be longer than a MAD.
    pub is_for_table: bool,
    /// The ID that ties its answer to it.
    pub transaction: Transaction,
    /// Whether it only probes whether the SA answers.
    pub is_probe: bool,
}

/// The answer to a question. Each question gets exactly one.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Answered {
    pub id: QuestionId,
    pub outcome: Outcome,
    /// The paths after the first one, if several were asked for; no more than these.
    pub others: Vec<PathRecord>,
}

impl Answered {
    /// An answer without other paths.
    pub(super) const fn new(id: QuestionId, outcome: Outcome) -> Self {
        Self { id, outcome, others: Vec::new() }
    }
}

/// The result of a question.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Outcome {
    Path(PathRecord),
    ClassPortInfo(ClassPortInfo),
    /// The SA refuses, and would refuse again.
    Refused(Refusal),
    /// The SA has answered another question, or with an illegal value.
    Unusable,
    /// The SA was busy until the deadline.
    Busy,
    /// The SA has not answered in time.
    Silent,
    /// The port has no SA, or does not exist.
    NoSa,
    /// A bound of this port was reached; nothing has been sent.
    Overloaded,
}

crate::counters! {
    /// Counters of the SA client. Each question is counted once under [`Counter::Questions`] and,
    /// when it ends, once under one of the eight that follow.
    pub enum Counter {
        /// Questions to ask the SA.
        Questions = normal("questions"),
        /// Questions answered with a path, with capabilities, or with a confirmation.
        Answered = normal("answered"),
        /// Questions for which the SA has no record.
        NoRecord = error("no-record"),
        /// Questions that the SA refused for another reason.
        Refused = error("refused"),
        /// Questions with an illegal answer.
        Unusable = error("unusable"),
        /// Questions that ended because the SA was busy.
        Busy = error("busy"),
        /// Questions that were not answered in time.
        Silent = error("silent"),
        /// Questions by a port without an SA.
        NoSa = error("no-sa"),
        /// Questions refused because too many waited.
        Overloaded = error("overloaded"),
        /// MADs sent for the first time.
        Queries = normal("queries"),
        /// MADs sent again because there was no answer.
        Resends = error("resends"),
        /// MADs sent again because the SA was busy.
        ResendsBusy = error("resends-busy"),
        /// MADs sent again because the SA has changed.
        ResendsMoved = error("resends-moved"),
        /// Questions whose deadline passed before their turn.
        NeverSent = error("never-sent"),
        /// MADs sent to find out whether an SA answers at all.
        Probes = normal("probes"),
        /// Questions that ended at once because the SA was known to be silent or busy.
        AtOnce = error("at-once"),
        /// Times that an SA was recognized as silent or busy.
        Shut = error("shut"),
        /// Times that such an SA answered again.
        Opened = normal("opened"),
        /// MADs that could not be sent.
        NotSent = error("not-sent"),
        /// MADs that the kernel returned unanswered.
        Unanswered = error("unanswered"),
        /// Answers to a question that had ended.
        Late = error("late"),
        /// Answers that match no question, or one that ended long ago.
        Unasked = error("unasked"),
        /// Answers from a LID other than the one asked.
        WrongLid = error("wrong-lid"),
        /// Answers of an SA that it was busy.
        BusyAnswers = error("busy-answers"),
        /// Answers of an SA with a redirection. It is not followed: OpenSM never redirects, and the
        /// kernel, which asks when we refuse, does not follow it either.
        Redirects = error("redirects"),
        /// MADs shorter than their required fields.
        MalformedTruncated = error("malformed-truncated"),
        /// MADs of an unsupported version.
        MalformedVersion = error("malformed-version"),
        /// MADs of another class, or with another method or attribute than an answer to their question.
        MalformedKind = error("malformed-kind"),
        /// Answers with an illegal GID, LID or partition.
        MalformedValue = error("malformed-value"),
    }
}

impl Outcome {
    /// The counter of the questions that end so.
    pub(super) fn counter(&self) -> Counter {
        match self {
            Self::Path(_) | Self::ClassPortInfo(_) => Counter::Answered,
            Self::Refused(refusal) if refusal.is_final() => Counter::NoRecord,
            Self::Refused(_) => Counter::Refused,
            Self::Unusable => Counter::Unusable,
            Self::Busy => Counter::Busy,
            Self::Silent => Counter::Silent,
            Self::NoSa => Counter::NoSa,
            Self::Overloaded => Counter::Overloaded,
        }
    }
}

impl From<ibarr_common::wire::mad::Error> for Counter {
    fn from(error: ibarr_common::wire::mad::Error) -> Self {
        use ibarr_common::wire::mad::Error;
        match error {
            Error::Truncated => Self::MalformedTruncated,
            Error::BaseVersion | Error::ClassVersion => Self::MalformedVersion,
            Error::Class | Error::Method | Error::Attribute => Self::MalformedKind,
            Error::Gid | Error::Lid | Error::PKey | Error::Components | Error::Hops => {
                Self::MalformedValue
            }
        }
    }
}

/// The load of a port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Load {
    pub questions: usize,
    /// MADs that the SA has to answer.
    #[cfg_attr(feature = "serde", serde(rename = "in-air"))]
    pub in_air: u32,
    /// Maximum number of MADs at once.
    pub window: u32,
    /// Why the SA gets only probes, if so.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub shut: Option<Shut>,
}

/// What was sent to the SAs of a port, and answered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Tally {
    /// MADs sent, including resends and probes.
    pub mads: u64,
    /// Answers with anything but BUSY, in time or late.
    pub answers: u64,
    /// How long these answers took, all together.
    #[cfg_attr(feature = "serde", serde(rename = "took-ms", with = "crate::durations::millis"))]
    pub took: Duration,
    /// When an SA last answered, with anything but BUSY.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub answered_at: Option<Instant>,
    /// The silence of the SA, which ends with its next answer: not with a change of the port or of
    /// the SA, when questions are asked again.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub silence: Option<Shut>,
}
