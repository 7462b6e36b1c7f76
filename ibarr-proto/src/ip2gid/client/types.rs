// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The client's inputs and outputs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use ibarr_common::ib::{Gid, SubnetPrefix};
use ibarr_common::wire::ip2gid::Datagram;
use ibarr_common::{IfIndex, Instant};

use super::super::{Family, Question};
use super::{SocketId, mirror};
use crate::request::{Caller, Freshness, Outcome, RequestId};

/// The route that the kernel has for an address.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Route {
    /// The interface that datagrams leave by.
    pub ifindex: IfIndex,
    /// The gateway, or the address itself if it is on the link.
    pub next_hop: IpAddr,
}

/// What the client knows of an interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Egress {
    /// Its VRF.
    pub vrf: Option<IfIndex>,
    /// Whether the kernel may ask by it: an IPoIB interface, a bond of such, or one that the configuration names
    /// or gives a GID.
    pub is_on_fabric: bool,
    /// The first of its addresses that datagrams can have as their source, in order.
    pub addresses: Vec<IpAddr>,
}

impl Egress {
    /// How many addresses of one family and scope are tried.
    pub const MAX_SOURCES: usize = 8;
}

/// The kernel's look-up of a route for a question.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Candidate {
    pub question: Question,
    /// The interface that the route is to leave by; `None` if routing selects it.
    pub egress: Option<IfIndex>,
    /// The source of the datagrams; `None` if routing selects it.
    pub source: Option<IpAddr>,
}

impl From<Question> for Candidate {
    /// By the interface of the question.
    fn from(question: Question) -> Self {
        Self { question, egress: question.egress(), source: None }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.question.target().fmt(f)?;
        self.egress.map_or(Ok(()), |egress| write!(f, "%{egress}"))?;
        self.source.map_or(Ok(()), |source| write!(f, " from {source}"))
    }
}

/// A candidate that counts, and its route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) candidate: Candidate,
    pub(super) route: Route,
    /// The VRF of the interface, if the candidate names one.
    pub(super) vrf: Option<IfIndex>,
}

/// Where a socket sends and receives: a version of IP, in a VRF if the socket is bound to one. The
/// kernel gives an unbound socket what arrives in a VRF only if `net.ipv4.udp_l3mdev_accept` is set.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Domain {
    pub(super) family: Family,
    pub(super) vrf: Option<IfIndex>,
}

/// A request for a GID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Request {
    /// Repeated in the answer.
    pub id: RequestId,
    /// [`Input::Refused`] or [`Input::Neighbour`] ends what a user asks. For the kernel the client continues to ask.
    pub caller: Caller,
    pub question: Question,
    /// When the caller asked; earlier than now if the request was refused meanwhile. Under load the oldest gives way.
    pub asked_at: Instant,
    /// When the caller stops waiting.
    pub deadline: Instant,
    pub freshness: Freshness,
}

/// An input of the client.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Input<'a> {
    /// A caller asks for a GID. Exactly one [`Event::Answered`] follows, unless the request is cancelled.
    Resolve(Request),
    /// Only the cache may answer: [`Event::Answered`] follows at once if it has a fresh answer, or else
    /// [`Event::NotRemembered`].
    Recall(Request),
    /// These interfaces or the routes have changed; `None` for an interface that is gone.
    Network(BTreeMap<IfIndex, Option<Egress>>),
    /// The caller no longer wants the answer.
    Cancel { id: RequestId },
    /// The answer to [`Output::Route`].
    Route {
        candidate: Candidate,
        /// The route; `None` if there is none.
        route: Option<Route>,
    },
    /// The answer to [`Output::Neighbour`].
    Neighbour {
        question: Question,
        /// The GID in the hardware address of the neighbour; `None` if there is no valid entry, or
        /// its interface is not IPoIB.
        gid: Option<Gid>,
    },
    /// A datagram arrived at a socket of the client.
    Datagram {
        /// The socket at which it arrived.
        socket: SocketId,
        /// Its source address and port.
        from: SocketAddr,
        /// The interface on which it arrived.
        ingress: IfIndex,
        payload: &'a [u8],
    },
    /// ICMP reported "port unreachable" for a datagram that a socket of the client had sent. Any
    /// host can send such a report, so it counts only if it quotes a waiting query.
    Refused {
        /// The socket that sent the quoted datagram.
        socket: SocketId,
        /// The destination of the quoted datagram.
        to: SocketAddr,
        /// The quoted part of its payload.
        quoted: &'a [u8],
    },
    /// The kernel has refused to send the last [`Output::Query`]. The schedule goes on, from another
    /// socket and by the next way.
    NotSent { query: &'a [u8] },
    /// The driver has opened the socket of [`SocketEvent::Open`].
    SocketOpened { socket: SocketId },
    /// The driver could not open the socket, or has lost an open one.
    SocketFailed { socket: SocketId },
    /// A port of this node has another subnet prefix.
    Subnet { before: SubnetPrefix, after: SubnetPrefix },
    /// An event of the map of peers' answers.
    Mirror(mirror::Input<'a>),
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Output {
    /// Look up the route in the kernel. [`Input::Route`] is the answer.
    Route(Candidate),
    /// Look up the neighbour entry of the route's next hop on its interface; the next hop is the
    /// target of the question. [`Input::Neighbour`] is the answer.
    Neighbour(Question, Route),
    Query(Transmit),
    /// Open or close a socket.
    Socket(SocketEvent),
}

/// A UDP datagram to send.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Transmit {
    /// The socket that sends it.
    pub socket: SocketId,
    /// Its destination address and port.
    pub to: SocketAddr,
    /// The outgoing interface; `None` if routing selects it.
    pub egress: Option<IfIndex>,
    /// Its source address; `None` if routing selects it.
    pub source: Option<IpAddr>,
    pub payload: Datagram,
}

/// What another core is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub enum Event {
    /// The answer to a request.
    Answered { id: RequestId, outcome: Outcome },
    /// [`Input::Recall`] has found nothing.
    NotRemembered(Request),
}

