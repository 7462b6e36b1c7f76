// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Performance management: the counters of a port (IBA vol. 1 §16.1). A MAD of class 4, version 1,
//! with its attribute at byte 64. All fields are big-endian.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use ibarr_common::wire::mad::{self, AttributeId};

/// Version of the class.
pub const CLASS_VERSION: u8 = 1;

/// Maximum length of an attribute in bytes.
pub const DATA_LEN: usize = mad::LEN - size_of::<HeaderWire>();

/// Counters of 8 to 32 bits, which stop at their maximum: [`PortCountersWire`].
pub const PORT_COUNTERS: AttributeId = AttributeId::new(0x0012);
/// Counters of 64 bits: [`PortCountersExtendedWire`].
pub const PORT_COUNTERS_EXTENDED: AttributeId = AttributeId::new(0x001d);

/// ClassPortInfo:CapabilityMask: all ports can be selected at once.
pub const ALL_PORT_SELECT: u16 = 1 << 8;
/// ClassPortInfo:CapabilityMask: [`PORT_COUNTERS_EXTENDED`] is supported.
pub const EXTENDED_WIDTH: u16 = 1 << 9;

/// Layout of the bytes before the attribute.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct HeaderWire {
    pub mad: mad::HeaderWire,
    /// Reserved.
    pub reserved: [u8; 40],
}

/// Layout of PortCounters (§16.1.3.5).
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct PortCountersWire {
    /// Reserved.
    pub reserved: u8,
    /// The port number; 255 for all ports.
    pub port: u8,
    /// In a Set: one bit for each counter to be set.
    pub select: U16,
    /// SymbolErrorCounter: errors on the line.
    pub symbol_errors: U16,
    /// LinkErrorRecoveryCounter: successful recoveries of the link.
    pub link_recoveries: u8,
    /// LinkDownedCounter: failed recoveries of the link.
    pub link_downed: u8,
    pub receive_errors: U16,
    /// Packets received with a mark that they are bad.
    pub receive_remote_errors: U16,
    /// Packets received that the switch could not forward.
    pub relay_errors: U16,
    /// Packets that could not be sent.
    pub send_discards: U16,
    /// Packets not sent because of their partition.
    pub send_constraint_errors: u8,
    /// Packets refused on receipt because of their partition.
    pub receive_constraint_errors: u8,
    /// More bits of `select`.
    pub select_2: u8,
    /// LocalLinkIntegrityErrors, 4 bits; ExcessiveBufferOverrunErrors, 4.
    pub integrity_overrun: u8,
    /// Reserved.
    pub reserved_20: [u8; 2],
    /// Management packets (VL 15) dropped for lack of buffers.
    pub vl15_dropped: U16,
    /// Four-byte words sent.
    pub sent_words: U32,
    /// Four-byte words received.
    pub received_words: U32,
    pub sent_packets: U32,
    pub received_packets: U32,
    /// Ticks during which data waited to be sent.
    pub send_wait: U32,
}

/// Layout of PortCountersExtended (§16.1.4.11).
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct PortCountersExtendedWire {
    /// Reserved.
    pub reserved: u8,
    /// The port number; 255 for all ports.
    pub port: u8,
    /// In a Set: one bit for each counter to be set.
    pub select: U16,
    /// More bits of `select`.
    pub select_2: U32,
    /// Four-byte words sent.
    pub sent_words: U64,
    /// Four-byte words received.
    pub received_words: U64,
    pub sent_packets: U64,
    pub received_packets: U64,
    pub sent_unicast: U64,
    pub received_unicast: U64,
    pub sent_multicast: U64,
    pub received_multicast: U64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<HeaderWire>() == 64);
    assert!(DATA_LEN == 192);
    assert!(size_of::<PortCountersWire>() == 44);
    assert!(offset_of!(PortCountersWire, vl15_dropped) == 22);
    assert!(offset_of!(PortCountersWire, received_packets) == 36);
    assert!(size_of::<PortCountersExtendedWire>() == 72);
    assert!(offset_of!(PortCountersExtendedWire, sent_words) == 8);
};
