// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Management datagrams: the header that every MAD begins with (IBA vol. 1 §13.4.2). All fields are
//! big-endian.
//!
//! | bytes | field | rule |
//! |---|---|---|
//! | 0 | BaseVersion | 1 |
//! | 1 | MgmtClass | [`Class`] |
//! | 2 | ClassVersion | the class decides |
//! | 3 | Method | [`Method`] |
//! | 4..5 | Status | [`Status`] |
//! | 6..7 | ClassSpecific | of a directed-route SMP: hop pointer, hop count; else 0 |
//! | 8..15 | TransactionID | [`Tid`] |
//! | 16..17 | AttributeID | [`AttributeId`] |
//! | 18..19 | reserved | 0 when sent, ignored when read |
//! | 20..23 | AttributeModifier | the attribute decides |
//!
//! A MAD has [`LEN`] bytes on the wire. Software interfaces may cut zeros off its end, so what is
//! read here is as long as its class needs.

use core::fmt;

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a MAD.
pub const LEN: usize = 256;

/// What every MAD says of itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// Who deals with it.
    pub class: Class,
    /// Version of the class.
    pub class_version: u8,
    /// What it wants.
    pub method: Method,
    /// How it went; [`Status::OK`] in a request.
    pub status: Status,
    /// 0, but in a directed-route SMP.
    pub class_specific: u16,
    /// What ties an answer to its request.
    pub tid: Tid,
    /// What it is about.
    pub attribute: AttributeId,
    /// Which of these.
    pub modifier: u32,
}

impl Header {
    /// Reads the header of a MAD, and gives what follows it.
    ///
    /// # Errors
    /// Too few bytes, or another base version.
    pub fn parse(mad: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (wire, rest) = HeaderWire::read_from_prefix(mad).map_err(|_| Error::Truncated)?;
        if wire.base_version != BASE_VERSION {
            return Err(Error::BaseVersion);
        }
        let this = Self {
            class: Class(wire.class),
            class_version: wire.class_version,
            method: Method(wire.method),
            status: Status(wire.status.get()),
            class_specific: wire.class_specific.get(),
            tid: Tid(wire.tid.get()),
            attribute: AttributeId(wire.attribute.get()),
            modifier: wire.modifier.get(),
        };
        Ok((this, rest))
    }

    /// The first 24 bytes of the MAD.
    pub fn wire(&self) -> HeaderWire {
        HeaderWire {
            base_version: BASE_VERSION,
            class: self.class.0,
            class_version: self.class_version,
            method: self.method.0,
            status: self.status.0.into(),
            class_specific: self.class_specific.into(),
            tid: self.tid.0.into(),
            attribute: self.attribute.0.into(),
            reserved: [0; 2],
            modifier: self.modifier.into(),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, method, status, tid, attribute, .. } = self;
        write!(f, "{class} {method} attribute {attribute} tid {tid} status {status}")
    }
}

/// Management class (IBA vol. 1 §13.4.4).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Class(u8);

impl Class {
    /// Subnet management by LID.
    pub const SM_LID_ROUTED: Self = Self(0x01);
    /// Subnet management by directed route.
    pub const SM_DIRECTED_ROUTE: Self = Self(0x81);
    /// Subnet administration.
    pub const SUBNET_ADM: Self = Self(0x03);
    /// Performance management: counters.
    pub const PERFORMANCE: Self = Self(0x04);

    /// From its number.
    pub const fn new(class: u8) -> Self {
        Self(class)
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class 0x{:02x}", self.0)
    }
}

/// What a MAD wants (IBA vol. 1 §13.4.5). The upper bit makes it an answer.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Method(u8);

impl Method {
    /// Tell me.
    pub const GET: Self = Self(0x01);
    /// Change it.
    pub const SET: Self = Self(0x02);
    /// The answer to both.
    pub const GET_RESP: Self = Self(0x81);
    /// A datagram of the class's own.
    pub const SEND: Self = Self(0x03);
    /// Something happened.
    pub const TRAP: Self = Self(0x05);
    /// The answer to a trap: do not repeat it.
    pub const TRAP_REPRESS: Self = Self(0x07);
    /// Something happened elsewhere.
    pub const REPORT: Self = Self(0x06);
    /// The answer to that.
    pub const REPORT_RESP: Self = Self(0x86);
    /// Tell me all of them (subnet administration).
    pub const GET_TABLE: Self = Self(0x12);
    /// The answer to that.
    pub const GET_TABLE_RESP: Self = Self(0x92);
    /// Forget it (subnet administration).
    pub const DELETE: Self = Self(0x15);
    /// The answer to that.
    pub const DELETE_RESP: Self = Self(0x95);

    /// From its number.
    pub const fn new(method: u8) -> Self {
        Self(method)
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Whether it answers another MAD, or is one that answers a trap.
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0 || self.0 == Self::TRAP_REPRESS.0
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "method 0x{:02x}", self.0)
    }
}

/// How it went (IBA vol. 1 §13.4.7). The upper byte is the class's own; in a directed-route SMP its
/// highest bit is the direction.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Status(u16);

impl Status {
    /// Done.
    pub const OK: Self = Self(0);
    /// Try again later.
    pub const BUSY: Self = Self(0x0001);
    /// Ask somebody else.
    pub const REDIRECT: Self = Self(0x0002);
    /// Base or class version not known.
    pub const BAD_VERSION: Self = Self(1 << 2);
    /// Method not known.
    pub const BAD_METHOD: Self = Self(2 << 2);
    /// Method not known for this attribute.
    pub const BAD_METHOD_OF_ATTRIBUTE: Self = Self(3 << 2);
    /// A field has a value that it cannot have.
    pub const BAD_FIELD: Self = Self(7 << 2);

