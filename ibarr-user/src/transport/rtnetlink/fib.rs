// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Parses rtnetlink messages about routes and policy rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::Family;
use ibarr_proto::local_view::Input;
use ibarr_proto::local_view::routing::{Route, Way};
use ibarr_proto::local_view::rules::{Action, Rule, Selects, Traffic};
use ipnet::IpNet;
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{RtAddrFamily, RtScope, RtTable, Rtm, Rtn, Rtprot};
use neli::rtnl::RtmsgBuilder;
use neli::types::{Buffer, RtBuffer};

use super::message::{self, ALL_SET, Frame, Malformed, attribute, nested};

/// A route of the main table, or a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fib {
    Route(Route),
    Rule(Rule),
}

impl Fib {
    /// `None` for other messages, such as a route of another table. A deletion names the route or
    /// rule that was deleted.
    pub(super) fn parse(frame: &Frame<'_>) -> Result<Option<Self>, Malformed> {
        match Rtm::from(frame.kind) {
            Rtm::Newroute | Rtm::Delroute => Ok(route(frame.payload)?.map(Self::Route)),
            Rtm::Newrule | Rtm::Delrule => Ok(rule(frame.payload)?.map(Self::Rule)),
            _ => Ok(None),
        }
    }
}

/// A look-up may have another outcome from now on: a route of any table, a rule or a nexthop object
/// was added, changed or deleted.
pub(super) fn change(frame: &Frame<'_>) -> Result<Option<Input>, Malformed> {
    let kind = Rtm::from(frame.kind);
    match kind {
        Rtm::Newroute | Rtm::Delroute | Rtm::Newrule | Rtm::Delrule => {
            let Some(message) = Message::parse(frame.payload)? else { return Ok(None) };
            if message.flags & libc::RTM_F_CLONED != 0 {
                return Ok(None);
            }
            let own =
                if kind == Rtm::Newroute || kind == Rtm::Delroute { own(&message)? } else { None };
            Ok(Some(match own {
                Some(IpAddr::V4(address)) if kind == Rtm::Delroute => Input::OwnRouteGone(address),
                Some(_) => Input::OwnRoute,
                None => Input::RoutesChanged,
            }))
        }
        _ => {
            let is_nexthop = [RTM_NEWNEXTHOP, RTM_DELNEXTHOP].contains(&frame.kind);
            Ok(is_nexthop.then_some(Input::RoutesChanged))
        }
    }
}

/// The address of this node whose route this is, if the kernel has made it (`fib_magic`,
/// `addrconf_f6i_alloc`).
fn own(message: &Message) -> Result<Option<IpAddr>, Malformed> {
    let len = match message.family {
        Family::V4 => Ipv4Addr::BITS,
        Family::V6 => Ipv6Addr::BITS,
    };
    let is_own = message.kind == libc::RTN_LOCAL
        && message.protocol == libc::RTPROT_KERNEL
        && u32::from(message.dst_len) == len
        && message.table(libc::RTA_TABLE)? == u32::from(libc::RT_TABLE_LOCAL);
    let address = message.attribute(libc::RTA_DST).filter(|_| is_own);
    address.map(|octets| message.ip(octets)).transpose()
}

/// A message that begins with `struct rtmsg` or `struct fib_rule_hdr` of include/uapi/linux, which
/// have the same layout.
pub(super) struct Message {
    pub(super) family: Family,
    dst_len: u8,
    src_len: u8,
    tos: u8,
    table: u8,
    pub(super) protocol: u8,
    pub(super) kind: u8,
    pub(super) flags: u32,
    pub(super) attributes: RtBuffer<u16, Buffer>,
}

impl Message {
    /// `None` for families without queries, such as those of multicast routing.
    pub(super) fn parse(payload: &[u8]) -> Result<Option<Self>, Malformed> {
        let (header, attributes) =
            payload.split_first_chunk::<12>().ok_or(Malformed::Attributes)?;
        let [family, dst_len, src_len, tos, table, protocol, _, kind, f0, f1, f2, f3] = *header;
        let family = match i32::from(family) {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return Ok(None),
        };
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        let attributes = nested(attributes)?;
        Ok(Some(Self { family, dst_len, src_len, tos, table, protocol, kind, flags, attributes }))
    }

    pub(super) fn attribute(&self, kind: u16) -> Option<&[u8]> {
        attribute(&self.attributes, kind)
    }

    fn number(&self, kind: u16) -> Result<Option<u32>, Malformed> {
        self.attribute(kind).map(message::number).transpose()
    }

    /// The table of the attribute, if there is one: the header has room for 8 bits only.
    pub(super) fn table(&self, kind: u16) -> Result<u32, Malformed> {
        Ok(self.number(kind)?.unwrap_or(self.table.into()))
    }

