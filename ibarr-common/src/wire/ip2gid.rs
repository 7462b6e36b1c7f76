// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! ip2gid: which GID has this IP address? One UDP datagram in each direction, port [`PORT`], all
//! fields big-endian. The protocol is that of Mellanox's C `ibarr` 0.1.5; the IPv6 query is our
//! extension.
//!
//! | bytes | field | rule |
//! |---|---|---|
//! | 0 | version | 1 is sent; 0 and 1 are read (little-endian C nodes send 0); a reply echoes its query's |
//! | 1..3 | reserved | 0 when sent, ignored when read |
//! | 4..7 | msg_id | chosen by the client; a reply echoes its query's |
//! | 8..9 | num_tlvs | 1 is sent in a query or a positive reply, 0 in a negative reply |
//! | 10..11 | reserved | as above |
//! | 12.. | TLVs | type and length, 16 bits each; the length counts these four bytes |
//!
//! | TLV type | value | TLV length | datagram |
//! |---|---|---|---|
//! | 0x0001 | IPv4 address asked for | 8 | query, 20 bytes |
//! | 0x0002 | IPv6 address asked for | 20 | query, 32 bytes |
//! | 0x0010 | GID | 20 | positive reply, 32 bytes |
//! | none | | | negative reply, 12 bytes |
//!
//! **A later version may add TLVs.** A reader skips TLVs of other types, wherever they stand. What is
//! left is one question in a query, one GID in a positive reply and nothing in a negative one; a
//! message with two of these types is refused, so none is both a query and a reply. num_tlvs must
//! agree with the bytes, and a message has at most [`MAX_LEN`] of them. The BPF programs leave
//! messages with several TLVs to the daemon.

use core::fmt;
use core::net::IpAddr;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Error;
use crate::ib::Gid;

/// The UDP port of the server. RoCEv2 has the same port: `rdma_rxe` binds it too.
pub const PORT: u16 = 4791;

/// Length of the longest datagram that is read, in bytes.
pub const MAX_LEN: usize = 128;

/// Length of the longest datagram that is sent, in bytes.
const MAX_SENT: usize = 32;

/// Asks for the GID of the address `target`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Query {
    version: Version,
    msg_id: MsgId,
    target: IpAddr,
}

impl Query {
    /// `None` if `target` is an address that no interface can have.
    pub fn new(version: Version, msg_id: MsgId, target: IpAddr) -> Option<Self> {
        can_be_owned(target).then_some(Self { version, msg_id, target })
    }

    /// Reads the payload of a UDP datagram.
    ///
    /// # Errors
    /// Anything that has not exactly one question, besides TLVs of unknown types.
    pub fn parse(payload: &[u8]) -> Result<Self, Error> {
        let (header, version, tlv) = parse(payload)?;
        let target = match tlv {
            Some(Tlv::Ipv4(target)) => IpAddr::V4(target.into()),
            Some(Tlv::Ipv6(target)) => IpAddr::V6(target.into()),
            None if header.num_tlvs == 0 => return Err(Error::TlvCount),
            Some(Tlv::Gid(_)) | None => return Err(Error::TlvType),
        };
        Self::new(version, MsgId(header.msg_id.get()), target).ok_or(Error::Target)
    }

    /// The payload: 20 bytes for IPv4, 32 for IPv6.
    pub fn emit(&self) -> Datagram {
        let header = HeaderWire::new(self.version, self.msg_id, 1);
        match self.target {
            IpAddr::V4(target) => Datagram::new(&Ipv4QueryWire {
                header,
                tlv: TlvWire::new::<4>(TLV_IPV4),
                target: target.octets(),
            }),
            IpAddr::V6(target) => Datagram::new(&Ipv6QueryWire {
                header,
                tlv: TlvWire::new::<16>(TLV_IPV6),
                target: target.octets(),
            }),
        }
    }

    /// The reply to this query: the same version and msg_id, and the GID of the target, if known.
    pub fn reply(&self, gid: Option<Gid>) -> Reply {
        Reply { version: self.version, msg_id: self.msg_id, gid }
    }

    /// The version of the query.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The ID that the reply repeats.
    pub fn msg_id(&self) -> MsgId {
        self.msg_id
    }

    /// The address whose GID is asked for.
    pub fn target(&self) -> IpAddr {
        self.target
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, msg_id, target } = self;
        write!(f, "ip2gid query {version} id {msg_id}: who has {target}?")
    }
}

