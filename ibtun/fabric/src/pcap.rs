// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Capture files that Wireshark and tshark decode as InfiniBand; each packet has the checksums that it would have on a
//! cable. A file of packets alone has the classic pcap format with nanoseconds. One with lines of text between them is
//! pcapng (draft-ietf-opsawg-pcapng).
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
        link_type: ERF.into(),
    };
    header.as_bytes().to_vec()
}

/// The record of a packet, which starts at its LRH. `since_epoch` is the time of capture.
pub fn record(since_epoch: Duration, packet: &[u8]) -> Vec<u8> {
    let erf = erf(since_epoch, packet);
    let len = length(erf.len());
    let nanos = since_epoch.subsec_nanos();
    let header = RecordHeaderWire { seconds: seconds(since_epoch), nanos, len, seen: len };
    [header.as_bytes(), &erf].concat()
}

/// The beginning of a file with lines of text between packets.
pub fn header_with_text() -> Vec<u8> {
    // Version 1.0, and a section whose length is not known.
    let section = [&BYTE_ORDER.to_ne_bytes()[..], &1_u16.to_ne_bytes(), &[0; 2], &[0xff; 8]];
    let interface = |link_type: u16| {
        // The option if_tsresol: nanoseconds.
        let resolution = option(9, &[9]);
        let head = [&link_type.to_ne_bytes()[..], &[0; 2], &0_u32.to_ne_bytes()].concat();
        block(1, &[&head[..], &resolution, &option(0, &[])].concat())
    };
    [block(0x0a0d_0d0a, &section.concat()), interface(ERF), interface(UPPER_PDU)].concat()
}

/// A packet in such a file, with a comment.
pub fn packet_with_comment(since_epoch: Duration, packet: &[u8], comment: &str) -> Vec<u8> {
    let comment = [option(1, comment.as_bytes()), option(0, &[])].concat();
    enhanced(0, since_epoch, &erf(since_epoch, packet), &comment)
}

/// A line of text in such a file.
pub fn text(since_epoch: Duration, text: &str) -> Vec<u8> {
    // Wireshark's header of a dissector's name (epan/exported_pdu.h), and the end of headers. This dissector shows the
    // text in the list of packets.
    let tags = [&[0, 12, 0, 8][..], b"syslog\0\0", &[0; 4]].concat();
    enhanced(1, since_epoch, &[&tags, text.as_bytes()].concat(), &[])
}

/// An Enhanced Packet Block.
fn enhanced(interface: u32, since_epoch: Duration, data: &[u8], options: &[u8]) -> Vec<u8> {
    let nanos = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX).to_be_bytes();
    let half =
        |at: usize| u32::from_be_bytes([nanos[at], nanos[at + 1], nanos[at + 2], nanos[at + 3]]);
    let head = [interface, half(0), half(4), length(data.len()), length(data.len())];
    let head: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    block(6, &[&head, &padded(data)[..], options].concat())
}

/// The body has a length that four divides.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = length(body.len() + 12).to_ne_bytes();
    [&kind.to_ne_bytes(), &length, body, &length].concat()
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let value = value.get(..value.len().min(usize::from(u16::MAX))).unwrap_or_default();
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    [&code.to_ne_bytes()[..], &length.to_ne_bytes(), &padded(value)].concat()
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(4), 0);
    padded
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The format's seconds end in 2106.
fn seconds(since_epoch: Duration) -> u32 {
    u32::try_from(since_epoch.as_secs()).unwrap_or(u32::MAX)
}

/// A packet with its ERF header and its checksums.
fn erf(since_epoch: Duration, packet: &[u8]) -> Vec<u8> {
    let icrc = icrc(packet);
    let vcrc = vcrc(packet, icrc);
    let on_wire = packet.len() + icrc.len() + vcrc.len();
    // A packet has at most `MAX_LEN` bytes.
    let short = |len: usize| Be16::new(u16::try_from(len).unwrap_or(u16::MAX));
    let fraction = (u64::from(since_epoch.subsec_nanos()) << 32) / 1_000_000_000;
    let erf = ErfWire {
        time: (u64::from(seconds(since_epoch)) << 32 | fraction).to_le(),
        kind: ERF_INFINIBAND,
        flags: ERF_VARYING_LENGTH,
        record_len: short(size_of::<ErfWire>() + on_wire),
        lost: short(0),
        wire_len: short(on_wire),
    };
    [erf.as_bytes(), packet, &icrc, &vcrc].concat()
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
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ERF: u16 = 197;
/// What a dissector of Wireshark gets as if it came from another one.
const UPPER_PDU: u16 = 252;
const ERF_INFINIBAND: u8 = 21;
const ERF_VARYING_LENGTH: u8 = 0x04;
#[expect(clippy::cast_possible_truncation, reason = "some 4 KiB")]
const LONGEST: u32 = (size_of::<ErfWire>() + MAX_LEN + 6) as u32;

const _: () = assert!(size_of::<ErfWire>() == 16);
