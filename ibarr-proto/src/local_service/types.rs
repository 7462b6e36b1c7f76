// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What goes into the kernel's side and comes out of it.

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::ls::{Emitted, Error, PortId, ResolvePath, Seq, Timeout};

use crate::ip2gid::Question;
use crate::paths::PortName;

/// What an administrator decides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Whether the kernel is made to look at our answers at once. Otherwise its callers wait until
    /// their time is over, or until some neighbour entry of the machine changes.
    pub nudge: bool,
    /// How long the kernel waits for an answer to a path request before it asks the SA.
    pub timeout: Timeout,
    /// When an address request is given up, from its first sight. The kernel says neither how long
    /// its caller waits nor when it has gone.
    pub deadline: Duration,
    /// What it is told if the SA knows no path.
    pub on_no_record: NoPath,
    /// What it is told if the SA is silent or busy.
    pub on_sa_silent: NoPath,
}

/// What the kernel is told where there is no path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoPath {
    /// That there is none: its caller fails at once.
    Final,
    /// That it may ask the SA itself.
    Fallback,
}

impl Default for Config {
    /// The kernel's own time-out: told to it, so that it is known whatever was told to it before.
    fn default() -> Self {
        Self {
            nudge: true,
            timeout: Timeout::DEFAULT,
            deadline: DEADLINE,
            on_no_record: NoPath::Final,
            on_sa_silent: NoPath::Fallback,
        }
    }
}

/// Bounds and times. Only tests use others than the default.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Address requests held: waiting ones, and answered ones in memory. A further one takes the
    /// place of the one that was answered longest ago; if all are waiting, of the one that the kernel
    /// mentioned longest ago, if that was [`LATELY`] ago. Otherwise it is not taken; the kernel
    /// repeats it after the next nudge.
    pub requests: usize,
    /// Path requests that wait for their answer: the kernel is to ask the SA about further ones.
    /// And those whose answer the socket has no room for: further ones are not answered.
    pub paths: usize,
}

impl Default for Limits {
    /// The socket's buffer of 16 MiB holds about twice as many requests.
    fn default() -> Self {
        Self { requests: 16_384, paths: 16_384 }
    }
}

/// [`Config::deadline`] by default: callers of the kernel wait for 2 s (rping, librdmacm's examples,
/// MPI) or for 10 or 30 s (UCX, libfabric).
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A waiting request that the kernel has not mentioned for this time may be one whose caller has
/// gone: each nudge makes the kernel repeat those whose callers are there.
pub const LATELY: Duration = Duration::from_secs(3);

/// What could not be answered is tried again after this time, while the request's deadline holds,
/// and after twice this time once the request is older than [`LATELY`]: the kernel itself does not
/// ask again.
pub const RETRY: Duration = Duration::from_millis(500);

/// How long an answer is remembered for repetitions of its request, from when it was given.
pub const MEMORY: Duration = Duration::from_secs(5);

/// Answers to one request that are followed by nudges. The first nudge makes the kernel look at the
/// answer; if that came too early the kernel repeats the request, which is answered again.
pub const MAX_NUDGES: u8 = 3;

/// Pauses after a nudge, and after those that follow it, before it is repeated, unless there has
/// been another answer. What comes while the kernel sends a request, and does not wait for its
/// answer yet, is lost: the answer, and the nudge behind it as well. On a busy machine that takes
/// so long that it happens to one request in a thousand.
pub const FOLLOW_UPS: [Duration; 3] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(500)];

/// Least time between two nudges: each makes the kernel repeat all that is waiting. One caller that
/// asks for one address after another does not wait for that, and costs no repetition: a nudge for
/// the first answer to one request follows a nudge for one request at once, if nothing waits and at
/// most that one request, and no repetition, came while the last nudge was under way. The caller may
/// ask again before the daemon knows that the nudge which woke it has ended.
pub const NUDGE_INTERVAL: Duration = Duration::from_millis(1);

/// Where several ask together, a nudge waits until there has been no answer for this time, so that
/// it does not find those in the kernel who have only just asked.
pub const NUDGE_QUIET: Duration = Duration::from_millis(1);

/// But no longer than this after an answer, as long as all that the kernel asks is answered at once:
/// then a nudge finds next to nothing that it would repeat.
pub const NUDGE_WITHIN: Duration = Duration::from_millis(5);

/// While there is more to be read, a nudge would make the kernel repeat all of that. So it waits
/// until everything has been read; but no longer than this after an answer, should somebody always
/// ask faster than we read.
pub const NUDGE_BEHIND: Duration = Duration::from_millis(100);

/// After a nudge for requests that the socket had no room for, those that are lost within this time
/// are left to its repetitions. Else, where more waits than the socket holds, what a nudge makes the
/// kernel repeat would be lost and bring the next nudge, a thousand times a second.
pub const OVERRUN_PAUSE: Duration = Duration::from_millis(100);

