// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Management datagrams: the header of every MAD (IBA vol. 1 §13.4.2). All fields are big-endian.
//!
//! | bytes | field | rule |
//! |---|---|---|
//! | 0 | BaseVersion | 1 |
//! | 1 | MgmtClass | [`Class`] |
//! | 2 | ClassVersion | defined by the class |
//! | 3 | Method | [`Method`] |
//! | 4..5 | Status | [`Status`] |
//! | 6..7 | ClassSpecific | hop pointer and hop count in a directed-route SMP; else 0 |
//! | 8..15 | TransactionID | [`Tid`] |
//! | 16..17 | AttributeID | [`AttributeId`] |
//! | 18..19 | reserved | 0 when sent, ignored when read |
//! | 20..23 | AttributeModifier | the attribute decides |
//!
//! A MAD has [`LEN`] bytes on the wire. Software interfaces may cut zeros off its end, so the
//! parsers require only the bytes that the class needs.

use core::fmt;

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a MAD in bytes.
pub const LEN: usize = 256;

/// The fields that every MAD has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Header {
    /// Selects the manager or agent that handles the MAD.
    pub class: Class,
    /// Version of the class.
    pub class_version: u8,
    pub method: Method,
    /// The result; [`Status::OK`] in a request.
    pub status: Status,
    /// 0, except in a directed-route SMP.
    pub class_specific: u16,
    /// Ties an answer to its request.
    pub tid: Tid,
    /// The attribute that the operation is about.
    pub attribute: AttributeId,
    /// Selects an instance or block of the attribute.
    pub modifier: u32,
}

impl Header {
    /// Reads the header of a MAD, and returns it with the rest.
    ///
    /// # Errors
    /// Too few bytes, or a base version other than 1.
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

#[expect(missing_docs, reason = "its items are named for what they are")]
impl Class {
    /// Subnet management by LID.
    pub const SM_LID_ROUTED: Self = Self(0x01);
    /// Subnet management by directed route.
    pub const SM_DIRECTED_ROUTE: Self = Self(0x81);
    pub const SUBNET_ADM: Self = Self(0x03);
    /// Performance management: counters of a port.
    pub const PERFORMANCE: Self = Self(0x04);

    /// Takes the class number.
    pub const fn new(class: u8) -> Self {
        Self(class)
    }

    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class 0x{:02x}", self.0)
    }
}

/// The operation of a MAD (IBA vol. 1 §13.4.5). Answers have the upper bit set.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Method(u8);

#[expect(missing_docs, reason = "its items are named for what they are")]
impl Method {
    pub const GET: Self = Self(0x01);
    pub const SET: Self = Self(0x02);
    /// The answer to Get and Set.
    pub const GET_RESP: Self = Self(0x81);
    pub const TRAP: Self = Self(0x05);
    /// The answer to a trap: stops its repetition.
    pub const TRAP_REPRESS: Self = Self(0x07);
    /// Forwards a trap to a subscriber.
    pub const REPORT: Self = Self(0x06);
    /// The answer to Report.
    pub const REPORT_RESP: Self = Self(0x86);
    /// Reads all matching records (subnet administration).
    pub const GET_TABLE: Self = Self(0x12);
    /// The answer to GetTable.
    pub const GET_TABLE_RESP: Self = Self(0x92);

    /// Takes the method number.
    pub const fn new(method: u8) -> Self {
        Self(method)
    }

    pub const fn get(self) -> u8 {
        self.0
    }

    /// Whether this is an answer; TrapRepress is one too.
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0 || self.0 == Self::TRAP_REPRESS.0
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "method 0x{:02x}", self.0)
    }
}

/// The result of a request (IBA vol. 1 §13.4.7). The class defines the upper byte; in a
/// directed-route SMP its highest bit is the direction.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Status(u16);

