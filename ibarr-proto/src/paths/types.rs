// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What goes into the resolution of paths and comes out of it.

use std::fmt;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{DeviceName, Gid, Lid, PKey, PathRecord, PortNum, Sl};
use ibarr_common::wire::sa::{PathQuestion, Refusal};
use ibarr_common::wire::umad::PKeyIndex;

use crate::sa::{self, PortIndex, Rank};

/// What an administrator decides, and bounds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// How the SA is asked.
    pub sa: sa::Config,
    /// Whether service and class of service are part of a question.
    pub qos: Qos,
    /// How long a path is remembered, give or take a quarter by chance.
    pub ttl: Duration,
    /// How long "there is no such path" is.
    pub negative_ttl: Duration,
    /// Answers remembered.
    pub max_cached: usize,
    /// Requests that wait for the SA. A further one is refused at once.
    pub max_waiters: usize,
    /// Answers that are near their end, or were left by a daemon before us, that a port asks for again
    /// each second, at most.
    pub repeat_rate: u32,
    /// Of the requests of one port that its SA does not answer, or that there is no room for, one in
    /// this time may be left to the kernel.
    pub fallback_interval: Duration,
    /// On average a port asks for one of the paths in use in each such time although nothing has
    /// happened, and where events of the port are heard, in [`Self::CANARIES_IF_HEARD`] times that.
    /// Zero: never.
    pub canary_every: Duration,
}

impl Config {
    /// See [`Self::canary_every`]: once a minute.
    pub const CANARIES_IF_HEARD: u32 = 12;
}

impl Default for Config {
    /// Paths change when the fabric does, which is seldom and mostly noticed; a missing one is there
    /// as soon as its node has booted. What ten thousand nodes ask again at this rate is what an SA can
    /// do. The kernel sends up to eleven MADs for what is left to it, within about two seconds, and has no
    /// window: one request in 5 s is as much as we send to an SA that does not answer.
    fn default() -> Self {
        Self {
            sa: sa::Config::default(),
            qos: Qos::default(),
            ttl: Duration::from_hours(1),
            negative_ttl: Duration::from_secs(5),
            max_cached: 65_536,
            max_waiters: 65_536,
            repeat_rate: 2,
            canary_every: Duration::from_secs(5),
            fallback_interval: Duration::from_secs(5),
        }
    }
}

/// Whether service and class of service are part of a question.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Qos {
    /// If the SA says that it knows of them. Otherwise its answer cannot depend on them, and each
    /// service of a node would be a question of its own.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// A port by the names that the kernel and people give it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortName {
    /// Its device.
    pub device: DeviceName,
    /// Its number there.
    pub port: PortNum,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.device, self.port)
    }
}

/// What is known of an InfiniBand port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortFacts {
    /// Whether it is up and configured by the subnet manager.
    pub is_active: bool,
    /// Whether MADs can be sent by it.
    pub has_umad: bool,
    /// Its LID, the first of 2^[`Self::lmc`].
    pub lid: Option<Lid>,
    /// Bits of its LID that it may use as it likes.
    pub lmc: u8,
    /// Where the subnet manager is.
    pub sm_lid: Option<Lid>,
    /// How it is reached.
    pub sm_sl: Sl,
    /// Its GIDs, in the order of the table. At most [`Self::MAX_TABLE`].
    pub gids: Vec<Gid>,
    /// Its partitions, in the order of the table. At most [`Self::MAX_TABLE`].
    pub pkeys: Vec<(PKeyIndex, PKey)>,
}

impl PortFacts {
    /// Entries that are looked at of tables which could have 65,536.
    pub const MAX_TABLE: usize = 256;

    /// Where its SA is, if it can be asked.
    pub fn sa(&self) -> Option<sa::Sa> {
        let lid = self.sm_lid.filter(|lid| lid.is_unicast())?;
        if !self.is_active || !self.has_umad {
            return None;
        }
        // The default partition, whole or limited; a port without it cannot reach the SA otherwise.
        let is_default = |pkey: PKey| pkey.get() | 0x8000 == PKey::DEFAULT.get();
        let default = self.pkeys.iter().find(|(_, pkey)| is_default(*pkey));
        let pkey_index = default.map_or_else(PKeyIndex::default, |(index, _)| *index);
        Some(sa::Sa { lid, sl: self.sm_sl, pkey_index })
    }

