// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Event subscription: a port subscribes to a trap with an InformInfo (IBA vol. 1 §13.4.8.3, by
//! SubnAdmSet, §15.2.5.12). The SA then forwards each such trap to the port as a Notice (§13.4.8.2)
//! with the method Report, and repeats it until the port answers with ReportResp. All fields are
//! big-endian.
//!
//! | bytes of InformInfo | field | what we send |
//! |---|---|---|
//! | 0..15 | GID | 0: from any issuer |
//! | 16..17, 18..19 | LIDRangeBegin, LIDRangeEnd | 0xffff, 0: from any issuer |
//! | 20..21 | reserved | 0 |
//! | 22 | IsGeneric | 1 |
//! | 23 | Subscribe | 1, or 0 to end the subscription |
//! | 24..25 | Type | 0xffff: every type |
//! | 26..27 | TrapNumber | [`Trap`] |
//! | 28..31 | QPN (upper 24 bits), RespTimeValue (lower 5) | 1, the general service interface, and 18: 1 s |
//! | 32..35 | reserved, ProducerType (24 bits) | 0xffffff: every node type |
//!
//! | bytes of Notice | field |
//! |---|---|
//! | 0 | IsGeneric (bit 7), Type |
//! | 1..3 | ProducerType |
//! | 4..5 | TrapNumber |
//! | 6..7 | IssuerLID |
//! | 8..9 | NoticeToggle, NoticeCount |
//! | 10..63 | details, defined by the trap |
//! | 64..79 | IssuerGID |

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::{AttributeId, Error, Mad, Method, Status, Tid};
use super::sa_header::{HeaderWire, header, parse};
use super::smp::NoticeWire;
use crate::ib::{Gid, Lid};

/// A trap that a port can subscribe to (IBA vol. 1 §14.2.5.1).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Trap {
    /// A GID has become reachable.
    GidInService,
    /// A GID is no longer reachable.
    GidOutOfService,
    /// The state of a link of a switch has changed.
    LinkStateChange,
    /// A property of a port has changed: its capabilities, its name, the width or speed of its
    /// link.
    LocalChange,
}

impl Trap {
    /// Every trap.
    pub const ALL: [Self; 4] =
        [Self::GidInService, Self::GidOutOfService, Self::LinkStateChange, Self::LocalChange];

    /// The trap number.
    pub const fn number(self) -> u16 {
        match self {
            Self::GidInService => 64,
            Self::GidOutOfService => 65,
            Self::LinkStateChange => 128,
            Self::LocalChange => 144,
        }
    }

    fn new(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|trap| trap.number() == number)
    }
}

/// Begins or ends a subscription to a trap.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct InformInfo {
    /// The trap, from any issuer.
    pub trap: Trap,
    /// True to subscribe, false to end the subscription.
    pub subscribe: bool,
}

impl InformInfo {
    /// Reads the attribute. The issuer and the response time are ignored.
    ///
    /// # Errors
    /// Too few bytes, or a trap that is not a [`Trap`].
    pub(super) fn parse(attribute: &[u8]) -> Result<Self, Error> {
        let (wire, _) =
            InformInfoWire::read_from_prefix(attribute).map_err(|_| Error::Truncated)?;
        let trap = Trap::new(wire.trap.get()).filter(|_| wire.is_generic == 1);
        match (trap, wire.subscribe) {
            (Some(trap), subscribe @ 0..=1) => Ok(Self { trap, subscribe: subscribe == 1 }),
            _ => Err(Error::Components),
        }
    }

    pub(super) fn wire(self) -> InformInfoWire {
        InformInfoWire {
            gid: [0; 16],
            lid_range_begin: ALL.into(),
            lid_range_end: 0.into(),
            reserved: [0; 2],
            is_generic: 1,
            subscribe: self.subscribe.into(),
            kind: ALL.into(),
            trap: self.trap.number().into(),
            qpn_and_resp_time: (GSI_QPN << 8 | RESP_TIME).into(),
            producer: ALL_PRODUCERS.into(),
        }
    }
}

/// A trap that the SA forwards.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Report {
    /// The answer has the same TID.
    pub tid: Tid,
    notice: ReportedNoticeWire,
}

/// The subject of a [`Report`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// See [`Trap::GidInService`].
    GidInService(Gid),
    /// See [`Trap::GidOutOfService`].
    GidOutOfService(Gid),
    /// A change that may affect paths: [`Trap::LinkStateChange`] or [`Trap::LocalChange`].
    Change(Trap),
    /// A trap without a subscription, or with a GID that names no port.
    Other,
}

impl Report {
    /// Reads a MAD that the SA sent.
    ///
    /// # Errors
    /// Anything except a Report of a Notice.
    pub fn parse(mad: &[u8]) -> Result<Self, Error> {
        Self::parse_as(mad, Method::REPORT)
    }

    /// Reads the answer to a report, for a stand-in of the SA.
    ///
    /// # Errors
    /// Anything except a ReportResp of a Notice.
    pub fn parse_answer(mad: &[u8]) -> Result<Self, Error> {
        Self::parse_as(mad, Method::REPORT_RESP)
    }

