// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A peer gets the same datagrams from the kernel's programs as from the daemon alone, whatever it sends.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use aya::Ebpf;
use ibarr_common::map::{Program, Reason};
use ibarr_testbed::capture::Capture;
use ibarr_testbed::lab::netns;
use nix::ifaddrs::getifaddrs;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, sendto, socket as open,
};

use super::rig::*;
use crate::frame::{Frame, Link, hex};

/// A namespace behind the node, which is a router.
const BEYOND: &str = "beyond";

#[test]
fn peer_gets_the_same_from_programs_and_daemon() {
    let mut seen = Vec::new();
    let responders = ["user", "tc", "clsact", "xdp", "xdp-generic"];
    for responder in responders {
        let mut wire = Wire::new();
        wire.rig.start(&format!("responder = \"{responder}\""));
        seen.push(wire.seen_of_all());
        let attached = wire.rig.status_of("eth0")["responder"].clone();
        let in_kernel = |program| wire.rig.count(program, Reason::Answered);
        match responder {
            "user" => assert!(attached.is_null()),
            "xdp" | "xdp-generic" => {
                let hook = if responder == "xdp" { "xdp-native" } else { responder };
                assert_eq!(attached, hook, "{}", wire.rig.status_of("eth0"));
                assert!(in_kernel(Program::Xdp) > 10);
            }
            _ => {
                assert!(attached.is_string());
                assert!(in_kernel(Program::Tc) > 10);
                assert!(wire.rig.count(Program::Tc, Reason::Vlan) > 0);
            }
        }
        wire.rig.end(Signal::SIGTERM);
    }
    // On Ethernet the programs send to the hardware address that a frame came from, even if no host
    // has its source address.
    let is_to_nobody = |seen: &Seen| seen.to.starts_with("[fe80::1]:");
    for by_program in &mut seen[1..] {
        assert_eq!(by_program.iter().filter(|seen| is_to_nobody(seen)).count(), 1);
        by_program.retain(|seen| !is_to_nobody(seen));
    }
    let [alone, others @ ..] = &seen[..] else { panic!() };
    let (positive, negative) = (count(alone, 32), count(alone, 12));
    assert!(positive > 20 && negative > 10, "{positive} and {negative}");
    for (responder, seen) in responders[1..].iter().zip(others) {
        let lacks: Vec<_> = alone.iter().filter(|datagram| !seen.contains(datagram)).collect();
        let has: Vec<_> = seen.iter().filter(|datagram| !alone.contains(datagram)).collect();
        assert!(seen == alone, "{responder}: without {lacks:#x?}, and with {has:#x?}");
    }
}

/// A datagram that arrived.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Seen {
    /// The namespace of the receiver.
    namespace: &'static str,
    from: String,
    to: String,
    payload: Vec<u8>,
}

fn count(seen: &[Seen], len: usize) -> usize {
    seen.iter().filter(|seen| seen.namespace == PEER && seen.payload.len() == len).count()
}

