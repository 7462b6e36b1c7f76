// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reliable multi-packet transaction protocol (IBA vol. 1 §13.6): the 12 bytes behind the header of
//! a MAD whose class may send more than one MAD holds. We ask for what one MAD holds, so all are
//! zero when sent and ignored when read.

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Layout of the 12 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RmppWire {
    /// 1 where the protocol is used.
    pub version: u8,
    /// Data, acknowledgement, stop, abort.
    pub kind: u8,
    /// Response time, and whether this is in use, first, last.
    pub flags: u8,
    /// Why it was aborted.
    pub status: u8,
    /// The kind decides: the number of a segment.
    pub data_1: U32,
    /// The kind decides: a length.
    pub data_2: U32,
}

const _: () = assert!(size_of::<RmppWire>() == 12);
