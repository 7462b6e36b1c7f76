// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Netlink's framing (include/uapi/linux/netlink.h): messages in a datagram, attributes in a
//! message. Everything is in host byte order and padded to four bytes; a length includes its
//! header.

use core::fmt;

use zerocopy::native_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, MAX_LEN};

/// Ties an answer to its request. The kernel numbers path and address requests separately, so that
/// a request is identified by its [`Kind`] and its number.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Seq(pub u32);

/// The socket that a message claims to be from. A sender can write any number here; only the socket
/// address tells the real sender.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortId(pub u32);

impl PortId {
    /// The kernel writes this.
    pub const KERNEL: Self = Self(0);
}

/// The type of a message: `nlmsg_type`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// `RDMA_NL_LS_OP_RESOLVE`.
    ResolvePath,
    /// `RDMA_NL_LS_OP_SET_TIMEOUT`.
    SetTimeout,
    /// `RDMA_NL_LS_OP_IP_RESOLVE`.
    ResolveIp,
    /// `NLMSG_ERROR`, see [`Message::errno`].
    Verdict,
    /// Not a message that ibarr knows.
    Other(u16),
}

/// `RDMA_NL_GET_TYPE(RDMA_NL_LS, 0)`.
const TYPE_LS: u16 = 4 << 10;
/// `NLMSG_ERROR`.
const TYPE_ERROR: u16 = 2;

/// `NLM_F_REQUEST`.
pub(super) const FLAG_REQUEST: u16 = 0x0001;
/// `NLM_F_ACK`.
pub(super) const FLAG_ACK: u16 = 0x0004;
/// `RDMA_NL_LS_F_ERR`.
pub(super) const FLAG_ERROR: u16 = 0x0100;

impl Kind {
    const fn new(kind: u16) -> Self {
        const PATH: u16 = TYPE_LS;
        const TIMEOUT: u16 = TYPE_LS + 1;
        const IP: u16 = TYPE_LS + 2;
        match kind {
            PATH => Self::ResolvePath,
            TIMEOUT => Self::SetTimeout,
            IP => Self::ResolveIp,
            TYPE_ERROR => Self::Verdict,
            other => Self::Other(other),
        }
    }

    const fn get(self) -> u16 {
        match self {
            Self::ResolvePath => TYPE_LS,
            Self::SetTimeout => TYPE_LS + 1,
            Self::ResolveIp => TYPE_LS + 2,
            Self::Verdict => TYPE_ERROR,
            Self::Other(kind) => kind,
        }
    }
}

/// A message in a datagram; its payload is not yet parsed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Message<'a> {
    pub(super) kind: Kind,
    pub(super) flags: u16,
    seq: Seq,
    port_id: PortId,
    pub(super) payload: &'a [u8],
}

impl<'a> Message<'a> {
    fn new(header: &HeaderWire, payload: &'a [u8]) -> Self {
        Self {
            kind: Kind::new(header.kind.get()),
            flags: header.flags.get(),
            seq: Seq(header.seq.get()),
            port_id: PortId(header.port_id.get()),
            payload,
        }
    }

    /// The type of the message.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it is a request (`NLM_F_REQUEST`); an answer does not have the flag.
    pub fn is_request(&self) -> bool {
        self.flags & FLAG_REQUEST != 0
    }

    /// The number that its answer repeats.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The socket that it claims to be from.
    pub fn port_id(&self) -> PortId {
        self.port_id
    }

    /// The result that a [`Kind::Verdict`] reports for the message that we sent with this [`Seq`]:
    /// a negative error number, or 0 for success. Kernels before 5.6 sent a positive number for
    /// each accepted answer.
    pub fn errno(&self) -> Option<i32> {
        let errno = self.payload.first_chunk::<4>().filter(|_| self.kind == Kind::Verdict)?;
        Some(i32::from_ne_bytes(*errno))
    }
}

/// The messages in `datagram`. Ends after the first error, because the next message cannot be
/// found.
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram, broken: &[] }
}

/// See [`messages`].
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
    broken: &'a [u8],
}

impl<'a> Messages<'a> {
    /// The message that ended the iteration, if it has a header: its length field is too long or
    /// too short. Its payload is lost; type and sequence number are known, so it can be answered.
    pub fn broken(&self) -> Option<Message<'a>> {
        let (header, _) = HeaderWire::ref_from_prefix(self.broken).ok()?;
        Some(Message::new(header, &[]))
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let length = |header: &HeaderWire| usize::try_from(header.length.get()).ok();
        let bytes = self.rest;
        let taken = next(&mut self.rest, length)?;
        if taken.is_err() {
            self.broken = bytes;
        }
        Some(taken.map(|(header, payload)| Message::new(header, payload)))
    }
}

/// An attribute of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Attribute<'a> {
    /// The type with its flag bits, see [`Attribute::number`].
    pub(super) kind: u16,
    value: &'a [u8],
}