struct Wire {
    rig: Rig,
    /// A packet socket of the peer's eth0.
    socket: (OwnedFd, LinkAddr),
    captures: [(&'static str, Capture); 2],
    link: Link,
    /// Receives the replies, so that the kernel does not send ICMP errors.
    _receiver: UdpSocket,
    _peers_program: Ebpf,
}

impl Wire {
    fn new() -> Self {
        let rig = Rig::new();
        ip(&format!("netns add {BEYOND}"));
        ip(&format!("link add out0 netns {NODE} type veth peer name eth0 netns {BEYOND}"));
        for (namespace, interface, host) in [(NODE, "out0", 1), (BEYOND, "eth0", 2)] {
            let ip = |words: &str| ip(&format!("-netns {namespace} {words}"));
            ip(&format!("link set {interface} up"));
            ip(&format!("address add 10.8.0.{host}/24 dev {interface}"));
            ip(&format!("address add fd00:8::{host}/64 dev {interface} nodad"));
            ip("link set lo up");
        }
        let forwarding = [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];
        netns::set(NODE, &forwarding).unwrap();
        for address in ["10.8.0.2", "fd00:8::2"] {
            let lladdr = hwaddr(BEYOND, "eth0");
            ip(&format!(
                "-netns {NODE} neigh add {address} lladdr {lladdr} dev out0 nud permanent"
            ));
        }
        let peers_program = prepare_for_xdp();
        let bytes = |text: String| <[u8; 6]>::try_from(hex(&text)).unwrap();
        let destination = bytes(hwaddr(NODE, "eth0"));
        let link = Link::Ethernet { destination, source: bytes(hwaddr(PEER, "eth0")) };
        Self {
            rig,
            socket: packet_socket("eth0"),
            captures: [PEER, BEYOND].map(|name| (name, Capture::start(name).unwrap())),
            link,
            _receiver: netns::inside(PEER, || Ok(UdpSocket::bind("[::]:40000")?)).unwrap(),
            _peers_program: peers_program,
        }
    }

    /// All datagrams that follow from all frames, sorted, because the kernel answers sooner than the daemon.
    fn seen_of_all(&mut self) -> Vec<Seen> {
        self.take();
        let frames = self.frames();
        assert!(frames.len() > 500);
        let mut seen = Vec::new();
        for few in frames.chunks(32) {
            for frame in few {
                let (socket, address) = &self.socket;
                sendto(socket.as_raw_fd(), frame, address, MsgFlags::empty()).unwrap();
            }
            // Only the daemon sends the negative reply, after it has handled all earlier queries.
            for server in [V4, V6] {
                self.ask_for_what_is_not_there(server);
            }
            seen.extend(self.take());
        }
        seen.sort();
        seen
    }

    fn ask_for_what_is_not_there(&self, server: &str) {
        let socket = socket(server);
        let missing = if server == V4 { "10.7.0.99" } else { "fd00:7::99" };
        for attempt in 0..3 {
            socket.send(&query(missing, attempt));
            if let Some((reply, _)) = socket.receive(Duration::from_secs(5)) {
                assert_eq!(reply.len(), 12);
                return;
            }
        }
        panic!("no answer; the log:\n{}", self.rig.log());
    }

    fn take(&self) -> Vec<Seen> {
        let taken = self.captures.iter().flat_map(|(namespace, capture)| {
            let arrived = capture.take().unwrap().into_iter().filter(|one| !one.is_leaving);
            arrived.map(|one| Seen {
                namespace,
                from: one.source.to_string(),
                to: one.destination.to_string(),
                payload: one.payload,
            })
        });
        // Without the negative replies to this loop's own port.
        taken.filter(|seen| seen.to.ends_with(":40000") || seen.to.ends_with(":4791")).collect()
    }

    /// The frames to send.
    fn frames(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for (us, them, beyond, group, others) in [
            (V4, "10.7.0.2", "10.8.0.2", "224.0.0.1", &["10.7.0.255", "255.255.255.255"][..]),
            (V6, "fd00:7::2", "fd00:8::2", "ff02::1", &[][..]),
        ] {
            let (us, them) = (address(us), address(them));
            let frame =
                |payload: &[u8]| Frame { link: self.link, ..Frame::query(them, us, payload) };
            let mut number = 0;
            let mut asks = |target: &str| {
                number += 1;
                query(target, number)
            };
            let text = us.to_string();
            let mut send = |frame: Frame| frames.push(frame.bytes());
            // Lengths and contents.
            for length in 0..=128 {
                let mut payload = asks(&text);
                payload.resize(length, 0);
                send(frame(&payload));
            }
            let table = include_str!("../../../../ibarr-common/tests/data/ip2gid-cases.txt");
            for case in table.lines().filter(|line| !line.starts_with('#')) {
                let payload = case.split('|').nth(1).expect("a payload");
                send(frame(&hex(payload)));
            }
            for target in [V4, V6, "10.7.0.9", "10.8.0.1", "fd00:8::1", "10.8.0.2", "127.0.0.1"] {
                send(frame(&asks(target)));
            }
            // Destinations.
            for target in others.iter().copied().chain([group, beyond]) {
                let destination = address(target);
                send(Frame { destination, ..frame(&asks(target)) });
                send(Frame { destination, ..frame(&asks(&text)) });
            }
            let Link::Ethernet { source, .. } = self.link else { panic!() };
            for destination in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1], [2; 6]]
            {
                let link = Link::Ethernet { destination, source };
                send(Frame { link, ..frame(&asks(&text)) });
            }
            // Sources.
            let own = us;
            let odd =
                ["127.0.0.1", "0.0.0.0", "10.7.0.255", "224.0.0.1", "255.255.255.255", "10.8.0.2"];
            let odd_v6 = ["::1", "::", "ff02::1", "::ffff:10.7.0.2", "fe80::1", "fd00:8::2"];
            let odd = if us.is_ipv4() { odd } else { odd_v6 };
            for source in odd.map(address).into_iter().chain([own]) {
                send(Frame { source, ..frame(&asks(&text)) });
            }
            for source_port in [0, 1, 4791] {
                send(Frame { source_port, ..frame(&asks(&text)) });
            }
            send(Frame { destination_port: 4790, ..frame(&asks(&text)) });
            // Headers.
            for ttl in [0, 1, 255] {
                send(Frame { ttl, ..frame(&asks(&text)) });
            }
            for udp_checksum in [0, 1, frame(&asks(&text)).partial_checksum()] {
                send(Frame { udp_checksum: Some(udp_checksum), ..frame(&asks(&text)) });
            }
            let options = if us.is_ipv4() { vec![1; 8] } else { vec![17, 0, 1, 4, 0, 0, 0, 0] };
            send(Frame { options, ..frame(&asks(&text)) });
            for padding in [1, 12, 18] {
                send(Frame { padding, ..frame(&asks(&text)) });
            }
            let whole = frame(&asks(&text)).bytes();
            for length in 14..whole.len() {
                frames.push(whole[..length].to_vec());
            }
            for at in 14..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 0x10;
                frames.push(flipped);
            }
            frames.extend(fragments(&frame(&asks(&text)).bytes()));
            // VLANs: 0 is no VLAN, and the node does not know 7. tc sees the tag outside of the frame.
            for tag in [[0x81, 0, 0, 0], [0x81, 0, 0, 7], [0x88, 0xa8, 0, 7]] {
                let mut tagged = frame(&asks(&text)).bytes();
                tagged.splice(12..12, tag);
                frames.push(tagged);
            }
        }
        frames
    }
}