/// Without nudges each answer is given again after this time: one that overtakes the kernel's
/// queueing of its request is lost. That takes the kernel some tens of microseconds. With nudges a
/// request that comes for the third time is answered only after this time: where the daemon is always
/// faster, because it is woken on the processor that the kernel was about to go on with, an answer
/// at once would be lost every time.
pub const REPEAT_AFTER: Duration = Duration::from_millis(2);

/// Names an address request to whoever looks for its answer. Never used again.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FlightId(pub(super) u64);

impl FlightId {
    /// Its number, counted from 0.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The one with this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Names a path request to whoever looks for its answer. Never used again.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PathFlightId(pub u64);

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// There is a socket to the kernel.
    Opened {
        /// Its number, which our messages carry.
        port_id: PortId,
        /// Whether the kernel sends its requests there already; else see [`Transmit::Join`].
        is_member: bool,
    },
    /// The socket is lost.
    Closed,
    /// A datagram came.
    Datagram {
        /// Who sent it, by the socket, not by what is written in it.
        sender: Sender,
        /// Its bytes, as far as they were received.
        bytes: &'a [u8],
        /// Whether it has more bytes than that.
        cut: bool,
    },
    /// The socket holds no more datagrams.
    Drained,
    /// The socket's buffer was full, and requests were lost.
    Overrun,
    /// What has become of [`Transmit::Nudge`].
    Nudged(Nudged),
    /// The daemon ends: nothing new is looked for, what is known is answered, and the kernel's
    /// time-out becomes what it was.
    Stop,
}

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sender {
    /// The kernel.
    Kernel,
    /// Another process: what it answers to the group, or what it would have us believe.
    Other,
}

/// One thing to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "sent where it is made, and never stored")]
pub enum Transmit {
    /// Send this to the kernel. It has been handed to the socket when the next is asked for.
    Message(Emitted),
    /// Join the group that the kernel sends its requests to. The kernel takes our messages.
    Join,
    /// Leave the group and close the socket: the kernel refuses our messages, with this error number.
    /// Nothing else is done with this socket.
    Leave(i32),
    /// Change a neighbour entry, so that the kernel looks at the answers before; to be answered by
    /// [`Input::Nudged`].
    Nudge(Nudge),
}

/// When a neighbour entry is changed. It may be a while after it was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Nudge {
    /// If the kernel has asked nothing since. What it has asked would be repeated, so that the
    /// nudge had better come after its answer: [`Nudged::Postponed`].
    IfQuiet,
    /// In any case.
    Anyway,
}

/// What has become of a nudge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Nudged {
    /// The kernel has noticed.
    Done,
    /// It was not made: there is something to be read first, or it is not known yet how.
    Postponed,
    /// The kernel has refused.
    Failed,
}

/// A fact for the resolver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// An answer is wanted; to be answered by `answered`.
    Wanted {
        /// Its name.
        flight: FlightId,
        /// What is asked. The egress is what the interface is called where the request comes from,
        /// which may be another network namespace.
        question: Question,
        /// When the kernel asked first.
        asked_at: Instant,
        /// When the request is given up.
        deadline: Instant,
    },
    /// It is no longer wanted.
    Unwanted {
        /// Its name.
        flight: FlightId,
        /// What was asked.
        question: Question,
    },
    /// There is no room for a request for a path by this port; to be answered by `path_overloaded`.
    PathOverloaded {
        /// Its number.
        seq: Seq,
        /// The port.
        port: PortName,
    },
    /// A path is wanted; to be answered by `path_answered`, at the latest at the deadline. It need
    /// not be if the socket is lost before.
    PathWanted {
        /// Its name.
        flight: PathFlightId,
        /// What is asked.
        request: ResolvePath,
        /// Long enough before the kernel's own that the answer is in time.
        deadline: Instant,
    },
}

