// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Local service: what the kernel's RDMA core asks of user space, and what it is told. Messages of
//! NETLINK_RDMA, client `RDMA_NL_LS` (include/uapi/rdma/rdma_netlink.h, ib_user_sa.h; the kernel's
//! side is drivers/infiniband/core/addr.c and sa_query.c).
//!
//! | `nlmsg_type` | message | payload |
//! |---|---|---|
//! | 0x1000 | [`Request::ResolvePath`]: which path leads to this GID? | 66 bytes and 2 of padding, attributes |
//! | | [`Answer::Paths`], [`Answer::Error`] | attributes, none |
//! | 0x1001 | [`SetTimeout`] | an attribute |
//! | 0x1002 | [`Request::ResolveIp`]: which GID has this address? | 4 bytes, an attribute |
//! | | [`Answer::Gid`] | an attribute |
//!
//! Requests carry `NLM_F_REQUEST`, and so does [`SetTimeout`]; answers must not, or the kernel
//! refuses them. Answers repeat `nlmsg_type` and `nlmsg_seq` of their request.
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
//! In requests the bit 0x2000 says that who does not know the attribute must not answer. In
//! answers the kernel does not know an attribute with that bit.

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

/// Why bytes are not a message of the local service. Each is a reason that malformed input is
/// counted under.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Error {
    /// Shorter than what it says it holds, or than its own header.
    Truncated,
    /// Not the message that is to be read.
    Kind,
    /// An attribute whose length is not that of its type.
    AttributeLength,
    /// An attribute that the message has to have is not there.
    AttributeMissing,
    /// The same thing is said twice.
    AttributeRepeated,
    /// An attribute that we do not know and must not skip.
    AttributeMandatory,
    /// A network device number of zero.
    IfIndex,
    /// A name that no RDMA device can have.
    DeviceName,
    /// A port that no device has.
    PortNum,
    /// A use of paths that we do not know.
    PathUse,
    /// A GID that does not name a port.
    Gid,
    /// A key that no partition has.
    PKey,
    /// A class of service of more than 12 bits.
    QosClass,
    /// More paths than [`Paths::MAX`].
    PathCount,
    /// A time-out outside the kernel's bounds.
    Timeout,
}

impl Error {
    /// Every reason, in the order of the enumeration.
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
            Self::Kind => "another message",
            Self::AttributeLength => "wrong attribute length",
            Self::AttributeMissing => "attribute missing",
            Self::AttributeRepeated => "attribute repeated",
            Self::AttributeMandatory => "unknown mandatory attribute",
            Self::IfIndex => "network device number zero",
            Self::DeviceName => "name that no RDMA device can have",
            Self::PortNum => "port that no device has",
            Self::PathUse => "unknown use of paths",
            Self::Gid => "GID that names no port",
            Self::PKey => "key that no partition has",
            Self::QosClass => "class of service of more than 12 bits",
            Self::PathCount => "more than three paths",
            Self::Timeout => "time-out outside of 100 ms to 200 s",
        })
    }
}

impl core::error::Error for Error {}

// LS_NLA_TYPE_…
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

/// Fills `slot`, which nothing may have filled before.
fn set<T>(slot: &mut Option<T>, value: T) -> Result<(), Error> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::AttributeRepeated),
    }
}