    /// From its number.
    pub const fn new(status: u16) -> Self {
        Self(status)
    }

    /// Its number.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether it is to be tried again later.
    pub const fn is_busy(self) -> bool {
        self.0 & Self::BUSY.0 != 0
    }

    /// Whether somebody else is to be asked.
    pub const fn is_redirect(self) -> bool {
        self.0 & Self::REDIRECT.0 != 0
    }

    /// What the class says.
    pub const fn class_code(self) -> u8 {
        self.0.to_be_bytes()[0]
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

/// What a MAD is about (IBA vol. 1 §13.4.8). Numbers from 0x10 are the class's own.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AttributeId(u16);

impl AttributeId {
    /// What the manager of a class can do: every class.
    pub const CLASS_PORT_INFO: Self = Self(0x0001);
    /// Something that happened: every class.
    pub const NOTICE: Self = Self(0x0002);
    /// What a port is to be told of: every class.
    pub const INFORM_INFO: Self = Self(0x0003);
    /// A path: subnet administration.
    pub const PATH_RECORD: Self = Self(0x0035);

    /// From its number.
    pub const fn new(attribute: u16) -> Self {
        Self(attribute)
    }

    /// Its number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

/// Transaction: an answer repeats that of its request.
///
/// The Linux kernel owns the upper half: it writes the number of the sending agent there, to know
/// whose the answer is (`ib_umad_write` in drivers/infiniband/core/user_mad.c). So a user tells its
/// requests apart by the lower half alone, [`Transaction`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tid(u64);

impl Tid {
    /// From its number.
    pub const fn new(tid: u64) -> Self {
        Self(tid)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The half that is left to a user of the kernel.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
    pub const fn transaction(self) -> Transaction {
        Transaction(self.0 as u32)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

/// The lower half of a [`Tid`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Transaction(pub u32);

impl From<Transaction> for Tid {
    /// With nothing in the upper half.
    fn from(transaction: Transaction) -> Self {
        Self(transaction.0.into())
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// The bytes of a MAD.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Mad([u8; LEN]);

impl Mad {
    /// One part behind the other, zeros behind the last. What does not fit is left out: each format
    /// asserts that it does.
    pub(super) fn new(parts: &[&[u8]]) -> Self {
        let mut mad = [0; LEN];
        let octets = parts.iter().flat_map(|part| part.iter());
        mad.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        Self(mad)
    }

    /// From all of its bytes.
    pub const fn from_octets(octets: [u8; LEN]) -> Self {
        Self(octets)
    }

    /// All of its bytes.
    pub const fn octets(&self) -> &[u8; LEN] {
        &self.0
    }
}

impl AsRef<[u8]> for Mad {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

/// Why bytes are not the MAD that is to be read. Each is a reason that malformed input is counted
/// under.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Error {
    /// Shorter than what it has to hold.
    Truncated,
    /// Another base version than 1.
    BaseVersion,
    /// Another class.
    Class,
    /// Another version of the class.
    ClassVersion,
    /// Another method.
    Method,
    /// Another attribute.
    Attribute,
    /// A GID that does not name a port.
    Gid,
    /// A LID that does not name a port.
    Lid,
    /// A key that no partition has.
    PKey,
    /// A question that does not say what it is about.
    Components,
    /// A directed route that is too long, or of which it has come too far.
    Hops,
}

impl Error {
    /// Every reason, in the order of the enumeration.
    pub const ALL: [Self; 11] = [
        Self::Truncated,
        Self::BaseVersion,
        Self::Class,
        Self::ClassVersion,
        Self::Method,
        Self::Attribute,
        Self::Gid,
        Self::Lid,
        Self::PKey,
        Self::Components,
        Self::Hops,
    ];
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "truncated",
            Self::BaseVersion => "unknown base version",
            Self::Class => "another management class",
            Self::ClassVersion => "unknown class version",
            Self::Method => "another method",
            Self::Attribute => "another attribute",
            Self::Gid => "GID that names no port",
            Self::Lid => "LID that names no port",
            Self::PKey => "key that no partition has",
            Self::Components => "component missing",
            Self::Hops => "no legal directed route",
        })
    }
}

impl core::error::Error for Error {}

/// Layout of the first 24 bytes of every MAD.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HeaderWire {
    /// 1.
    pub base_version: u8,
    /// See [`Class`].
    pub class: u8,
    /// The class decides.
    pub class_version: u8,
    /// See [`Method`].
    pub method: u8,
    /// See [`Status`].
    pub status: U16,
    /// See [`Header::class_specific`].
    pub class_specific: U16,
    /// See [`Tid`].
    pub tid: U64,
    /// See [`AttributeId`].
    pub attribute: U16,
    /// 0 when sent, ignored when read.
    pub reserved: [u8; 2],
    /// The attribute decides.
    pub modifier: U32,
}

const BASE_VERSION: u8 = 1;

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<HeaderWire>() == 24);
    assert!(offset_of!(HeaderWire, status) == 4);
    assert!(offset_of!(HeaderWire, tid) == 8);
    assert!(offset_of!(HeaderWire, attribute) == 16);
    assert!(offset_of!(HeaderWire, modifier) == 20);
};
