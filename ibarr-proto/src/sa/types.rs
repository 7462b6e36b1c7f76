// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What goes into the SA client and comes out of it.

use std::time::Duration;

use ibarr_common::ib::{Lid, PathRecord, Sl};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::inform::InformInfo;
use ibarr_common::wire::mad::{Mad, Transaction};
use ibarr_common::wire::sa::Refusal;
use ibarr_common::wire::umad::PKeyIndex;

/// Bounds and times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Most MADs that a port's SA has to answer at once.
    pub outstanding: u32,
    /// Questions held for one port. A further one is refused at once.
    pub flights: usize,
    /// How long an answer is waited for before the question is sent again. Doubled with each loss of
    /// the question, or each in a row of its SA, so that one that is behind is left time; but only
    /// twice, as nothing else may be sent meanwhile if the window is one. Spread by a sixth both ways.
    pub patience: Duration,
    /// A port's first question waits for up to this long, by chance, after its SA appeared or
    /// changed: ten thousand nodes notice that at once.
    pub start_spread: Duration,
}

impl Default for Config {
    /// The kernel waits for 2 s before it asks the SA itself: room for three tries.
    fn default() -> Self {
        Self {
            outstanding: 64,
            flights: 16_384,
            patience: Duration::from_millis(300),
            start_spread: Duration::from_millis(500),
        }
    }
}

impl Config {
    const MOST_DOUBLINGS: u32 = 2;

    /// [`Self::patience`] after so many losses.
    pub(super) fn patience_after(&self, lost: u32) -> Duration {
        self.patience.saturating_mul(1 << lost.min(Self::MOST_DOUBLINGS))
    }

    /// The longest that a MAD counts as in the air: 1.4 s if nothing else is configured.
    pub fn longest_patience(&self) -> Duration {
        let longest = self.patience_after(Self::MOST_DOUBLINGS);
        longest.saturating_add(longest / 6)
    }
}

/// What happens to the client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Input<'a> {
    /// The SA of a port is there, or elsewhere than before, or gone.
    Sa {
        /// The port.
        port: PortIndex,
        /// `None` if it has none.
        sa: Option<Sa>,
    },
    /// The subnet manager of a port has shown itself: if its SA was silent, it may not be any more.
    MayBeBack {
        /// The port.
        port: PortIndex,
    },
    /// A MAD came to our agent. It is an answer only if it comes from the LID that its question went
    /// to, wherever the SA is by now: what the last SA says shortly after a move counts, and what any
    /// other port of the subnet says does not.
    Mad {
        /// By this port.
        port: PortIndex,
        /// Sent by the port with this LID.
        from: Option<Lid>,
        /// Its bytes.
        mad: &'a [u8],
    },
    /// The kernel has given back a MAD that was not answered. The question is not sent again sooner:
    /// where the first was not answered, the next would not be either.
    Unanswered,
    /// A MAD of [`Client::poll_transmit`](super::Client::poll_transmit) was not sent. It counts as
    /// lost when it would have without an answer.
    NotSent,
}

/// The driver's name for a port. Not used again for another while questions are under way.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortIndex(pub u16);

/// The driver's name for a question, not to be used again before its answer.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QuestionId(pub u64);

/// Whose question goes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Rank {
    /// The kernel's: an application waits behind it.
    Kernel,
    /// What a user of this node asks, and what is asked although no caller waits.
    Other,
}

/// Where the SA of a port is, and how it is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sa {
    /// Its port, which is the subnet manager's.
    pub lid: Lid,
    /// How.
    pub sl: Sl,
    /// In which partition.
    pub pkey_index: PKeyIndex,
}

/// A MAD to send.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// The port to send it by.
    pub port: PortIndex,
    /// Where to.
    pub sa: Sa,
    /// How long an answer is of use. `None`: it is an answer itself.
    pub timeout: Option<Duration>,
    /// What it carries.
    pub mad: Mad,
    /// What ties its answer to it.
    pub transaction: Transaction,
    /// Whether it only finds out if the SA answers at all.
    pub is_probe: bool,
}

/// A question has its answer. Each gets exactly one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answered {
    /// Of the question.
    pub id: QuestionId,
    /// The answer.
    pub outcome: Outcome,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The SA has a path.
    Path(PathRecord),
    /// The SA has said what it can do.
    ClassPortInfo(ClassPortInfo),
    /// The SA will do so.
    Inform(InformInfo),
    /// It refuses, and would again.
    Refused(Refusal),
    /// It has answered, but not this question, or with what cannot be.
    Unusable,
    /// It was busy until nobody waited any more.
    Busy,
    /// It has not answered in time.
    Silent,
    /// The port has none, or is not there.
    NoSa,
    /// Too much is being asked by this port; nothing has been sent.
    Overloaded,
}

crate::counters! {
    /// What the SA client counts. Each question is counted once under [`Counter::Questions`] and, when
    /// it ends, once under one of the eight that follow.
    pub enum Counter {
        /// Questions to ask the SA.
        Questions = "questions",
        /// Questions answered with a path, with what the SA can do, or with "so be it".
        Answered = "answered",
        /// Questions answered with "there is none".
        NoRecord = "no-record",
        /// Questions that the SA refused for another reason.
        Refused = "refused",
        /// Questions with an answer that cannot be.
        Unusable = "unusable",
        /// Questions to an SA that was busy for too long.
        Busy = "busy",
        /// Questions that were not answered in time.
        Silent = "silent",
        /// Questions by a port without an SA.
        NoSa = "no-sa",
        /// Questions refused because too many waited.
        Overloaded = "overloaded",
        /// MADs sent for the first time.
        Queries = "queries",
        /// MADs sent again, for want of an answer.
        Resends = "resends",
        /// MADs sent again, because the SA was busy.
        ResendsBusy = "resends-busy",
        /// MADs sent again, because the SA is another.
        ResendsMoved = "resends-moved",
        /// Questions whose time was over before their turn came.
        NeverSent = "never-sent",
        /// MADs sent to find out whether an SA answers at all.
        Probes = "probes",
        /// Questions answered at once, because the SA was known to be silent or busy.
        AtOnce = "at-once",
        /// Times that an SA came to be known as silent or busy.
        Shut = "shut",
        /// Times that such an SA answered again.
        Opened = "opened",
        /// MADs that the kernel did not take.
        NotSent = "not-sent",
        /// MADs that came back from the kernel without an answer.
        Unanswered = "unanswered",
        /// Answers to a question that nobody waits for any more.
        Late = "late",
        /// Answers to no question of ours, or to one that was given up long ago.
        Unasked = "unasked",
        /// Answers that did not come from the LID that was asked.
        WrongLid = "wrong-lid",
        /// Times that the SA said that it was busy.
        BusyAnswers = "busy-answers",
        /// Answers of an SA that wants another to be asked. Nobody is: OpenSM never says so, and the
        /// kernel, which asks when we refuse, does not either.
        Redirects = "redirects",
        /// MADs shorter than what they have to hold.
        MalformedTruncated = "malformed-truncated",
        /// MADs of another version than we speak.
        MalformedVersion = "malformed-version",
        /// MADs of another class, or with another method or attribute than an answer to us.
        MalformedKind = "malformed-kind",
        /// Answers with a value that cannot be: of a GID, LID or partition.
        MalformedValue = "malformed-value",
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
