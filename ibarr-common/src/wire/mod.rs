// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Message formats.
//!
//! Each format has two levels. A *layout* type, `…Wire`, is `repr(C)` with alignment 1 and gives
//! every field its place and byte order; any bytes of its size are a value of it. A *value* type
//! holds only legal messages: `parse` refuses every other input with an [`Error`], or the format's
//! own error type, and reads no byte outside its input; `emit` writes exactly the bytes that
//! `parse` accepts.

pub mod acm;
pub mod class_port_info;
pub mod ip2gid;
pub mod ls;
pub mod mad;
mod path_query;
pub mod path_record;
pub mod rmpp;
pub mod sa;
pub mod sa_header;
pub mod umad;

use core::fmt;

/// Reason why bytes are not a legal message. Malformed input is counted by these reasons.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Error {
    /// Shorter than the length in its header.
    Truncated,
    /// Bytes follow the message, or it is longer than any may be.
    TrailingBytes,
    Version,
    /// The wrong number of TLVs for this message.
    TlvCount,
    /// A TLV type that this message does not have, or none that it must have.
    TlvType,
    /// A TLV with the wrong length for its type.
    TlvLength,
    /// An address that no interface can have: unspecified, multicast, IPv4-mapped IPv6.
    Target,
    /// A GID that does not name a port.
    Gid,
}

impl Error {
    /// Every reason, in the order of declaration.
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
            Self::Target => "address that no interface can have",
            Self::Gid => "GID that names no port",
        })
    }
}

impl core::error::Error for Error {}
