// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Netlink messages: splits a datagram into messages, and parses those of rtnetlink.
//!
//! neli has the types and walks the attributes. It trusts the lengths in message headers, so the
//! walk over messages is ours, and neli sees only the payload of one complete message.

use std::io::Cursor;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ibarr_common::IfIndex;
use ibarr_common::ib::PKey;
use ibarr_proto::local_view::{
    AltNames, Bonding, Dad, HwAddr, Input, InterfaceAddress, InterfaceName, Link, LinkType,
};
use ipnet::IpNet;
use neli::consts::nl::{NlmF, Nlmsg};
use neli::consts::rtnl::{Ifa, Iff, Ifla, IflaInfo, RtAddrFamily, RtScope, RtaType, Rtm};
use neli::nl::{NlPayload, NlmsghdrBuilder};
use neli::rtnl::{Ifaddrmsg, IfaddrmsgBuilder, Ifinfomsg, IfinfomsgBuilder, Rtattr, RtattrBuilder};
use neli::types::{Buffer, RtBuffer};
use neli::{FromBytesWithInput, Size, ToBytes};

/// Splits a datagram into messages. Ends after the first that does not fit, because the start of
/// the next one is unknown then.
pub(crate) fn frames(datagram: &[u8]) -> impl Iterator<Item = Result<Frame<'_>, Malformed>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let split = Frame::split(rest);
        rest = split.map_or(&[], |(_, rest)| rest);
        Some(split.map(|(frame, _)| frame).ok_or(Malformed::Header))
    })
}

/// A netlink message (`struct nlmsghdr` of include/uapi/linux/netlink.h, host byte order).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u16,
    pub(super) flags: NlmF,
    /// In an answer: the sequence number of the request.
    pub(super) seq: u32,
    /// In an answer: port id of the socket that asked. In an event: port id of the socket that made
    /// the change.
    pub(super) portid: u32,
    pub(crate) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (header, _) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *header;
        let len = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
        let frame = Self {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: NlmF::from_bits_retain(u16::from_ne_bytes([f0, f1])),
            seq: u32::from_ne_bytes([s0, s1, s2, s3]),
            portid: u32::from_ne_bytes([p0, p1, p2, p3]),
            payload: bytes.get(HEADER_LEN..len)?,
        };
        // Padding after the last message may be missing.
        let next = len.checked_next_multiple_of(4)?.min(bytes.len());
        Some((frame, &bytes[next..]))
    }

    /// The error number of `NLMSG_ERROR` and `NLMSG_DONE`, positive; zero is success. A
    /// `NLMSG_DONE` without a number is success.
    pub(crate) fn errno(&self) -> Result<i32, Malformed> {
        match self.payload.first_chunk::<4>() {
            Some(error) => Ok(i32::from_ne_bytes(*error).saturating_neg()),
            None if self.payload.is_empty() && self.kind == u16::from(Nlmsg::Done) => Ok(0),
            None => Err(Malformed::Header),
        }
    }
}

/// A change of a link or address; `None` for messages about something else.
pub(super) fn change(frame: &Frame<'_>) -> Result<Option<Input>, Malformed> {
    match Rtm::from(frame.kind) {
        Rtm::Newlink => Ok(link(frame.payload)?.map(Input::Link)),
        Rtm::Dellink => Ok(link_gone(frame.payload)?.map(Input::LinkGone)),
        Rtm::Newaddr => Ok(address(frame.payload)?.map(Input::Address)),
        Rtm::Deladdr => Ok(address(frame.payload)?.map(|entry| Input::AddressGone(entry.id))),
        _ => Ok(None),
    }
}

/// Why a message of the kernel is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Malformed {
    #[error("a message header that does not fit")]
    Header,
    #[error("attributes that do not fit")]
    Attributes,
    #[error("an attribute of a wrong length")]
    AttributeLength,
    #[error("an attribute is missing")]
    AttributeMissing,
    #[error("no interface index")]
    IfIndex,
    #[error("an invalid interface name")]
    Name,
    #[error("a prefix longer than its address")]
    PrefixLen,
}

