// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The server: answers queries of peers about this node's addresses.
//!
//! A query is answered only if it asks for its destination, and its source is unicast, not
//! loopback, has a nonzero port, is allowed, and is not an address of this node, unless this host
//! sent the query to itself. Such a source gets a *negative* reply if the query was sent to an
//! address of this node but asks for another one. Every other datagram gets no reply and is
//! counted.
//!
//! **No query is judged before all addresses of this node are known.** Until then the server would stay
//! silent about an address of its own, or deny one that it is about to learn. It says so
//! ([`Silence::NotYet`]) and counts nothing; the driver offers the query again when the view has
//! changed, and reads no other from that socket meanwhile, which bounds what waits.
//!
//! **Replies do not reveal which other addresses this node has.** The negative reply is the same
//! whether or not the other address is ours: a peer that may ask for it sends the query to that
//! address.
//!
//! **Replies cannot loop.** No byte string is both a query and a reply for the codec, and only a
//! query is answered. A reply that reaches a server, because it was sent from port 4791 or
//! reflected, is therefore dropped, and two servers can never keep each other busy.
//!
//! **No other host can make replies go to this host** (the source is not ours, except with
//! [`Received::is_local`]), to a group (the source is unicast), or to a port without a socket (port
//! 0). A forged source gets one reply per query, at most 12 bytes longer than the query, so that
//! the server hardly amplifies an attack.

use core::net::{IpAddr, SocketAddr};

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{Datagram, Query};

use super::{Prefixes, is_link_local};
use crate::counters::Counters;

/// What the server needs to know about this node's addresses.
pub trait Local {
    /// The GID to answer for `address`, if this node answers for it. `ingress` is the interface on
    /// which the query arrived: a link-local address has a meaning only together with it.
    fn gid_of(&self, address: IpAddr, ingress: IfIndex) -> Option<Gid>;

    /// Whether `address` is an address of this node, on any interface, with or without a GID.
    fn is_ours(&self, address: IpAddr) -> bool;

    /// Whether all addresses of this node are known. Until then another address may turn out to be
    /// ours.
    fn is_known(&self) -> bool {
        true
    }
}

/// Answers queries. Its only state are its counters.
#[derive(Debug)]
pub struct Server {
    allow: Prefixes,
    counters: Counters<Counter>,
}

impl Server {
    /// Answers only sources in `allow`.
    pub fn new(allow: Prefixes) -> Self {
        Self { allow, counters: Counters::default() }
    }

    /// Answers only sources in `allow` from now on.
    pub fn reconfigure(&mut self, allow: Prefixes) {
        self.allow = allow;
    }

    /// The reply to send, which [`handle_sent`](Self::handle_sent) counts, or why there is none.
    ///
    /// # Errors
    /// If there is none.
    pub fn answer(
        &mut self,
        view: &impl Local,
        received: &Received<'_>,
    ) -> Result<Transmit, Silence> {
        if !view.is_known() {
            return Err(Silence::NotYet);
        }
        self.judge(view, received).map_err(|counter| {
            self.counters.count(counter);
            Silence::Counted(counter)
        })
    }

    /// Counts a reply by its fate: `errno` is the error with which the kernel refused to send it, or
    /// 0. Returns the counter.
    pub fn handle_sent(&mut self, reply: &Transmit, errno: i32) -> Counter {
        let counter = match errno {
            0 => reply.counter,
            EPERM => Counter::NotSentForbidden,
            ENOMEM | ENOBUFS => Counter::NotSentNoRoom,
            EMSGSIZE => Counter::NotSentTooLong,
            _ => Counter::NotSentNoRoute,
        };
        self.counters.count(counter);
        counter
    }

