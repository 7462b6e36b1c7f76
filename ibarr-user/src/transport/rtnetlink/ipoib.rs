// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! IPoIB interfaces: their state, how to change it, and what the kernel forgets of an interface that goes down.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use ibarr_common::IfIndex;
use ibarr_common::ib::{Guid, IpoibHwAddr};
use ibarr_proto::local_view::{Input, LinkType};
use ipnet::IpNet;
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Iff, Ifla, RtAddrFamily, Rtm};
use neli::rtnl::IfinfomsgBuilder;
use neli::types::{Buffer, RtBuffer};
use nix::errno::Errno;

use super::ask::{Error, ask};
use super::message::{self, ALL_SET, Frame, Malformed, attribute, rtattr};
use super::{fib, neigh};

/// An IPoIB interface that has a GID.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Ipoib {
    pub(crate) ifindex: IfIndex,
    pub(crate) name: String,
    pub(crate) address: IpoibHwAddr,
    /// The GUID of the address that it was made with: for all but children the port's own (Linux 5.6 and later).
    pub(crate) permanent: Option<Guid>,
    pub(crate) is_up: bool,
    pub(crate) has_carrier: bool,
    /// The interface that it is a child of, in another partition.
    pub(crate) parent: Option<IfIndex>,
}

/// Something that the kernel forgets when its interface goes down: an IPv6 address, a neighbour entry that an
/// administrator has made, or a route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Entry {
    kind: Rtm,
    /// As the kernel has listed it, and takes it back.
    pub(super) payload: Vec<u8>,
    /// Such as `the route to 10.2.0.0/24`.
    pub(crate) name: String,
}

#[cfg(test)]
impl Entry {
    pub(crate) fn named(name: &str) -> Self {
        Self { kind: Rtm::Newroute, payload: Vec::new(), name: name.to_owned() }
    }
}

/// The IPoIB interfaces of this network namespace.
pub(crate) fn interfaces() -> io::Result<Vec<Ipoib>> {
    Ok(ask(&message::dump_links(0), interface)?)
}

pub(super) fn interface(frame: &Frame<'_>) -> Result<Option<Ipoib>, Malformed> {
    let Some(Input::Link(link)) = message::change(frame)? else { return Ok(None) };
    let address = IpoibHwAddr::parse(link.hwaddr.as_bytes());
    let Some(address) = address.filter(|_| link.link_type == LinkType::INFINIBAND) else {
        return Ok(None);
    };
    let Some((ifindex, message)) = message::ifinfomsg(frame.payload)? else { return Ok(None) };
    let has = |kind| attribute(message.rtattrs(), kind);
    let permanent = has(Ifla::from(IFLA_PERM_ADDRESS)).and_then(IpoibHwAddr::parse);
    // In another network namespace its index means nothing here.
    let parent = has(Ifla::Link).filter(|_| has(Ifla::from(IFLA_LINK_NETNSID)).is_none());
    Ok(Some(Ipoib {
        ifindex,
        name: link.name.to_string(),
        address,
        permanent: permanent.map(|address| address.gid().guid()),
        is_up: link.up,
        has_carrier: message.ifi_flags().contains(Iff::LOWERUP),
        parent: parent.map(message::ifindex).transpose()?.filter(|parent| *parent != ifindex),
    }))
}

