// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Local service: the questions of the kernel's RDMA core to user space, and their answers.
//! Messages of NETLINK_RDMA, client `RDMA_NL_LS` (include/uapi/rdma/rdma_netlink.h, ib_user_sa.h;
//! the kernel's side is drivers/infiniband/core/addr.c and sa_query.c).
//!
//! | `nlmsg_type` | message | payload |
//! |---|---|---|
//! | 0x1000 | [`Request::ResolvePath`]: which path leads to this GID? | 66 bytes and 2 of padding, attributes |
//! | | [`Answer::Paths`], [`Answer::Error`] | attributes, none |
//! | 0x1001 | [`SetTimeout`] | an attribute |
//! | 0x1002 | [`Request::ResolveIp`]: which GID has this address? | 4 bytes, an attribute |
//! | | [`Answer::Gid`] | an attribute |
//!
//! Requests have `NLM_F_REQUEST`, and so does [`SetTimeout`]; answers must not, or the kernel
//! refuses them. An answer repeats `nlmsg_type` and `nlmsg_seq` of its request.
//!
//! | `nla_type` | value | bytes | order |
//! |---|---|---|---|
//! | 1 PATH_RECORD | flags, 4 reserved, a path record as in a MAD | 72 | flags: host |
//! | 2 TIMEOUT | milliseconds | 4 | host |
//! | 3 SERVICE_ID | | 8 | host |
//! | 4 DGID, 5 SGID | | 16 | big-endian |
//! | 6 TCLASS | | 1 | |
//! | 7 PKEY, 8 QOS_CLASS | | 2 | host |
//! | 9 IPV4, 10 IPV6 | the address asked for | 4, 16 | big-endian |
//!
//! In a request the bit 0x2000 means: a receiver that does not know the attribute must not answer.
//! In an answer the kernel does not recognize an attribute with this bit.

mod answer;
mod netlink;
mod request;

use core::fmt;

pub use self::answer::{Answer, Path, PathFlags, PathWire, Paths, SetTimeout, Timeout};
pub use self::netlink::{
    AttributeWire, Emitted, HeaderWire, Kind, Message, Messages, PortId, Seq, messages,
};
pub use self::request::{IpHeaderWire, PathHeaderWire, PathUse, Request, ResolveIp, ResolvePath};

/// Length of the longest message of this module, an answer with [`Paths::MAX`] paths.
pub const MAX_LEN: usize = 244;

/// Reason why bytes are not a message of the local service. Malformed input is counted by these
/// reasons.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Error {
    /// Shorter than its header, or than the length in its header.
    Truncated,
    /// Not the expected message.
    Kind,
    /// An attribute with the wrong length for its type.
    AttributeLength,
    /// A required attribute is missing.
    AttributeMissing,
    /// An attribute, or one of the same meaning, occurs twice.
    AttributeRepeated,
    /// An unknown attribute that must not be skipped.
    AttributeMandatory,
    /// An ifindex of zero.
    IfIndex,
    /// A name that is not legal for an RDMA device.
    DeviceName,
    /// A port number that no device has.
    PortNum,
    /// An unknown use of paths.
    PathUse,
    /// A GID that does not name a port.
    Gid,
    /// A P_Key that names no partition.
    PKey,
    /// A class of service of more than 12 bits.
    QosClass,
    /// More paths than [`Paths::MAX`].
    PathCount,
    /// A time-out outside the kernel's bounds.
    Timeout,
}

impl Error {
    /// Every reason, in the order of declaration.
    pub const ALL: [Self; 15] = [
        Self::Truncated,
        Self::Kind,
        Self::AttributeLength,
        Self::AttributeMissing,
        Self::AttributeRepeated,
        Self::AttributeMandatory,
        Self::IfIndex,
        Self::DeviceName,
        Self::PortNum,
        Self::PathUse,
        Self::Gid,
        Self::PKey,
        Self::QosClass,
        Self::PathCount,
        Self::Timeout,
    ];
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "truncated",
            Self::Kind => "not the expected message",
            Self::AttributeLength => "wrong attribute length",
            Self::AttributeMissing => "attribute missing",
            Self::AttributeRepeated => "attribute repeated",
            Self::AttributeMandatory => "unknown mandatory attribute",
            Self::IfIndex => "ifindex zero",
            Self::DeviceName => "illegal name of an RDMA device",
            Self::PortNum => "illegal port number",
            Self::PathUse => "unknown use of paths",
            Self::Gid => "GID that names no port",
            Self::PKey => "P_Key that names no partition",
            Self::QosClass => "class of service of more than 12 bits",
            Self::PathCount => "more than three paths",
            Self::Timeout => "time-out outside 100 ms to 200 s",
        })
    }
}

impl core::error::Error for Error {}

// Numbers of attributes, `LS_NLA_TYPE_…`.
const PATH_RECORD: u16 = 1;
const TIMEOUT: u16 = 2;
const SERVICE_ID: u16 = 3;
const DGID: u16 = 4;
const SGID: u16 = 5;
const TCLASS: u16 = 6;
const PKEY: u16 = 7;
const QOS_CLASS: u16 = 8;
const IPV4: u16 = 9;
const IPV6: u16 = 10;

/// Fills `slot`, which must be empty.
fn set<T>(slot: &mut Option<T>, value: T) -> Result<(), Error> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::AttributeRepeated),
    }
}
