// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Makes a live peer send datagrams to the port of the daemon, without asking it to ask: it is asked from that port, so
//! its reply comes there, as queries do.
//!
//! The query leaves by a packet socket, beside netfilter. So connection tracking does not know its reply, and a rule that
//! lets replies through does not let this one through. The same socket sees the reply before any rule does. The daemon
//! counts it as malformed, and sends nothing.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use ibarr_proto::ip2gid::client::Candidate;
use ibarr_proto::ip2gid::{Family, Question};
use ibarr_proto::local_view::HwAddr;
use ibarr_proto::local_view::rules::Traffic;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::peer::name;
use crate::sys::udp_options::keep_only;
use crate::transport::rtnetlink;

/// How often a peer is asked.
const QUERIES: u32 = 3;

/// How long a reply may take, whatever else comes.
const PATIENCE: Duration = Duration::from_millis(300);

/// How often to look whether that time is over.
const LOOK: TimeVal = TimeVal::new(0, 100_000);

/// Asks a peer from `port`, and returns how many replies have come to the interface. The daemon serves `own`.
pub(super) fn replies(peer: IpAddr, port: u16, own: &[IpAddr]) -> io::Result<u64> {
    let other = |what: &str| io::Error::other(format!("{peer} {what}"));
    let question = Question::new(peer, None).ok_or_else(|| other("has no route"))?;
    let (route, source) = rtnetlink::way(Candidate::from(question), Traffic::CONNECTIONS)
        .map_err(|why| other(&why.to_string()))?;
    let source = source.filter(|source| own.contains(source));
    let source = source.ok_or_else(|| other("is reached from an address that is not served"))?;
    let entries = rtnetlink::neighbours()?;
    let is_next = |ifindex, address| (ifindex, address) == (route.ifindex, route.next_hop);
    let entry = entries.iter().find(|entry| is_next(entry.ifindex, entry.address));
    let entry = entry.ok_or_else(|| other("has no neighbour entry"))?;

    let link = link(&name(route.ifindex))?;
    let header = link_header(&link, entry.hwaddr, peer)
        .ok_or_else(|| other("is behind a link of another type"))?;
    let socket =
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
    keep_only(&socket, Family::of(peer), port)?;
    bind(socket.as_raw_fd(), &link)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &LOOK)?;
    let mut arrived = 0;
    for number in 1..=QUERIES {
        let id = MsgId(number);
        let Some(query) = Query::new(Version::V1, id, peer) else { break };
        let packet = packet(source, peer, port, query.emit().as_ref());
        send(socket.as_raw_fd(), &[&header[..], &packet].concat(), MsgFlags::empty())?;
        let (begun, mut frame) = (Instant::now(), [0; 256]);
        while begun.elapsed() < PATIENCE {
            let len = recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty()).unwrap_or(0);
            if is_reply(&frame[..len], header.len(), peer, id) {
                arrived += 1;
                break;
            }
        }
    }
    Ok(arrived)
}

fn link(name: &str) -> io::Result<LinkAddr> {
    let mut all = getifaddrs()?.filter(|found| found.interface_name == name);
    let found = all.find_map(|found| found.address?.as_link_addr().copied());
    found.ok_or_else(|| io::Error::other(format!("{name} has no link address")))
}

/// The header of a frame to `hwaddr`, and of what comes from there, which has the same length.
fn link_header(link: &LinkAddr, hwaddr: HwAddr, peer: IpAddr) -> Option<Vec<u8>> {
    let kind: [u8; 2] = if peer.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
    match (link.hatype(), hwaddr.as_bytes().len()) {
        (libc::ARPHRD_ETHER, 6) => Some([hwaddr.as_bytes(), &link.addr()?, &kind].concat()),
        // The address in front is not sent (`ipoib_hard_header`).
        (libc::ARPHRD_INFINIBAND, 20) => Some([hwaddr.as_bytes(), &kind, &[0; 2]].concat()),
        _ => None,
    }
}

