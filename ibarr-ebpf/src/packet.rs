// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Queries and replies with their IP and UDP headers, as they follow the link header in a frame
//! (RFC 791, RFC 8200, RFC 768).
//!
//! A query has one length per family, without options, extension headers or fragments. A program
//! therefore reads all of it at once, and every field has a fixed offset.

#![expect(missing_docs, reason = "headers and fields have the names of the RFCs")]

use core::net::IpAddr;

use ibarr_common::IfIndex;
use ibarr_common::map::{GidKey, Interface, Reason};
use ibarr_common::wire::ip2gid::{
    HeaderWire, Ipv4QueryWire, Ipv6QueryWire, PositiveReplyWire, TLV_GID, TLV_IPV4, TLV_IPV6,
    TlvWire, can_ask,
};
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A datagram that may be a query: an IP packet of the right length.
pub trait QueryPacket: Copy + FromBytes + IntoBytes + Immutable + KnownLayout {
    /// The reply to this query.
    type Reply: Copy + FromBytes + IntoBytes + Immutable + KnownLayout;

    /// EtherType of the address family.
    const ETHERTYPE: u16;
    /// The bit of [`Interface::switches`] for answering this family.
    const SWITCH: u32;

    /// The bit of [`Interface::switches`] for answering the sources of this family that `routes`
    /// has a route to.
    const ROUTED: u32;
    /// Offset of the UDP checksum from the IP header.
    const CHECKSUM_OFFSET: usize;

    /// Whether it is a UDP datagram to this port.
    fn is_to_port(&self, port: u16) -> bool;

    /// # Errors
    /// [`Reason::IpHeader`] or [`Reason::UdpHeader`] for a header that the kernel's own
    /// stack would drop, or that only the kernel's stack can parse.
    fn check_headers(&self) -> Result<(), Reason>;

    /// See [`QueryPayload::is_query`].
    fn is_query(&self) -> bool;

    /// Whether it asks for the address that it is sent to.
    fn is_for_destination(&self) -> bool;

    /// Whether its source may ask, see [`can_ask`], and whether the kernel's own stack
    /// would accept that source.
    fn can_be_asked_from(&self) -> bool;

    /// The source as a key of the maps.
    fn source(&self, ingress: IfIndex) -> GidKey;

    /// The destination as a key of the maps.
    fn destination(&self, ingress: IfIndex) -> GidKey;

    /// The source, in the form of [`octets`](ibarr_common::map::octets()).
    fn source_octets(&self) -> [u8; 16];

    /// The address that is asked for, in the same form.
    fn target_octets(&self) -> [u8; 16];

    /// The result of checking its UDP checksum.
    fn checksum(&self) -> Checksum;

    /// The reply with `gid`. `sum` says what is written to the UDP checksum.
    fn reply(&self, gid: [u8; 16], sum: Sum) -> Self::Reply;
}

/// The payload of a datagram of the right length for a query.
pub trait QueryPayload: Copy + FromBytes + IntoBytes + Immutable + KnownLayout {
    /// Whether [`Query::parse`](ibarr_common::wire::ip2gid::Query::parse) accepts it; the target is not checked, because the GID
    /// cache contains only legal ones.
    fn is_query(&self) -> bool;
}

/// The result of checking a UDP checksum.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Checksum {
    /// The datagram is intact, or its sender has not computed a checksum (IPv4 only).
    Right,
    /// The sum of the pseudo-header: a local sender has left the rest to a device that the packet
    /// never passed (`CHECKSUM_PARTIAL`), or the datagram is damaged.
    PseudoHeader,
    /// Any other value.
    Wrong,
}

/// How the UDP checksum of a reply is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sum {
    /// The program computes it.
    Whole,
    /// The program writes the sum of the pseudo-header, and the sending device adds the rest
    /// (`CHECKSUM_PARTIAL`).
    PseudoHeader,
}

/// Aligns a layout on the stack for wide loads and stores; the layouts themselves have alignment 1.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Aligned<T>(pub T);

/// An IPv4 header without options.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    /// 0x45: version 4, five words.
    pub version_ihl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Length of the packet in bytes.
    pub total_length: U16,
    /// Identification of fragments.
    pub id: U16,
    /// Reserved, DF, MF, 13 bits of offset.
    pub fragment: U16,
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Checksum of the header.
    pub checksum: [u8; 2],
    pub source: [u8; 4],
    pub destination: [u8; 4],
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    /// 4 bits of version, 8 of traffic class, 20 of flow label.
    pub version_class_flow: [u8; 4],
    /// Bytes after this header.
    pub payload_length: U16,
    /// Protocol of the payload.
    pub next_header: u8,
    pub hop_limit: u8,
    pub source: [u8; 16],
    pub destination: [u8; 16],
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    pub source_port: U16,
    pub destination_port: U16,
    /// Length of header and payload in bytes.
    pub length: U16,
    /// Over pseudo-header, header and payload; 0 for none.
    pub checksum: [u8; 2],
}

