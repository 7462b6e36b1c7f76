// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! ACM: what `ib_acme` and librdmacm ask ibacm over a stream socket (`acm.h` of rdma-core's ibacm). A client
//! sends a [`Request`] and waits for its [`Reply`] before it sends the next.
//!
//! | bytes | field | rule |
//! |---|---|---|
//! | 0 | version | 1 |
//! | 1 | opcode | lower 4 bits; bit 7 is set in replies, but not in those to `RESOLVE` |
//! | 2 | status | 0 in a request; a reply with another one has no more than the header |
//! | 3..5 | data | see the table below |
//! | 6..7 | length | of the whole message |
//! | 8..15 | transaction id | chosen by the client; a reply echoes it |
//!
//! | opcode | data of the request | after its header | byte order |
//! |---|---|---|---|
//! | 1 `RESOLVE` | 0 | 1 to 8 records of 72 bytes | the machine's |
//! | 2 `PERF_QUERY` | 0, endpoint, 0 | nothing, or a record: the endpoint with this address | big-endian |
//! | 3 `EP_QUERY` | endpoint, port, 0 | nothing | big-endian |
//!
//! The byte order is that of the header's length and of what follows, but for addresses and path records,
//! which are always big-endian. The protocol never leaves a machine.
//!
//! | bytes of a record | field |
//! |---|---|
//! | 0..3 | flags: 1 source, 2 destination, bit 30 answer from memory only, bit 31 ask the SA; of a path in a reply: [`PathFlags`](super::ls::PathFlags) |
//! | 4..5 | type: 1 name, 2 IPv4 address, 3 IPv6 address, 16 path |
//! | 6..7 | reserved |
//! | 8..71 | name, or address, and zeros; or a [`PathRecord`](crate::ib::PathRecord) |

mod reply;
mod request;

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use self::reply::{Counters, Endpoint, Names, Reply, Status, refusal};
pub use self::request::{Address, Ask, Of, Request, Resolve, length};

/// Length of a header, and of the shortest message.
pub const HEADER_LEN: usize = 16;

/// Length of the longest request.
pub const MAX_REQUEST_LEN: usize = HEADER_LEN + MAX_RECORDS * RECORD_LEN;

const MAX_RECORDS: usize = 8;
const RECORD_LEN: usize = size_of::<RecordWire>();

const VERSION: u8 = 1;
const ACK: u8 = 0x80;
const OPCODE: u8 = 0x0f;
const RESOLVE: u8 = 1;
const PERF_QUERY: u8 = 2;
const EP_QUERY: u8 = 3;

const NAME: u16 = 1;
const IPV4: u16 = 2;
const IPV6: u16 = 3;
const PATH: u16 = 16;

/// The client's number for a request: any bytes. librdmacm sends zeros.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tid(pub [u8; 8]);

/// A name of at most 64 bytes, without control characters and not empty.
#[derive(Clone, Copy, Eq, Immutable, IntoBytes, PartialEq)]
#[repr(transparent)]
pub struct Name([u8; Self::LEN]);

impl Name {
    const LEN: usize = 64;

    /// `None` if the text is no such name.
    pub fn new(text: &str) -> Option<Self> {
        let mut octets = [0; Self::LEN];
        octets.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Self::parse(octets).ok()
    }

    /// Ignores what follows a zero.
    fn parse(mut octets: [u8; Self::LEN]) -> Result<Self, Error> {
        let end = octets.iter().position(|&byte| byte == 0).unwrap_or(Self::LEN);
        let (text, rest) = octets.split_at_mut(end);
        rest.fill(0);
        let text = core::str::from_utf8(text).map_err(|_| Error::Name)?;
        if text.is_empty() || text.contains(char::is_control) {
            return Err(Error::Name);
        }
        Ok(Self(octets))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(Self::LEN);
        self.0.get(..end).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or_default()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Error {
    /// The version is not 1.
    Version,
    /// The opcode is not one of the three.
    Opcode,
    /// The length in the header is not that of the message, or no such message has this length.
    Length,
    /// The source has a type that no address has, or there are two sources.
    Source,
    /// The destination has a type that no address has, there are two, or there is neither one nor a path.
    Destination,
    /// A name is empty, has control characters, or is not UTF-8.
    Name,
    /// An address that no interface can have.
    Address,
    /// A status that no reply has.
    Status,
    /// A record in a reply is neither a path nor the source.
    Record,
}

/// Layout of a header. The length is in the byte order of the opcode.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderWire {
    version: u8,
    opcode: u8,
    status: u8,
    data: [u8; 3],
    length: [u8; 2],
    tid: [u8; 8],
}

impl HeaderWire {
    /// Splits off the header of a whole message.
    fn split(message: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (header, rest) = Self::read_from_prefix(message).map_err(|_| Error::Length)?;
        if header.version != VERSION {
            return Err(Error::Version);
        }
        if usize::from(header.length()?) != message.len() {
            return Err(Error::Length);
        }
        Ok((header, rest))
    }

    fn length(&self) -> Result<u16, Error> {
        match self.opcode & OPCODE {
            RESOLVE => Ok(u16::from_ne_bytes(self.length)),
            PERF_QUERY | EP_QUERY => Ok(u16::from_be_bytes(self.length)),
            _ => Err(Error::Opcode),
        }
    }

    /// `None` if the message is too long for the field.
    fn new(opcode: u8, data: [u8; 3], tid: Tid, length: usize) -> Option<Self> {
        let length = u16::try_from(length).ok()?;
        let length = if opcode == RESOLVE { length.to_ne_bytes() } else { length.to_be_bytes() };
        Some(Self { version: VERSION, opcode, status: 0, data, length, tid: tid.0 })
    }
}

/// Layout of a record. Flags and type are in the machine's byte order.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordWire {
    flags: [u8; 4],
    kind: [u8; 2],
    reserved: [u8; 2],
    data: [u8; 64],
}

impl RecordWire {
    fn new(flags: u32, kind: u16, data: [u8; 64]) -> Self {
        let (flags, kind) = (flags.to_ne_bytes(), kind.to_ne_bytes());
        Self { flags, kind, reserved: [0; 2], data }
    }

    fn flags(&self) -> u32 {
        u32::from_ne_bytes(self.flags)
    }

    fn kind(&self) -> u16 {
        u16::from_ne_bytes(self.kind)
    }
}

/// Writes `value` to the start of `out`, and returns the rest. `None` if there is no room.
fn put<'a>(
    out: &'a mut [u8],
    value: &(impl IntoBytes + Immutable + ?Sized),
) -> Option<&'a mut [u8]> {
    let (start, rest) = out.split_at_mut_checked(value.as_bytes().len())?;
    start.copy_from_slice(value.as_bytes());
    Some(rest)
}