crate::counters! {
    /// What the kernel's side counts. Each address request that is not a duplicate is counted once
    /// under [`Counter::Requests`] and, when it ends, once under one of the nine that follow.
    pub enum Counter {
        /// Address requests, each once however often the kernel repeats it.
        Requests = "requests",
        /// Requests for an address of ours.
        AnsweredLocal = "answered-local",
        /// Requests answered from the cache.
        AnsweredCache = "answered-cache",
        /// Requests answered after asking a peer.
        AnsweredPeer = "answered-peer",
        /// Requests given up: the address has no GID.
        NotFound = "given-up-not-found",
        /// Requests given up: nobody answered.
        TimedOut = "given-up-timed-out",
        /// Requests given up: no route leads there.
        Unreachable = "given-up-unreachable",
        /// Requests given up: too much was being asked.
        Overloaded = "given-up-overloaded",
        /// Requests with the number of another one, which the kernel therefore has forgotten.
        Superseded = "superseded",
        /// Requests that waited when the daemon ended or the socket was lost.
        Abandoned = "abandoned",
        /// Requests not taken because too many waited, and those that waited and made room.
        RequestsFull = "requests-full",
        /// Repetitions of a request that waits.
        DuplicatesWaiting = "duplicates-waiting",
        /// Repetitions of an answered request, which were answered from memory.
        DuplicatesAnswered = "duplicates-answered",
        /// Answers forgotten before their time, to make room.
        MemoryEvicted = "memory-evicted",
        /// Answers given again after a while: there are no nudges, or two answers had been lost.
        AnswersRepeated = "answers-repeated",
        /// Answers that the socket had no room for until it was too late.
        AnswersLate = "answers-late",
        /// Nudges begun, each for the answers before it.
        Nudges = "nudges",
        /// Nudges repeated, should the one before have been too early.
        NudgesRepeated = "nudges-repeated",
        /// Nudges of either kind that were not made then, mostly because the kernel was asking.
        NudgesPostponed = "nudges-postponed",
        /// Nudges that failed.
        NudgesFailed = "nudges-failed",
        /// Path requests that can be understood. Each is counted, when it ends, once under one of
        /// the ten that follow.
        PathRequests = "path-requests",
        /// Path requests answered with a path.
        PathsAnswered = "paths-answered",
        /// Path requests answered with "there is none".
        PathsNone = "paths-none",
        /// Path requests that the kernel was told to ask the SA about: by a port that is not one of
        /// ours.
        PathsUnknown = "paths-unknown",
        /// The same, by a port without an SA.
        PathsNoSa = "paths-no-sa",
        /// The same, because the SA knows no path.
        PathsNoRecord = "paths-no-record",
        /// The same, because the SA was silent.
        PathsSilent = "paths-silent",
        /// The same, because the SA was busy.
        PathsBusy = "paths-busy",
        /// The same, because the SA refused, or answered with what makes no sense.
        PathsRefused = "paths-refused",
        /// The same, because too much was being asked.
        PathsOverloaded = "paths-overloaded",
        /// Path requests without an answer that the kernel is told to be without a path, because it was
        /// left to ask about another one not long ago.
        PathsSpared = "paths-spared",
        /// The same, because the daemon ended; or the kernel has forgotten the request, or the socket
        /// was lost.
        PathsAbandoned = "paths-abandoned",
        /// Path requests that the kernel was told to ask the SA about, because they are malformed;
        /// why is counted below.
        PathsMalformed = "paths-malformed",
        /// Path requests not answered because the socket had no room for too long.
        PathsFull = "paths-full",
        /// Datagrams that another process sent.
        NotFromKernel = "not-from-kernel",
        /// Messages that ask for nothing.
        NotARequest = "not-a-request",
        /// Messages that ask for what we do not know.
        UnknownOperation = "unknown-operation",
        /// Messages of ours that the kernel says it took: kernels before 5.6.
        Confirmations = "confirmations",
        /// Messages of ours that the kernel refused.
        Refusals = "refusals",
        /// Datagrams longer than any request.
        DatagramsCut = "datagrams-cut",
        /// Times that the socket's buffer was full. What was lost is asked again after a nudge.
        Overruns = "overruns",
        /// Messages shorter than what they say they hold.
        MalformedTruncated = "malformed-truncated",
        /// Messages of a length that their attributes do not have.
        MalformedAttributeLength = "malformed-attribute-length",
        /// Requests without an attribute that they must have.
        MalformedAttributeMissing = "malformed-attribute-missing",
        /// Requests that say the same thing twice.
        MalformedAttributeRepeated = "malformed-attribute-repeated",
        /// Requests with an attribute that we do not know and must not skip.
        MalformedAttributeMandatory = "malformed-attribute-mandatory",
        /// Requests with a value that cannot be: of an interface, device, port, use of paths, GID,
        /// partition or class of service.
        MalformedValue = "malformed-value",
        /// Requests for an address that no interface can own.
        MalformedTarget = "malformed-target",
    }
}

impl From<Error> for Counter {
    fn from(error: Error) -> Self {
        match error {
            Error::Truncated => Self::MalformedTruncated,
            Error::Kind => Self::UnknownOperation,
            Error::AttributeLength => Self::MalformedAttributeLength,
            Error::AttributeMissing => Self::MalformedAttributeMissing,
            Error::AttributeRepeated => Self::MalformedAttributeRepeated,
            Error::AttributeMandatory => Self::MalformedAttributeMandatory,
            Error::IfIndex
            | Error::DeviceName
            | Error::PortNum
            | Error::PathUse
            | Error::Gid
            | Error::PKey
            | Error::QosClass
            | Error::PathCount
            | Error::Timeout => Self::MalformedValue,
        }
    }
}