/// A query over IPv4.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4Query {
    pub ip: Ipv4Header,
    pub udp: UdpHeader,
    pub payload: Ipv4QueryWire,
}

/// The reply over IPv4.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4Reply {
    pub ip: Ipv4Header,
    pub udp: UdpHeader,
    pub payload: PositiveReplyWire,
}

/// A query over IPv6.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6Query {
    pub ip: Ipv6Header,
    pub udp: UdpHeader,
    pub payload: Ipv6QueryWire,
}

/// The reply over IPv6.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6Reply {
    pub ip: Ipv6Header,
    pub udp: UdpHeader,
    pub payload: PositiveReplyWire,
}

const _: () = {
    assert!(size_of::<Ipv4Query>() == 48);
    assert!(size_of::<Ipv4Reply>() == 60);
    assert!(size_of::<Ipv6Query>() == 80);
    assert!(size_of::<Ipv6Reply>() == 80);
};

impl QueryPacket for Ipv4Query {
    type Reply = Ipv4Reply;

    const ETHERTYPE: u16 = 0x0800;
    const SWITCH: u32 = Interface::ANSWER_IPV4;
    const ROUTED: u32 = Interface::ROUTED_IPV4;
    const CHECKSUM_OFFSET: usize = size_of::<Ipv4Header>() + UdpHeader::CHECKSUM_OFFSET;

    #[inline]
    fn is_to_port(&self, port: u16) -> bool {
        self.ip.protocol == UDP && self.udp.destination_port == port
    }

    #[inline]
    fn check_headers(&self) -> Result<(), Reason> {
        let header: [u32; 5] = zerocopy::transmute!(self.ip);
        if self.ip.version_ihl != VERSION_4_WITHOUT_OPTIONS
            || usize::from(self.ip.total_length.get()) != size_of::<Self>()
            || self.ip.fragment.get() & MORE_FRAGMENTS_AND_OFFSET != 0
            || fold(sum(&header)) != 0xffff
        {
            return Err(Reason::IpHeader);
        }
        self.udp.check(size_of::<Self>() - size_of::<Ipv4Header>())
    }

    #[inline]
    fn is_query(&self) -> bool {
        is_query(
            &self.payload.header,
            self.payload.tlv,
            TLV_IPV4,
            size_of_val(&self.payload.target),
        )
    }

    #[inline]
    fn is_for_destination(&self) -> bool {
        self.payload.target == self.ip.destination
    }

    #[inline]
    fn can_be_asked_from(&self) -> bool {
        // 0.0.0.0/8 is "this network" (RFC 1122 section 3.2.1.3), a martian to the kernel.
        self.ip.source[0] != 0
            && can_ask(IpAddr::V4(self.ip.source.into()), self.udp.source_port.get())
    }

    #[inline]
    fn source(&self, _: IfIndex) -> GidKey {
        key_of_ipv4(self.ip.source)
    }

    #[inline]
    fn destination(&self, _: IfIndex) -> GidKey {
        key_of_ipv4(self.ip.destination)
    }

    #[inline]
    fn source_octets(&self) -> [u8; 16] {
        key_of_ipv4(self.ip.source).address
    }

    #[inline]
    fn target_octets(&self) -> [u8; 16] {
        key_of_ipv4(self.payload.target).address
    }

    #[inline]
    fn checksum(&self) -> Checksum {
        if self.udp.checksum == [0, 0] {
            return Checksum::Right;
        }
        let words: [u32; 12] = zerocopy::transmute!(*self);
        self.udp.verify(self.ip.pseudo_header(self.udp.length), sum(&words[5..]))
    }

    #[inline]
    fn reply(&self, gid: [u8; 16], sum: Sum) -> Ipv4Reply {
        let mut ip = Ipv4Header {
            version_ihl: VERSION_4_WITHOUT_OPTIONS,
            tos: 0,
            total_length: length_of::<Ipv4Reply>(),
            // A datagram that must not be fragmented needs no unique id (RFC 6864 section 4), and
            // one of 60 bytes fits every link (RFC 791: 68).
            id: U16::ZERO,
            fragment: DONT_FRAGMENT,
            ttl: HOPS,
            protocol: UDP,
            checksum: [0; 2],
            source: self.ip.destination,
            destination: self.ip.source,
        };
        let header: [u32; 5] = zerocopy::transmute!(ip);
        ip.checksum = (!fold(self::sum(&header))).to_ne_bytes();
        let (udp, payload) =
            reply(self.udp, &self.payload.header, gid, sum, |length| ip.pseudo_header(length));
        Ipv4Reply { ip, udp, payload }
    }
}

