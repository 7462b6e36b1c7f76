// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Writes and reads frames by the RFCs, without code of the programs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A UDP datagram in a frame. Every field can be made wrong.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) link: Link,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) payload: Vec<u8>,
    pub(crate) ttl: u8,
    /// RFC 791 flags and fragment offset. IPv6 has none.
    pub(crate) fragment: u16,
    /// `None` stands for the right checksum.
    pub(crate) udp_checksum: Option<u16>,
    /// Bytes of IPv4 options, or an IPv6 destination options header if not empty.
    pub(crate) options: Vec<u8>,
    /// Bytes after the IP packet.
    pub(crate) padding: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    /// 14 bytes.
    Ethernet { destination: [u8; 6], source: [u8; 6] },
    /// 24 bytes as received: 20 bytes of zero, and the type.
    Ipoib,
}

impl Link {
    /// For `lo` and `BPF_PROG_TEST_RUN`: addressed to 00:00:00:00:00:00.
    pub(crate) const LO: Self = Self::Ethernet { destination: [0; 6], source: [2, 0, 0, 0, 0, 1] };

    pub(crate) fn header_len(self) -> usize {
        match self {
            Self::Ethernet { .. } => 14,
            Self::Ipoib => 24,
        }
    }
}

impl Frame {
    pub(crate) fn query(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Self {
        Self {
            link: Link::LO,
            source,
            destination,
            source_port: 40_000,
            destination_port: 4791,
            payload: payload.to_vec(),
            ttl: 64,
            fragment: 0,
            udp_checksum: None,
            options: Vec::new(),
            padding: 0,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut udp = Vec::new();
        udp.extend(self.source_port.to_be_bytes());
        udp.extend(self.destination_port.to_be_bytes());
        let length = u16::try_from(8 + self.payload.len()).unwrap();
        udp.extend(length.to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(&self.payload);
        let checksum = self.udp_checksum.unwrap_or_else(|| {
            match checksum(&[&self.pseudo_header(length), &udp]) {
                0 => 0xffff,
                checksum => checksum,
            }
        });
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());

        let mut bytes = self.link_header();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes.extend(self.ipv4_header(source, destination, udp.len()));
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                bytes.extend(self.ipv6_header(source, destination, udp.len()));
            }
            _ => panic!("addresses of two families"),
        }
        bytes.extend(udp);
        bytes.resize(bytes.len() + self.padding, 0);
        bytes
    }

    /// The sum of the pseudo-header alone, which a sender leaves in the field if its device completes the
    /// checksum (`CHECKSUM_PARTIAL`).
    pub(crate) fn partial_checksum(&self) -> u16 {
        !checksum(&[&self.pseudo_header(u16::try_from(8 + self.payload.len()).unwrap())])
    }

    fn link_header(&self) -> Vec<u8> {
        let ethertype: [u8; 2] = if self.source.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        match self.link {
            Link::Ethernet { destination, source } => {
                [&destination[..], &source, &ethertype].concat()
            }
            Link::Ipoib => {
                // BPF_PROG_TEST_RUN reads the type at Ethernet's offset.
                [&[0; 12][..], &ethertype, &[0; 6], &ethertype, &[0; 2]].concat()
            }
        }
    }

    fn ipv4_header(&self, source: Ipv4Addr, destination: Ipv4Addr, payload: usize) -> Vec<u8> {
        assert_eq!(self.options.len() % 4, 0, "options are whole words");
        let words = u8::try_from(5 + self.options.len() / 4).unwrap();
        let total = u16::try_from(usize::from(words) * 4 + payload).unwrap();
        let mut header = vec![0x40 | words, 0];
        header.extend(total.to_be_bytes());
        header.extend([0x12, 0x34]);
        header.extend(self.fragment.to_be_bytes());
        header.extend([self.ttl, 17, 0, 0]);
        header.extend(source.octets());
        header.extend(destination.octets());
        header.extend(&self.options);
        let checksum = checksum(&[&header]);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn ipv6_header(&self, source: Ipv6Addr, destination: Ipv6Addr, payload: usize) -> Vec<u8> {
        let has_options = !self.options.is_empty();
        let behind = u16::try_from(payload + self.options.len()).unwrap();
        let mut header = vec![0x60, 0x0a, 0xbc, 0xde];
        header.extend(behind.to_be_bytes());
        header.extend([if has_options { 60 } else { 17 }, self.ttl]);
        header.extend(source.octets());
        header.extend(destination.octets());
        header.extend(&self.options);
        header
    }

    fn pseudo_header(&self, length: u16) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let length = length.to_be_bytes();
                [&source.octets()[..], &destination.octets(), &[0, 17], &length].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let length = u32::from(length).to_be_bytes();
                [&source.octets()[..], &destination.octets(), &length, &[0, 0, 0, 17]].concat()
            }
            _ => panic!("addresses of two families"),
        }
    }
}

/// A datagram as a receiver sees it.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Received {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) ttl: u8,
    pub(crate) payload: Vec<u8>,
}

/// Reads a datagram from the start of its IP header. It must have no options, nothing behind it, and
/// all checksums, which must be right.
pub(crate) fn read(packet: &[u8]) -> Received {
    let (source, destination, ttl, udp, pseudo_header): (IpAddr, IpAddr, _, _, _) =
        match packet[0] >> 4 {
            4 => {
                let (header, udp) = packet.split_at(20);
                assert_eq!(header[0], 0x45);
                assert_eq!(usize::from(be16(&header[2..])), packet.len(), "total length");
                assert_eq!(be16(&header[6..]), 0x4000, "do not fragment");
                assert_eq!(header[9], 17);
                assert_eq!(checksum(&[header]), 0, "checksum of the header");
                let pseudo = [&header[12..20], &[0, 17], &udp[4..6]].concat();
                let source: [u8; 4] = header[12..16].try_into().unwrap();
                let destination: [u8; 4] = header[16..20].try_into().unwrap();
                (source.into(), destination.into(), header[8], udp, pseudo)
            }
            6 => {
                let (header, udp) = packet.split_at(40);
                assert_eq!(header[..4], [0x60, 0, 0, 0], "traffic class and flow label");
                assert_eq!(usize::from(be16(&header[4..])), udp.len(), "payload length");
                assert_eq!(header[6], 17);
                let pseudo = [&header[8..40], &[0, 0], &udp[4..6], &[0, 0, 0, 17]].concat();
                let source: [u8; 16] = header[8..24].try_into().unwrap();
                let destination: [u8; 16] = header[24..40].try_into().unwrap();
                (source.into(), destination.into(), header[7], udp, pseudo)
            }
            version => panic!("IP version {version}"),
        };
    assert_eq!(usize::from(be16(&udp[4..])), udp.len(), "UDP length");
    assert_ne!(be16(&udp[6..]), 0, "UDP checksum absent");
    assert_eq!(checksum(&[&pseudo_header, udp]), 0, "UDP checksum");
    Received {
        source,
        destination,
        source_port: be16(udp),
        destination_port: be16(&udp[2..]),
        ttl,
        payload: udp[8..].to_vec(),
    }
}

/// RFC 1071, a byte pair at a time.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

/// Hex without white space.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}