    /// The first of its GIDs that carries a floating LID.
    pub fn flid_gid(&self) -> Option<Gid> {
        self.gids.iter().copied().find(|gid| gid.flid().is_some())
    }
}

/// The driver's name for a request, not to be used again before its answer.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestId(pub u64);

/// "Which path leads there?"
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Comes back with the answer.
    pub id: RequestId,
    /// Where it starts.
    pub port: PortName,
    /// What is asked.
    pub question: PathQuestion,
    /// Whether the kernel asks.
    pub rank: Rank,
    /// When nobody waits any more.
    pub deadline: Instant,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A port is there, or something about it has changed.
    Port {
        /// The driver's name for it.
        port: PortIndex,
        /// The kernel's name for it, always the same for one index.
        name: PortName,
        /// What is known of it.
        facts: PortFacts,
    },
    /// A port is gone.
    PortGone {
        /// Its name.
        port: PortIndex,
    },
    /// The kernel said that something happened to a port. What it is now comes by [`Self::Port`].
    Happened {
        /// Its name.
        port: PortIndex,
        /// What happened.
        event: PortEvent,
    },
    /// Whether [`Self::Happened`] will tell what happens to a port. Not until this says so.
    Hearing {
        /// Its name.
        port: PortIndex,
        /// Whether it is so.
        heard: bool,
    },
    /// Whether reports that the SA sends to a port come by [`Self::Mad`]. Not until this says so. The
    /// port subscribes to them for as long as they do.
    Reports {
        /// Its name.
        port: PortIndex,
        /// Whether it is so.
        taken: bool,
    },
    /// A MAD came.
    Mad {
        /// By this port.
        port: PortIndex,
        /// From the port with this LID.
        from: Option<Lid>,
        /// Its bytes.
        mad: &'a [u8],
    },
    /// The kernel gives back what nobody answered.
    Unanswered,
    /// What [`sa::Transmit`] asked for was not sent.
    NotSent,
}

/// An asynchronous event of a port, as `enum ib_event_type` of include/rdma/ib_verbs.h has it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PortEvent {
    /// The port became active (`IB_EVENT_PORT_ACTIVE`).
    Active,
    /// The port is no longer active (`IB_EVENT_PORT_ERR`).
    Error,
    /// The port has another LID (`IB_EVENT_LID_CHANGE`).
    LidChange,
    /// The port's partitions have changed (`IB_EVENT_PKEY_CHANGE`).
    PKeyChange,
    /// The subnet manager is another (`IB_EVENT_SM_CHANGE`).
    SmChange,
    /// The subnet manager has its clients register again (`IB_EVENT_CLIENT_REREGISTER`): it may be
    /// another one in the same place, which has given other ports other LIDs. May come before
    /// [`Self::Active`].
    ClientReregister,
    /// The port's GIDs have changed (`IB_EVENT_GID_CHANGE`).
    GidChange,
}

impl PortEvent {
    /// Whether what the SA has said before may be wrong now. While a port is down nothing can be
    /// asked; when it is up again, that is an event of its own.
    pub(super) fn is_cause_for_doubt(self) -> bool {
        self != Self::Error
    }
}

impl fmt::Display for PortEvent {
    /// As libibverbs names it, in lower case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "port-active",
            Self::Error => "port-error",
            Self::LidChange => "lid-change",
            Self::PKeyChange => "pkey-change",
            Self::SmChange => "sm-change",
            Self::ClientReregister => "client-reregister",
            Self::GidChange => "gid-change",
        })
    }
}

/// A request has its answer. Each gets exactly one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answered {
    /// Of the request.
    pub id: RequestId,
    /// The answer.
    pub outcome: Outcome,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// This path leads there.
    Found {
        /// As the SA gave it.
        record: PathRecord,
        /// When.
        source: Source,
    },
    /// The SA knows no path.
    NoRecord {
        /// When it said so.
        source: Source,
    },
    /// The SA does not answer this question, or not so that it can be understood.
    Refused(Option<Refusal>),
    /// The SA did not answer in time.
    Silent,
    /// The SA had no time.
    Busy,
    /// There is no such InfiniBand port.
    UnknownPort,
    /// The port is not up, has no subnet manager, or cannot send MADs.
    NoSa,
    /// Too much is being asked at once.
    Overloaded,
}

