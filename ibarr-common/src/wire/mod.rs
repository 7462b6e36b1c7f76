// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Message formats.
//!
//! Each format has two levels. A *layout* type, `…Wire`, is `repr(C)` with alignment 1 and gives
//! every field its place and byte order; any bytes of its size are one, and it judges nothing. A
//! *value* type holds only legal messages: `parse` refuses every other input with an [`Error`], or
//! the format's own, and reads no byte outside what it was given; `emit` writes exactly the bytes
//! that `parse` takes.

pub mod class_port_info;
pub mod inform;
pub mod ip2gid;
pub mod ls;
pub mod mad;
pub mod packet;
pub mod path_record;
pub mod perf;
pub mod rmpp;
pub mod sa;
pub mod smp;
pub mod umad;

use core::fmt;

/// Why bytes are not a legal message. Each is a reason that malformed input is counted under.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Error {
    /// Shorter than what it says it holds.
    Truncated,
    /// Bytes follow the message.
    TrailingBytes,
    /// A version that we do not speak.
    Version,
    /// Another number of TLVs than this message has.
    TlvCount,
    /// A TLV that this message does not have.
    TlvType,
    /// A TLV whose length is not that of its type.
    TlvLength,
    /// An address that no interface can own: unspecified, multicast, IPv4-mapped IPv6.
    Target,
    /// A GID that does not name a port.
    Gid,
}

impl Error {
    /// Every reason, in the order of the enumeration.
    pub const ALL: [Self; 8] = [
        Self::Truncated,
        Self::TrailingBytes,
        Self::Version,
        Self::TlvCount,
        Self::TlvType,
        Self::TlvLength,
        Self::Target,
        Self::Gid,
    ];
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "truncated",
            Self::TrailingBytes => "bytes after the message",
            Self::Version => "unknown version",
            Self::TlvCount => "wrong number of TLVs",
            Self::TlvType => "unknown TLV type",
            Self::TlvLength => "wrong TLV length",
            Self::Target => "address that nobody can own",
            Self::Gid => "GID that names no port",
        })
    }
}

impl core::error::Error for Error {}
