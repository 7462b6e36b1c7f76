// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What goes into the client and comes out of it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::Datagram;
use ibarr_common::{IfIndex, Instant};

use super::super::Question;
use super::SocketId;

/// The driver's name for a request, not to be used again before its answer.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the kernel's routing says about an address.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Route {
    /// The interface that datagrams leave by.
    pub ifindex: IfIndex,
    /// The gateway, or the address itself if it is on the link.
    pub next_hop: IpAddr,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Somebody wants to know. Answered by exactly one [`Event::Answered`], unless cancelled.
    Resolve {
        /// Comes back with the answer.
        id: RequestId,
        /// What is asked.
        question: Question,
        /// When the caller asked. Earlier than now if it has been refused meanwhile.
        asked_at: Instant,
        /// When the caller stops waiting.
        deadline: Instant,
        /// Whether an [`Input::Refused`] ends the request. Otherwise the target is asked on, at a
        /// slower pace.
        heeds_refusal: bool,
    },
    /// The request's answer is no longer wanted.
    Cancel {
        /// Of the request.
        id: RequestId,
    },
    /// The answer to a question from `poll_route`.
    Route {
        /// The question.
        question: Question,
        /// `None` if there is no route to its target.
        route: Option<Route>,
    },
    /// A datagram came to a socket of ours.
    Datagram {
        /// The socket it came to.
        socket: SocketId,
        /// Its source.
        from: SocketAddr,
        /// The interface it came in by.
        ingress: IfIndex,
        /// What it carries.
        payload: &'a [u8],
    },
    /// ICMP said that a port is unreachable which a socket of ours had sent to. Anybody can send that,
    /// so it counts only if it quotes a query that waits.
    Refused {
        /// The socket that the quoted datagram left from.
        socket: SocketId,
        /// Where the quoted datagram was to go.
        to: SocketAddr,
        /// What is quoted of its payload.
        quoted: &'a [u8],
    },
    /// The socket asked for by [`Event::OpenSocket`] is there.
    SocketOpened {
        /// The socket.
        socket: SocketId,
    },
    /// The socket asked for could not be opened, or an open one is lost.
    SocketFailed {
        /// The socket.
        socket: SocketId,
    },
}

/// A UDP datagram to send.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// The socket to send it from.
    pub socket: SocketId,
    /// Its destination.
    pub to: SocketAddr,
    /// The interface to leave by; `None` lets routing choose.
    pub egress: Option<IfIndex>,
    /// What it carries.
    pub payload: Datagram,
}

/// A fact for the outside.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A request has its answer.
    Answered {
        /// Of the request.
        id: RequestId,
        /// The answer.
        outcome: Outcome,
    },
    /// A socket of `socket.family()` is wanted, bound to the unspecified address and a random port.
    /// To be answered by [`Input::SocketOpened`] or [`Input::SocketFailed`].
    OpenSocket {
        /// Its name.
        socket: SocketId,
    },
    /// A socket is no longer needed.
    CloseSocket {
        /// Its name.
        socket: SocketId,
    },
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The target has a GID.
    Found {
        /// The GID.
        gid: Gid,
        /// Who said so.
        source: Source,
        /// Until when the client remembers it.
        expires_at: Instant,
    },
    /// Whoever answers there does not have the target.
    NotFound,
    /// No answer within the deadline.
    TimedOut,
    /// ICMP says that the target's port is unreachable: nothing listens there, or a firewall rejects
    /// the query.
    Refused,
    /// There is no route to the target.
    Unreachable,
    /// Too much is being asked at once: nothing has been sent, or nothing more is.
    Overloaded,
}

/// Where an answer is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source {
    /// It was remembered.
    Cache,
    /// A peer has just said so.
    Peer,
}

super::super::datagram_counters! {
    /// What the client counts. Each request is counted once under [`Counter::Requests`] and, when it
    /// ends, once under one of the eight that follow.
    pub enum Counter {
        /// Requests made.
        Requests = "requests",
        /// Requests answered with a GID.
        Found = "found",
        /// Requests answered with "not here".
        NotFound = "not-found",
        /// Requests that nobody answered in time.
        TimedOut = "timed-out",
        /// Requests of users that ended because ICMP said that the target's port is unreachable.
        Refused = "refused",
        /// Requests without a route to their target.
        Unreachable = "unreachable",
        /// Requests refused because a bound had been reached, which is counted below.
        Overloaded = "overloaded",
        /// Requests taken back.
        Cancelled = "cancelled",
        /// Requests with the name of one that waits: ignored.
        RepeatedRequest = "repeated-request",
        /// Requests refused because too many questions were under way.
        FlightsFull = "flights-full",
        /// Requests refused because too many waited for the same answer.
        WaitersOfFlightFull = "waiters-of-flight-full",
        /// Requests refused because too many waited at all.
        WaitersFull = "waiters-full",
        /// Requests given up after a round without an answer, so that a newer question could be asked.
        GaveWay = "gave-way",
        /// Requests answered from the cache.
        CacheHits = "cache-hits",
        /// Look-ups of answers that were doubted, as their GID is in a subnet prefix that a port of this
        /// node has left.
        Doubted = "doubted",
        /// Times that a port of this node got another subnet prefix.
        SubnetsLeft = "subnets-left",
        /// Requests that joined a question which was under way.
        Joined = "joined",
        /// Queries sent for the first time.
        Queries = "queries",
        /// Queries sent again.
        Resends = "resends",
        /// Times that a query had to wait for its turn at a next hop that has not answered.
        Queued = "queued",
        /// Replies that answered a question.
        Replies = "replies",
        /// Queries whose target's port is unreachable, as ICMP says.
        Refusals = "refusals",
        /// The same, but what is quoted is no query that waits: late, repeated, forged, or cut too short
        /// to be recognised.
        RefusalsUnasked = "refusals-unasked",
        /// Questions asked again before their answer expired.
        Refreshes = "refreshes",
        /// Answers that were to be asked for again, but too much was being asked.
        RefreshesSkipped = "refreshes-skipped",
        /// Answers that a client before this one had learned.
        Restored = "restored",
        /// Such answers that were of no use: over, without an end, or one too many.
        NotRestored = "not-restored",
        /// Answers forgotten before their time, to make room.
        CacheEvicted = "cache-evicted",
        /// Next hops forgotten before their time, to make room.
        HopsEvicted = "hops-evicted",
        /// Sockets opened.
        SocketsOpened = "sockets-opened",
        /// Sockets that could not be opened, or were lost.
        SocketsFailed = "sockets-failed",
        /// Routes that nobody had asked for.
        UnaskedRoute = "unasked-route",
        /// Datagrams to a socket that is no longer ours.
        ClosedSocket = "closed-socket",
        /// Datagrams from another port than the one that peers answer from.
        SourcePort = "source-port",
        /// Replies to no query that is waiting: late, repeated or forged.
        Unasked = "unasked",
        /// Replies to a socket that their query did not leave from.
        WrongSocket = "wrong-socket",
        /// Replies from another address than the one that was asked (strict source check only).
        SourceAddress = "source-address",
        /// Replies by another interface than their query left by (strict source check only).
        WrongIngress = "wrong-ingress",
    }
}