impl QueryPacket for Ipv6Query {
    type Reply = Ipv6Reply;

    const ETHERTYPE: u16 = 0x86dd;
    const SWITCH: u32 = Interface::ANSWER_IPV6;
    const ROUTED: u32 = Interface::ROUTED_IPV6;
    const CHECKSUM_OFFSET: usize = size_of::<Ipv6Header>() + UdpHeader::CHECKSUM_OFFSET;

    #[inline]
    fn is_to_port(&self, port: u16) -> bool {
        self.ip.next_header == UDP && self.udp.destination_port == port
    }

    #[inline]
    fn check_headers(&self) -> Result<(), Reason> {
        let behind = size_of::<Self>() - size_of::<Ipv6Header>();
        if self.ip.version_class_flow[0] >> 4 != 6
            // Maps store IPv4 addresses as IPv4-mapped ones, and one address must not have two
            // names.
            || is_ipv4_mapped(self.ip.destination)
            || usize::from(self.ip.payload_length.get()) != behind
        {
            return Err(Reason::IpHeader);
        }
        self.udp.check(behind)
    }

    #[inline]
    fn is_query(&self) -> bool {
        is_query(
            &self.payload.header,
            self.payload.tlv,
            TLV_IPV6,
            size_of_val(&self.payload.target),
        )
    }

    #[inline]
    fn is_for_destination(&self) -> bool {
        self.payload.target == self.ip.destination
    }

    #[inline]
    fn can_be_asked_from(&self) -> bool {
        can_ask(IpAddr::V6(self.ip.source.into()), self.udp.source_port.get())
    }

    #[inline]
    fn source(&self, ingress: IfIndex) -> GidKey {
        key_of_ipv6(self.ip.source, ingress)
    }

    #[inline]
    fn destination(&self, ingress: IfIndex) -> GidKey {
        key_of_ipv6(self.ip.destination, ingress)
    }

    #[inline]
    fn source_octets(&self) -> [u8; 16] {
        self.ip.source
    }

    #[inline]
    fn target_octets(&self) -> [u8; 16] {
        self.payload.target
    }

    #[inline]
    fn checksum(&self) -> Checksum {
        // Over IPv6 the socket decides whether a missing checksum is accepted (RFC 6935); ours
        // refuses.
        if self.udp.checksum == [0, 0] {
            return Checksum::Wrong;
        }
        let words: [u32; 20] = zerocopy::transmute!(*self);
        self.udp.verify(self.ip.pseudo_header(self.udp.length), sum(&words[10..]))
    }

    #[inline]
    fn reply(&self, gid: [u8; 16], sum: Sum) -> Ipv6Reply {
        let ip = Ipv6Header {
            version_class_flow: [6 << 4, 0, 0, 0],
            payload_length: length_of::<(UdpHeader, PositiveReplyWire)>(),
            next_header: UDP,
            hop_limit: HOPS,
            source: self.ip.destination,
            destination: self.ip.source,
        };
        let (udp, payload) =
            reply(self.udp, &self.payload.header, gid, sum, |length| ip.pseudo_header(length));
        Ipv6Reply { ip, udp, payload }
    }
}

/// An IPv4 address as a key of the maps.
#[inline]
pub fn key_of_ipv4(address: [u8; 4]) -> GidKey {
    const MAPPED: [u8; 4] = [0, 0, 0xff, 0xff];
    // One word for writing and reading: a CPU has to wait when it reads a word written in halves.
    let low: u64 = zerocopy::transmute!([MAPPED, address]);
    GidKey { address: zerocopy::transmute!([0, low]), scope: 0 }
}

#[inline]
fn is_ipv4_mapped(address: [u8; 16]) -> bool {
    let [high, low]: [u64; 2] = zerocopy::transmute!(address);
    high == 0 && u64::from_be(low) >> 32 == 0xffff
}

/// An IPv6 address as a key of the maps.
#[inline]
pub fn key_of_ipv6(address: [u8; 16], ingress: IfIndex) -> GidKey {
    GidKey::new(IpAddr::V6(address.into()), ingress)
}

impl QueryPayload for Ipv4QueryWire {
    #[inline]
    fn is_query(&self) -> bool {
        is_query(&self.header, self.tlv, TLV_IPV4, size_of_val(&self.target))
    }
}