fn link(payload: &[u8]) -> Result<Option<Link>, Malformed> {
    let Some((ifindex, message)) = ifinfomsg(payload)? else { return Ok(None) };
    let attributes = message.rtattrs();
    // An event of a wireless extension says nothing about the link (`rtnetlink_ifinfo_prep`).
    if attribute(attributes, Ifla::Wireless).is_some() {
        return Ok(None);
    }
    let name = attribute(attributes, Ifla::Ifname).ok_or(Malformed::AttributeMissing)?;
    let name = name.strip_suffix(b"\0").unwrap_or(name);
    // A device without an address, such as a tun, has no attribute.
    let hwaddr = attribute(attributes, Ifla::Address).unwrap_or_default();
    let (bonding, vrf) = masters(attributes)?;
    Ok(Some(Link {
        ifindex,
        altnames: altnames(attributes)?,
        vrf,
        name: InterfaceName::new(name).ok_or(Malformed::Name)?,
        link_type: LinkType::new(u16::from(*message.ifi_type())),
        hwaddr: HwAddr::new(hwaddr).ok_or(Malformed::AttributeLength)?,
        up: message.ifi_flags().contains(Iff::UP),
        bonding,
        pkey: attribute(attributes, Ifla::Broadcast).and_then(pkey),
    }))
}

/// The partition in the broadcast address of an IPoIB interface: a QPN, then the GID of RFC 4391 section 4.
fn pkey(broadcast: &[u8]) -> Option<PKey> {
    let (_, gid) = broadcast.split_first_chunk::<4>()?;
    match *<&[u8; 16]>::try_from(gid).ok()? {
        [0xff, _, 0x40, 0x1b, high, low, ..] => PKey::new(u16::from_be_bytes([high, low])),
        _ => None,
    }
}

fn link_gone(payload: &[u8]) -> Result<Option<IfIndex>, Malformed> {
    Ok(ifinfomsg(payload)?.map(|(ifindex, _)| ifindex))
}

/// `None` for messages of a protocol about its side of a link: bridges announce that a port has
/// left as `RTM_DELLINK` of family `AF_BRIDGE` to the same group (`br_ifinfo_notify`).
pub(super) fn ifinfomsg(payload: &[u8]) -> Result<Option<(IfIndex, Ifinfomsg)>, Malformed> {
    let message = Ifinfomsg::from_bytes_with_input(&mut Cursor::new(payload), payload.len())
        .map_err(|_| Malformed::Attributes)?;
    if *message.ifi_family() != RtAddrFamily::Unspecified {
        return Ok(None);
    }
    let ifindex = u32::try_from(*message.ifi_index()).ok().and_then(IfIndex::new);
    Ok(Some((ifindex.ok_or(Malformed::IfIndex)?, message)))
}

/// The other names are a list inside an attribute.
fn altnames(attributes: &RtBuffer<Ifla, Buffer>) -> Result<AltNames, Malformed> {
    let mut names = AltNames::default();
    if let Some(list) = attribute(attributes, Ifla::from(IFLA_PROP_LIST)) {
        for name in nested::<u16>(list)?.iter().filter(|name| *name.rta_type() == IFLA_ALT_IFNAME) {
            let name = name.rta_payload().as_ref();
            names.add(name.strip_suffix(b"\0").unwrap_or(name));
        }
    }
    Ok(names)
}