    /// The destination of a route.
    pub(super) fn destination(&self) -> Result<IpNet, Malformed> {
        let address = match (self.attribute(libc::RTA_DST), self.family) {
            (Some(octets), _) => self.ip(octets)?,
            (None, Family::V4) => IpAddr::from([0; 4]),
            (None, Family::V6) => IpAddr::from([0; 16]),
        };
        IpNet::new(address, self.dst_len).map_err(|_| Malformed::PrefixLen)
    }

    /// The gateway among the attributes of the route, or of one of its next hops.
    pub(super) fn gateway(
        &self,
        attributes: &RtBuffer<u16, Buffer>,
    ) -> Result<Option<IpAddr>, Malformed> {
        if let Some(octets) = attribute(attributes, libc::RTA_GATEWAY) {
            return self.ip(octets).map(Some);
        }
        attribute(attributes, libc::RTA_VIA).map(message::via).transpose()
    }

    pub(super) fn ip(&self, octets: &[u8]) -> Result<IpAddr, Malformed> {
        let family = match self.family {
            Family::V4 => RtAddrFamily::Inet,
            Family::V6 => RtAddrFamily::Inet6,
        };
        message::ip(family, octets)
    }
}

fn route(payload: &[u8]) -> Result<Option<Route>, Malformed> {
    let Some(message) = Message::parse(payload)? else { return Ok(None) };
    // Our packets have no TOS, and a cached route is not a route of its own.
    let is_other = message.tos != 0 || message.flags & libc::RTM_F_CLONED != 0;
    if message.table(libc::RTA_TABLE)? != u32::from(libc::RT_TABLE_MAIN) || is_other {
        return Ok(None);
    }
    let prefix = message.destination()?;
    let metric = message.number(libc::RTA_PRIORITY)?.unwrap_or_default();
    let way = match message.kind {
        libc::RTN_UNICAST => way(&message)?,
        libc::RTN_LOCAL | libc::RTN_BROADCAST | libc::RTN_ANYCAST | libc::RTN_MULTICAST => {
            return Ok(None);
        }
        _ => Way::Unclear,
    };
    let source = message.attribute(libc::RTA_PREFSRC);
    let source = source.map(|octets| message.ip(octets)).transpose()?;
    Ok(Some(Route { prefix, metric, way, source }))
}

fn way(message: &Message) -> Result<Way, Malformed> {
    // For some sources only, or through a tunnel.
    if message.src_len != 0 || message.attribute(libc::RTA_ENCAP_TYPE).is_some() {
        return Ok(Way::Unclear);
    }
    if let Some(hops) = message.attribute(libc::RTA_MULTIPATH) {
        return several(message, hops);
    }
    // A route through a nexthop object names no interface if net.ipv4.nexthop_compat_mode is 0.
    let Some(oif) = message.attribute(libc::RTA_OIF) else { return Ok(Way::Unclear) };
    Ok(Way::By { ifindex: message::ifindex(oif)?, gateway: message.gateway(&message.attributes)? })
}

/// Parses next hops (`struct rtnexthop`, each with attributes), and ignores dead ones.
fn several(message: &Message, mut hops: &[u8]) -> Result<Way, Malformed> {
    let mut found: Option<(IfIndex, Option<IpAddr>)> = None;
    while !hops.is_empty() {
        let (head, _) = hops.split_first_chunk::<8>().ok_or(Malformed::Attributes)?;
        let [l0, l1, flags, _, i0, i1, i2, i3] = *head;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let attributes = nested::<u16>(hops.get(8..len).ok_or(Malformed::Attributes)?)?;
        hops = hops.get(len.next_multiple_of(4)..).unwrap_or_default();
        let ifindex = message::ifindex(&[i0, i1, i2, i3])?;
        let gateway = message.gateway(&attributes)?;
        if attribute(&attributes, libc::RTA_ENCAP_TYPE).is_some() {
            return Ok(Way::Unclear);
        }
        if flags & RTNH_F_DEAD != 0 {
            continue;
        }
        match found {
            Some((other, _)) if other != ifindex => return Ok(Way::Unclear),
            Some(_) => {}
            None => found = Some((ifindex, gateway)),
        }
    }
    Ok(found.map_or(Way::Unclear, |(ifindex, gateway)| Way::By { ifindex, gateway }))
}

fn rule(payload: &[u8]) -> Result<Option<Rule>, Malformed> {
    let Some(message) = Message::parse(payload)? else { return Ok(None) };
    let mut suppressors = [FRA_SUPPRESS_IFGROUP, FRA_SUPPRESS_PREFIXLEN].into_iter();
    let action = match message.kind {
        FR_ACT_TO_TBL => Action::Lookup {
            table: message.table(FRA_TABLE)?,
            // -1 means that no result of the table is suppressed.
            suppresses: suppressors
                .any(|kind| message.attribute(kind).is_some_and(|it| it != [0xff; 4])),
        },
        FR_ACT_GOTO => Action::Goto(message.number(FRA_GOTO)?.unwrap_or_default()),
        FR_ACT_NOP => Action::Nothing,
        _ => Action::Refuse,
    };
    Ok(Some(Rule {
        family: message.family,
        priority: message.number(FRA_PRIORITY)?.unwrap_or_default(),
        only: only(&message)?,
        selects: selects(&message)?,
        inverted: message.flags & FIB_RULE_INVERT != 0,
        action,
    }))
}

