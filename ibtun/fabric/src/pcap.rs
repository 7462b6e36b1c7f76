// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A capture file that Wireshark and tshark decode as InfiniBand: classic pcap format with
//! nanoseconds; each packet has the checksums that it would have on a cable.
//!
//! The link type is 197, `LINKTYPE_ERF`, whose record header says that a packet is InfiniBand.
//! `LINKTYPE_INFINIBAND`, 247, exists, but Wireshark 4.0 does not know it.

use std::time::Duration;

use crate::wire::packet::{MAX_LEN, icrc, vcrc};
use zerocopy::network_endian::U16 as Be16;
use zerocopy::{Immutable, IntoBytes};

/// The header of a capture file.
pub fn file_header() -> Vec<u8> {
    let header = FileHeaderWire {
        magic: NANOSECONDS,
        major: 2,
        minor: 4,
        zone: 0,
        accuracy: 0,
        longest: LONGEST,
        link_type: ERF,
    };
    header.as_bytes().to_vec()
}

/// The record of a packet, which starts at its LRH. `since_epoch` is the time of capture.
pub fn record(since_epoch: Duration, packet: &[u8]) -> Vec<u8> {
    let icrc = icrc(packet);
    let vcrc = vcrc(packet, icrc);
    let on_wire = packet.len() + icrc.len() + vcrc.len();
    let in_file = size_of::<ErfWire>() + on_wire;
    // A packet has at most `MAX_LEN` bytes.
    let short = |len: usize| Be16::new(u16::try_from(len).unwrap_or(u16::MAX));
    let len = u32::try_from(in_file).unwrap_or(LONGEST);
    // The format's seconds end in 2106.
    let seconds = u32::try_from(since_epoch.as_secs()).unwrap_or(u32::MAX);
    let nanos = since_epoch.subsec_nanos();
    let header = RecordHeaderWire { seconds, nanos, len, seen: len };
    let fraction = (u64::from(nanos) << 32) / 1_000_000_000;
    let erf = ErfWire {
        time: (u64::from(seconds) << 32 | fraction).to_le(),
        kind: ERF_INFINIBAND,
        flags: ERF_VARYING_LENGTH,
        record_len: short(in_file),
        lost: short(0),
        wire_len: short(on_wire),
    };
    [header.as_bytes(), erf.as_bytes(), packet, &icrc, &vcrc].concat()
}

/// In host byte order, which the magic number reveals.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
struct FileHeaderWire {
    magic: u32,
    major: u16,
    minor: u16,
    zone: u32,
    accuracy: u32,
    longest: u32,
    link_type: u32,
}

#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
struct RecordHeaderWire {
    seconds: u32,
    nanos: u32,
    len: u32,
    seen: u32,
}

/// The extensible record format of Endace's capture cards.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
struct ErfWire {
    /// 32 bits of seconds, 32 bits of their fraction, little-endian.
    time: u64,
    kind: u8,
    flags: u8,
    /// Length in bytes, with this header.
    record_len: Be16,
    lost: Be16,
    wire_len: Be16,
}

const NANOSECONDS: u32 = 0xa1b2_3c4d;
const ERF: u32 = 197;
const ERF_INFINIBAND: u8 = 21;
const ERF_VARYING_LENGTH: u8 = 0x04;
#[expect(clippy::cast_possible_truncation, reason = "some 4 KiB")]
const LONGEST: u32 = (size_of::<ErfWire>() + MAX_LEN + 6) as u32;

const _: () = assert!(size_of::<ErfWire>() == 16);