/// The link's role in a bond or team, and its VRF.
fn masters(attributes: &RtBuffer<Ifla, Buffer>) -> Result<(Bonding, Option<IfIndex>), Malformed> {
    let Some(info) = attribute(attributes, Ifla::Linkinfo) else {
        return Ok((Bonding::None, None));
    };
    let info = nested::<IflaInfo>(info)?;
    let master =
        || ifindex(attribute(attributes, Ifla::Master).ok_or(Malformed::AttributeMissing)?);
    let is_bond = |kind| matches!(attribute(&info, kind), Some(b"bond\0" | b"team\0"));
    if is_bond(IflaInfo::SlaveKind) {
        return Ok((Bonding::Slave { of: master()? }, None));
    }
    let is_in_vrf = attribute(&info, IflaInfo::SlaveKind) == Some(b"vrf\0");
    let vrf = is_in_vrf.then(master).transpose()?;
    if !is_bond(IflaInfo::Kind) {
        return Ok((Bonding::None, vrf));
    }
    let data = attribute(&info, IflaInfo::Data).map(nested::<u16>).transpose()?;
    // A team numbers its attributes differently, and has no such attribute.
    let active_slave = match attribute(&info, IflaInfo::Kind) {
        Some(b"bond\0") => data.as_ref().and_then(|data| attribute(data, IFLA_BOND_ACTIVE_SLAVE)),
        _ => None,
    };
    Ok((Bonding::Master { active_slave: active_slave.map(ifindex).transpose()? }, vrf))
}

pub(super) fn address(payload: &[u8]) -> Result<Option<InterfaceAddress>, Malformed> {
    let message = Ifaddrmsg::from_bytes_with_input(&mut Cursor::new(payload), payload.len())
        .map_err(|_| Malformed::Attributes)?;
    let family = *message.ifa_family();
    if !matches!(family, RtAddrFamily::Inet | RtAddrFamily::Inet6) {
        return Ok(None);
    }
    let attributes = message.rtattrs();
    let ip = |kind| attribute(attributes, kind).map(|octets| ip(family, octets)).transpose();
    let (local, other) = (ip(Ifa::Local)?, ip(Ifa::Address)?);
    // `IFA_ADDRESS` is the other end if it differs from `IFA_LOCAL`, and the address itself if that
    // is absent (IPv6 without a peer).
    let address = local.or(other).ok_or(Malformed::AttributeMissing)?;
    let peer = other.filter(|other| *other != address);
    let prefix_len = *message.ifa_prefixlen();
    IpNet::new(address, prefix_len).map_err(|_| Malformed::PrefixLen)?;
    let ifindex = IfIndex::new(*message.ifa_index()).ok_or(Malformed::IfIndex)?;
    let flags = match attribute(attributes, Ifa::Flags) {
        Some(flags) => number(flags)?,
        None => u32::from(message.ifa_flags().bits()),
    };
    Ok(Some(InterfaceAddress::new(ifindex, address, prefix_len, peer, dad(flags))))
}

/// A failed or optimistic address is tentative as well (`addrconf_dad_stop`, `ipv6_add_addr` in
/// net/ipv6/addrconf.c).
fn dad(flags: u32) -> Dad {
    let has = |flag| flags & flag != 0;
    if has(libc::IFA_F_DADFAILED) {
        Dad::Failed
    } else if has(libc::IFA_F_OPTIMISTIC) {
        Dad::Optimistic
    } else if has(libc::IFA_F_TENTATIVE) {
        Dad::Tentative
    } else {
        Dad::Passed
    }
}

pub(crate) fn attribute<T: RtaType>(attributes: &RtBuffer<T, Buffer>, kind: T) -> Option<&[u8]> {
    let found = attributes.iter().find(|attribute| *attribute.rta_type() == kind)?;
    Some(found.rta_payload().as_ref())
}

pub(crate) fn nested<T: RtaType>(payload: &[u8]) -> Result<RtBuffer<T, Buffer>, Malformed> {
    RtBuffer::from_bytes_with_input(&mut Cursor::new(payload), payload.len())
        .map_err(|_| Malformed::Attributes)
}

pub(super) fn ip(family: RtAddrFamily, octets: &[u8]) -> Result<IpAddr, Malformed> {
    let address = match family {
        RtAddrFamily::Inet => octets.try_into().map(|v4: [u8; 4]| Ipv4Addr::from(v4).into()),
        _ => octets.try_into().map(|v6: [u8; 16]| Ipv6Addr::from(v6).into()),
    };
    address.map_err(|_| Malformed::AttributeLength)
}

pub(crate) fn ifindex(payload: &[u8]) -> Result<IfIndex, Malformed> {
    IfIndex::new(number(payload)?).ok_or(Malformed::IfIndex)
}