impl Status {
    /// Success.
    pub const OK: Self = Self(0);
    /// The receiver is busy: try again later.
    pub const BUSY: Self = Self(0x0001);
    /// Another manager has to be asked.
    pub const REDIRECT: Self = Self(0x0002);
    /// Unsupported method.
    pub const BAD_METHOD: Self = Self(2 << 2);
    /// Unsupported combination of method and attribute.
    /// Unsupported method.
    pub const BAD_METHOD_OF_ATTRIBUTE: Self = Self(3 << 2);
    /// A field has an illegal value.
    pub const BAD_FIELD: Self = Self(7 << 2);

    /// Takes the status field.
    pub const fn new(status: u16) -> Self {
        Self(status)
    }

    /// The status field.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether the request should be tried again later.
    pub const fn is_busy(self) -> bool {
        self.0 & Self::BUSY.0 != 0
    }

    /// Whether another manager has to be asked.
    pub const fn is_redirect(self) -> bool {
        self.0 & Self::REDIRECT.0 != 0
    }

    /// The upper byte, which the class defines.
    pub const fn class_code(self) -> u8 {
        self.0.to_be_bytes()[0]
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

/// The attribute of a MAD (IBA vol. 1 §13.4.8). The class defines the numbers from 0x10.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AttributeId(u16);

impl AttributeId {
    /// The capabilities of a class's manager; in every class.
    pub const CLASS_PORT_INFO: Self = Self(0x0001);
    /// A notice of an event; in every class.
    pub const NOTICE: Self = Self(0x0002);
    /// A path; subnet administration.
    pub const PATH_RECORD: Self = Self(0x0035);

    /// Takes the attribute number.
    pub const fn new(attribute: u16) -> Self {
        Self(attribute)
    }

    /// The attribute number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

/// Transaction ID: an answer repeats that of its request.
///
/// The Linux kernel owns the upper half: it writes the number of the sending agent there, to find
/// the agent of an answer (`ib_umad_write` in drivers/infiniband/core/user_mad.c). A program
/// therefore distinguishes its requests only by the lower half, a [`Transaction`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tid(u64);

impl Tid {
    /// Takes the ID as a number.
    pub const fn new(tid: u64) -> Self {
        Self(tid)
    }

    /// The ID as a number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The lower half, which the kernel leaves to programs.
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
    /// The upper half is 0.
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
    /// The parts one after another, then zeros. A part that does not fit is left out: each format
    /// asserts that its parts fit.
    pub(super) fn new(parts: &[&[u8]]) -> Self {
        let mut mad = [0; LEN];
        let octets = parts.iter().flat_map(|part| part.iter());
        mad.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        Self(mad)
    }

    /// Takes the bytes of a MAD.
    pub const fn from_octets(octets: [u8; LEN]) -> Self {
        Self(octets)
    }

    /// The bytes of the MAD.
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

/// Reason why bytes are not the expected MAD. Malformed input is counted by these reasons.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Error {
    /// Shorter than its required fields.
    Truncated,
    /// A base version other than 1.
    BaseVersion,
    /// Another class than expected.
    Class,
    /// An unsupported version of the class.
    ClassVersion,
    /// Another method than expected.
    Method,
    /// Another attribute than expected.
    Attribute,
    /// A GID that does not name a port.
    Gid,
    /// A LID that does not name a port.
    Lid,
    /// A P_Key that names no partition.
    PKey,
    /// A question that lacks a required component.
    Components,
    /// A directed route that is too long, or a hop pointer beyond its end.
    Hops,
}

impl Error {
    /// Every reason, in the order of declaration.
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
            Self::PKey => "P_Key that names no partition",
            Self::Components => "component missing",
            Self::Hops => "illegal directed route",
        })
    }
}

impl core::error::Error for Error {}

/// Layout of the first 24 bytes of every MAD.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct HeaderWire {
    /// Always 1.
    pub base_version: u8,
    pub class: u8,
    /// Defined by the class.
    pub class_version: u8,
    pub method: u8,
    pub status: U16,
    pub class_specific: U16,
    pub tid: U64,
    pub attribute: U16,
    /// 0 when sent, ignored when read.
    pub reserved: [u8; 2],
    /// Defined by the attribute.
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
