// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Inputs and outputs of the kernel's side.

use core::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::ls::{Emitted, Error, PortId, Seq, Timeout};
use ibarr_common::wire::sa::PathQuestion;

use crate::durations::Histogram;
use crate::ip2gid::Question;
use crate::paths::{self, PortName};
use crate::request::{KernelRequest, Outcome};

/// The configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Whether the daemon nudges the kernel to look at answers at once. Otherwise a caller waits
    /// until its time-out, or until any neighbour entry of the machine changes.
    pub nudge: bool,
    /// How long the kernel waits for an answer to a path request before it asks the SA.
    pub timeout: Timeout,
    /// When an address request is dropped, counted from its first arrival. The kernel tells neither
    /// how long its caller waits nor when the caller has gone.
    pub deadline: Duration,
    /// The product has the defaults; tests and the simulation set lower ones, to reach them.
    pub limits: Limits,
}

impl Default for Config {
    /// A request for a path then waits for 2.4 s. Without a daemon a caller that gives the usual 2 s waits for 2.2 s:
    /// the kernel sends eleven MADs, a tenth of the caller's time apart.
    fn default() -> Self {
        Self { nudge: true, timeout: TIMEOUT, deadline: DEADLINE, limits: Limits::default() }
    }
}

const TIMEOUT: Timeout = match Timeout::from_millis(3_000) {
    Some(timeout) => timeout,
    None => unreachable!(),
};

/// Bounds and times. Only tests change them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Address requests held: waiting ones, and recently answered ones. A further request replaces
    /// the one that was answered longest ago. If all are waiting, it replaces the one that the
    /// kernel sent longest ago, if that was [`LATELY`] ago; otherwise it is dropped, and the kernel
    /// repeats it after the next nudge.
    pub requests: usize,
    /// Path requests that wait for their answer: for further ones the kernel is told to ask the SA.
    /// Also the number of their answers that wait for room in the socket: further requests get no
    /// answer.
    pub paths: usize,
}

impl Default for Limits {
    /// The socket's buffer of 16 MiB holds about twice as many requests.
    fn default() -> Self {
        Self { requests: 16_384, paths: 16_384 }
    }
}

/// The default of [`Config::deadline`]: callers of the kernel wait for 2 s (rping, librdmacm's
/// examples, MPI) or for 10 or 30 s (UCX, libfabric).
pub const DEADLINE: Duration = Duration::from_secs(30);

/// If the kernel has not repeated a waiting request for this long, its caller may have gone: each
/// nudge makes the kernel repeat the requests of callers that still wait.
pub const LATELY: Duration = Duration::from_secs(3);

/// A failed search is repeated after this time until the request's deadline, and after twice this
/// time once the request is older than [`LATELY`]: the kernel itself does not ask again.
pub const RETRY: Duration = Duration::from_millis(500);

/// How long an answer is given to repetitions of its request: nudges bring them within that time.
pub const MEMORY: Duration = Duration::from_secs(1);

/// Maximum number of answers to one request that are followed by nudges. The first nudge makes the
/// kernel look at the answer; if the answer came too early, the kernel repeats the request and gets
/// the answer again.
pub const MAX_NUDGES: u8 = 3;

/// Pauses after a nudge, and between its repetitions, unless there is another answer meanwhile. The
/// kernel loses an answer, and the nudge after it, if it is still sending the request and does not
/// wait for the answer yet. On a busy machine this happens to one request in a thousand.
pub const FOLLOW_UPS: [Duration; 3] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(500)];

/// Minimum time between two nudges: each makes the kernel repeat all waiting requests. The limit
/// does not apply to a single caller that asks for one address after another, because it causes no
/// repetition: the nudge for the first answer to a request follows a nudge for one request at once,
/// if no request waits and during the last nudge at most that one request and no repetition
/// arrived. The caller may ask again before the daemon knows that the nudge which woke it has
/// ended.
pub const NUDGE_INTERVAL: Duration = Duration::from_millis(1);

/// With several callers, a nudge waits until there has been no answer for this time. Otherwise it
/// would make the kernel repeat requests that it has just sent.
pub const NUDGE_QUIET: Duration = Duration::from_millis(1);

