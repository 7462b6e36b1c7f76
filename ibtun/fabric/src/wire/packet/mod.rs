// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An InfiniBand packet, from its first link header to its payload (IBA vol. 1 §5.2, §6.1). All
//! fields are big-endian.
//!
//! | header | bytes | when |
//! |---|---|---|
//! | [`LrhWire`] | 8 | always |
//! | [`GrhWire`] | 40 | link next header 3 |
//! | [`BthWire`] | 12 | always; raw packets are refused |
//! | [`DethWire`] | 8 | unreliable datagrams |
//! | extended headers | 0..=28 | of the operation, such as immediate data |
//! | payload, padding | 0..=4096, 0..=3 | |
//!
//! The two checksums at the end of a packet on a cable, [`icrc`] and [`vcrc`], are not part of it
//! here: the code that models a cable adds them. The lengths in the headers still count the first
//! of them, as the specification requires.

mod crc;
mod headers;

pub use crc::{icrc, vcrc};
pub use headers::{BthWire, DethWire, GrhWire, LrhWire};

use core::fmt;

use zerocopy::FromBytes;

use ibarr_common::ib::{Lid, PKey, Qpn, Sl};

/// Length of the longest packet in bytes: RDMA WRITE with immediate, with a payload of the largest
/// MTU.
pub const MAX_LEN: usize = 8 + 40 + 12 + 16 + 4 + MAX_PAYLOAD;

/// The largest MTU in bytes.
pub const MAX_PAYLOAD: usize = 4096;

/// Length of the checksum that the lengths in the headers include.
const ICRC_LEN: usize = 4;

/// A legal packet with parsed headers.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Packet<'a> {
    /// The virtual lane, 0 to 15; 15 is only for subnet management.
    pub vl: u8,
    /// Each hop maps it to a virtual lane.
    pub sl: Sl,
    pub dlid: Lid,
    /// Source LID. `None` if the sending port has no LID yet.
    pub slid: Option<Lid>,
    /// The global route header, which routers read.
    pub grh: Option<GrhWire>,
    /// Transport and operation, such as [`OPCODE_UD_SEND`].
    pub opcode: u8,
    /// The P_Key. `None` for a number that names no partition; QP 0 ignores it.
    pub pkey: Option<PKey>,
    pub destination: Qpn,
    /// Source queue pair, if the packet is a datagram.
    pub source: Option<Qpn>,
    /// Offset of the payload in the packet.
    payload_at: usize,
    /// The payload without padding.
    pub payload: &'a [u8],
}

/// BTH opcode: unreliable datagram, send only.
pub const OPCODE_UD_SEND: u8 = 0x64;
/// BTH opcode: unreliable datagram, send only with immediate.
pub const OPCODE_UD_SEND_IMMEDIATE: u8 = 0x65;

/// LRH: an IBA transport follows.
const LNH_LOCAL: u8 = 2;
/// LRH: a GRH follows.
const LNH_GLOBAL: u8 = 3;
/// GRH: a BTH follows.
const NEXT_IS_BTH: u8 = 0x1b;

impl<'a> Packet<'a> {
    /// Parses a packet, from its LRH to the last byte before the checksums.
    ///
    /// # Errors
    /// Headers that contradict each other, the length or the specification.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (lrh, mut rest) = LrhWire::read_from_prefix(bytes).map_err(|_| Error::Truncated)?;
        if lrh.version() != 0 {
            return Err(Error::Version);
        }
        if bytes.len() > MAX_LEN || lrh.len() != bytes.len() + ICRC_LEN {
            return Err(Error::Length);
        }
        let dlid = Lid::new(lrh.dlid.get()).ok_or(Error::Destination)?;
        let slid = Lid::new(lrh.slid.get());
        if slid.is_some_and(Lid::is_multicast) {
            return Err(Error::Source);
        }
        let grh = match lrh.next_header() {
            LNH_LOCAL => None,
            LNH_GLOBAL => {
                let (grh, behind) =
                    GrhWire::read_from_prefix(rest).map_err(|_| Error::Truncated)?;
                if grh.ip_version() != 6 || grh.next_header != NEXT_IS_BTH {
                    return Err(Error::Global);
                }
                if usize::from(grh.payload_len.get()) != behind.len() + ICRC_LEN {
                    return Err(Error::Length);
                }
                rest = behind;
                Some(grh)
            }
            _ => return Err(Error::Raw),
        };
        let (bth, rest) = BthWire::read_from_prefix(rest).map_err(|_| Error::Truncated)?;
        if bth.transport_version() != 0 {
            return Err(Error::Version);
        }
        let deth = match bth.opcode {
            OPCODE_UD_SEND | OPCODE_UD_SEND_IMMEDIATE => {
                Some(DethWire::read_from_prefix(rest).map_err(|_| Error::Truncated)?.0)
            }
            _ => None,
        };
        let rest = rest.get(extension_len(bth.opcode)..).ok_or(Error::Truncated)?;
        let payload_len = rest.len().checked_sub(bth.pad_count()).ok_or(Error::Truncated)?;
        let payload = rest.get(..payload_len).ok_or(Error::Truncated)?;
        Ok(Self {
            vl: lrh.vl(),
            sl: lrh.sl(),
            dlid,
            slid,
            grh,
            opcode: bth.opcode,
            pkey: PKey::new(bth.pkey.get()),
            destination: Qpn::from_octets(bth.destination),
            source: deth.map(|deth| Qpn::from_octets(deth.source)),
            payload_at: bytes.len() - rest.len(),
            payload,
        })
    }

    /// Offset of the payload in the bytes of the packet.
    pub fn payload_at(&self) -> usize {
        self.payload_at
    }
}