/// What the kernel forgets when these interfaces go down, and does not make again itself when they are up.
///
/// # Errors
/// `EAGAIN` if something changes meanwhile; `EOPNOTSUPP` if there are nexthop objects (ip-nexthop(8)) of the interfaces,
/// which are forgotten with all their routes.
pub(crate) fn forgotten(links: &[Ipoib]) -> io::Result<Vec<Entry>> {
    let requests = [
        message::request(Rtm::from(RTM_GETNEXTHOP), NlmF::DUMP, 0, Buffer::from(vec![0; 8])),
        message::dump_addresses(0),
        neigh::dump_neighbours(0),
        fib::dump_routes(RtAddrFamily::Inet, 0),
        fib::dump_routes(RtAddrFamily::Inet6, 0),
    ];
    let mut entries = Vec::new();
    for request in requests {
        match ask(&request, |frame| entry(frame, links)) {
            Ok(listed) => {
                let mut listed = listed.into_iter().collect::<Result<Vec<_>, _>>()?;
                // The kernel lists the newest address first (`ipv6_link_dev_addr`).
                if listed.first().is_some_and(|entry| entry.kind == Rtm::Newaddr) {
                    listed.reverse();
                }
                entries.extend(listed);
            }
            // A kernel before 5.3, or without IPv6.
            Err(Error::Refused(error)) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(entries)
}

/// What a message of a dump lists, if one of the interfaces forgets it.
pub(super) fn entry(
    frame: &Frame<'_>,
    links: &[Ipoib],
) -> Result<Option<Result<Entry, Errno>>, Malformed> {
    if frame.flags.contains(NlmF::DUMP_INTR) {
        return Ok(Some(Err(Errno::EAGAIN)));
    }
    let of = |ifindex: u32| links.iter().find(|link| link.ifindex.get() == ifindex);
    Ok(match Rtm::from(frame.kind) {
        Rtm::Newaddr => address(frame.payload, of)?.map(Ok),
        Rtm::Newneigh => neighbour(frame.payload, of)?.map(Ok),
        Rtm::Newroute => route(frame.payload, of)?.map(Ok),
        _ => nexthop(frame, of)?.then_some(Err(Errno::EOPNOTSUPP)),
    })
}

/// The kernel keeps those of IPv4, and makes the one of the link itself, of the GID (`addrconf_ifid_infiniband`).
fn address<'a>(
    payload: &[u8],
    of: impl Fn(u32) -> Option<&'a Ipoib>,
) -> Result<Option<Entry>, Malformed> {
    let Some(found) = message::address(payload)? else { return Ok(None) };
    let (IpAddr::V6(ip), Some(link)) = (found.id.address(), of(found.id.ifindex().get())) else {
        return Ok(None);
    };
    let guid = link.address.gid().guid().get() | 0x02 << 56;
    if ip == Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(guid)) {
        return Ok(None);
    }
    let name = format!("the address {ip} of {}", link.name);
    Ok(Some(Entry { kind: Rtm::Newaddr, payload: payload.to_vec(), name }))
}

/// Begins with `struct ndmsg` of include/uapi/linux/neighbour.h.
fn neighbour<'a>(
    payload: &[u8],
    of: impl Fn(u32) -> Option<&'a Ipoib>,
) -> Result<Option<Entry>, Malformed> {
    let header = payload.first_chunk::<12>().ok_or(Malformed::Attributes)?;
    let [family, _, _, _, i0, i1, i2, i3, s0, s1, _, _] = *header;
    let is_permanent = u16::from_ne_bytes([s0, s1]) & libc::NUD_PERMANENT != 0;
    let is_ip = [libc::AF_INET, libc::AF_INET6].contains(&family.into());
    let Some(link) = of(u32::from_ne_bytes([i0, i1, i2, i3])).filter(|_| is_permanent && is_ip)
    else {
        return Ok(None);
    };
    let name = format!("a permanent neighbour entry of {}", link.name);
    Ok(Some(Entry { kind: Rtm::Newneigh, payload: payload.to_vec(), name }))
}

/// Those that the kernel makes of addresses, and that routers advertise, come again by themselves.
fn route<'a>(
    payload: &[u8],
    of: impl Fn(u32) -> Option<&'a Ipoib>,
) -> Result<Option<Entry>, Malformed> {
    let Some(message) = fib::Message::parse(payload)? else { return Ok(None) };
    let comes_again = [libc::RTPROT_KERNEL, RTPROT_RA, libc::RTPROT_REDIRECT];
    if comes_again.contains(&message.protocol) || message.flags & libc::RTM_F_CLONED != 0 {
        return Ok(None);
    }
    let mut payload = payload.to_vec();
    if !interfaces_of(&mut payload)?.into_iter().any(|ifindex| of(ifindex).is_some()) {
        return Ok(None);
    }
    // In hundredths of a second (`USER_HZ`), and 0 for ever.
    let expires = message.attribute(libc::RTA_CACHEINFO).and_then(|info| info.get(8..12));
    let expires = expires.map(message::number).transpose()?.map_or(0, |time| time.div_ceil(100));
    if expires > 0 {
        payload.extend([8_u16, RTA_EXPIRES].map(u16::to_ne_bytes).concat());
        payload.extend(expires.to_ne_bytes());
    }
    let to: IpNet = message.destination()?;
    let table = message.table(libc::RTA_TABLE)?;
    let name = format!("the route to {to} in table {table}");
    Ok(Some(Entry { kind: Rtm::Newroute, payload, name }))
}