fn only(message: &Message) -> Result<Traffic, Malformed> {
    let mut only = Traffic::ALL;
    let kinds = [FRA_UID_RANGE, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE];
    for (kind, span) in kinds.into_iter().zip(&mut only.0) {
        // `struct fib_rule_uid_range`, a protocol, or `struct fib_rule_port_range`.
        *span = match message.attribute(kind) {
            None => continue,
            Some(&[protocol]) => (protocol.into(), protocol.into()),
            Some(&[f0, f1, l0, l1]) => {
                (u16::from_ne_bytes([f0, f1]).into(), u16::from_ne_bytes([l0, l1]).into())
            }
            Some(uids) => {
                let (first, last) = uids.split_at_checked(4).ok_or(Malformed::AttributeLength)?;
                (message::number(first)?, message::number(last)?)
            }
        };
    }
    Ok(only)
}

/// What it selects by, except for what [`only`] reads.
fn selects(message: &Message) -> Result<Selects, Malformed> {
    if message.attribute(FRA_L3MDEV).is_some_and(|yes| yes != [0]) {
        return Ok(Selects::Vrf);
    }
    let came_in = message.attribute(FRA_IIFNAME).is_some_and(|name| name != b"lo\0");
    let mark = message.number(FRA_FWMARK)?.unwrap_or_default();
    if came_in || mark & message.number(FRA_FWMASK)?.unwrap_or(u32::MAX) != 0 {
        return Ok(Selects::NotOurs);
    }
    let is_for_all = |kind: u16, payload: &[u8]| match kind {
        FRA_IIFNAME..=FRA_GOTO
        | FRA_PRIORITY
        | FRA_FWMARK..=FRA_FLOW
        | FRA_SUPPRESS_IFGROUP..=FRA_FWMASK
        | FRA_L3MDEV..=FRA_DPORT_RANGE => true,
        FRA_SPORT_MASK | FRA_DPORT_MASK => payload == [0xff; 2],
        _ => false,
    };
    let all = message
        .attributes
        .iter()
        .all(|attribute| is_for_all(*attribute.rta_type(), attribute.rta_payload().as_ref()));
    let all = all && message.dst_len == 0 && message.src_len == 0 && message.tos == 0;
    Ok(if all { Selects::All } else { Selects::Some })
}

/// Request for all policy rules.
pub(super) fn dump_rules(seq: u32) -> Vec<u8> {
    let message = message(RtAddrFamily::Unspecified).build().expect(ALL_SET);
    message::request(Rtm::Getrule, NlmF::DUMP, seq, message)
}

/// Request for the routes of the main table; kernels without the filter list all tables.
pub(super) fn dump_routes(family: RtAddrFamily, seq: u32) -> Vec<u8> {
    let message = message(family).rtm_table(RtTable::Main).build().expect(ALL_SET);
    message::request(Rtm::Getroute, NlmF::DUMP, seq, message)
}

/// The message of a request, without its attributes.
pub(super) fn message(family: RtAddrFamily) -> RtmsgBuilder {
    RtmsgBuilder::default()
        .rtm_family(family)
        .rtm_dst_len(0)
        .rtm_src_len(0)
        .rtm_tos(0)
        .rtm_table(RtTable::Unspec)
        .rtm_protocol(Rtprot::Unspec)
        .rtm_scope(RtScope::Universe)
        .rtm_type(Rtn::Unspec)
}

// Of include/uapi/linux/rtnetlink.h.
const RTNH_F_DEAD: u8 = 1;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;

// Of include/uapi/linux/fib_rules.h.
const FIB_RULE_INVERT: u32 = 2;
const FR_ACT_TO_TBL: u8 = 1;
const FR_ACT_GOTO: u8 = 2;
const FR_ACT_NOP: u8 = 3;
const FRA_IIFNAME: u16 = 3;
const FRA_GOTO: u16 = 4;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_FLOW: u16 = 11;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_L3MDEV: u16 = 19;
const FRA_UID_RANGE: u16 = 20;
const FRA_IP_PROTO: u16 = 22;
const FRA_SPORT_RANGE: u16 = 23;
const FRA_DPORT_RANGE: u16 = 24;
const FRA_SPORT_MASK: u16 = 28;
const FRA_DPORT_MASK: u16 = 29;
