// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The events of a trace, with the feature `serde` in the form that they have in documents.

use alloc::string::{String, ToString as _};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid};
use ibarr_common::map::{Program, Reason};
use ibarr_common::wire::ip2gid::MsgId;
use ibarr_common::wire::mad::Transaction;
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa::{PathQuery, PathQuestion};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};
#[cfg(feature = "serde")]
use serde_with_macros::skip_serializing_none;

use crate::durations::Elapsed;
use crate::ip2gid::{Question, server};
use crate::local_service::{self, Nudged};
use crate::paths::{self, PortName, Search};
pub use crate::request::Caller;
use crate::request::{self, RequestId};
use crate::sa::PortIndex;

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct Event {
    /// The number of the chain: events of requests that wait for the same answer have the same one. Never reused
    /// within a trace.
    #[cfg_attr(feature = "serde", serde(rename = "request"))]
    pub chain: u64,
    /// Time since the first request of the chain, or since its first event if it has no request.
    #[cfg_attr(feature = "serde", serde(rename = "ms", with = "crate::durations::millis"))]
    pub since: Duration,
    /// When.
    pub at: Instant,
    /// What is asked for.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub subject: Subject,
    /// Number of events that the reader lost just before this one.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
    pub lost: u64,
    /// What happened.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub step: Step,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[cfg_attr(
    feature = "serde",
    skip_serializing_none,
    derive(Deserialize, Serialize),
    serde(untagged)
)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Subject {
    /// The GID of an address.
    Address { ip: IpAddr },
    /// A path between two GIDs, as far as they are known.
    Path { sgid: Option<Gid>, dgid: Option<Gid> },
}

/// A step of a request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "serde",
    skip_serializing_none,
    derive(Deserialize, Serialize),
    serde(tag = "step", rename_all = "kebab-case", rename_all_fields = "kebab-case")
)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Step {
    /// A request has arrived.
    Asked(Caller),
    /// The search for an address that failed for the kernel begins again.
    SearchedAgain,
    /// The peer is asked, because the remembered GID is older than `fresh-for`.
    Older,
    /// The kernel is asked for a route to the address.
    RouteSought,
    /// There is a route.
    Route {
        /// The interface, or `#` and its index.
        interface: String,
        /// The gateway, or the address itself.
        next_hop: IpAddr,
    },
    /// There is no route.
    NoRoute { cause: String },
    /// A query is sent to the peer.
    Query {
        to: SocketAddr,
        /// How many were sent in this chain, with this one.
        number: u32,
    },
    /// The kernel has refused to send a query.
    NotSent { to: SocketAddr, cause: String },
    /// The peer has replied.
    Reply {
        from: SocketAddr,
        /// `None` if it does not have the address.
        gid: Option<Gid>,
        /// Whether it answers no query of this trace, because it is late or forged.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
        unasked: bool,
    },
    /// ICMP reports that the port of the peer is unreachable.
    PortUnreachable {
        /// The destination of the query.
        to: SocketAddr,
    },
    /// The kernel is asked for its neighbour entry, because the peer does not answer.
    NeighbourSought,
    /// The kernel's neighbour entry.
    Neighbour {
        /// Its GID; `None` if there is no entry.
        gid: Option<Gid>,
    },
    /// The subnet administrator is asked.
    Mad {
        port: PortName,
        /// LID of the subnet administrator.
        lid: Lid,
        /// How many were sent in this chain, with this one.
        number: u32,
        /// Whether it probes a subnet administrator that was silent.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
        probe: bool,
    },
    /// The subnet administrator has answered.
    MadAnswer {
        port: PortName,
        /// LID of the sender.
        lid: Option<Lid>,
        /// Why there is no path, for people; `None` if there is one.
        refusal: Option<String>,
    },
    /// A request for an address has its answer.
    AddressAnswered {
        /// The sender of the request.
        #[cfg_attr(feature = "serde", serde(flatten))]
        by: Caller,
        status: request::Status,
        /// The GID, if found.
        gid: Option<Gid>,
        /// Where the GID comes from, if found.
        source: Option<request::Source>,
        /// Time since this request arrived.
        took_ms: Elapsed,
    },
    /// A request for a path has its answer.
    PathAnswered {
        /// The sender of the request.
        #[cfg_attr(feature = "serde", serde(flatten))]
        by: Caller,
        status: paths::Status,
        /// LID of the destination, or of the router to another subnet, if found.
        dlid: Option<Lid>,
        /// Origin of the outcome, if the subnet administrator said it.
        source: Option<paths::Source>,
        /// The status of the subnet administrator, for people, if it refused.
        refusal: Option<String>,
        /// Whether the kernel was told to ask the subnet administrator itself.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
        left_to_kernel: bool,
        /// Time since this request arrived.
        took_ms: Elapsed,
    },
    /// The search for an address that the kernel wants has failed. There is no such answer for the kernel, so
    /// the search is repeated until the deadline of the request.
    Failed {
        /// Why.
        status: request::Status,
    },
    /// A request of the kernel ends without an answer.
    Dropped {
        cause: local_service::Counter,
        /// Time since the request arrived.
        took_ms: Elapsed,
    },
    /// The kernel is made to look at the answer.
    Nudge,
    /// The nudge has ended.
    Nudged {
        /// How.
        outcome: Nudged,
    },
    /// The BPF programs report their packets from now on, or cannot.
    Programs {
        /// Why they cannot; `None` if they do.
        cause: Option<String>,
    },
    /// A BPF program has handled a packet that may be a query to this node.
    Packet {
        program: Program,
        /// The interface that the packet arrived on, or `#` and its index.
        interface: String,
        from: IpAddr,
        /// What became of the packet.
        verdict: Verdict,
        /// The reason, as the program counts it; `None` if the peer was answered, or the guard has passed the
        /// packet to the daemon.
        cause: Option<String>,
    },
    /// A peer has asked this node, and the daemon has answered, or dropped the query.
    Peer {
        from: SocketAddr,
        /// The GID that it was told, if any.
        gid: Option<Gid>,
        /// Why it was told nothing; `None` if there was a reply.
        cause: Option<server::Counter>,
    },
}