/// Length in bytes of the headers between BTH and payload (IBA vol. 1 §9.3, §9.4). 0 for operations
/// that are not known.
fn extension_len(opcode: u8) -> usize {
    match opcode {
        OPCODE_UD_SEND => 8,
        OPCODE_UD_SEND_IMMEDIATE => 12,
        // Reliable and unreliable connections have the same operations.
        0x00..=0x3f => match opcode & 0x1f {
            // Immediate data, AETH or IETH.
            0x03 | 0x05 | 0x09 | 0x0d | 0x0f..=0x11 | 0x16 | 0x17 => 4,
            0x06 | 0x0a | 0x0c => 16,
            0x0b => 20,
            0x12 => 12,
            0x13 | 0x14 => 28,
            _ => 0,
        },
        _ => 0,
    }
}

/// Changes the fields that a router changes in a packet that it forwards: it sets the LIDs and
/// decrements the hop limit. `None`, and no change, if the packet has no GRH or its hop limit does
/// not allow another router.
pub fn route(packet: &mut [u8], slid: Lid, dlid: Lid) -> Option<()> {
    let (lrh, rest) = LrhWire::mut_from_prefix(packet).ok()?;
    if lrh.next_header() != LNH_GLOBAL {
        return None;
    }
    let (grh, _) = GrhWire::mut_from_prefix(rest).ok()?;
    // A packet whose hop limit is 0 or 1 stays in its subnet (IBA vol. 1 §8.3.6).
    grh.hop_limit = grh.hop_limit.checked_sub(1).filter(|&left| left > 0)?;
    lrh.slid = slid.get().into();
    lrh.dlid = dlid.get().into();
    Some(())
}

/// The headers of an unreliable datagram.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Datagram {
    pub vl: u8,
    pub sl: Sl,
    pub dlid: Lid,
    pub slid: Option<Lid>,
    /// See [`Packet::grh`]. Its lengths are filled in.
    pub grh: Option<GrhWire>,
    pub pkey: PKey,
    pub destination: Qpn,
    /// The receiving queue pair accepts only datagrams with its Q_Key. QP 0 ignores it.
    pub qkey: u32,
    pub source: Qpn,
}

/// The Q_Key of QP 1 (IBA vol. 1 §10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;

impl Datagram {
    /// Writes headers, `payload` and padding to the start of `to`, and returns their length in
    /// bytes; `None` if `to` is too short or the payload exceeds [`MAX_PAYLOAD`].
    pub fn emit(&self, payload: &[u8], to: &mut [u8]) -> Option<usize> {
        if payload.len() > MAX_PAYLOAD {
            return None;
        }
        let padded = payload.len().next_multiple_of(4);
        let transport = size_of::<BthWire>() + size_of::<DethWire>() + padded;
        let global = if self.grh.is_some() { size_of::<GrhWire>() } else { 0 };
        let len = size_of::<LrhWire>() + global + transport;
        let next = if self.grh.is_some() { LNH_GLOBAL } else { LNH_LOCAL };

        let mut to = Writer { to: to.get_mut(..len)?, at: 0 };
        to.put(&LrhWire::new(self.vl, self.sl, next, self.dlid, self.slid, len + ICRC_LEN));
        if let Some(grh) = self.grh {
            to.put(&grh.with_payload(NEXT_IS_BTH, transport + ICRC_LEN));
        }
        to.put(&BthWire::new(OPCODE_UD_SEND, padded - payload.len(), self.pkey, self.destination));
        to.put(&DethWire::new(self.qkey, self.source));
        to.bytes(payload);
        to.bytes([0; 3].get(..padded - payload.len())?);
        Some(len)
    }
}

struct Writer<'a> {
    to: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, header: &(impl zerocopy::IntoBytes + zerocopy::Immutable)) {
        self.bytes(header.as_bytes());
    }

    /// Bytes that do not fit are left out; the caller has checked the length.
    fn bytes(&mut self, bytes: &[u8]) {
        if let Some(to) = self.to.get_mut(self.at..self.at + bytes.len()) {
            to.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }
}

/// Reason why bytes are not a packet. Malformed packets are counted by these reasons.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Error {
    /// Shorter than its headers.
    Truncated,
    /// A link or transport version that is not 0.
    Version,
    /// A length in a header that differs from the packet's.
    Length,
    /// A packet without an InfiniBand transport.
    Raw,
    /// An illegal GRH: its IP version is not 6, or no BTH follows.
    Global,
    /// Destination LID 0.
    Destination,
    /// A multicast LID as source.
    Source,
}

impl Error {
    /// Every reason, in the order of declaration.
    pub const ALL: [Self; 7] = [
        Self::Truncated,
        Self::Version,
        Self::Length,
        Self::Raw,
        Self::Global,
        Self::Destination,
        Self::Source,
    ];
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "truncated",
            Self::Version => "unknown version",
            Self::Length => "wrong length",
            Self::Raw => "raw packet",
            Self::Global => "illegal GRH",
            Self::Destination => "destination LID 0",
            Self::Source => "multicast LID as source",
        })
    }
}

impl core::error::Error for Error {}
