// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of a trace: one when it begins, one for each event, one when it ends.

use std::net::{IpAddr, SocketAddr};

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid};
use ibarr_common::map::Program as TraceProgram;
use ibarr_proto::local_service::Nudged as TraceNudge;
use ibarr_proto::paths::{PortName, Source as PathSource};
use ibarr_proto::request::Source as AnswerSource;
use ibarr_proto::trace::Verdict as TraceVerdict;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::address_messages::AnswerStatus;
use super::path_messages::PathStatus;
use super::values::{Elapsed, Millis, Number, is_default};

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceOnly {
    /// Those of requests for the GID of this address, and of queries of the peer with this address.
    Ip(IpAddr),
    /// Those of requests for a path from or to this GID.
    Gid(Gid),
}

/// The trace has begun.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tracing {
    /// The daemon's clock at its beginning, in nanoseconds.
    pub at: Number<Instant>,
    /// Which events follow; absent for all.
    pub only: Option<TraceOnly>,
    /// When it ends by itself; absent if it does not.
    pub for_ms: Option<Millis>,
}

/// Something that happened to a request.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TraceEvent {
    /// Number of the request. Requests that wait for the same answer have the same one.
    pub request: u64,
    /// Milliseconds since the request. Without a request, since the first event of the number.
    pub ms: Elapsed,
    /// The daemon's clock, in nanoseconds.
    pub at: Number<Instant>,
    /// The address whose GID is asked for.
    pub ip: Option<IpAddr>,
    /// The source of the path that is asked for.
    pub sgid: Option<Gid>,
    /// The destination of the path that is asked for.
    pub dgid: Option<Gid>,
    /// Number of events lost just before this one, because there was no room for them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lost: u64,
    /// What happened.
    #[serde(flatten)]
    pub step: TraceStep,
}

/// A step of a request.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum TraceStep {
    /// A request has arrived.
    Asked {
        /// Its sender.
        by: TraceCaller,
        /// The user; absent for the kernel.
        uid: Option<u32>,
    },
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
    NoRoute {
        /// Why, for people.
        cause: String,
    },
    /// A query is sent to the peer.
    Query {
        /// Its destination.
        to: SocketAddr,
        /// 1 for the first one of this request.
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
        /// Absent if it does not have the address.
        gid: Option<Gid>,
        /// Whether it answers no query of this trace, because it is late or forged.
        #[serde(default, skip_serializing_if = "is_default")]
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
        /// Its GID; absent if there is no entry.
        gid: Option<Gid>,
    },
    /// The subnet administrator is asked.
    Mad {
        /// The sending port.
        port: PortName,
        /// LID of the subnet administrator.
        lid: Number<Lid>,
        /// 1 for the first one of this request.
        number: u32,
        /// Whether it probes a subnet administrator that was silent.
        #[serde(default, skip_serializing_if = "is_default")]
        probe: bool,
    },
    /// The subnet administrator has answered.
    MadAnswer {
        /// The receiving port.
        port: PortName,
        /// LID of the sender.
        lid: Option<Number<Lid>>,
        /// Why there is no path; absent if there is one.
        refusal: Option<String>,
    },
    /// A request for an address has its answer.
    AddressAnswered {
        /// The sender of the request.
        by: TraceCaller,
        /// The user; absent for the kernel.
        uid: Option<u32>,
        /// The outcome.
        status: AnswerStatus,
        /// The GID, if found.
        gid: Option<Gid>,
        /// Where the GID comes from, if found.
        source: Option<AnswerSource>,
        /// Milliseconds since this request.
        took_ms: Elapsed,
    },
    /// A request for a path has its answer.
    PathAnswered {
        /// The sender of the request.
        by: TraceCaller,
        /// The user; absent for the kernel.
        uid: Option<u32>,
        /// The outcome.
        status: PathStatus,
        /// LID of the destination, or of the router to another subnet, if found.
        dlid: Option<Number<Lid>>,
        /// Origin of the outcome, if the subnet administrator said it.
        source: Option<PathSource>,
        /// The status of the subnet administrator, if it refused.
        refusal: Option<String>,
        /// Whether the kernel was told to ask the subnet administrator itself.
        #[serde(default, skip_serializing_if = "is_default")]
        left_to_kernel: bool,
        /// Milliseconds since this request.
        took_ms: Elapsed,
    },
    /// The search for an address for the kernel has failed, and will be repeated: there is no such answer.
    Failed {
        /// Why.
        status: AnswerStatus,
    },
    /// A request of the kernel ends without an answer.
    Dropped {
        /// The counter of the cause, without `local-service.`.
        cause: String,
        /// Milliseconds since this request.
        took_ms: Elapsed,
    },
    /// The kernel is made to look at the answer.
    Nudge,
    /// The nudge has ended.
    Nudged {
        /// How.
        outcome: TraceNudge,
    },
    /// The programs in the kernel report their packets from now on, or cannot.
    Programs {
        /// Why they cannot; absent if they do.
        cause: Option<String>,
    },
    /// A program in the kernel has handled a packet that may be a query of a peer.
    Packet {
        /// The program.
        program: TraceProgram,
        /// The interface, or `#` and its index.
        interface: String,
        /// The source address.
        from: IpAddr,
        /// What became of the packet.
        verdict: TraceVerdict,
        /// The reason, as the counter without `tc.`, `xdp.` or `guard.`; absent if the peer was answered, or
        /// the guard has passed the packet to the daemon.
        cause: Option<String>,
    },
    /// A peer has asked this node, and the daemon has answered, or dropped the query.
    Peer {
        /// The peer.
        from: SocketAddr,
        /// The GID that it was told; absent if none.
        gid: Option<Gid>,
        /// Why it was told nothing, as the counter without `ip2gid.server.`; absent if there was a reply.
        cause: Option<String>,
    },
}

ibarr_common::words! {
    /// The sender of a request.
    TraceCaller {
        /// The kernel's RDMA core.
        Kernel = "kernel",
        /// A user of the control socket, such as one of `ibarr resolve`.
        Control = "control",
        /// A user of ACM.
        Acm = "acm",
    }
}

/// The trace has ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Traced {
    /// Why.
    pub ended: TraceEnd,
    /// How many events were shown.
    pub events: u64,
    /// How many were lost.
    pub lost: u64,
}

ibarr_common::words! {
    /// Why a trace has ended.
    TraceEnd {
        /// Its time was over.
        Time = "time",
        /// The command was interrupted.
        Interrupted = "interrupted",
        /// The daemon ends.
        Daemon = "daemon",
    }
}
