// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Inputs and outputs of the path resolution.

use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{
    DeviceName, Gid, Guid, Lid, PKey, PathRecord, PortNum, Rate, Sl, SubnetPrefix,
};
use ibarr_common::wire::ls::Seq;
use ibarr_common::wire::sa::{PathCount, PathQuery, PathQuestion, Refusal};
use ibarr_common::wire::umad::PKeyIndex;

use crate::places::User;
use crate::request::{Caller, Freshness, RequestId, UserRequest};
use crate::sa::{self, PortIndex, Rank};

/// Configuration and bounds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Of the SA client.
    pub sa: sa::Config,
    /// Whether service and class of service are part of a question.
    pub qos: Qos,
    /// How long a path is remembered, varied by a random quarter.
    pub ttl: Duration,
    /// How long an answer without path is remembered.
    pub negative_ttl: Duration,
    /// How many paths to a destination are asked for, to be given in turn, if ports have several LIDs.
    pub spread: PathCount,
    /// Maximum number of remembered answers.
    pub max_cached: usize,
    /// Maximum number of requests that wait for the SA. Further ones are refused at once.
    pub max_waiters: usize,
    /// Maximum number of questions per second and port for refreshes and for paths of an earlier
    /// daemon.
    pub repeat_rate: u32,
    /// Minimum time between two fallbacks of a port, among requests that its SA does not answer or
    /// that there is no room for.
    pub fallback_interval: Duration,
    /// What the kernel is told if the SA knows no path.
    pub on_no_record: NoPath,
    /// What the kernel is told if the SA is silent.
    pub on_sa_silent: NoPath,
    /// Mean interval at which a port asks for one of the paths in use without a reason for doubt,
    /// longer by a factor if events of the port are received. Zero for never.
    pub canary_every: Duration,
}

impl Config {
    /// Factor of [`Self::canary_every`] where events are heard: once a minute by default.
    pub const CANARIES_IF_HEARD: u32 = 12;
    /// The same while a port uses a path by a router: no event tells that the router has failed.
    pub const CANARIES_IF_ROUTED: u32 = 3;

    /// The most of [`Self::spread`]. More would add little: with eight, flows that meet in one LID are an eighth.
    pub const MOST_SPREAD: u8 = 8;
}

impl Default for Config {
    /// Paths change only with the fabric, which is rare and usually noticed; a missing path exists
    /// as soon as its node has booted. An SA can answer what ten thousand nodes repeat at this
    /// rate. For a fallback the kernel sends up to eleven MADs within about two seconds, without a
    /// window: one request in 5 s is as much load as ours on an SA that does not answer.
    fn default() -> Self {
        Self {
            sa: sa::Config::default(),
            qos: Qos::default(),
            ttl: Duration::from_hours(1),
            negative_ttl: Duration::from_secs(5),
            spread: PathCount::ONE,
            max_cached: 65_536,
            max_waiters: 65_536,
            repeat_rate: 2,
            canary_every: Duration::from_secs(5),
            fallback_interval: Duration::from_secs(5),
            on_no_record: NoPath::Final,
            on_sa_silent: NoPath::Fallback,
        }
    }
}

ibarr_common::words! {
    /// The answer to the kernel if there is no path.
    ///
    /// An answer without a path fails the caller with -EIO, where the kernel without a daemon returns
    /// -EINVAL. No answer gives -EINVAL on every kernel. `ib_nl_process_good_resolve_rsp` of sa_query.c
    /// passes on -EIO or 0; `recv_handler` there turns a MAD of the SA with an error status into
    /// -EINVAL. Since 6.3 `cma_query_handler` of cma.c returns -EINVAL for a record with only
    /// `IB_PATH_PRIMARY`; 6.1 and 6.2 treat that as success without a path, and the daemon cannot tell
    /// these kernels apart. -EINVAL therefore costs the SA a query: [`NoPath::Fallback`].
    NoPath {
        /// There is no path: the caller fails at once.
        Final = "final",
        /// The kernel may ask the SA itself.
        Fallback = "fallback",
    }
}

