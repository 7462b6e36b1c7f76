// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The side that is asked: what a node answers about its own addresses.
//!
//! A query is answered only if its destination is the address asked for, and its source is unicast,
//! not loopback, has a port, is allowed, and is no address of ours unless this host has sent the
//! query to itself. Such a source gets a *negative* reply if the query was sent to an address of ours
//! and asks for another one. Everything else is silence, counted.
//!
//! **Replies do not tell which other addresses this node has.** The negative reply is the same
//! whether the other address is ours or not: whoever may ask for it asks there and nowhere else.
//!
//! **Replies cannot loop.** The codec takes no byte string both for a query and for a reply, and
//! nothing but a query is answered. So a reply that reaches a server, were it sent from port 4791 or
//! reflected, ends there; and two servers can never keep each other busy.
//!
//! **Nobody else aims replies at ourselves** (source not ours, but for [`Received::is_local`]), at a
//! group (source unicast), or at a service without a socket (port 0). A source that is somebody else's gets one reply for one query,
//! at most 12 bytes longer than it: an attacker who can send with a false source gains next to
//! nothing by the detour.

use std::net::{IpAddr, SocketAddr};

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{Datagram, Query};

use super::{Prefixes, is_link_local};
use crate::counters::Counters;

/// What a node knows about its own addresses.
pub trait Local {
    /// The GID to answer for `address`, if this node answers for it. `ingress` is the interface that
    /// the query came in by: link-local addresses mean something only together with it.
    fn gid_of(&self, address: IpAddr, ingress: IfIndex) -> Option<Gid>;

    /// Whether `address` is an address of this node, on whatever interface and with or without a
    /// GID.
    fn is_ours(&self, address: IpAddr) -> bool;

    /// Whether all addresses of this node are known. Until then one that is not ours may become so.
    fn is_known(&self) -> bool {
        true
    }
}

/// Answers queries. It holds no state but its counters.
#[derive(Debug)]
pub struct Server {
    allow: Prefixes,
    counters: Counters<Counter>,
}

impl Server {
    /// Answers sources in `allow`.
    pub fn new(allow: Prefixes) -> Self {
        Self { allow, counters: Counters::default() }
    }

    /// From now on answers sources in `allow`.
    pub fn reconfigure(&mut self, allow: Prefixes) {
        self.allow = allow;
    }

    /// The reply to send, if any. Exactly one counter goes up by one.
    pub fn answer(&mut self, view: &impl Local, received: &Received<'_>) -> Option<Transmit> {
        let (counter, transmit) = match self.judge(view, received) {
            Ok((counter, transmit)) => (counter, Some(transmit)),
            Err(counter) => (counter, None),
        };
        self.counters.count(counter);
        transmit
    }

    /// What has been answered, and what dropped and why.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    fn judge(
        &self,
        view: &impl Local,
        received: &Received<'_>,
    ) -> Result<(Counter, Transmit), Counter> {
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
            // It is here, but this is not the way to ask for it.
            (Counter::OtherAddress, None)
        } else {
            (Counter::AnsweredNegative, None)
        };
        let needs_interface = is_link_local(to) || is_link_local(source);
        let transmit = Transmit {
            to: from,
            from: to,
            egress: needs_interface.then_some(ingress),
            payload: query.reply(gid).emit(),
        };
        Ok((counter, transmit))
    }
}

/// A UDP datagram that came to the server's port. IPv4 addresses are IPv4 addresses here, never
/// IPv4-mapped IPv6: the sockets take one family each.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Its source address and port.
    pub from: SocketAddr,
    /// Its destination address.
    pub to: IpAddr,
    /// The interface it came in by.
    pub ingress: IfIndex,
    /// Whether this host has certainly sent it to itself, so that it never was on a wire.
    pub is_local: bool,
    /// What it carries.
    pub payload: &'a [u8],
}

/// A UDP datagram to send from the server's port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// Its destination address and port.
    pub to: SocketAddr,
    /// Its source address: the address that the query was sent to.
    pub from: IpAddr,
    /// The interface to leave by; `None` lets routing choose. Some only for link-local addresses.
    pub egress: Option<IfIndex>,
    /// What it carries.
    pub payload: Datagram,
}

super::datagram_counters! {
    /// What becomes of a datagram at the server's port.
    pub enum Counter {
        /// Queries answered with a GID.
        Answered = "answered",
        /// Queries answered with "not here".
        AnsweredNegative = "answered-negative",
        /// Queries for the address they were sent to, which has no GID.
        NoGid = "no-gid",
        /// Queries for another address of ours than the one they were sent to, answered with "not
        /// here".
        OtherAddress = "other-address",
        /// Queries sent to an address that is not ours.
        DestinationNotOurs = "destination-not-ours",
        /// Queries from port 0.
        SourcePort = "source-port",
        /// Queries from an address that is not a host's.
        SourceNotUnicast = "source-not-unicast",
        /// Queries from a loopback address.
        SourceLoopback = "source-loopback",
        /// Queries from an address of ours that this host has not sent to itself.
        SourceOurs = "source-ours",
        /// Queries from outside `allow`.
        SourceNotAllowed = "source-not-allowed",
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
