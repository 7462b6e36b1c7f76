// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A model of the node without the responder: the kernel's stack, then the server in user space.

use std::net::{IpAddr, SocketAddr};

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_proto::ip2gid::Prefixes;
use ibarr_proto::ip2gid::server::{Local, Received, Server};

use crate::frame::{self, checksum};

/// A node: its addresses, with or without a GID, and the networks that it answers.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) addresses: Vec<(IpAddr, Option<Gid>)>,
    pub(crate) allow: Prefixes,
    /// The interface that receives all packets.
    pub(crate) ifindex: IfIndex,
}

impl Local for Node {
    fn gid_of(&self, address: IpAddr, _: IfIndex) -> Option<Gid> {
        self.addresses.iter().find(|(ours, _)| *ours == address)?.1
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(ours, _)| *ours == address)
    }
}

impl Node {
    /// The reply to `packet`, which begins with its IP header and has this host's hardware address.
    pub(crate) fn reply_to(&self, packet: &[u8]) -> Option<frame::Received> {
        let datagram = deliver(packet)?;
        if !self.is_ours(datagram.destination) || datagram.destination_port != 4791 {
            return None;
        }
        let received = Received {
            from: SocketAddr::new(datagram.source, datagram.source_port),
            to: datagram.destination,
            ingress: self.ifindex,
            // It comes from another host.
            is_local: false,
            payload: &datagram.payload,
        };
        let transmit = Server::new(self.allow.clone()).answer(self, &received).ok()?;
        Some(frame::Received {
            source: transmit.from,
            destination: transmit.to.ip(),
            source_port: 4791,
            destination_port: transmit.to.port(),
            ttl: 64,
            payload: transmit.payload.as_ref().to_vec(),
        })
    }
}

/// The datagram that a socket would receive. Not a fragment, because the rest never comes.
fn deliver(packet: &[u8]) -> Option<frame::Received> {
    match packet.first()? >> 4 {
        4 => deliver_ipv4(packet),
        6 => deliver_ipv6(packet),
        _ => None,
    }
}

/// `ip_rcv_core` and `ip_route_input_slow`.
fn deliver_ipv4(packet: &[u8]) -> Option<frame::Received> {
    let header_len = usize::from(packet[0] & 15) * 4;
    let header = packet.get(..header_len).filter(|header| header.len() >= 20)?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if checksum(&[header]) != 0 || is_fragment || header[9] != 17 {
        return None;
    }
    let source: [u8; 4] = header[12..16].try_into().unwrap();
    let destination: [u8; 4] = header[16..20].try_into().unwrap();
    if source[0] == 0 || source[0] == 127 {
        return None;
    }
    let udp = packet.get(header_len..total)?;
    let (udp, checksum_field) = trim(udp)?;
    let length = u16::try_from(udp.len()).unwrap().to_be_bytes();
    let pseudo_header = [&source[..], &destination, &[0, 17], &length].concat();
    if checksum_field != 0 && checksum(&[&pseudo_header, udp]) != 0 {
        return None;
    }
    Some(datagram(source.into(), destination.into(), header[8], udp))
}

/// `ip6_rcv_core`, and destination options without any.
fn deliver_ipv6(packet: &[u8]) -> Option<frame::Received> {
    let (header, rest) = packet.split_at_checked(40)?;
    let rest = rest.get(..usize::from(u16::from_be_bytes([header[4], header[5]])))?;
    let source: [u8; 16] = header[8..24].try_into().unwrap();
    let destination: [u8; 16] = header[24..40].try_into().unwrap();
    let is_mapped =
        |address: [u8; 16]| std::net::Ipv6Addr::from(address).to_ipv4_mapped().is_some();
    if is_mapped(source) {
        return None;
    }
    let udp = match header[6] {
        17 => rest,
        60 if rest.first() == Some(&17) => rest.get(8..)?,
        _ => return None,
    };
    let (udp, checksum_field) = trim(udp)?;
    let length = u32::try_from(udp.len()).unwrap().to_be_bytes();
    let pseudo_header = [&source[..], &destination, &length, &[0, 0, 0, 17]].concat();
    if checksum_field == 0 || checksum(&[&pseudo_header, udp]) != 0 {
        return None;
    }
    Some(datagram(source.into(), destination.into(), header[7], udp))
}

/// A UDP datagram without the bytes behind it, and its checksum field (`__udp4_lib_rcv`).
fn trim(udp: &[u8]) -> Option<(&[u8], u16)> {
    let header = udp.get(..8)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let udp = udp.get(..length).filter(|udp| udp.len() >= 8)?;
    Some((udp, u16::from_be_bytes([header[6], header[7]])))
}

fn datagram(source: IpAddr, destination: IpAddr, ttl: u8, udp: &[u8]) -> frame::Received {
    frame::Received {
        source,
        destination,
        source_port: u16::from_be_bytes([udp[0], udp[1]]),
        destination_port: u16::from_be_bytes([udp[2], udp[3]]),
        ttl,
        payload: udp[8..].to_vec(),
    }
}
