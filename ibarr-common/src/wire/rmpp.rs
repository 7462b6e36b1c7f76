// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reliable multi-packet transaction protocol (IBA vol. 1 §13.6): the 12 bytes after the header of
//! a MAD whose class may send more data than one MAD holds. ibarr asks for more only by an agent for
//! which the kernel handles the protocol (drivers/infiniband/core/mad_rmpp.c), so all 12 bytes are
//! zero when sent and ignored when read. The kernel gives the headers of the first packet, and then
//! the data of all.

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Layout of these 12 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RmppWire {
    /// 1 if the protocol is in use.
    pub version: u8,
    /// Data, acknowledgement, stop or abort.
    pub kind: u8,
    /// Response time; flags for active, first and last.
    pub flags: u8,
    /// The reason of an abort.
    pub status: u8,
    /// The number of a segment, depending on the kind.
    pub data_1: U32,
    /// A length, depending on the kind.
    pub data_2: U32,
}

const _: () = assert!(size_of::<RmppWire>() == 12);