/// The answer to a query: a GID, or that this host does not know the address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reply {
    /// The version of the query.
    pub version: Version,
    /// The msg_id of the query.
    pub msg_id: MsgId,
    /// The GID; `None` is a negative reply.
    pub gid: Option<Gid>,
}

impl Reply {
    /// Reads the payload of a UDP datagram.
    ///
    /// # Errors
    /// Anything that has a question, or more than one GID, besides TLVs of unknown types.
    pub fn parse(payload: &[u8]) -> Result<Self, Error> {
        let (header, version, tlv) = parse(payload)?;
        let gid = match tlv {
            None => None,
            Some(Tlv::Gid(gid)) => Some(Gid::new(gid).ok_or(Error::Gid)?),
            Some(Tlv::Ipv4(_) | Tlv::Ipv6(_)) => return Err(Error::TlvType),
        };
        Ok(Self { version, msg_id: MsgId(header.msg_id.get()), gid })
    }

    /// The payload: 32 bytes, or 12 if negative.
    pub fn emit(&self) -> Datagram {
        match self.gid {
            Some(gid) => Datagram::new(&PositiveReplyWire {
                header: HeaderWire::new(self.version, self.msg_id, 1),
                tlv: TlvWire::new::<16>(TLV_GID),
                gid: gid.octets(),
            }),
            None => Datagram::new(&HeaderWire::new(self.version, self.msg_id, 0)),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, msg_id, gid } = self;
        write!(f, "ip2gid reply {version} id {msg_id}: ")?;
        match gid {
            Some(gid) => write!(f, "{gid}"),
            None => f.write_str("not here"),
        }
    }
}

/// The versions that ibarr reads. They differ only in the version byte.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Version {
    /// Sent by the C original on little-endian hosts, which stores 1 in the wrong byte order.
    V0,
    /// Sent by ibarr.
    #[default]
    V1,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V0 => "v0",
            Self::V1 => "v1",
        })
    }
}

/// Ties a reply to its query. Any value is legal; a client that can be spoofed chooses it at
/// random.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MsgId(pub u32);

impl fmt::Display for MsgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// The payload of a UDP datagram of this protocol.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Datagram {
    bytes: [u8; MAX_SENT],
    len: usize,
}

impl Datagram {
    fn new(message: &(impl IntoBytes + Immutable)) -> Self {
        let mut bytes = [0; MAX_SENT];
        let message = message.as_bytes();
        // Every layout in this module is asserted to fit.
        if let Some(start) = bytes.get_mut(..message.len()) {
            start.copy_from_slice(message);
        }
        Self { bytes, len: message.len() }
    }
}

impl AsRef<[u8]> for Datagram {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Layout of the first 12 bytes of every datagram, and of a whole negative reply.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct HeaderWire {
    pub version: u8,
    /// 0 when sent, ignored when read.
    pub reserved_1: [u8; 3],
    pub msg_id: U32,
    /// Number of TLVs that follow.
    pub num_tlvs: U16,
    /// 0 when sent, ignored when read.
    pub reserved_10: [u8; 2],
}

impl HeaderWire {
    fn new(version: Version, msg_id: MsgId, num_tlvs: u16) -> Self {
        Self {
            version: match version {
                Version::V0 => 0,
                Version::V1 => 1,
            },
            reserved_1: [0; 3],
            msg_id: msg_id.0.into(),
            num_tlvs: num_tlvs.into(),
            reserved_10: [0; 2],
        }
    }
}

/// Layout of the first four bytes of a TLV.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TlvWire {
    /// One of `TLV_…`.
    pub kind: U16,
    /// Length of the TLV in bytes, with these four.
    pub length: U16,
}

impl TlvWire {
    /// The header of a TLV whose value has `N` bytes.
    fn new<const N: usize>(kind: u16) -> Self {
        Self { kind: kind.into(), length: tlv_length::<N>().into() }
    }
}

/// TLV type of a query: an IPv4 address.
pub const TLV_IPV4: u16 = 0x0001;
/// TLV type of a query: an IPv6 address.
pub const TLV_IPV6: u16 = 0x0002;
/// TLV type of a reply: the GID of the address.
pub const TLV_GID: u16 = 0x0010;

/// Layout of a query for an IPv4 address.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4QueryWire {
    /// num_tlvs is 1.
    pub header: HeaderWire,
    /// [`TLV_IPV4`].
    pub tlv: TlvWire,
    /// The address whose GID is asked for.
    pub target: [u8; 4],
}