/// The interfaces of a route. Clears its flags that tell the state of its next hops, which the kernel does not take back
/// (`fib_create_info`).
fn interfaces_of(route: &mut [u8]) -> Result<Vec<u32>, Malformed> {
    const HEADER_LEN: usize = 12;
    let (header, attributes) =
        route.split_first_chunk_mut::<HEADER_LEN>().ok_or(Malformed::Attributes)?;
    let flags = message::number(&header[8..])? & u32::from(RTNH_F_ONLINK);
    header[8..].copy_from_slice(&flags.to_ne_bytes());
    let mut found = Vec::new();
    parts(attributes, |attribute| {
        let (kind, payload) = attribute.split_at_mut(2);
        match u16::from_ne_bytes([kind[0], kind[1]]) {
            libc::RTA_OIF => found.push(message::number(payload)?),
            // Each begins with a `struct rtnexthop`: length, flags, hops, interface.
            libc::RTA_MULTIPATH => parts(payload, |hop| {
                let hop = hop.first_chunk_mut::<6>().ok_or(Malformed::Attributes)?;
                hop[0] &= RTNH_F_ONLINK;
                found.push(message::number(&hop[2..])?);
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

/// Calls `each` with what follows the length of each part of a list.
fn parts(
    mut list: &mut [u8],
    mut each: impl FnMut(&mut [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    while let Some((len, _)) = list.split_first_chunk::<2>() {
        let len = usize::from(u16::from_ne_bytes(*len));
        each(list.get_mut(2..len).filter(|part| part.len() >= 2).ok_or(Malformed::Attributes)?)?;
        list = list.get_mut(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

/// Whether it is a nexthop object of one of the interfaces (`struct nhmsg`, then attributes).
fn nexthop<'a>(
    frame: &Frame<'_>,
    of: impl Fn(u32) -> Option<&'a Ipoib>,
) -> Result<bool, Malformed> {
    let (_, attributes) = frame.payload.split_first_chunk::<8>().ok_or(Malformed::Attributes)?;
    let attributes = message::nested::<u16>(attributes)?;
    let ifindex = attribute(&attributes, NHA_OIF).map(message::number).transpose()?;
    Ok(ifindex.and_then(of).is_some())
}

/// Makes it again; does nothing if it is there.
pub(crate) fn remember(entry: &Entry) -> io::Result<()> {
    let flags = match entry.kind {
        // Behind those with the same destination and metric.
        Rtm::Newroute => NlmF::CREATE | NlmF::APPEND,
        _ => NlmF::CREATE | NlmF::EXCL,
    };
    let payload = Buffer::from(entry.payload.clone());
    match tell(&message::request(entry.kind, flags | NlmF::ACK, 0, payload)) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        outcome => outcome,
    }
}

/// Sets an interface up or down.
pub(crate) fn set_up(ifindex: IfIndex, up: bool) -> io::Result<()> {
    let message = link(ifindex);
    set(if up { message.up() } else { message.down() })
}

/// Gives an interface that is down another hardware address.
pub(crate) fn set_address(ifindex: IfIndex, address: IpoibHwAddr) -> io::Result<()> {
    set(link(ifindex).rtattrs(RtBuffer::from_iter([rtattr(Ifla::Address, &address.octets())])))
}

fn link(ifindex: IfIndex) -> IfinfomsgBuilder {
    let message = IfinfomsgBuilder::default().ifi_family(RtAddrFamily::Unspecified);
    message.ifi_index(ifindex.get().cast_signed())
}

fn set(message: IfinfomsgBuilder) -> io::Result<()> {
    let message = message.build().expect(ALL_SET);
    tell(&message::request(Rtm::Setlink, NlmF::ACK, 0, message))
}

fn tell(request: &[u8]) -> io::Result<()> {
    Ok(ask(request, |_| Ok(None::<()>)).map(drop)?)
}

// Of include/uapi/linux: if_link.h, rtnetlink.h, nexthop.h.
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_PERM_ADDRESS: u16 = 54;
const RTA_EXPIRES: u16 = 23;
const RTPROT_RA: u8 = 9;
const RTNH_F_ONLINK: u8 = 4;
const RTM_GETNEXTHOP: u16 = 106;
const NHA_OIF: u16 = 5;