/// What the driver is to do with a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum SocketEvent {
    /// Open a new one of its family, bound to its VRF, the unspecified address and a random port.
    /// The driver answers with [`Input::SocketOpened`] or [`Input::SocketFailed`].
    Open(SocketId),
    Close(SocketId),
}

super::super::datagram_counters! {
    /// Counters of the client. Each request is counted once under [`Counter::Requests`] and, when
    /// it ends, once under one of the eight that follow.
    pub enum Counter {
        /// Requests made.
        Requests = normal("requests"),
        /// Requests answered with a GID.
        Found = normal("found"),
        /// Requests answered with "not here".
        NotFound = error("not-found"),
        /// Requests without an answer before the deadline.
        TimedOut = error("timed-out"),
        /// Requests of users that ended because ICMP reported the target's port unreachable.
        Refused = error("refused"),
        /// Requests without a route to their target.
        Unreachable = error("unreachable"),
        /// Requests refused because a bound was reached; the bound is counted below.
        Overloaded = error("overloaded"),
        /// Requests cancelled by their caller.
        Cancelled = normal("cancelled"),
        /// Requests ignored because a waiting request has the same number.
        RepeatedRequest = normal("repeated-request"),
        /// Requests refused because too many questions were in flight.
        FlightsFull = error("flights-full"),
        /// Requests refused because too many waited for the same answer.
        WaitersOfFlightFull = error("waiters-of-flight-full"),
        /// Requests refused because too many waited in total.
        WaitersFull = error("waiters-full"),
        /// Requests ended after a round without an answer, to make room for a newer question.
        GaveWay = error("gave-way"),
        /// Requests answered from the cache.
        CacheHits = normal("cache-hits"),
        /// Requests that made the client ask, because the remembered GID was older than `fresh-for`.
        Older = normal("older"),
        /// Look-ups of doubted answers: their GID has a subnet prefix that a port of this node has
        /// left.
        Doubted = error("doubted"),
        /// Changes of the subnet prefix of a port of this node.
        SubnetsLeft = error("subnets-left"),
        /// Requests that joined a question in flight.
        Joined = normal("joined"),
        /// Queries sent for the first time.
        Queries = normal("queries"),
        /// Queries sent again.
        Resends = error("resends"),
        /// Queries that had to wait for their turn at a next hop that has not answered.
        Queued = normal("queued"),
        /// Replies that answered a question.
        Replies = normal("replies"),
        /// Questions about targets next door answered from the kernel's neighbour entries.
        Neighbours = normal("neighbours"),
        /// Reports by ICMP that the port of a query's target is unreachable.
        Refusals = error("refusals"),
        /// Such reports that quote no waiting query: late, repeated, forged, or too short to be
        /// recognised.
        RefusalsUnasked = error("refusals-unasked"),
        /// Questions asked behind an answer from the cache, because it will soon be too old.
        Refreshes = normal("refreshes"),
        /// Such questions that were not asked, because too many were in flight.
        RefreshesSkipped = error("refreshes-skipped"),
        /// Answers restored from an earlier client.
        Restored = normal("restored"),
        /// Answers not restored: expired, with an illegal expiry, or without room.
        NotRestored = error("not-restored"),
        /// Answers dropped before their expiry to make room.
        CacheEvicted = error("cache-evicted"),
        /// Next hops dropped to make room.
        HopsEvicted = error("hops-evicted"),
        /// How often it was forgotten from which sources of ours peers answer, to make room.
        SourcesForgotten = error("sources-forgotten"),
        /// Requests refused because sockets are bound to too many VRFs.
        DomainsFull = error("domains-full"),
        /// Sockets opened.
        SocketsOpened = normal("sockets-opened"),
        /// Sockets that could not be opened, or were lost.
        SocketsFailed = error("sockets-failed"),
        /// Routes for which there was no request.
        UnaskedRoute = error("unasked-route"),
        /// Datagrams at a socket that is already closed.
        ClosedSocket = error("closed-socket"),
        /// Datagrams from a port other than the peers'.
        SourcePort = error("source-port"),
        /// Replies to no waiting query: late, repeated or forged.
        Unasked = error("unasked"),
        /// Replies at a socket that did not send their query.
        WrongSocket = error("wrong-socket"),
        /// Replies from an address other than the target (strict source check only).
        SourceAddress = error("source-address"),
        /// Replies on an interface other than their query's (strict source check only).
        WrongIngress = error("wrong-ingress"),
    }
}