/// Layout of a query for an IPv6 address.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6QueryWire {
    /// num_tlvs is 1.
    pub header: HeaderWire,
    /// [`TLV_IPV6`].
    pub tlv: TlvWire,
    /// The address whose GID is asked for.
    pub target: [u8; 16],
}

/// Layout of a positive reply.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PositiveReplyWire {
    /// num_tlvs is 1.
    pub header: HeaderWire,
    /// [`TLV_GID`].
    pub tlv: TlvWire,
    /// The GID, see [`Gid::octets`].
    pub gid: [u8; 16],
}

const _: () = {
    assert!(size_of::<HeaderWire>() == 12);
    assert!(core::mem::offset_of!(HeaderWire, msg_id) == 4);
    assert!(core::mem::offset_of!(HeaderWire, num_tlvs) == 8);
    assert!(size_of::<TlvWire>() == 4);
    assert!(size_of::<Ipv4QueryWire>() == 20);
    assert!(core::mem::offset_of!(Ipv4QueryWire, target) == 16);
    assert!(size_of::<Ipv6QueryWire>() == MAX_SENT);
    assert!(core::mem::offset_of!(Ipv6QueryWire, target) == 16);
    assert!(size_of::<PositiveReplyWire>() == MAX_SENT);
    assert!(core::mem::offset_of!(PositiveReplyWire, gid) == 16);
};

/// A TLV of a known type.
enum Tlv {
    Ipv4([u8; 4]),
    Ipv6([u8; 16]),
    Gid([u8; 16]),
}

/// The header, and the only TLV of a known type, if there is one.
fn parse(payload: &[u8]) -> Result<(&HeaderWire, Version, Option<Tlv>), Error> {
    let (header, mut rest) = HeaderWire::ref_from_prefix(payload).map_err(|_| Error::Truncated)?;
    let version = match header.version {
        0 => Version::V0,
        1 => Version::V1,
        _ => return Err(Error::Version),
    };
    if payload.len() > MAX_LEN {
        return Err(Error::TrailingBytes);
    }
    let mut known = None;
    for _ in 0..header.num_tlvs.get() {
        let (tlv, value) = TlvWire::read_from_prefix(rest).map_err(|_| Error::Truncated)?;
        let found = match tlv.kind.get() {
            TLV_IPV4 => Some(Tlv::Ipv4(exact_value(tlv, value)?)),
            TLV_IPV6 => Some(Tlv::Ipv6(exact_value(tlv, value)?)),
            TLV_GID => Some(Tlv::Gid(exact_value(tlv, value)?)),
            _ => None,
        };
        if known.is_some() && found.is_some() {
            return Err(Error::TlvCount);
        }
        known = known.or(found);
        let length = usize::from(tlv.length.get());
        let length = length.checked_sub(size_of::<TlvWire>()).ok_or(Error::TlvLength)?;
        rest = value.get(length..).ok_or(Error::Truncated)?;
    }
    if rest.is_empty() { Ok((header, version, known)) } else { Err(Error::TrailingBytes) }
}

/// The value of a TLV, whose type requires `N` bytes.
fn exact_value<const N: usize>(tlv: TlvWire, value: &[u8]) -> Result<[u8; N], Error> {
    if tlv.length != tlv_length::<N>() {
        return Err(Error::TlvLength);
    }
    value.first_chunk().copied().ok_or(Error::Truncated)
}

#[expect(clippy::cast_possible_truncation, reason = "N is 4 or 16")]
const fn tlv_length<const N: usize>() -> u16 {
    (size_of::<TlvWire>() + N) as u16
}

/// Whether a query from UDP port `port` of `source` may be answered at all: another node can have
/// this address, and a datagram can be sent to the port. A server also refuses its own addresses.
#[inline]
pub fn can_ask(source: IpAddr, port: u16) -> bool {
    port != 0 && can_be_owned(source) && !source.is_loopback()
}

/// Whether an interface can have `address`, so that a query for it makes sense.
pub(super) fn can_be_owned(address: IpAddr) -> bool {
    if address.is_unspecified() || address.is_multicast() {
        return false;
    }
    match address {
        IpAddr::V4(address) => !address.is_broadcast(),
        // Maps store IPv4 addresses as IPv4-mapped ones, and one address must not have two names.
        IpAddr::V6(address) => address.to_ipv4_mapped().is_none(),
    }
}