    fn parse_as(mad: &[u8], method: Method) -> Result<Self, Error> {
        let (header, _, attribute) = parse(mad)?;
        if header.method != method {
            return Err(Error::Method);
        }
        if header.attribute != AttributeId::NOTICE {
            return Err(Error::Attribute);
        }
        let (notice, _) =
            ReportedNoticeWire::read_from_prefix(attribute).map_err(|_| Error::Truncated)?;
        Ok(Self { tid: header.tid, notice })
    }

    /// A report about a GID, as OpenSM sends it from `issuer`; for a stand-in of the SA.
    pub fn of_gid(tid: Tid, is_in_service: bool, gid: Gid, issuer: Lid) -> Self {
        let trap = if is_in_service { Trap::GidInService } else { Trap::GidOutOfService };
        let mut details = [0; 54];
        details.iter_mut().skip(GID_AT).zip(gid.octets()).for_each(|(to, from)| *to = from);
        Self::new(tid, GENERIC | SUBNET_MANAGEMENT, CLASS_MANAGER, trap, details, issuer)
    }

    /// A report about a link of the switch `issuer`; for a stand-in of the SA.
    pub fn of_link(tid: Tid, issuer: Lid) -> Self {
        let mut details = [0; 54];
        details.iter_mut().zip(issuer.get().to_be_bytes()).for_each(|(to, from)| *to = from);
        Self::new(tid, GENERIC | URGENT, SWITCH, Trap::LinkStateChange, details, issuer)
    }

    fn new(
        tid: Tid,
        generic_type: u8,
        producer: u8,
        trap: Trap,
        details: [u8; 54],
        issuer: Lid,
    ) -> Self {
        let notice = NoticeWire {
            generic_type,
            producer: [0, 0, producer],
            trap: trap.number().into(),
            issuer: issuer.get().into(),
            toggle_count: 0.into(),
            details,
        };
        Self { tid, notice: ReportedNoticeWire { notice, issuer_gid: [0; 16] } }
    }

    /// The event that it reports.
    pub fn event(&self) -> Event {
        let NoticeWire { generic_type, trap, details, .. } = &self.notice.notice;
        if generic_type & GENERIC == 0 {
            return Event::Other;
        }
        let gid = || Gid::new(*details.get(GID_AT..)?.first_chunk()?);
        match Trap::new(trap.get()) {
            Some(Trap::GidInService) => gid().map_or(Event::Other, Event::GidInService),
            Some(Trap::GidOutOfService) => gid().map_or(Event::Other, Event::GidOutOfService),
            Some(trap @ (Trap::LinkStateChange | Trap::LocalChange)) => Event::Change(trap),
            None => Event::Other,
        }
    }

    /// The report as a MAD.
    pub fn emit(&self) -> Mad {
        self.emit_as(Method::REPORT)
    }

    /// The acknowledgement: a ReportResp with the same Notice.
    pub fn emit_answer(&self) -> Mad {
        self.emit_as(Method::REPORT_RESP)
    }

    fn emit_as(&self, method: Method) -> Mad {
        let header = header(method, Status::OK, self.tid, AttributeId::NOTICE);
        Mad::new(&[HeaderWire::new(header, 0, 0).as_bytes(), self.notice.as_bytes()])
    }
}

/// Layout of InformInfo.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InformInfoWire {
    /// GID of the issuer; 0 for any.
    pub gid: [u8; 16],
    /// First LID of the issuers, if the GID is 0; 0xffff for any.
    pub lid_range_begin: U16,
    /// Last LID of the issuers.
    pub lid_range_end: U16,
    /// 0 when sent, ignored when read.
    pub reserved: [u8; 2],
    /// 1 for a trap of the specification, 0 for one of a vendor.
    pub is_generic: u8,
    /// 1 to subscribe, 0 to end, see [`InformInfo::subscribe`].
    pub subscribe: u8,
    /// Type of the notice; 0xffff for every type.
    pub kind: U16,
    /// The trap number, see [`Trap`].
    pub trap: U16,
    /// QPN of the subscriber (24 bits), 3 reserved bits, RespTimeValue (5 bits).
    pub qpn_and_resp_time: U32,
    /// Type of the node that issues the trap, 24 bits; all ones for every type.
    pub producer: U32,
}

/// Layout of a forwarded Notice.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
struct ReportedNoticeWire {
    notice: NoticeWire,
    issuer_gid: [u8; 16],
}

/// Offset of the GID in the details of traps 64 and 65.
const GID_AT: usize = 6;

const GENERIC: u8 = 0x80;
const URGENT: u8 = 1;
const SUBNET_MANAGEMENT: u8 = 3;
const SWITCH: u8 = 2;
const CLASS_MANAGER: u8 = 4;
const ALL: u16 = 0xffff;
const ALL_PRODUCERS: u32 = 0x00ff_ffff;
const GSI_QPN: u32 = 1;
/// RespTimeValue: 4.096 µs times 2 to the power of this.
const RESP_TIME: u32 = 18;

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<InformInfoWire>() == 36);
    assert!(offset_of!(InformInfoWire, is_generic) == 22);
    assert!(offset_of!(InformInfoWire, trap) == 26);
    assert!(offset_of!(InformInfoWire, producer) == 32);
    assert!(size_of::<ReportedNoticeWire>() == 80);
    assert!(size_of::<HeaderWire>() + size_of::<ReportedNoticeWire>() <= super::mad::LEN);
};