    /// The counters of answered and dropped datagrams.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    fn judge(&self, view: &impl Local, received: &Received<'_>) -> Result<Transmit, Counter> {
        let &Received { from, to, ingress, is_local, payload } = received;
        let query = Query::parse(payload)?;
        let source = from.ip();
        if from.port() == 0 {
            return Err(Counter::SourcePort);
        }
        if !is_unicast(source) {
            return Err(Counter::SourceNotUnicast);
        }
        if source.is_loopback() {
            return Err(Counter::SourceLoopback);
        }
        if view.is_ours(source) && !is_local {
            return Err(Counter::SourceOurs);
        }
        if !self.allow.contains(source) {
            return Err(Counter::SourceNotAllowed);
        }
        let (counter, gid) = if query.target() == to {
            (Counter::Answered, Some(view.gid_of(to, ingress).ok_or(Counter::NoGid)?))
        } else if !view.is_ours(to) {
            return Err(Counter::DestinationNotOurs);
        } else if view.is_ours(query.target()) || view.gid_of(query.target(), ingress).is_some() {
            // The address is ours, but the query was sent to another address.
            (Counter::OtherAddress, None)
        } else {
            (Counter::AnsweredNegative, None)
        };
        let needs_interface = is_link_local(to) || is_link_local(source);
        Ok(Transmit {
            to: from,
            from: to,
            egress: needs_interface.then_some(ingress),
            payload: query.reply(gid).emit(),
            counter,
        })
    }
}

/// Why a datagram gets no reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Silence {
    /// The addresses of this node are not known yet.
    NotYet,
    /// The reason, which is counted already.
    Counted(Counter),
}

/// A UDP datagram that arrived at the server's port. Its addresses are never IPv4-mapped IPv6,
/// because each socket has one family.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Received<'a> {
    /// Its source address and port.
    pub from: SocketAddr,
    pub to: IpAddr,
    /// The interface on which it arrived.
    pub ingress: IfIndex,
    /// Whether this host certainly sent it to itself.
    pub is_local: bool,
    pub payload: &'a [u8],
}

/// A UDP datagram to send from the server's port.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Transmit {
    /// Its destination address and port.
    pub to: SocketAddr,
    /// Its source address: the address that the query was sent to.
    pub from: IpAddr,
    /// The outgoing interface; `None` if routing selects it. Set only for link-local addresses.
    pub egress: Option<IfIndex>,
    pub payload: Datagram,
    counter: Counter,
}

const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
const EMSGSIZE: i32 = 90;
const ENOBUFS: i32 = 105;

super::datagram_counters! {
    /// Results for datagrams at the server's port.
    pub enum Counter {
        /// Queries answered with a GID.
        Answered = normal("answered"),
        /// Queries answered with a negative reply.
        AnsweredNegative = normal("answered-negative"),
        /// Queries for the destination address, which has no GID.
        NoGid = error("no-gid"),
        /// Queries for another address of this node than the destination; they get a negative
        /// reply.
        OtherAddress = error("other-address"),
        /// Replies that this machine's firewall does not permit (EPERM).
        NotSentForbidden = error("not-sent-forbidden"),
        /// Replies for which the kernel had no memory (ENOBUFS).
        NotSentNoRoom = error("not-sent-no-room"),
        /// Replies that are longer than the MTU of their way (EMSGSIZE).
        NotSentTooLong = error("not-sent-too-long"),
        /// Replies that no route takes from the address that was asked, and those that the kernel
        /// refused with another error.
        NotSentNoRoute = error("not-sent-no-route"),
        /// Queries sent to an address that is not of this node.
        DestinationNotOurs = error("destination-not-ours"),
        /// Queries from port 0.
        SourcePort = error("source-port"),
        /// Queries from an address that is not unicast.
        SourceNotUnicast = error("source-not-unicast"),
        /// Queries from a loopback address.
        SourceLoopback = error("source-loopback"),
        /// Queries from an address of this node that this host did not send to itself.
        SourceOurs = error("source-ours"),
        /// Queries from sources outside `allow`.
        SourceNotAllowed = error("source-not-allowed"),
    }
}

fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()),
        IpAddr::V6(v6) => {
            !(v6.is_unspecified() || v6.is_multicast() || v6.to_ipv4_mapped().is_some())
        }
    }
}
