// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What becomes of a query, by the rules of the ip2gid server in `ibarr-proto`: a program answers
//! only what the server would answer, with the same payload, and the guard drops only what the
//! server would. Everything else is passed on to it.

use ibarr_common::IfIndex;
use ibarr_common::map::{AllowPrefix, GidEntry, GidKey, Interface, Program, Reason, ResponderCfg};

use crate::packet::{Checksum, QueryPacket, Sum};

/// What a program can find out about this node, and what it tells of its own doing.
pub trait Node {
    /// The one element of `responder_cfg`.
    fn cfg(&self) -> ResponderCfg;

    /// Whether the lease of `cfg` is not over yet, or has been for less than a tick of the kernel.
    fn is_leased(&self, cfg: &ResponderCfg) -> bool;

    /// Element of `interfaces`.
    fn interface(&self, ifindex: IfIndex) -> Option<Interface>;

    /// Whether a prefix in `allow` covers an address.
    fn allows(&self, address: &AllowPrefix) -> bool;

    /// Whether `gid_cache` has an element.
    fn is_ours(&self, key: &GidKey) -> bool;

    /// Whether `routes` leads to an address by an interface.
    fn leads_to(&self, ifindex: IfIndex, address: &[u8; 16]) -> bool;

    /// A copy of an element of `gid_cache`.
    fn entry(&self, key: &GidKey) -> Option<GidEntry>;

    /// Counts a packet.
    fn count(&self, program: Program, reason: Reason);
}

/// A packet's way to us.
pub trait Ingress {
    /// The interface that it came in by.
    fn ifindex(&self) -> IfIndex;

    /// Whether the packet is for this host at the link layer.
    fn is_for_this_host(&self, interface: &Interface) -> bool;

    /// Whether the kernel knows that its UDP checksum has yet to be filled in
    /// (`CHECKSUM_PARTIAL`). Asked only if the checksum is the sum of the pseudo-header.
    fn is_checksum_partial(&self) -> bool;
}

/// The reply to `packet`.
///
/// # Errors
/// Why the packet is passed on instead.
#[inline]
pub fn answer<Q: QueryPacket>(
    node: &impl Node,
    ingress: &impl Ingress,
    packet: &Q,
) -> Result<Q::Reply, Reason> {
    let cfg = node.cfg();
    if !node.is_leased(&cfg) {
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
    // What this host sends to itself comes by the loopback interface, which is never served. So an
    // address of ours as source comes from a liar or by a loop.
    if node.is_ours(&source) {
        return Err(Reason::Source);
    }
    check_allowed(node, &cfg, &source)?;
    if interface.switches & Q::SWITCH == 0 && !node.leads_to(ingress.ifindex(), &source.address) {
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

/// A datagram that a socket of the daemon is about to be given. The kernel has checked its headers
/// and checksum.
pub trait Datagram {
    /// Whether its payload is a query, see [`QueryPayload::is_query`](crate::packet::QueryPayload::is_query).
    fn is_query(&self) -> bool;

    /// Where it comes from, if that can be found out.
    fn source(&self) -> Option<Source>;

    /// Whether this host has sent it to itself: it came in by the loopback interface.
    fn is_local(&self) -> bool;

    /// Whether its source is its destination.
    fn is_to_its_source(&self) -> bool;
}

/// Where a datagram comes from.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its address.
    pub key: GidKey,
    /// See [`can_ask`](ibarr_common::wire::ip2gid::can_ask).
    pub can_ask: bool,
}

/// Lets `datagram` through to the socket.
///
/// # Errors
/// Why the server would not answer it: it need not be woken.
#[inline]
pub fn guard(node: &impl Node, datagram: &impl Datagram) -> Result<(), Reason> {
    let is_local = datagram.is_local();
    // The server takes it for this host's own, whatever the maps say.
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
    // The server also says "not here", so whether we know the address is not for us to judge.
    let Some(source) = datagram.source() else { return Ok(()) };
    if !source.can_ask || node.is_ours(&source.key) && !is_local {
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
