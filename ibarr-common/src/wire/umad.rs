// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's interface for MADs, `/dev/infiniband/umadN`, version 5
//! (include/uapi/rdma/ib_user_mad.h; the kernel's side is drivers/infiniband/core/user_mad.c). Each
//! read and write is a header and a MAD. Numbers are in host byte order unless marked.
//!
//! | bytes | field | bytes | field |
//! |---|---|---|---|
//! | 0 | id, the agent | 30 | sl |
//! | 4 | status, an errno | 31 | path_bits |
//! | 8 | timeout_ms | 32 | grh_present, gid_index, hop_limit, traffic_class |
//! | 12 | retries | 36 | gid |
//! | 16 | length | 52 | flow_label, big-endian |
//! | 20 | qpn, big-endian | 56 | pkey_index (16 bits) |
//! | 24 | qkey, big-endian | 58 | reserved |
//! | 28 | lid (16 bits), big-endian | | |

use core::fmt;
use core::time::Duration;

use zerocopy::network_endian;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, native_endian};

use super::mad::{self, Header, Mad, Tid};
use crate::ib::{Lid, PathRecord, Sl};

/// The version of the interface that this module implements, `IB_USER_MAD_ABI_VERSION`.
pub const ABI_VERSION: u32 = 5;

/// Length of a message's header in bytes. An open file has this form if its first ioctl is
/// REGISTER_AGENT2; else the header ends after 56 bytes, without a P_Key index.
pub const HEADER_LEN: usize = size_of::<HeaderWire>();

/// An agent: the kernel's number for a sender and receiver of MADs in one open file.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct AgentId(pub u32);

/// Index in a port's P_Key table.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PKeyIndex(pub u16);

/// A MAD to be sent to the general service interface of a port in our subnet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Send {
    pub agent: AgentId,
    pub to: Lid,
    pub sl: Sl,
    pub pkey_index: PKeyIndex,
    /// How long the kernel waits for the answer. It is sent in milliseconds, at least 1: with 0 the kernel
    /// does not recognize the answer.
    pub timeout: Duration,
    pub mad: Mad,
}

impl Send {
    /// The bytes for one write(2).
    pub fn emit(&self) -> Emitted {
        let wire = HeaderWire {
            agent: self.agent.0.into(),
            status: 0.into(),
            timeout_ms: milliseconds(self.timeout).into(),
            retries: 0.into(),
            length: 0.into(),
            qpn: GSI_QPN.into(),
            qkey: GSI_QKEY.into(),
            lid: self.to.get().into(),
            sl: self.sl.get(),
            path_bits: 0,
            grh: [0; 4],
            gid: [0; 16],
            flow_label: 0.into(),
            pkey_index: self.pkey_index.0.into(),
            reserved: [0; 6],
        };
        let mut bytes = [0; MAX_LEN];
        let octets = wire.as_bytes().iter().chain(self.mad.octets());
        bytes.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        Emitted { bytes, len: HEADER_LEN + mad::LEN }
    }
}

fn milliseconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1)
}

/// The result of one read(2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received<'a> {
    /// A MAD has arrived.
    #[expect(missing_docs, reason = "its fields are named for what they hold")]
    Mad {
        agent: AgentId,
        /// The LID of the sender as in the packet; `None` if the sending port has none.
        from: Option<Lid>,
        /// The bytes of the MAD, or of a table, which may be longer.
        mad: &'a [u8],
    },
    /// A request of ours got no answer in time. The kernel returns only its header.
    Unanswered {
        /// The agent that sent it.
        agent: AgentId,
        /// The transaction of the request.
        tid: Tid,
    },
}

impl<'a> Received<'a> {
    /// Parses the bytes.
    ///
    /// # Errors
    /// Too few bytes; a returned request whose MAD is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, mad::Error> {
        let (header, mad) = bytes.split_at_checked(HEADER_LEN).ok_or(mad::Error::Truncated)?;
        let (header, _) = BaseWire::read_from_prefix(header).map_err(|_| mad::Error::Truncated)?;
        let agent = AgentId(header.agent.get());
        if header.status.get() == 0 {
            let from = Lid::new(header.lid.get());
            return Ok(Self::Mad { agent, from, mad });
        }
        let (header, _) = Header::parse(mad)?;
        Ok(Self::Unanswered { agent, tid: header.tid })
    }

    /// The bytes that the kernel returns from read(2); for its stand-in.
    pub fn emit(&self, mad: &[u8]) -> Emitted {
        let (agent, status, from) = match *self {
            Self::Mad { agent, from, .. } => (agent, 0, from),
            Self::Unanswered { agent, .. } => (agent, ETIMEDOUT, None),
        };
        let mut bytes = [0; MAX_LEN];
        let base = BaseWire {
            agent: agent.0.into(),
            status: status.into(),
            ignored: [0; 20],
            lid: from.map_or(0, Lid::get).into(),
        };
        let header = base.as_bytes().iter().chain(core::iter::repeat(&0)).take(HEADER_LEN);
        let octets = header.chain(mad.iter().take(mad::LEN));
        bytes.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        Emitted { bytes, len: HEADER_LEN + mad.len().min(mad::LEN) }
    }
}

