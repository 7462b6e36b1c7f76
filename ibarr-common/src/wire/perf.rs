// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Performance management: the counters of a port (IBA vol. 1 §16.1). A MAD of class 4, version 1,
//! whose attribute starts at byte 64. All fields are big-endian.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::{self, AttributeId};

/// The class's version.
pub const CLASS_VERSION: u8 = 1;

/// Bytes of an attribute, at most.
pub const DATA_LEN: usize = mad::LEN - size_of::<HeaderWire>();

/// Counters of 8 to 32 bits, which stop at their highest: [`PortCountersWire`].
pub const PORT_COUNTERS: AttributeId = AttributeId::new(0x0012);
/// Counters of 64 bits: [`PortCountersExtendedWire`].
pub const PORT_COUNTERS_EXTENDED: AttributeId = AttributeId::new(0x001d);

/// ClassPortInfo:CapabilityMask: all ports can be selected at once.
pub const ALL_PORT_SELECT: u16 = 1 << 8;
/// ClassPortInfo:CapabilityMask: [`PORT_COUNTERS_EXTENDED`] is known.
pub const EXTENDED_WIDTH: u16 = 1 << 9;

/// Layout of what comes before the attribute.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HeaderWire {
    /// See [`mad`].
    pub mad: mad::HeaderWire,
    /// Reserved.
    pub reserved: [u8; 40],
}

/// Layout of PortCounters (§16.1.3.5).
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PortCountersWire {
    /// Reserved.
    pub reserved: u8,
    /// Which port; 255 for all.
    pub port: u8,
    /// In a Set: a bit for each counter that is to be set.
    pub select: U16,
    /// Errors of the line.
    pub symbol_errors: U16,
    /// Times that the link has recovered.
    pub link_recoveries: u8,
    /// Times that it has not.
    pub link_downed: u8,
    /// Malformed packets that came.
    pub receive_errors: U16,
    /// Packets that came marked as bad.
    pub receive_remote_errors: U16,
    /// Packets that a switch had no way for.
    pub relay_errors: U16,
    /// Packets that could not leave.
    pub send_discards: U16,
    /// Packets that could not leave for their partition.
    pub send_constraint_errors: u8,
    /// Packets that could not enter for their partition.
    pub receive_constraint_errors: u8,
    /// More of `select`.
    pub select_2: u8,
    /// LocalLinkIntegrityErrors, 4 bits; ExcessiveBufferOverrunErrors, 4.
    pub integrity_overrun: u8,
    /// Reserved.
    pub reserved_20: [u8; 2],
    /// Packets on the management lane that there was no room for.
    pub vl15_dropped: U16,
    /// Words of four bytes that left.
    pub sent_words: U32,
    /// Words that came.
    pub received_words: U32,
    /// Packets that left.
    pub sent_packets: U32,
    /// Packets that came.
    pub received_packets: U32,
    /// Ticks that something waited to leave.
    pub send_wait: U32,
}

/// Layout of PortCountersExtended (§16.1.4.11).
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PortCountersExtendedWire {
    /// Reserved.
    pub reserved: u8,
    /// Which port; 255 for all.
    pub port: u8,
    /// In a Set: a bit for each counter that is to be set.
    pub select: U16,
    /// More of that.
    pub select_2: U32,
    /// Words of four bytes that left.
    pub sent_words: U64,
    /// Words that came.
    pub received_words: U64,
    /// Packets that left.
    pub sent_packets: U64,
    /// Packets that came.
    pub received_packets: U64,
    /// Of those that left, the unicast.
    pub sent_unicast: U64,
    /// Of those that came, the unicast.
    pub received_unicast: U64,
    /// Of those that left, the multicast.
    pub sent_multicast: U64,
    /// Of those that came, the multicast.
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