/// Maximum delay of a nudge after an answer, as long as all requests are answered at once: then a
/// nudge causes hardly any repetition.
pub const NUDGE_WITHIN: Duration = Duration::from_millis(5);

/// While there are requests to read, a nudge would make the kernel repeat all of them. So it waits
/// until everything has been read, but at most this long after an answer, in case the kernel always
/// asks faster than the daemon reads.
pub const NUDGE_BEHIND: Duration = Duration::from_millis(100);

/// After a nudge for requests that the socket had no room for, requests lost within this time are
/// left to the kernel's repetitions. If more requests wait than the socket holds, the repetitions
/// after a nudge would otherwise be lost and cause the next nudge, a thousand times a second.
pub const OVERRUN_PAUSE: Duration = Duration::from_millis(100);

/// Without nudges, each answer is sent again after this time, because the kernel loses an answer
/// that arrives before it has queued the request; queueing takes some tens of microseconds. With
/// nudges, a request that arrives for the third time is answered only after this time. If the
/// daemon is always faster, because it is woken on the processor where the kernel was about to
/// continue, every immediate answer would be lost.
pub const REPEAT_AFTER: Duration = Duration::from_millis(2);

/// An event for the core.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Input<'a> {
    /// The driver has opened a socket to the kernel.
    Opened {
        /// The port ID of the socket, which our messages carry.
        port_id: PortId,
        /// Whether the socket is in the group already; otherwise see [`Transmit::Join`].
        is_member: bool,
    },
    /// There is no socket any more, or it could not be opened. [`Transmit::Open`] follows in time.
    Closed(Closed),
    Datagram {
        /// The sender by the socket address, not by the contents.
        sender: Sender,
        bytes: &'a [u8],
        /// Whether the datagram was longer than `bytes`.
        cut: bool,
    },
    /// The socket has no more datagrams.
    Drained,
    /// The socket's buffer was full, and requests were lost.
    Overrun,
    /// The result of [`Transmit::Nudge`].
    Nudged(Nudged),
    /// The answer to [`Event::Wanted`].
    Answered { id: KernelRequest, outcome: Outcome },
    /// The answer to [`Event::PathWanted`].
    PathAnswered {
        id: KernelRequest,
        outcome: &'a paths::Outcome,
        /// The kernel then asks the SA.
        is_left_to_kernel: bool,
    },
    /// The answer to [`Event::PathOverloaded`].
    PathOverloaded { seq: Seq, is_left_to_kernel: bool },
    /// The daemon ends: no new search begins, known answers are sent, and the kernel's own time-out
    /// is restored.
    Stop,
}

/// Why there is no socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Closed {
    /// It failed, or could not be opened.
    Failed,
    /// The kernel refuses our messages. Neither the network namespace of a process nor its capabilities change
    /// by themselves.
    Refused,
    /// There will be none: an inherited stand-in for the kernel is gone, or the daemon does not answer the kernel.
    ForGood,
}

impl Closed {
    /// The pause before the socket is opened again.
    pub(super) fn pause(self) -> Option<Duration> {
        match self {
            Self::Failed => Some(Duration::from_secs(5)),
            Self::Refused => Some(Duration::from_mins(1)),
            Self::ForGood => None,
        }
    }
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Sender {
    Kernel,
    /// Another process: a message to the group, or a forged request.
    Other,
}

/// An action for the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "sent where it is made, and never stored")]
pub enum Transmit {
    /// Open a socket. [`Input::Opened`] or [`Input::Closed`] follows.
    Open,
    /// Send this message to the kernel. The next poll assumes that the socket has taken it.
    Message(Emitted),
    /// Join the group to which the kernel sends its requests. The kernel accepts our messages.
    Join,
    /// Leave the group and close the socket: the kernel refuses our messages with this error
    /// number. The core no longer uses this socket.
    Leave(i32),
    /// Change a neighbour entry, so that the kernel looks at the answers sent before. The driver
    /// answers with [`Input::Nudged`].
    Nudge(Nudge),
}

/// Conditions of a nudge. The driver may make it some time after it was requested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Nudge {
    /// Only if the kernel has sent no request since. The kernel would repeat such a request, so the
    /// nudge had better follow its answer: [`Nudged::Postponed`].
    IfQuiet,
    Anyway,
}