/// The bytes of one read or write.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Emitted {
    bytes: [u8; MAX_LEN],
    len: usize,
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

/// Length of a message with one MAD in bytes. The kernel refuses to read into a shorter buffer.
pub const MAX_LEN: usize = HEADER_LEN + mad::LEN;

/// Length of a message with a table of 64 paths: eight times as many as ibarr asks for, should an SA
/// not count them. The kernel keeps a longer message back, and all that follow.
pub const MAX_TABLE_LEN: usize = HEADER_LEN + 56 + 64 * PathRecord::LEN;

/// Layout of `struct ib_user_mad_hdr`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct HeaderWire {
    pub agent: native_endian::U32,
    /// 0, or an errno: no answer arrived.
    pub status: native_endian::U32,
    /// How long the kernel waits for an answer, in milliseconds.
    pub timeout_ms: native_endian::U32,
    /// Number of resends by the kernel.
    pub retries: native_endian::U32,
    /// Length of a message read: header and MAD.
    pub length: native_endian::U32,
    /// QPN of the other end.
    pub qpn: network_endian::U32,
    /// Q_Key of the other end.
    pub qkey: network_endian::U32,
    /// LID of the other end.
    pub lid: network_endian::U16,
    pub sl: u8,
    /// Low bits of our own LID.
    pub path_bits: u8,
    /// GRH present, index of our GID, hop limit, traffic class.
    pub grh: [u8; 4],
    /// GID of the other end, in the GRH.
    pub gid: [u8; 16],
    /// Flow label, in the GRH.
    pub flow_label: network_endian::U32,
    pub pkey_index: native_endian::U16,
    /// 0 when sent, ignored when read.
    pub reserved: [u8; 6],
}

/// Layout of the first 30 bytes of [`HeaderWire`]; ibarr reads no more of a received header.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct BaseWire {
    agent: native_endian::U32,
    status: native_endian::U32,
    ignored: [u8; 20],
    lid: network_endian::U16,
}

/// Layout of `struct ib_user_mad_reg_req2`, the argument of REGISTER_AGENT2.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Register2Wire {
    /// Set by the kernel: the [`AgentId`].
    pub agent: u32,
    /// 1, the general service interface.
    pub qpn: u32,
    /// The management class, see [`mad::Class`].
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Always 0.
    pub reserved_10: [u8; 2],
    /// 0: the kernel leaves no part of its work to the program.
    pub flags: u32,
    /// A bit for each method whose requests the agent receives, as two numbers of 64 bits.
    pub method_mask: [u32; 4],
    /// Of a vendor's class; else 0.
    pub oui: u32,
    /// 1 if the kernel is to handle RMPP; else 0.
    pub rmpp_version: u8,
    /// Always 0.
    pub reserved_37: [u8; 3],
}

impl Register2Wire {
    /// An agent that sends questions to the SA.
    pub const SA_CLIENT: Self = Self {
        agent: 0,
        qpn: GSI_QPN,
        class: mad::Class::SUBNET_ADM.get(),
        class_version: 2,
        reserved_10: [0; 2],
        flags: 0,
        method_mask: [0; 4],
        oui: 0,
        rmpp_version: 0,
        reserved_37: [0; 3],
    };

    /// The same, for questions whose answers are tables.
    pub const SA_CLIENT_OF_TABLES: Self = Self { rmpp_version: 1, ..Self::SA_CLIENT };
}

/// QPN of the general service interface (IBA vol. 1 §13.5.1).
const GSI_QPN: u32 = 1;
/// Q_Key of the general service interface (IBA vol. 1 §10.2.5).
const GSI_QKEY: u32 = 0x8001_0000;
const ETIMEDOUT: u32 = 110;

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<HeaderWire>() == 64);
    assert!(offset_of!(HeaderWire, qpn) == 20);
    assert!(offset_of!(HeaderWire, lid) == 28);
    assert!(offset_of!(BaseWire, lid) == offset_of!(HeaderWire, lid));
    assert!(offset_of!(HeaderWire, gid) == 36);
    assert!(offset_of!(HeaderWire, flow_label) == 52);
    assert!(offset_of!(HeaderWire, pkey_index) == 56);
    assert!(size_of::<Register2Wire>() == 40);
    assert!(offset_of!(Register2Wire, flags) == 12);
    assert!(offset_of!(Register2Wire, method_mask) == 16);
    assert!(offset_of!(Register2Wire, oui) == 32);
};