/// An IP packet with a UDP datagram from `port` to the same one.
fn packet(source: IpAddr, destination: IpAddr, port: u16, payload: &[u8]) -> Vec<u8> {
    const UDP: u8 = 17;
    const HOPS: u8 = 64;
    #[expect(clippy::cast_possible_truncation, reason = "a query has at most 32 bytes")]
    let len = 8 + payload.len() as u16;
    let [port, length] = [port, len].map(u16::to_be_bytes);
    let mut udp = [&port, &port, &length, &[0; 2][..], payload].concat();
    let (addresses, mut ip) = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let addresses = [source.octets(), destination.octets()].concat();
            let total = (20 + len).to_be_bytes();
            let header = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, HOPS, UDP, 0, 0];
            (addresses, header.to_vec())
        }
        (source, destination) => {
            let octets = |ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            let addresses = [octets(source), octets(destination)].concat();
            (addresses, vec![0x60, 0, 0, 0, length[0], length[1], UDP, HOPS])
        }
    };
    let checksum = match checksum(&[&addresses[..], &[0, UDP], &length, &udp].concat()) {
        // It would mean that there is none.
        [0, 0] => [0xff; 2],
        sum => sum,
    };
    udp[6..8].copy_from_slice(&checksum);
    ip.extend(addresses);
    if source.is_ipv4() {
        let checksum = self::checksum(&ip);
        ip[10..12].copy_from_slice(&checksum);
    }
    ip.extend(udp);
    ip
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2).map(|word| u64::from(word[0]) << 8 | u64::from(word[1]));
    let sum: u64 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let [.., high, low] = (!(folded + (folded >> 16))).to_be_bytes();
    [high, low]
}

/// Whether a frame is the peer's reply to the query with this number.
fn is_reply(frame: &[u8], link: usize, peer: IpAddr, MsgId(id): MsgId) -> bool {
    let has = |at: usize, bytes: &[u8]| frame.get(at..at + bytes.len()) == Some(bytes);
    let (source, payload) = match peer {
        IpAddr::V4(peer) => (has(link + 12, &peer.octets()), link + 28),
        IpAddr::V6(peer) => (has(link + 8, &peer.octets()), link + 48),
    };
    source && has(payload + 4, &id.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use ibarr_ebpf::packet::{Checksum, Ipv4Query, Ipv6Query, QueryPacket, Sum};
    use zerocopy::IntoBytes as _;

    use super::*;

    /// The packet for a query of 1 to 2, as the programs of the peer read it, and what they reply.
    fn as_peers_read_it<Q: QueryPacket>(of: [&str; 2]) {
        let [from, to] = of.map(|ip| ip.parse::<IpAddr>().unwrap());
        let id = MsgId(0x0102_0304);
        let query = Query::new(Version::V1, id, to).unwrap().emit();
        let read = Q::read_from_bytes(&packet(from, to, 4791, query.as_ref())).unwrap();
        assert!(read.is_to_port(4791) && read.is_query() && read.is_for_destination());
        assert!(read.check_headers().is_ok() && read.can_be_asked_from());
        assert_eq!(read.checksum(), Checksum::Right);
        let reply = read.reply([7; 16], Sum::Whole);
        for link in [14, 24] {
            let frame = [&vec![0; link][..], reply.as_bytes()].concat();
            assert!(is_reply(&frame, link, to, id));
            assert!(!is_reply(&frame, link, to, MsgId(1)), "of another query");
            assert!(!is_reply(&frame, link, from, id), "of another peer");
            assert!(!is_reply(&frame[..link + 8], link, to, id), "too short");
        }
    }

    #[test]
    fn peer_reads_the_query_and_its_reply_is_known() {
        as_peers_read_it::<Ipv4Query>(["10.7.0.1", "10.7.0.2"]);
        as_peers_read_it::<Ipv6Query>(["fd00:7::1", "fd00:7::2"]);
    }
}