ibarr_common::words! {
    /// Whether service and class of service are part of a question.
    #[derive(Default)]
    Qos {
        /// If the SA supports quality of service. Otherwise its answer cannot depend on them, and each
        /// service of a node would make a separate question.
        #[default]
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
}

/// The name of a port for the kernel and for people.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct PortName {
    pub device: DeviceName,
    /// The port number on the device.
    pub port: PortNum,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.device, self.port)
    }
}

impl FromStr for PortName {
    type Err = ParsePortNameError;

    fn from_str(text: &str) -> Result<Self, ParsePortNameError> {
        let parse = || {
            let (device, port) = text.split_once('/')?;
            let port = PortNum::new(port.parse().ok()?)?;
            Some(Self { device: device.parse().ok()?, port })
        };
        parse().filter(|name| name.to_string() == text).ok_or(ParsePortNameError)
    }
}

/// Error: a text is not a [`PortName`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a port: write it like mlx5_0/1; ibarr ports lists them")]
pub struct ParsePortNameError;

/// The state of an InfiniBand port. By default it is down, and nothing is known of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct PortFacts {
    /// Whether the port is up and configured by the subnet manager.
    pub is_active: bool,
    /// Whether the port can send MADs.
    pub has_umad: bool,
    /// Its LID, the first of 2^[`Self::lmc`].
    pub lid: Option<Lid>,
    /// LMC: number of low bits of the LID that the port ignores.
    pub lmc: u8,
    /// LID of the subnet manager.
    pub sm_lid: Option<Lid>,
    /// Service level of packets to it.
    pub sm_sl: Sl,
    pub gids: GidTable,
    /// The partitions, in the order of the table. At most [`Self::MAX_TABLE`].
    pub pkeys: Vec<(PKeyIndex, PKey)>,
    /// The highest rate of its link.
    pub rate: Option<Rate>,
    pub device: Device,
}

/// The device of a port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Device {
    /// The GUID of the node.
    pub guid: Option<Guid>,
    /// How many ports it has.
    pub ports: u8,
}

impl PortFacts {
    /// Number of entries read from tables that could have 65,536.
    pub const MAX_TABLE: usize = 256;

    /// The address of its SA, if it can be asked.
    pub fn sa(&self) -> Option<sa::Sa> {
        let lid = self.sm_lid.filter(|lid| lid.is_unicast())?;
        if !self.is_active || !self.has_umad {
            return None;
        }
        // The default partition, with full or limited membership; without it a port cannot reach
        // the SA.
        let is_default = |pkey: PKey| pkey.get() | 0x8000 == PKey::DEFAULT.get();
        let default = self.pkeys.iter().find(|(_, pkey)| is_default(*pkey));
        let pkey_index = default.map_or_else(PKeyIndex::default, |(index, _)| *index);
        Some(sa::Sa { lid, sl: self.sm_sl, pkey_index })
    }

    /// The entry of the table for a partition, in which membership may differ; the first one for none.
    pub fn partition(&self, pkey: Option<PKey>) -> Option<PKey> {
        let is_it = |own: &PKey| pkey.is_none_or(|pkey| pkey.get() << 1 == own.get() << 1);
        self.pkeys.iter().map(|(_, own)| *own).find(is_it)
    }

    /// Whether a LID is one of the port's.
    pub fn has_lid(&self, lid: Lid) -> bool {
        self.lid.is_some_and(|own| lid.get() >> self.lmc.min(7) == own.get() >> self.lmc.min(7))
    }

    /// The first GID that carries a floating LID.
    pub fn flid_gid(&self) -> Option<Gid> {
        self.gids.iter().find(|gid| gid.flid().is_some())
    }

    /// The GID by which routers find the port without a look-up: it has a LID of the port in its 16 low bits, and zeros
    /// in the other 48 of the GUID. The subnet manager sets it beside the port's own one.
    pub fn alias(&self) -> Option<Gid> {
        let others = self.gids.entries().filter(|(index, _)| *index != GidIndex::OWN);
        others.map(|(_, gid)| gid).find(|gid| gid.alias_lid().is_some_and(|lid| self.has_lid(lid)))
    }
}