ibarr_common::words! {
    /// The result of a nudge.
    Nudged {
        /// The kernel has processed it.
        Done = "done",
        /// The driver did not nudge: there are requests to read, or it has no way to nudge yet.
        Postponed = "postponed",
        /// The kernel refused.
        Failed = "failed",
    }
}

impl Nudged {
    /// How a nudge ends for which no interface was found.
    pub fn without_place(may_have_ipoib: bool) -> Self {
        if may_have_ipoib { Self::Postponed } else { Self::Failed }
    }
}

/// An event for the node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Event {
    /// A search for an answer is to begin. [`Input::Answered`] follows at its end.
    Wanted {
        /// The number of the search.
        id: KernelRequest,
        /// The question. Its egress is an ifindex of the caller's network namespace, which may
        /// differ from ours.
        question: Question,
        /// When the kernel first asked.
        asked_at: Instant,
        /// When the request is dropped.
        deadline: Instant,
    },
    /// The answer is no longer wanted.
    Unwanted {
        /// The number of the search.
        id: KernelRequest,
        question: Question,
    },
    /// A request is dropped without an answer. Only a trace needs to know.
    Dropped {
        question: Question,
        /// When the kernel first asked.
        asked_at: Instant,
        /// The counter of the cause.
        why: Counter,
    },
    /// There is no room for a path request from this port. [`Input::PathOverloaded`] follows.
    PathOverloaded {
        /// The number of the request.
        seq: Seq,
        /// The local port of the path.
        port: PortName,
    },
    /// A search for a path is to begin. [`Input::PathAnswered`] follows at the latest at the
    /// deadline, unless the socket is lost before.
    PathWanted {
        /// The number of the search.
        id: KernelRequest,
        /// The local port of the path.
        port: PortName,
        question: PathQuestion,
        /// Long enough before the kernel's time-out that the answer is in time.
        deadline: Instant,
    },
}

/// Whether the socket is a member of the group to which the kernel sends its requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Group {
    /// The kernel has not accepted a message yet, or there is no socket.
    Outside,
    /// The driver is about to join.
    Joining,
    Inside,
    /// The driver is about to leave, because the kernel refused a message with this error number.
    Leaving(i32),
}

/// The sizes of the tables.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Load {
    /// Address requests that wait for an answer.
    pub waiting: usize,
    /// The same, plus requests that were answered recently.
    pub held: usize,
    /// Path requests that wait for an answer.
    pub paths: usize,
}

/// How long requests waited for their answer.
#[derive(Clone, Debug, Default)]
pub struct AnswerTimes {
    /// Address requests that were answered.
    pub addresses: Histogram,
    /// Path requests, whatever the answer was.
    pub paths: Histogram,
}

