// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The form of a datagram. Numbers are big-endian.
//!
//! | bytes | |
//! |---|---|
//! | 0..3 | `ibf` |
//! | 3 | [`VERSION`] |
//! | 4 | kind of message |
//! | 5 | sender: 0 a host, 1 the fabric |
//! | 6 | 1 if it ends with a code, else 0 |
//! | 7 | number of the port, or 0 |
//! | 8..16, 16..24 | the session: the host's number, the fabric's |
//! | 24..32 | how many datagrams the sender has sent in the session; 0 before it |
//! | 32.. | contents of the message |
//! | the last 16 | code over all before, with a key |

use zerocopy::network_endian::U64 as Be64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::{CODE_LEN, Key};
use super::message::{Message, Sender, longest};
use super::session::Numbers;
use super::{Refusal, VERSION};

/// Longest datagram, in bytes.
pub const MAX_DATAGRAM: usize = size_of::<HeaderWire>() + longest() + CODE_LEN;

const MAGIC: [u8; 3] = *b"ibf";

#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderWire {
    magic: [u8; 3],
    version: u8,
    kind: u8,
    sender: u8,
    has_code: u8,
    port: u8,
    host: Be64,
    fabric: Be64,
    count: Be64,
}

const _: () = assert!(size_of::<HeaderWire>() == 32);

/// A legal datagram, of an end that has the key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Datagram<'a> {
    pub(super) sender: Sender,
    pub(super) numbers: Numbers,
    pub(super) count: u64,
    pub(super) message: Message<'a>,
}

impl<'a> Datagram<'a> {
    /// Parses a datagram that should be from `sender`.
    pub(super) fn parse(
        bytes: &'a [u8],
        sender: Sender,
        key: Option<&Key>,
    ) -> Result<Self, Refusal> {
        match *bytes {
            // The kinds of version 1.
            [1..=4, ..] => return Err(Refusal::Version(1)),
            [b'i', b'b', b'f', version, ..] if version != VERSION => {
                return Err(Refusal::Version(version));
            }
            _ => {}
        }
        let (header, contents) =
            HeaderWire::ref_from_prefix(bytes).map_err(|_| Refusal::Malformed)?;
        if header.magic != MAGIC || header.sender != sender as u8 || bytes.len() > MAX_DATAGRAM {
            return Err(Refusal::Malformed);
        }
        let contents = match (header.has_code, key) {
            (0, None) => contents,
            (0, Some(_)) => return Err(Refusal::NoKey),
            (1, None) => return Err(Refusal::NoKeyHere),
            (1, Some(key)) => {
                let (covered, code) = bytes.split_last_chunk().ok_or(Refusal::Malformed)?;
                if !key.verify(covered, code) {
                    return Err(Refusal::Key);
                }
                covered.get(size_of::<HeaderWire>()..).ok_or(Refusal::Malformed)?
            }
            _ => return Err(Refusal::Malformed),
        };
        let message = Message::parse(header.kind, header.port, contents);
        let message = message.filter(|message| message.is_of(sender)).ok_or(Refusal::Malformed)?;
        let numbers = Numbers { host: header.host.get(), fabric: header.fabric.get() };
        Ok(Self { sender, numbers, count: header.count.get(), message })
    }

    pub(super) fn emit(&self, key: Option<&Key>) -> Vec<u8> {
        let (kind, port) = self.message.kind_and_port();
        let header = HeaderWire {
            magic: MAGIC,
            version: VERSION,
            kind,
            sender: self.sender as u8,
            has_code: key.is_some().into(),
            port,
            host: self.numbers.host.into(),
            fabric: self.numbers.fabric.into(),
            count: self.count.into(),
        };
        let mut bytes = Vec::with_capacity(MAX_DATAGRAM);
        bytes.extend_from_slice(header.as_bytes());
        self.message.emit(&mut bytes);
        if let Some(key) = key {
            let code = key.code(&bytes);
            bytes.extend_from_slice(&code);
        }
        bytes
    }
}