/// Index in a port's table of GIDs.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct GidIndex(pub u16);

impl GidIndex {
    /// That of the port's own GID, which its port GUID and the subnet's prefix make (IBA 4.1.1).
    pub const OWN: Self = Self(0);
}

/// A port's table of GIDs, without its empty entries. At most [`PortFacts::MAX_TABLE`] are read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GidTable(Vec<(GidIndex, Gid)>);

impl GidTable {
    /// The GIDs, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = Gid> {
        self.0.iter().map(|(_, gid)| *gid)
    }

    /// The GIDs with their indexes, in the order of the table.
    pub fn entries(&self) -> impl Iterator<Item = (GidIndex, Gid)> {
        self.0.iter().copied()
    }

    /// The first GID, usually the port's own.
    pub fn first(&self) -> Option<Gid> {
        self.iter().next()
    }

    /// Whether the table has this GID.
    pub fn contains(&self, gid: Gid) -> bool {
        self.iter().any(|own| own == gid)
    }
}

impl FromIterator<(GidIndex, Gid)> for GidTable {
    fn from_iter<T: IntoIterator<Item = (GidIndex, Gid)>>(entries: T) -> Self {
        Self(entries.into_iter().collect())
    }
}

/// A table without empty entries.
impl<const N: usize> From<[Gid; N]> for GidTable {
    fn from(gids: [Gid; N]) -> Self {
        (0..).map(GidIndex).zip(gids).collect()
    }
}

/// Asks for a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Request {
    /// Repeated in the answer.
    pub id: RequestId,
    pub caller: Caller,
    /// The source port of the path.
    pub port: PortName,
    pub question: Search,
    /// Of a question whose answer is remembered.
    pub freshness: Freshness,
    /// When the caller stops waiting.
    pub deadline: Instant,
}

impl Request {
    /// A user of this node asks.
    pub fn of_user(
        id: UserRequest,
        user: User,
        port: PortName,
        question: impl Into<Search>,
        deadline: Instant,
    ) -> Self {
        let (caller, id, question) = (id.caller(user), RequestId::User(id), question.into());
        Self { id, caller, port, question, freshness: Freshness::Any, deadline }
    }

    pub(super) fn rank(&self) -> Rank {
        if self.caller.is_kernel() { Rank::Kernel } else { Rank::Other }
    }
}

/// What a request for a path asks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Search {
    /// Its answer is remembered.
    Path(PathQuestion),
    /// The SA is asked each time. Which answers it would give to other questions is for the SA to say: a port
    /// has several LIDs, and a LID several GIDs.
    Known(PathQuery),
}

impl From<PathQuestion> for Search {
    fn from(question: PathQuestion) -> Self {
        Self::Path(question)
    }
}

impl From<PathQuery> for Search {
    fn from(query: PathQuery) -> Self {
        PathQuestion::try_from(query).map_or(Self::Known(query), Self::Path)
    }
}

/// An input of the path resolution.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Input<'a> {
    /// A port exists, or has changed.
    Port {
        /// The driver's number of the port.
        port: PortIndex,
        /// The kernel's name of the port, always the same for one index.
        name: PortName,
        facts: PortFacts,
    },
    /// A port no longer exists.
    PortGone { port: PortIndex },
    /// The kernel reported an event of a port. Its new state follows as [`Self::Port`].
    Happened { port: PortIndex, event: PortEvent },
    /// Whether [`Self::Happened`] follows events of a port; `false` at first.
    Hearing {
        port: PortIndex,
        /// Whether events are received.
        heard: bool,
    },
    Mad {
        port: PortIndex,
        /// From the port with this LID.
        from: Option<Lid>,
        mad: &'a [u8],
    },
    /// A caller asks for a path. One [`Event::Answered`] follows, at once if the answer is remembered, at the latest
    /// at the deadline.
    Resolve(Request),
    /// The same, but the SA is not asked: [`Event::Answered`] or [`Event::NotRemembered`] follows at once. The answer
    /// counts as used.
    Recall(Request),
    /// A caller has no room for a request of the kernel. [`Event::Overloaded`] follows.
    Overloaded { seq: Seq, port: PortName },
    /// The kernel returned a MAD that was not answered.
    Unanswered,
    /// The driver could not send the MAD of an [`sa::Transmit`].
    NotSent,
}