/// Where an answer is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source {
    /// The SA has just said so.
    Sa,
    /// It was remembered.
    Cache,
    /// It was remembered, and something has happened since that leaves it in doubt; the SA cannot be
    /// asked at the moment, or has enough to do.
    Doubted,
}

/// How much is held.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Load {
    /// Questions that the SA is being asked.
    pub questions: usize,
    /// Requests that wait for them.
    pub waiters: usize,
    /// Answers remembered.
    pub cached: usize,
}

/// An answer that is remembered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cached {
    /// Where the path starts.
    pub port: PortName,
    /// What was asked.
    pub question: PathQuestion,
    /// `None` for "there is no such path".
    pub record: Option<PathRecord>,
    /// It is not given from this moment on.
    pub expires_at: Instant,
    /// Whether something has happened since.
    pub is_doubted: bool,
}

crate::counters! {
    /// What the resolution of paths counts. Each request is counted once under
    /// [`Counter::Requests`] and, when it ends, once under one of the eleven that follow.
    pub enum Counter {
        /// Requests made.
        Requests = "requests",
        /// Requests answered with a path from the cache: questions that the SA was spared.
        FoundCache = "found-cache",
        /// Requests answered with a path from the cache that is in doubt, because the SA was to be
        /// spared or did not answer.
        FoundDoubted = "found-doubted",
        /// Requests answered with a path from the SA.
        FoundSa = "found-sa",
        /// Requests for which the cache knew that there is no path.
        NoRecordCache = "no-record-cache",
        /// Requests for which the SA knew no path.
        NoRecordSa = "no-record-sa",
        /// Requests that the SA refused, or answered with what makes no sense.
        Refused = "refused",
        /// Requests that the SA did not answer in time.
        Silent = "silent",
        /// Requests that the SA had no time for.
        Busy = "busy",
        /// Requests by a port that we do not have.
        UnknownPort = "unknown-port",
        /// Requests by a port without an SA.
        NoSa = "no-sa",
        /// Requests refused because too much was being asked.
        Overloaded = "overloaded",
        /// Requests that joined a question which was under way: the SA was spared.
        Joined = "joined",
        /// Requests without an answer that the kernel was left to ask about itself.
        Fallbacks = "fallbacks",
        /// Those that it was not, because there was one not long ago.
        FallbacksSpared = "fallbacks-spared",
        /// Questions asked again before their answer expired.
        Refreshes = "refreshes",
        /// Answers asked for again although nothing had happened, to see whether the SA says the same.
        Canaries = "canaries",
        /// Answers in doubt that were asked for again.
        DoubtsAsked = "doubts-asked",
        /// Answers of the SA about another path than was asked for.
        WrongPath = "wrong-path",
        /// Answers forgotten before their time, to make room.
        Evicted = "evicted",
        /// Answers that a daemon before this one has left.
        Restored = "restored",
        /// Answers that a daemon before this one has left, and that are of no use: their port has
        /// changed, or did not come up.
        NotRestored = "not-restored",
        /// Events of ports that the kernel told.
        Events = "events",
        /// Times that all answers of a port came into doubt, because something about it changed or the
        /// kernel told an event.
        Doubts = "doubts",
        /// Times that all answers of a port came into doubt, because IPoIB asked again for a path that
        /// it had been given.
        AskedAgain = "asked-again",
        /// Times that all answers of a port came into doubt, because the SA gave a GID another LID than
        /// before, or the same question another answer.
        Contradicted = "contradicted",
        /// Times that an SA was asked to begin or end to tell of a trap.
        Informs = "informs",
        /// Those that it did not confirm.
        InformsFailed = "informs-failed",
        /// Reports of the SA that came.
        Reports = "reports",
        /// Reports about a GID of which something was remembered, which is in doubt since.
        ReportsDoubted = "reports-doubted",
        /// Reports about a GID of which nothing was remembered.
        ReportsUnknown = "reports-unknown",
        /// Reports about what we did not want to be told of, or that make no sense.
        ReportsOther = "reports-other",
        /// Reports that were left for the SA to send again, because too many answers waited.
        ReportsDropped = "reports-dropped",
        /// Reports that did not come from the LID of the SA.
        ReportsWrongLid = "reports-wrong-lid",
        /// Times that all answers of a port became wrong.
        Voided = "voided",
    }
}