/// The frame in two fragments, which the stack puts together again.
fn fragments(frame: &[u8]) -> [Vec<u8>; 2] {
    // A multiple of 8, behind the UDP header.
    const FIRST: usize = 16;
    if frame[14] >> 4 == 4 {
        let piece = |payload: &[u8], fragment: u16| {
            let mut header = frame[14..34].to_vec();
            let total = u16::try_from(20 + payload.len()).unwrap();
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[6..8].copy_from_slice(&fragment.to_be_bytes());
            header[10..12].fill(0);
            let checksum = crate::frame::checksum(&[&header]);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            [&frame[..14], &header, payload].concat()
        };
        [piece(&frame[34..34 + FIRST], 0x2000), piece(&frame[34 + FIRST..], 2)]
    } else {
        let piece = |payload: &[u8], fragment: u16| {
            let mut header = frame[14..54].to_vec();
            let behind = u16::try_from(8 + payload.len()).unwrap();
            header[4..6].copy_from_slice(&behind.to_be_bytes());
            header[6] = 44;
            let [high, low] = fragment.to_be_bytes();
            [&frame[..14], &header, &[17, 0, high, low, 0, 0, 0, 9], payload].concat()
        };
        [piece(&frame[54..54 + FIRST], 1), piece(&frame[54 + FIRST..], 16)]
    }
}

fn query(target: &str, number: u32) -> Vec<u8> {
    let (kind, target) = match address(target) {
        IpAddr::V4(target) => (1, target.octets().to_vec()),
        IpAddr::V6(target) => (2, target.octets().to_vec()),
    };
    let len = u8::try_from(4 + target.len()).unwrap();
    [&[1, 0, 0, 0][..], &number.to_be_bytes(), &[0, 1, 0, 0, 0, kind, 0, len], &target].concat()
}

/// A socket that sends whole frames by an interface of the peer.
fn packet_socket(interface: &str) -> (OwnedFd, LinkAddr) {
    netns::inside(PEER, || {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = open(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
        let found = getifaddrs()?.find_map(|found| {
            let is_it = found.interface_name == interface;
            found.address.filter(|_| is_it)?.as_link_addr().copied()
        });
        Ok((socket, found.expect("the interface")))
    })
    .unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}