/// `struct rtvia`: the family in host order, then the address (routes of RFC 8950).
pub(super) fn via(payload: &[u8]) -> Result<IpAddr, Malformed> {
    let (family, octets) = payload.split_first_chunk::<2>().ok_or(Malformed::AttributeLength)?;
    let family = u8::try_from(u16::from_ne_bytes(*family)).map_err(|_| Malformed::Attributes)?;
    ip(RtAddrFamily::from(family), octets)
}

pub(super) fn number(payload: &[u8]) -> Result<u32, Malformed> {
    payload.try_into().map(u32::from_ne_bytes).map_err(|_| Malformed::AttributeLength)
}

/// The family and the octets of an address, as in requests.
pub(super) fn octets(address: IpAddr) -> (RtAddrFamily, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (RtAddrFamily::Inet, v4.octets().to_vec()),
        IpAddr::V6(v6) => (RtAddrFamily::Inet6, v6.octets().to_vec()),
    }
}

/// An attribute of a request.
pub(crate) fn rtattr<T: RtaType>(kind: T, payload: &[u8]) -> Rtattr<T, Buffer> {
    RtattrBuilder::default().rta_type(kind).rta_payload(payload).build().expect(ALL_SET)
}

/// Request for all links.
pub(super) fn dump_links(seq: u32) -> Vec<u8> {
    // Half of a link's message is statistics.
    let skip_stats = libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes();
    links(NlmF::DUMP, seq, Ifla::ExtMask, &skip_stats)
}

/// Request for the link that has this name or altname.
pub(super) fn get_link(name: &str) -> Vec<u8> {
    // Short names without altnames are all that Linux knew before 5.5.
    let is_short = name.len() <= InterfaceName::MAX_LEN;
    let kind = if is_short { Ifla::Ifname } else { Ifla::from(IFLA_ALT_IFNAME) };
    links(NlmF::empty(), 0, kind, &[name.as_bytes(), b"\0"].concat())
}

fn links(flags: NlmF, seq: u32, attribute: Ifla, payload: &[u8]) -> Vec<u8> {
    let message = IfinfomsgBuilder::default()
        .ifi_family(RtAddrFamily::Unspecified)
        .rtattrs(RtBuffer::from_iter([rtattr(attribute, payload)]))
        .build()
        .expect(ALL_SET);
    request(Rtm::Getlink, flags, seq, message)
}

/// Request for all addresses.
pub(super) fn dump_addresses(seq: u32) -> Vec<u8> {
    let message = IfaddrmsgBuilder::default()
        .ifa_family(RtAddrFamily::Unspecified)
        .ifa_prefixlen(0)
        .ifa_scope(RtScope::Universe)
        .ifa_index(0)
        .build()
        .expect(ALL_SET);
    request(Rtm::Getaddr, NlmF::DUMP, seq, message)
}

pub(crate) fn request<P: Size + ToBytes>(kind: Rtm, flags: NlmF, seq: u32, message: P) -> Vec<u8> {
    let message = NlmsghdrBuilder::default()
        .nl_type(kind)
        .nl_flags(NlmF::REQUEST | flags)
        .nl_seq(seq)
        .nl_payload(NlPayload::Payload(message))
        .build()
        .expect(ALL_SET);
    let mut bytes = Cursor::new(Vec::new());
    // Writing to a vector cannot fail.
    message.to_bytes(&mut bytes).expect("written to a vector");
    bytes.into_inner()
}

const HEADER_LEN: usize = 16;
/// Why neli's builders do not fail: their only error is a missing field.
pub(crate) const ALL_SET: &str = "all fields are set";
/// A list of attributes (`NLA_F_NESTED`), and one in it (include/uapi/linux/if_link.h).
const IFLA_PROP_LIST: u16 = 0x34 | 1 << 15;
const IFLA_ALT_IFNAME: u16 = 53;
/// Attribute of a bond.
const IFLA_BOND_ACTIVE_SLAVE: u16 = 2;