crate::counters! {
    /// Counters of the kernel's side. Each address request that is not a duplicate is counted once
    /// under [`Counter::Requests`] and, when it ends, once under one of the nine that follow.
    pub enum Counter {
        /// Address requests; repetitions by the kernel do not count.
        Requests = normal("requests"),
        /// Requests for an address of this node.
        AnsweredLocal = normal("answered-local"),
        /// Requests answered from the cache.
        AnsweredCache = normal("answered-cache"),
        /// Requests answered after asking a peer.
        AnsweredPeer = normal("answered-peer"),
        /// Requests dropped: the address has no GID.
        NotFound = error("given-up-not-found"),
        /// Requests dropped: no peer answered.
        TimedOut = error("given-up-timed-out"),
        /// Requests dropped: there is no route to the address.
        Unreachable = error("given-up-unreachable"),
        /// Requests dropped: a bound was reached.
        Overloaded = error("given-up-overloaded"),
        /// Requests replaced by another one with the same number; the kernel has forgotten the
        /// first.
        Superseded = normal("superseded"),
        /// Requests that were waiting when the daemon ended or the socket was lost.
        Abandoned = error("abandoned"),
        /// Requests dropped because too many waited, or dropped to make room.
        RequestsFull = error("requests-full"),
        /// Repetitions of a waiting request.
        DuplicatesWaiting = normal("duplicates-waiting"),
        /// Repetitions of an answered request, answered from memory.
        DuplicatesAnswered = normal("duplicates-answered"),
        /// Answers forgotten early, to make room.
        MemoryEvicted = error("memory-evicted"),
        /// Answers sent again after a delay: nudges are off, or two answers had been lost.
        AnswersRepeated = error("answers-repeated"),
        /// Answers that waited for room in the socket until the deadline.
        AnswersLate = error("answers-late"),
        /// Nudges begun, each for the answers before it.
        Nudges = normal("nudges"),
        /// Repetitions of a nudge, in case it came too early.
        NudgesRepeated = normal("nudges-repeated"),
        /// Nudges and repetitions postponed, usually because the kernel was asking.
        NudgesPostponed = normal("nudges-postponed"),
        /// Nudges that failed.
        NudgesFailed = error("nudges-failed"),
        /// Well-formed path requests. Each is counted, when it ends, once under one of the nine that
        /// follow.
        PathRequests = normal("path-requests"),
        /// Path requests answered with a path.
        PathsAnswered = normal("paths-answered"),
        /// Path requests answered without a path, because the SA knows none.
        PathsNone = error("paths-none"),
        /// Path requests that the kernel was told to ask the SA about: their port is not known to
        /// the daemon.
        PathsUnknown = error("paths-unknown"),
        /// The same: their port has no SA.
        PathsNoSa = error("paths-no-sa"),
        /// The same: the SA knows no path.
        PathsNoRecord = error("paths-no-record"),
        /// The same: the SA was silent.
        PathsSilent = error("paths-silent"),
        /// The same: the SA refused, or its answer was illegal.
        PathsRefused = error("paths-refused"),
        /// The same: a bound was reached.
        PathsOverloaded = error("paths-overloaded"),
        /// Path requests that failed without an answer of the SA: it was busy, or silent while the kernel may not
        /// ask, or has been left to ask about another one recently.
        PathsSpared = error("paths-spared"),
        /// Path requests that ended because the daemon ended, the kernel had forgotten the request,
        /// or the socket was lost.
        PathsAbandoned = error("paths-abandoned"),
        /// Malformed path requests, which the kernel was told to ask the SA about; the reason is
        /// counted below.
        PathsMalformed = error("paths-malformed"),
        /// Path requests not answered because the socket had no room for too long.
        PathsFull = error("paths-full"),
        /// Datagrams sent by another process.
        NotFromKernel = error("not-from-kernel"),
        /// Messages that are not requests.
        NotARequest = error("not-a-request"),
        /// Messages with an unknown operation.
        UnknownOperation = error("unknown-operation"),
        /// Messages of ours that the kernel confirmed (kernels before 5.6).
        Confirmations = normal("confirmations"),
        /// Messages of ours that the kernel refused.
        Refusals = error("refusals"),
        /// Datagrams longer than any request.
        DatagramsCut = error("datagrams-cut"),
        /// Times that the socket's buffer was full. The kernel repeats lost requests after a nudge.
        Overruns = error("overruns"),
        /// Messages shorter than the lengths that they contain.
        MalformedTruncated = error("malformed-truncated"),
        /// Messages with an attribute of the wrong length.
        MalformedAttributeLength = error("malformed-attribute-length"),
        /// Requests without a required attribute.
        MalformedAttributeMissing = error("malformed-attribute-missing"),
        /// Requests with the same attribute, or one of the same meaning, twice.
        MalformedAttributeRepeated = error("malformed-attribute-repeated"),
        /// Requests with an unknown attribute that must not be skipped.
        MalformedAttributeMandatory = error("malformed-attribute-mandatory"),
        /// Requests with an illegal value of an interface, device, port, use of paths, GID,
        /// partition or class of service.
        MalformedValue = error("malformed-value"),
        /// Requests for an address that no interface can have.
        MalformedTarget = error("malformed-target"),
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