impl QueryPayload for Ipv6QueryWire {
    #[inline]
    fn is_query(&self) -> bool {
        is_query(&self.header, self.tlv, TLV_IPV6, size_of_val(&self.target))
    }
}

#[inline]
fn is_query(header: &HeaderWire, tlv: TlvWire, kind: u16, value: usize) -> bool {
    header.version <= 1
        && header.num_tlvs == 1
        && tlv.kind == kind
        && usize::from(tlv.length.get()) == size_of::<TlvWire>() + value
}

/// The UDP header and payload of a reply.
#[inline]
fn reply(
    asked: UdpHeader,
    query: &HeaderWire,
    gid: [u8; 16],
    sum: Sum,
    pseudo_header: impl Fn(U16) -> u64,
) -> (UdpHeader, PositiveReplyWire) {
    let payload = PositiveReplyWire {
        header: HeaderWire {
            version: query.version,
            reserved_1: [0; 3],
            msg_id: query.msg_id,
            num_tlvs: U16::new(1),
            reserved_10: [0; 2],
        },
        tlv: TlvWire { kind: U16::new(TLV_GID), length: length_of::<(TlvWire, [u8; 16])>() },
        gid,
    };
    let mut udp = UdpHeader {
        source_port: asked.destination_port,
        destination_port: asked.source_port,
        length: length_of::<(UdpHeader, PositiveReplyWire)>(),
        checksum: [0; 2],
    };
    let pseudo_header = pseudo_header(udp.length);
    udp.checksum = match sum {
        Sum::PseudoHeader => fold(pseudo_header),
        Sum::Whole => {
            let header: [u32; 2] = zerocopy::transmute!(udp);
            let words: [u32; 8] = zerocopy::transmute!(payload);
            match !fold(pseudo_header + self::sum(&header) + self::sum(&words)) {
                // 0 would mean that there is no checksum; in ones' complement both values are zero.
                0 => 0xffff,
                checksum => checksum,
            }
        }
    }
    .to_ne_bytes();
    (udp, payload)
}

impl Ipv4Header {
    #[inline]
    fn pseudo_header(&self, udp_length: U16) -> u64 {
        let addresses: [u32; 2] = zerocopy::transmute!([self.source, self.destination]);
        sum(&addresses) + upper_layer(udp_length)
    }
}

impl Ipv6Header {
    #[inline]
    fn pseudo_header(&self, udp_length: U16) -> u64 {
        let addresses: [u32; 8] = zerocopy::transmute!([self.source, self.destination]);
        sum(&addresses) + upper_layer(udp_length)
    }
}

impl UdpHeader {
    const CHECKSUM_OFFSET: usize = core::mem::offset_of!(Self, checksum);

    #[inline]
    fn check(self, length: usize) -> Result<(), Reason> {
        // A shorter UDP length with padding behind it is legal: the kernel's stack handles it.
        if usize::from(self.length.get()) == length { Ok(()) } else { Err(Reason::UdpHeader) }
    }

    #[inline]
    fn verify(self, pseudo_header: u64, datagram: u64) -> Checksum {
        if fold(pseudo_header + datagram) == 0xffff {
            Checksum::Right
        } else if fold(pseudo_header).to_ne_bytes() == self.checksum {
            Checksum::PseudoHeader
        } else {
            Checksum::Wrong
        }
    }
}

const UDP: u8 = 17;
const VERSION_4_WITHOUT_OPTIONS: u8 = 0x45;
const MORE_FRAGMENTS_AND_OFFSET: u16 = 0x3fff;
const DONT_FRAGMENT: U16 = U16::new(0x4000);
const HOPS: u8 = 64;

/// The length of layouts in sequence, which have no padding, as a header field.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the longest reply has 80 bytes")]
const fn length_of<T: Copy>() -> U16 {
    U16::new(size_of::<T>() as u16)
}

/// Protocol and length in a pseudo-header.
#[inline]
fn upper_layer(udp_length: U16) -> u64 {
    u64::from(u16::from(UDP).to_be()) + u64::from(u16::from_ne_bytes(udp_length.to_bytes()))
}

/// The sum of 16-bit words in any byte order (RFC 1071 section 2), two words at a time. It does not
/// overflow for 2³² of them.
#[inline]
fn sum(words: &[u32]) -> u64 {
    words.iter().fold(0, |sum, word| sum + u64::from(*word))
}

/// Folds a sum to 16 bits by adding the carries. The result is not inverted.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "three folds leave 16 bits of any sum")]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
