// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The events of a trace.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ibarr_common::ib::{Gid, Lid};
use ibarr_common::map::{Program, Reason};
use ibarr_common::wire::ip2gid::MsgId;
use ibarr_common::wire::mad::Transaction;
use ibarr_common::wire::sa::{PathQuery, PathQuestion, Refusal};
use ibarr_common::{IfIndex, Instant};

use crate::ip2gid::client::Route;
use crate::ip2gid::{Question, server};
use crate::local_service::{self, Nudged};
use crate::paths::{self, PortName, Sought};
use crate::request::{self, FlightId, PathFlightId, RequestId};
use crate::sa::PortIndex;
use crate::shares::User;

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// The number of the chain: events of requests that wait for the same answer have the same one. Never reused
    /// within a trace.
    pub chain: u64,
    /// Time since the first request of the chain, or since its first event if it has no request.
    pub since: Duration,
    /// What is asked for.
    pub subject: Subject,
    /// What happened.
    pub step: Step,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Subject {
    /// The GID of an address.
    Address(IpAddr),
    /// A path between two GIDs, as far as they are known.
    Path {
        /// The source.
        sgid: Option<Gid>,
        /// The destination.
        dgid: Option<Gid>,
    },
}

/// A step of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A request has arrived.
    Asked {
        /// Its sender.
        by: Caller,
    },
    /// The search for an address that failed for the kernel begins again.
    SearchedAgain,
    /// The peer is asked, because the remembered GID is older than `fresh-for`.
    Older,
    /// The kernel is asked for a route to the address.
    RouteSought,
    /// There is a route.
    Route(Route),
    /// There is no route.
    NoRoute {
        /// Why, for people.
        cause: String,
    },
    /// A query is sent to the peer.
    Query {
        /// Its destination.
        to: SocketAddr,
        /// How many were sent in this chain, with this one.
        number: u32,
    },
    /// The kernel has refused to send a query.
    NotSent {
        /// Its destination.
        to: SocketAddr,
        /// Why, for people.
        cause: String,
    },
    /// The peer has replied.
    Reply {
        /// The sender.
        from: SocketAddr,
        /// `None` if it does not have the address.
        gid: Option<Gid>,
        /// Whether it answers a query of this trace. Otherwise it is late or forged.
        is_asked: bool,
    },
    /// ICMP reports that the port of the peer is unreachable.
    PortUnreachable {
        /// The destination of the query.
        to: SocketAddr,
    },
    /// The kernel is asked for its neighbour entry, because the peer does not answer.
    NeighbourSought,
    /// The GID of the kernel's neighbour entry, if there is one.
    Neighbour(Option<Gid>),
    /// The subnet administrator is asked.
    Mad {
        /// The sending port.
        port: PortName,
        /// LID of the subnet administrator.
        to: Lid,
        /// How many were sent in this chain, with this one.
        number: u32,
        /// Whether it probes a subnet administrator that was silent.
        is_probe: bool,
    },
    /// The subnet administrator has answered.
    MadAnswer {
        /// The receiving port.
        port: PortName,
        /// LID of the sender.
        from: Option<Lid>,
        /// Why there is no path; `None` if there is one.
        refusal: Option<Refusal>,
    },
    /// A request has its answer.
    Answered {
        /// The caller.
        by: Caller,
        /// The answer, with its cause.
        outcome: Outcome,
        /// Time since this request arrived.
        took: Duration,
    },
    /// The search for an address that the kernel wants has failed. There is no such answer for the kernel, so
    /// the search is repeated until the deadline of the request.
    Failed {
        /// Why.
        outcome: request::Outcome,
    },
    /// A request of the kernel ends without an answer.
    Dropped {
        /// Its cause.
        why: local_service::Counter,
        /// Time since the request arrived.
        took: Duration,
    },
    /// The kernel is made to look at the answer.
    Nudge,
    /// The outcome of the nudge.
    Nudged(Nudged),
    /// A BPF program has handled a packet that may be a query to this node.
    Packet(Packet),
    /// A peer asks this node, and the daemon answers.
    Peer {
        /// The peer.
        from: SocketAddr,
        /// The reply.
        reply: PeerReply,
    },
}

/// What a BPF program did with a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Packet {
    /// The program.
    pub by: Program,
    /// The interface that the packet arrived on.
    pub ifindex: Option<IfIndex>,
    /// The source address.
    pub from: IpAddr,
    /// The result, as the program counts it.
    pub reason: Reason,
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

impl Packet {
    /// Where the packet went.
    pub const fn verdict(&self) -> Verdict {
        match (self.by, self.reason) {
            (Program::Guard, Reason::Answered) => Verdict::Passed,
            (Program::Guard, _) => Verdict::Dropped,
            (Program::Tc | Program::Xdp, Reason::Answered) => Verdict::Answered,
            (Program::Tc | Program::Xdp, _) => Verdict::Passed,
        }
    }
}

/// What a peer is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PeerReply {
    /// The GID of the address.
    Gid(Gid),
    /// This node does not have the address.
    NotHere,
    /// Nothing, for this reason.
    Nothing(server::Counter),
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Caller {
    /// The kernel's RDMA core.
    Kernel,
    /// A user, over the control socket.
    Control(User),
    /// A user, over ACM.
    Acm(User),
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// To one for an address.
    Address(request::Outcome),
    /// To one for a path.
    Path {
        /// The result.
        outcome: paths::Outcome,
        /// Whether the kernel was told to ask the subnet administrator itself.
        is_left_to_kernel: bool,
    },
}

/// Identifies a request. Those for addresses and for paths have numbers of their own.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Id {
    /// For an address.
    Address(RequestId<FlightId>),
    /// For a path.
    Path(RequestId<PathFlightId>),
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
pub enum Filter {
    /// Of requests for the GID of this address, of any caller; and of queries of the peer with this address.
    Address(IpAddr),
    /// Of requests for a path from or to this GID.
    Gid(Gid),
}

impl Filter {
    /// Whether an event is wanted.
    pub fn admits(self, event: &Event) -> bool {
        match (self, event.subject) {
            (Self::Address(ip), Subject::Address(target)) => {
                let from = match event.step {
                    Step::Peer { from, .. } => Some(from.ip()),
                    Step::Packet(packet) => Some(packet.from),
                    _ => None,
                };
                target == ip || from == Some(ip)
            }
            (Self::Gid(gid), Subject::Path { sgid, dgid }) => [sgid, dgid].contains(&Some(gid)),
            _ => false,
        }
    }
}

impl From<Question> for Subject {
    fn from(question: Question) -> Self {
        Self::Address(question.target())
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

impl From<Sought> for Subject {
    fn from(sought: Sought) -> Self {
        match sought {
            Sought::Path(question) | Sought::Fresh(question) => question.into(),
            Sought::Known(query) => query.into(),
        }
    }
}