#[cfg(feature = "serde")]
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

ibarr_common::words! {
    /// Where a packet went.
    Verdict {
        /// The program has sent the reply.
        Answered = "answered",
        /// The kernel's stack handles it, or the daemon gets it.
        Passed = "passed",
        /// The daemon does not get it.
        Dropped = "dropped",
    }
}

impl Verdict {
    /// Where a packet went that a program counts under `reason`.
    pub const fn of(program: Program, reason: Reason) -> Self {
        match (program, reason) {
            (Program::Guard, Reason::Answered) => Self::Passed,
            (Program::Guard, _) => Self::Dropped,
            (Program::Tc | Program::Xdp, Reason::Answered) => Self::Answered,
            (Program::Tc | Program::Xdp, _) => Self::Passed,
        }
    }
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answered {
    /// To one for an address.
    Address(RequestId, request::Outcome),
    /// To one for a path.
    Path(paths::Answered),
}

impl Answered {
    pub(super) fn id(self) -> Id {
        match self {
            Self::Address(id, _) => Id::Address(id),
            Self::Path(answered) => Id::Path(answered.id),
        }
    }

    pub(super) fn step(self, by: Caller, took_ms: Elapsed) -> Step {
        match self {
            Self::Address(_, outcome) => {
                let (status, gid, source) = outcome.parts();
                Step::AddressAnswered { by, status, gid, source, took_ms }
            }
            Self::Path(paths::Answered { outcome, is_left_to_kernel: left_to_kernel, .. }) => {
                let (status, record, source, refusal) = outcome.parts();
                let fields = record.and_then(|record| Fields::parse(&record).ok());
                let dlid = fields.map(|fields| fields.dlid);
                let refusal = refusal.map(|refusal| refusal.to_string());
                Step::PathAnswered { by, status, dlid, source, refusal, left_to_kernel, took_ms }
            }
        }
    }
}

/// Identifies a request. Those for addresses and for paths have numbers of their own.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Id {
    Address(RequestId),
    Path(RequestId),
}

/// What ties an answer from the network to its question.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Tie {
    /// Of a query to a peer.
    Query(MsgId),
    /// Of a MAD.
    Mad(PortIndex, Transaction),
}

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize), serde(rename_all = "kebab-case"))]
pub enum Filter {
    /// Of requests for the GID of this address, of any caller; and of queries of the peer with this address.
    Ip(IpAddr),
    /// Of requests for a path from or to this GID.
    Gid(Gid),
}

impl Filter {
    /// Whether an event is wanted.
    pub fn admits(self, event: &Event) -> bool {
        match (self, event.subject) {
            (Self::Ip(wanted), Subject::Address { ip }) => {
                let from = match event.step {
                    Step::Peer { from, .. } => Some(from.ip()),
                    Step::Packet { from, .. } => Some(from),
                    _ => None,
                };
                ip == wanted || from == Some(wanted)
            }
            (Self::Gid(gid), Subject::Path { sgid, dgid }) => [sgid, dgid].contains(&Some(gid)),
            _ => false,
        }
    }
}

impl From<IpAddr> for Subject {
    fn from(ip: IpAddr) -> Self {
        Self::Address { ip }
    }
}

impl From<Question> for Subject {
    fn from(question: Question) -> Self {
        Self::Address { ip: question.target() }
    }
}

impl From<PathQuestion> for Subject {
    fn from(PathQuestion { sgid, dgid, .. }: PathQuestion) -> Self {
        Self::Path { sgid: Some(sgid), dgid: Some(dgid) }
    }
}

impl From<PathQuery> for Subject {
    fn from(query: PathQuery) -> Self {
        Self::Path { sgid: query.sgid(), dgid: query.dgid() }
    }
}

impl From<Search> for Subject {
    fn from(sought: Search) -> Self {
        match sought {
            Search::Path(question) => question.into(),
            Search::Known(query) => query.into(),
        }
    }
}