ibarr_common::words! {
    /// An asynchronous event of a port, as in `enum ib_event_type` of include/rdma/ib_verbs.h.
    PortEvent {
        /// The port became active (`IB_EVENT_PORT_ACTIVE`).
        Active = "port-active",
        /// The port is no longer active (`IB_EVENT_PORT_ERR`).
        Error = "port-error",
        /// The port has another LID (`IB_EVENT_LID_CHANGE`).
        LidChange = "lid-change",
        /// The port's partitions have changed (`IB_EVENT_PKEY_CHANGE`).
        PKeyChange = "pkey-change",
        /// The subnet manager has changed (`IB_EVENT_SM_CHANGE`).
        SmChange = "sm-change",
        /// The subnet manager requires clients to register again (`IB_EVENT_CLIENT_REREGISTER`): it may
        /// be another one at the same place that has given other ports new LIDs. May come before
        /// [`Self::Active`].
        ClientReregister = "client-reregister",
        /// The port's GIDs have changed (`IB_EVENT_GID_CHANGE`).
        GidChange = "gid-change",
    }
}

impl PortEvent {
    /// Whether earlier answers of the SA may be wrong now. While a port is down it cannot ask;
    /// coming up again is a separate event.
    pub(super) fn is_cause_for_doubt(self) -> bool {
        self != Self::Error
    }
}

/// A change of this node's ports that other cores need to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub enum PortChange {
    /// A port exists, has changed, or is gone.
    Facts,
    /// A port has another subnet prefix than it last had.
    Subnet {
        /// No longer the prefix of its subnet.
        before: SubnetPrefix,
        after: SubnetPrefix,
    },
}

/// What another core is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Event {
    Answered(Answered),
    /// [`Input::Recall`] has found nothing.
    NotRemembered(Request),
    /// The answer to [`Input::Overloaded`].
    Overloaded {
        seq: Seq,
        /// The kernel, which has asked, is to ask the SA itself.
        is_left_to_kernel: bool,
    },
}

/// The answer to a request. Each request gets exactly one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Answered {
    pub id: RequestId,
    pub outcome: Outcome,
    /// The kernel, which has asked, is to ask the SA itself.
    pub is_left_to_kernel: bool,
}

ibarr_common::outcomes! {
    /// The result of a request.
    Outcome {
        /// A path.
        Found {
            /// The SA's record.
            record: PathRecord,
            /// The origin of the record.
            source: Source,
        } = "found",
        /// The SA knows no path.
        NoRecord {
            /// The origin of this answer.
            source: Source,
        } = "no-record",
        /// The SA refuses the question, or its answer is unusable.
        Refused(Option<Refusal>) = "refused",
        /// The SA did not answer in time.
        Silent = "silent",
        /// The SA was busy until the deadline.
        Busy = "busy",
        /// There is no such InfiniBand port.
        UnknownPort = "unknown-port",
        /// The port is not up, has no subnet manager, or cannot send MADs.
        NoSa = "no-sa",
        /// A bound was reached.
        Overloaded = "overloaded",
    }
    /// The result of a request for a path, as documents have it.
    Status {}
}

impl Outcome {
    /// Its status; the record, if found; its origin, if the SA said it; and why it refused, if it told.
    pub fn parts(self) -> (Status, Option<PathRecord>, Option<Source>, Option<Refusal>) {
        let (record, source, refusal) = match self {
            Self::Found { record, source } => (Some(record), Some(source), None),
            Self::NoRecord { source } => (None, Some(source), None),
            Self::Refused(refusal) => (None, None, refusal),
            _ => (None, None, None),
        };
        (self.into(), record, source, refusal)
    }
}

