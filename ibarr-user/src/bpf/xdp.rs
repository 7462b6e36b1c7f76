// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Interfaces on which XDP would answer wrongly, though the kernel allows it.

use std::io::{self, Cursor};

use ibarr_common::IfIndex;
use ibarr_proto::local_view::ServedInterface;
use ibarr_proto::responder::Hook;
use neli::FromBytesWithInput;
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifla, IflaInfo, RtAddrFamily, Rtm};
use neli::rtnl::{Ifinfomsg, IfinfomsgBuilder};
use neli::types::{Buffer, RtBuffer};
use thiserror::Error;

use crate::sys::ethtool;
use crate::transport::rtnetlink::message::{self, ALL_SET, Malformed, attribute, nested, rtattr};
use crate::transport::rtnetlink::{self, ask};

/// Why an interface gets no XDP program.
#[derive(Debug, Error)]
pub enum Error {
    /// The program would take queries in a VLAN for untagged ones.
    #[error(
        "XDP cannot see VLAN tags while the driver strips them: ethtool -K {0} rxvlan \
         off, or use responder = \"tc\""
    )]
    StripsVlanTags(String),
    /// The replies that the program sends would be lost.
    #[error(
        "a veth drops what XDP sends unless the interface at its other end has an XDP program; \
         use responder = \"tc\", or \"xdp-generic\""
    )]
    VethPeer,
    /// The driver does not answer about VLAN tags.
    #[error("the driver cannot be asked about VLAN tags")]
    Ethtool(#[source] io::Error),
    /// rtnetlink does not answer.
    #[error(transparent)]
    Netlink(#[from] rtnetlink::Error),
}

/// Returns an error if XDP would answer wrongly on the interface.
pub(super) fn check(interface: &ServedInterface, hook: Hook) -> Result<(), Error> {
    match ethtool::strips_vlan_tags(interface.name) {
        Ok(false) => {}
        Ok(true) => return Err(Error::StripsVlanTags(interface.name.to_string())),
        // A driver without ethtool strips no tags.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        Err(error) => return Err(Error::Ethtool(error)),
    }
    if hook == Hook::XdpGeneric {
        return Ok(());
    }
    let link = link(interface.ifindex, None)?;
    if let Some((peer, namespace)) = link.veth_peer
        && !self::link(peer, namespace)?.has_xdp
    {
        return Err(Error::VethPeer);
    }
    Ok(())
}

#[derive(Default)]
struct Link {
    /// For a veth: index of its other end, and the namespace of that if it is not ours.
    veth_peer: Option<(IfIndex, Option<i32>)>,
    has_xdp: bool,
}

fn link(ifindex: IfIndex, namespace: Option<i32>) -> Result<Link, rtnetlink::Error> {
    let namespace = namespace.map(|id| rtattr(Ifla::IfNetnsid, &id.to_ne_bytes()));
    let message = IfinfomsgBuilder::default()
        .ifi_family(RtAddrFamily::Unspecified)
        .ifi_index(ifindex.get().cast_signed())
        .rtattrs(RtBuffer::from_iter(namespace))
        .build()
        .expect(ALL_SET);
    let links = ask(&message::request(Rtm::Getlink, NlmF::empty(), 0, message), |frame| {
        let (payload, len) = (frame.payload, frame.payload.len());
        let message = Ifinfomsg::from_bytes_with_input(&mut Cursor::new(payload), len)
            .map_err(|_| Malformed::Attributes)?;
        let attributes = message.rtattrs();
        Ok(Some(Link { veth_peer: veth_peer(attributes)?, has_xdp: has_xdp(attributes)? }))
    })?;
    Ok(links.into_iter().next().unwrap_or_default())
}

fn veth_peer(
    attributes: &RtBuffer<Ifla, Buffer>,
) -> Result<Option<(IfIndex, Option<i32>)>, Malformed> {
    let Some(info) = attribute(attributes, Ifla::Linkinfo) else { return Ok(None) };
    if attribute(&nested::<IflaInfo>(info)?, IflaInfo::Kind) != Some(b"veth\0") {
        return Ok(None);
    }
    let Some(peer) = attribute(attributes, Ifla::Link) else { return Ok(None) };
    let peer = message::ifindex(peer)?;
    let namespace = attribute(attributes, Ifla::LinkNetnsid)
        .map(|id| id.try_into().map(i32::from_ne_bytes).map_err(|_| Malformed::AttributeLength))
        .transpose()?;
    Ok(Some((peer, namespace)))
}

fn has_xdp(attributes: &RtBuffer<Ifla, Buffer>) -> Result<bool, Malformed> {
    /// Of include/uapi/linux/if_link.h.
    const IFLA_XDP_ATTACHED: u16 = 2;
    let Some(xdp) = attribute(attributes, Ifla::Xdp) else { return Ok(false) };
    let attached = nested::<u16>(xdp)?;
    Ok(attribute(&attached, IFLA_XDP_ATTACHED).is_some_and(|mode| mode != [0]))
}
