// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Captures the packets on a namespace's interfaces, by an `AF_PACKET` socket.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType,
    recvmsg, setsockopt, socket, sockopt,
};

use crate::lab::netns;

/// A running capture. Packets wait in the kernel until they are read.
#[derive(Debug)]
pub struct Capture(OwnedFd);

impl Capture {
    /// Starts a capture on all interfaces of `namespace`.
    ///
    /// # Errors
    /// There is no such namespace, or this process may not capture there.
    pub fn start(namespace: &str) -> Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = netns::inside(namespace, || {
            socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll)
                .with_context(|| format!("cannot capture in namespace {namespace}"))
        })?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)
            .context("cannot have packets time-stamped")?;
        Ok(Self(socket))
    }

    /// The UDP datagrams captured since the last call, in the order of their times.
    ///
    /// # Errors
    /// The socket fails.
    pub fn take(&self) -> Result<Vec<Captured>> {
        let mut datagrams = Vec::new();
        let mut packet = [0; 2048];
        let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        loop {
            let mut buffers = [IoSliceMut::new(&mut packet)];
            let received = recvmsg::<LinkAddr>(
                self.0.as_raw_fd(),
                &mut buffers,
                Some(&mut control),
                MsgFlags::empty(),
            );
            let message = match received {
                Ok(message) => message,
                Err(Errno::EAGAIN) => return Ok(datagrams),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error).context("cannot read captured packets"),
            };
            let (Some(link), Some(ControlMessageOwned::ScmTimestampns(time))) =
                (message.address, message.cmsgs().ok().and_then(|mut all| all.next()))
            else {
                bail!("the kernel captures packets without their interface or time");
            };
            let len = message.bytes;
            if let Some((source, destination, payload)) = packet.get(..len).and_then(udp) {
                datagrams.push(Captured {
                    time: time.into(),
                    ifindex: link.ifindex(),
                    is_leaving: link.pkttype() == libc::PACKET_OUTGOING,
                    source,
                    destination,
                    payload: payload.to_vec(),
                });
            }
        }
    }
}

/// A datagram on one interface.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Captured {
    /// Time since 1970.
    pub time: Duration,
    /// The interface's index in its namespace.
    pub ifindex: usize,
    /// Whether the interface sent it, and did not receive it.
    pub is_leaving: bool,
    /// Its source address and port.
    pub source: SocketAddr,
    /// Its destination address and port.
    pub destination: SocketAddr,
    pub payload: Vec<u8>,
}

/// Source, destination and payload of an IP packet, if it is a whole UDP datagram (RFC 768, 791
/// and 8200, without extension headers).
fn udp(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let (source, destination, datagram): (IpAddr, IpAddr, _) = match packet.first()? >> 4 {
        4 => {
            let (header, _) = packet.split_first_chunk::<20>()?;
            let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            if header[9] != UDP || is_fragment {
                return None;
            }
            let address = |at: usize| header[at..].first_chunk::<4>().map(|ip| Ipv4Addr::from(*ip));
            let datagram = packet.get(usize::from(header[0] & 0xf) * 4..length)?;
            (address(12)?.into(), address(16)?.into(), datagram)
        }
        6 => {
            let (header, rest) = packet.split_first_chunk::<40>()?;
            if header[6] != UDP {
                return None;
            }
            let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
            let address =
                |at: usize| header[at..].first_chunk::<16>().map(|ip| Ipv6Addr::from(*ip));
            (address(8)?.into(), address(24)?.into(), rest.get(..length)?)
        }
        _ => return None,
    };
    let (header, _) = datagram.split_first_chunk::<8>()?;
    let [source_port, destination_port, length] =
        [0, 2, 4].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    let payload = datagram.get(header.len()..length.into())?;
    Some((
        SocketAddr::new(source, source_port),
        SocketAddr::new(destination, destination_port),
        payload,
    ))
}

const UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    /// Written from RFC 791 and RFC 768: 10.1.0.5:4660 to 10.2.0.5:4791, "hi", and a byte of Ethernet
    /// padding behind.
    const IPV4: [u8; 31] = [
        0x45, 0, 0, 30, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, 5, 10, 2, 0, 5, // IPv4
        0x12, 0x34, 0x12, 0xb7, 0, 10, 0, 0, b'h', b'i', 0,
    ];

    #[test]
    fn udp_is_found_in_ipv4_without_padding() {
        let (source, destination, payload) = udp(&IPV4).unwrap();
        assert_eq!(source, "10.1.0.5:4660".parse().unwrap());
        assert_eq!(destination, "10.2.0.5:4791".parse().unwrap());
        assert_eq!(payload, b"hi");
    }

    #[test]
    fn udp_is_found_in_ipv6() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 10, 17, 64];
        packet.extend("fd00:1::5".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend("fd00:2::5".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend(&IPV4[20..30]);
        let (source, destination, payload) = udp(&packet).unwrap();
        assert_eq!(source, "[fd00:1::5]:4660".parse().unwrap());
        assert_eq!(destination, "[fd00:2::5]:4791".parse().unwrap());
        assert_eq!(payload, b"hi");
    }

    #[test]
    fn truncated_fragmented_and_other_packets_are_left_out() {
        for len in 0..30 {
            assert_eq!(udp(&IPV4[..len]), None, "{len} bytes");
        }
        for (at, byte) in [(0, 0x55), (0, 0x4f), (6, 0x20), (7, 1), (9, 6), (25, 7), (25, 11)] {
            let mut packet = IPV4;
            packet[at] = byte;
            assert_eq!(udp(&packet), None, "byte {at} is {byte}");
        }
    }
}