ibarr_common::words! {
    /// The origin of an answer.
    Source {
        /// The SA has just answered.
        Sa = "sa",
        /// The cache.
        Cache = "cache",
        /// The cache, but something has happened since that puts the answer in doubt; the SA cannot be
        /// asked now, or should be spared.
        Doubted = "doubted",
    }
}

/// The sizes of the tables.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Load {
    /// Questions that the SA is being asked.
    pub questions: usize,
    /// Requests that wait for these.
    pub waiters: usize,
    pub cached: usize,
}

#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Cached {
    /// The source port of the path.
    pub port: PortName,
    pub question: PathQuestion,
    /// `None` for "no such path".
    pub record: Option<PathRecord>,
    /// The paths that are given in turn with this one.
    pub others: Vec<PathRecord>,
    /// The answer is not used from this time on.
    pub expires_at: Instant,
    /// Whether it is in doubt.
    pub is_doubted: bool,
}

crate::counters! {
    /// Counters of the path resolution. Each request is counted once under [`Counter::Requests`]
    /// and, when it ends, once under one of the eleven that follow.
    pub enum Counter {
        /// Requests made.
        Requests = normal("requests"),
        /// Requests answered with a path from the cache, without a question to the SA.
        FoundCache = normal("found-cache"),
        /// Requests answered with a path in doubt from the cache, because the SA was to be spared
        /// or did not answer.
        FoundDoubted = error("found-doubted"),
        /// Requests answered with a path from the SA.
        FoundSa = normal("found-sa"),
        /// Requests for which the cache knew that there is no path.
        NoRecordCache = error("no-record-cache"),
        /// Requests for which the SA knew no path.
        NoRecordSa = error("no-record-sa"),
        /// Requests that the SA refused, or answered with an illegal record.
        Refused = error("refused"),
        /// Requests that the SA did not answer in time.
        Silent = error("silent"),
        /// Requests that ended because the SA was busy.
        Busy = error("busy"),
        /// Requests by a port that does not exist.
        UnknownPort = error("unknown-port"),
        /// Requests by a port without an SA.
        NoSa = error("no-sa"),
        /// Requests refused because a bound was reached.
        Overloaded = error("overloaded"),
        /// Requests that joined a question in flight.
        Joined = normal("joined"),
        /// Requests without an answer that were left to the kernel.
        Fallbacks = error("fallbacks"),
        /// Such requests that failed, because another one was left to the kernel recently.
        FallbacksSpared = error("fallbacks-spared"),
        /// Questions asked again before their answer expired.
        Refreshes = normal("refreshes"),
        /// Answers asked for again without a reason for doubt, to see whether they have changed.
        Canaries = normal("canaries"),
        /// Answers in doubt that were asked for again.
        DoubtsAsked = normal("doubts-asked"),
        /// Answers of the SA about another path than the requested one.
        WrongPath = error("wrong-path"),
        /// Requests of the kernel that it was told to ask the SA itself, because the SA's record has a GID with
        /// another prefix than the request. The kernel would connect by it and get no data.
        OtherGids = error("other-gids"),
        /// Answers dropped before their expiry, to make room.
        Evicted = error("evicted"),
        /// Answers taken over from an earlier daemon.
        Restored = normal("restored"),
        /// Answers taken over from a file of the administrator.
        Preloaded = normal("preloaded"),
        /// Answers of an earlier daemon or of a file that were dropped: their port has changed, or did
        /// not come up.
        NotRestored = error("not-restored"),
        /// Events of ports that the kernel reported.
        Events = normal("events"),
        /// Times that all answers of a port came into doubt because the port changed or the kernel
        /// reported an event.
        Doubts = normal("doubts"),
        /// Times that all answers of a port came into doubt because IPoIB asked again for a path
        /// that it had got.
        AskedAgain = normal("asked-again"),
        /// Times that all answers of a port came into doubt because the SA gave a GID another LID
        /// than before, or a question another answer.
        Contradicted = error("contradicted"),
        /// Times that all answers of a port became wrong.
        Voided = error("voided"),
    }
}

ibarr_common::serde_as_text!(PortName);
