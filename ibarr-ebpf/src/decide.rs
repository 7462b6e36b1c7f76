// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The decision about a packet, by the rules of the ip2gid server in `ibarr-proto`: a program
//! answers only queries that the server would answer, with the same payload; the guard drops only
//! datagrams that the server would drop. Everything else is passed on to the server.

use ibarr_common::IfIndex;
use ibarr_common::map::{AllowPrefix, GidEntry, GidKey, Interface, Program, Reason, ResponderCfg};

use crate::packet::{Checksum, QueryPacket, Sum};

/// The node as the programs see it, and their counters.
pub trait Node {
    /// The one element of `responder_cfg`.
    fn cfg(&self) -> ResponderCfg;

    /// Whether the lease of `cfg` still runs, or ended less than a kernel tick ago.
    fn is_leased(&self, cfg: &ResponderCfg) -> bool;

    /// An element of `interfaces`.
    fn interface(&self, ifindex: IfIndex) -> Option<Interface>;

    /// Whether a prefix in `allow` covers the address.
    fn allows(&self, address: &AllowPrefix) -> bool;

    /// Whether the bit of this source is set in `own_bits`. If it is not, the source is neither
    /// [ours](Self::is_ours) nor an [edge](Self::is_edge).
    fn is_marked(&self, source: &GidKey) -> bool;

    /// Whether `gid_cache` has this key, which [is marked](Self::is_marked).
    fn is_ours(&self, key: &GidKey) -> bool;

    /// Whether `routes` says that the interface does not lead to the address, which
    /// [is marked](Self::is_marked): it is the first or the last of a subnet.
    fn is_edge(&self, ifindex: IfIndex, address: &[u8; 16]) -> bool;

    /// Whether `routes` has a route to the address through the interface.
    fn leads_to(&self, ifindex: IfIndex, address: &[u8; 16]) -> bool;

    /// A copy of an element of `gid_cache`.
    fn entry(&self, key: &GidKey) -> Option<GidEntry>;

    /// Counts a packet.
    fn count(&self, program: Program, reason: Reason);
}

/// How a packet arrived.
pub trait Ingress {
    /// The interface that it arrived on.
    fn ifindex(&self) -> IfIndex;

    /// Whether the link layer delivered it to this host.
    fn is_for_this_host(&self, interface: &Interface) -> bool;

    /// Whether the kernel knows that its UDP checksum is not yet filled in (`CHECKSUM_PARTIAL`).
    /// Called only if the checksum is the sum of the pseudo-header.
    fn is_checksum_partial(&self) -> bool;
}

/// The reply to `packet`, which [is to the port](QueryPacket::is_to_port) in `cfg`.
///
/// # Errors
/// The reason why the packet is passed on instead.
#[inline]
pub fn answer<Q: QueryPacket>(
    node: &impl Node,
    cfg: &ResponderCfg,
    ingress: &impl Ingress,
    packet: &Q,
) -> Result<Q::Reply, Reason> {
    if !node.is_leased(cfg) {
        return Err(Reason::LeaseOver);
    }
    let interface = node.interface(ingress.ifindex()).ok_or(Reason::InterfaceOff)?;
    if interface.switches & (Q::SWITCH | Q::ROUTED) == 0 {
        return Err(Reason::InterfaceOff);
    }
    if !ingress.is_for_this_host(&interface) {
        return Err(Reason::OtherHost);
    }
    packet.check_headers()?;
    if !packet.is_query() {
        return Err(Reason::Malformed);
    }
    if !packet.is_for_destination() {
        return Err(Reason::Destination);
    }
    if !packet.can_be_asked_from() {
        return Err(Reason::Source);
    }
    let source = packet.source(ingress.ifindex());
    let is_marked = node.is_marked(&source);
    // Packets from this host to itself arrive on the loopback interface, which is never served. A
    // packet with one of this node's addresses as source is therefore forged or in a loop.
    if is_marked && node.is_ours(&source) {
        return Err(Reason::Source);
    }
    check_allowed(node, cfg, &source)?;
    let leads_to = if interface.switches & Q::SWITCH == 0 {
        node.leads_to(ingress.ifindex(), &source.address)
    } else {
        !is_marked || !node.is_edge(ingress.ifindex(), &source.address)
    };
    if !leads_to {
        return Err(Reason::NoRoute);
    }
    let key = packet.destination(ingress.ifindex());
    let entry = node.entry(&key).ok_or(Reason::Unknown)?;
    if !entry.is_of(&key) {
        return Err(Reason::Replaced);
    }
    if !entry.has_gid() {
        return Err(Reason::Unknown);
    }
    let sum = match packet.checksum() {
        Checksum::Right => Sum::Whole,
        Checksum::PseudoHeader if ingress.is_checksum_partial() => Sum::PseudoHeader,
        Checksum::PseudoHeader | Checksum::Wrong => return Err(Reason::Checksum),
    };
    Ok(packet.reply(entry.gid, sum))
}

/// A datagram that the kernel is about to deliver to a socket of the daemon. The kernel has checked
/// its headers and checksum.
pub trait Datagram {
    /// Whether its payload is a query, see [`QueryPayload::is_query`](crate::packet::QueryPayload::is_query).
    fn is_query(&self) -> bool;

    /// Its source, if it can be read.
    fn source(&self) -> Option<Source>;

    /// Whether this host sent it to itself: it arrived on the loopback interface.
    fn is_local(&self) -> bool;

    /// Whether its source and destination are the same address.
    fn is_to_its_source(&self) -> bool;
}

/// The source of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The source address.
    pub key: GidKey,
    /// The result of [`can_ask`](ibarr_common::wire::ip2gid::can_ask).
    pub can_ask: bool,
}

/// Checks whether `datagram` is to be delivered to the socket.
///
/// # Errors
/// The reason why the server would not answer it, so that it need not be woken.
#[inline]
pub fn guard(node: &impl Node, datagram: &impl Datagram) -> Result<(), Reason> {
    let is_local = datagram.is_local();
    // The server treats it as this host's own, whatever the maps contain.
    if !is_local && datagram.is_to_its_source() {
        return Err(Reason::Source);
    }
    let cfg = node.cfg();
    if !node.is_leased(&cfg) {
        return Ok(());
    }
    if !datagram.is_query() {
        return Err(Reason::Malformed);
    }
    // The server also sends negative replies, so it does not matter whether the address is known.
    let Some(source) = datagram.source() else { return Ok(()) };
    let is_ours = || node.is_marked(&source.key) && node.is_ours(&source.key);
    if !source.can_ask || !is_local && is_ours() {
        return Err(Reason::Source);
    }
    check_allowed(node, &cfg, &source.key)
}

#[inline]
fn check_allowed(node: &impl Node, cfg: &ResponderCfg, source: &GidKey) -> Result<(), Reason> {
    if cfg.restricts() && !node.allows(&AllowPrefix { address: source.address }) {
        return Err(Reason::NotAllowed);
    }
    Ok(())
}