/// `RDMA_NLA_F_MANDATORY`: a receiver that does not know the attribute must not answer.
pub(super) const MANDATORY: u16 = 0x2000;
/// `RDMA_NLA_TYPE_MASK`: without [`MANDATORY`] and netlink's own two bits.
const NUMBER: u16 = 0x1fff;

impl Attribute<'_> {
    /// The type without flag bits, `LS_NLA_TYPE_…`.
    pub(super) fn number(&self) -> u16 {
        self.kind & NUMBER
    }

    /// Skips an unknown attribute; an error if it is mandatory.
    pub(super) fn skip(&self) -> Result<(), Error> {
        if self.kind & MANDATORY != 0 { Err(Error::AttributeMandatory) } else { Ok(()) }
    }

    /// The value, which must have `N` bytes.
    pub(super) fn value<const N: usize>(&self) -> Result<[u8; N], Error> {
        self.value.try_into().map_err(|_| Error::AttributeLength)
    }
}

/// The attributes in `bytes`. Ends after the first error.
pub(super) fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

pub(super) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let length = |header: &AttributeWire| Some(usize::from(header.length.get()));
        Some(
            next(&mut self.rest, length)?
                .map(|(header, value)| Attribute { kind: header.kind.get(), value }),
        )
    }
}

/// Splits a header, its body and the padding off `rest`; the padding may be missing at the end.
fn next<'a, H: FromBytes + Immutable + KnownLayout + Unaligned>(
    rest: &mut &'a [u8],
    length: impl Fn(&H) -> Option<usize>,
) -> Option<Result<(&'a H, &'a [u8]), Error>> {
    let bytes = core::mem::take(rest);
    if bytes.is_empty() {
        return None;
    }
    let taken = H::ref_from_prefix(bytes).ok().and_then(|(header, _)| {
        let length = length(header)?;
        let body = bytes.get(size_of::<H>()..length)?;
        *rest = length
            .checked_next_multiple_of(ALIGNMENT)
            .and_then(|end| bytes.get(end..))
            .unwrap_or_default();
        Some((header, body))
    });
    Some(taken.ok_or(Error::Truncated))
}

/// `NLMSG_ALIGNTO`, `NLA_ALIGNTO`.
pub(super) const ALIGNMENT: usize = 4;

/// A message to be sent.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Emitted {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl Emitted {
    /// A message without payload.
    pub(super) fn new(kind: Kind, flags: u16, seq: Seq, port_id: PortId) -> Self {
        let mut emitted = Self { bytes: [0; MAX_LEN], len: 0 };
        emitted.push(&HeaderWire {
            length: U32::ZERO,
            kind: kind.get().into(),
            flags: flags.into(),
            seq: seq.0.into(),
            port_id: port_id.0.into(),
        });
        emitted
    }

    /// Appends `part`, and zeros up to a multiple of four bytes.
    pub(super) fn push(&mut self, part: &(impl IntoBytes + Immutable + ?Sized)) {
        let part = part.as_bytes();
        // `MAX_LEN` is asserted to fit every message of this module.
        if let Some(to) = self.bytes.get_mut(self.len..).and_then(|to| to.get_mut(..part.len())) {
            to.copy_from_slice(part);
        }
        self.len += part.len().next_multiple_of(ALIGNMENT);
        let length = u32::try_from(self.len).unwrap_or(u32::MAX);
        if let Some(to) = self.bytes.first_chunk_mut::<4>() {
            *to = length.to_ne_bytes();
        }
    }

    pub(super) fn push_attribute(&mut self, kind: u16, value: &(impl IntoBytes + Immutable)) {
        let length = size_of::<AttributeWire>() + size_of_val(value);
        let length = u16::try_from(length).unwrap_or(u16::MAX);
        self.push(&AttributeWire { length: length.into(), kind: kind.into() });
        self.push(value);
    }
}

impl AsRef<[u8]> for Emitted {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

impl fmt::Debug for Emitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Layout of `struct nlmsghdr`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct HeaderWire {
    /// Length of the message in bytes, with this header and without padding at its end.
    pub length: U32,
    pub kind: U16,
    /// `NLM_F_…`, `RDMA_NL_LS_F_ERR`.
    pub flags: U16,
    pub seq: U32,
    pub port_id: U32,
}

/// Layout of `struct nlattr`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AttributeWire {
    /// Length of the attribute in bytes, with this header and without padding.
    pub length: U16,
    /// `LS_NLA_TYPE_…` and flag bits.
    pub kind: U16,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<HeaderWire>() == 16);
    assert!(offset_of!(HeaderWire, kind) == 4);
    assert!(offset_of!(HeaderWire, flags) == 6);
    assert!(offset_of!(HeaderWire, seq) == 8);
    assert!(offset_of!(HeaderWire, port_id) == 12);
    assert!(size_of::<AttributeWire>() == 4);
    assert!(offset_of!(AttributeWire, kind) == 2);
};
