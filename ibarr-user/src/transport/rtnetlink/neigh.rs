// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Parses rtnetlink messages about neighbours.

use std::net::{Ipv4Addr, Ipv6Addr};

use ibarr_proto::ip2gid::client::Route;
use ibarr_proto::local_view::neighbours::{Entry, State};
use ibarr_proto::local_view::{HwAddr, Input};
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Nda, Nud, RtAddrFamily, Rtm, Rtn};
use neli::rtnl::NdmsgBuilder;
use neli::types::{Buffer, RtBuffer};

use super::message::{self, ALL_SET, Frame, Malformed, attribute, nested, rtattr};

/// Address of the entries of nudges. It and [`ADDRESS_V4`] are documentation addresses (RFC 3849, RFC 5737),
/// which no neighbour has. Programs that watch neighbours have to ignore both.
pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x6962, 0x6172, 0x7200, 0, 0, 0x12b7);
/// Address of the entries without IPv6, see [`ADDRESS_V6`].
pub const ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 47);

/// A change of a neighbour; `None` for other messages, such as an address that a bridge has learned, and for
/// the entries of nudges.
pub(super) fn change(frame: &Frame<'_>) -> Result<Option<Input>, Malformed> {
    let kind = Rtm::from(frame.kind);
    if !matches!(kind, Rtm::Newneigh | Rtm::Delneigh) {
        return Ok(None);
    }
    let Some(entry) = entry(frame.payload)? else { return Ok(None) };
    if entry.address == ADDRESS_V4 || entry.address == ADDRESS_V6 {
        return Ok(None);
    }
    Ok(Some(match kind {
        Rtm::Newneigh => Input::Neighbour(entry),
        _ => Input::NeighbourGone(entry.ifindex, entry.address),
    }))
}

/// Parses `struct ndmsg` and its attributes.
fn entry(payload: &[u8]) -> Result<Option<Entry>, Malformed> {
    let (header, attributes) = payload.split_first_chunk::<12>().ok_or(Malformed::Attributes)?;
    let [family, _, _, _, i0, i1, i2, i3, s0, s1, flags, _] = *header;
    let family = match i32::from(family) {
        libc::AF_INET => RtAddrFamily::Inet,
        libc::AF_INET6 => RtAddrFamily::Inet6,
        _ => return Ok(None),
    };
    // A proxied address, not a neighbour.
    if flags & libc::NTF_PROXY != 0 {
        return Ok(None);
    }
    let attributes: RtBuffer<u16, Buffer> = nested(attributes)?;
    let address = attribute(&attributes, libc::NDA_DST).ok_or(Malformed::AttributeMissing)?;
    let hwaddr = attribute(&attributes, libc::NDA_LLADDR).unwrap_or_default();
    Ok(Some(Entry {
        ifindex: message::ifindex(&[i0, i1, i2, i3])?,
        address: message::ip(family, address)?,
        state: state(u16::from_ne_bytes([s0, s1])),
        hwaddr: HwAddr::new(hwaddr).ok_or(Malformed::AttributeLength)?,
    }))
}

fn state(nud: u16) -> State {
    match nud {
        libc::NUD_REACHABLE => State::Reachable,
        libc::NUD_STALE => State::Stale,
        libc::NUD_DELAY => State::Delay,
        libc::NUD_PROBE => State::Probe,
        libc::NUD_PERMANENT => State::Permanent,
        libc::NUD_NOARP => State::NoArp,
        _ => State::Unresolved,
    }
}

/// Request for the neighbours over IPv4 and IPv6.
pub(super) fn dump_neighbours(seq: u32) -> Vec<u8> {
    let message = message(RtAddrFamily::Unspecified).build().expect(ALL_SET);
    message::request(Rtm::Getneigh, NlmF::DUMP, seq, message)
}

/// Request for one neighbour. The kernel refuses a state in it (`neigh_valid_get_req`).
pub(super) fn get_neighbour(seq: u32, Route { ifindex, next_hop }: Route) -> Vec<u8> {
    let (family, octets) = message::octets(next_hop);
    let message = message(family)
        .ndm_index(ifindex.get().cast_signed())
        .rtattrs([rtattr(Nda::Dst, &octets)].into_iter().collect())
        .build()
        .expect(ALL_SET);
    message::request(Rtm::Getneigh, NlmF::empty(), seq, message)
}

pub(super) fn message(family: RtAddrFamily) -> NdmsgBuilder {
    let message = NdmsgBuilder::default().ndm_family(family).ndm_index(0);
    message.ndm_state(Nud::empty()).ndm_type(Rtn::Unspec)
}
