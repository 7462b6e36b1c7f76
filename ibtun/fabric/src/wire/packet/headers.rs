// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Layouts of the headers of a packet.

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use ibarr_common::ib::{Lid, PKey, Qpn, Sl};

/// Layout of the local route header (IBA vol. 1 §7.7).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct LrhWire {
    /// Virtual lane, 4 bits; link version, 4 bits.
    pub vl_version: u8,
    /// Service level, 4 bits; 2 reserved; link next header, 2 bits.
    pub sl_next: u8,
    pub dlid: U16,
    /// 5 bits reserved; number of four-byte words up to the variant checksum, 11 bits.
    pub words: U16,
    pub slid: U16,
}

impl LrhWire {
    /// `len` is the length in bytes up to the variant checksum, at most 8 KiB.
    pub(super) fn new(
        vl: u8,
        sl: Sl,
        next_header: u8,
        dlid: Lid,
        slid: Option<Lid>,
        len: usize,
    ) -> Self {
        Self {
            vl_version: vl << 4,
            sl_next: sl.get() << 4 | next_header & 3,
            dlid: dlid.get().into(),
            words: u16::try_from(len / 4).unwrap_or(0x07ff).into(),
            slid: slid.map_or(0, Lid::get).into(),
        }
    }

    /// The virtual lane.
    pub const fn vl(self) -> u8 {
        self.vl_version >> 4
    }

    pub(super) const fn version(self) -> u8 {
        self.vl_version & 0x0f
    }

    pub(super) const fn sl(self) -> Sl {
        Sl::from_low_bits(self.sl_next >> 4)
    }

    pub(super) const fn next_header(self) -> u8 {
        self.sl_next & 3
    }

    /// Length in bytes up to the variant checksum.
    pub(super) fn len(self) -> usize {
        usize::from(self.words.get() & 0x07ff) * 4
    }
}

/// Layout of the global route header (IBA vol. 1 §8.3), which is IPv6's.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct GrhWire {
    /// IP version, 4 bits; traffic class, 8; flow label, 20.
    pub version_class_flow: U32,
    /// Bytes after this header, up to the variant checksum.
    pub payload_len: U16,
    /// Type of the next header.
    pub next_header: u8,
    /// Number of routers that the packet may still pass.
    pub hop_limit: u8,
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
}

impl GrhWire {
    /// A header without traffic class and flow label, for [`super::Datagram`].
    pub fn new(sgid: [u8; 16], dgid: [u8; 16], hop_limit: u8) -> Self {
        Self {
            version_class_flow: (6 << 28).into(),
            payload_len: 0.into(),
            next_header: 0,
            hop_limit,
            sgid,
            dgid,
        }
    }

    pub(super) fn with_payload(self, next_header: u8, len: usize) -> Self {
        let payload_len = u16::try_from(len).unwrap_or(u16::MAX).into();
        Self { payload_len, next_header, ..self }
    }

    pub(super) fn ip_version(&self) -> u32 {
        self.version_class_flow.get() >> 28
    }
}

/// Layout of the base transport header (IBA vol. 1 §9.2).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct BthWire {
    pub opcode: u8,
    /// Solicited event, 1 bit; migration state, 1; bytes of padding, 2; transport version, 4.
    pub flags: u8,
    pub pkey: U16,
    /// Congestion bits, else reserved. Not covered by the invariant checksum.
    pub reserved: u8,
    pub destination: [u8; 3],
    /// Acknowledge request, 1 bit; 7 reserved.
    pub acknowledge: u8,
    pub psn: [u8; 3],
}

impl BthWire {
    pub(super) fn new(opcode: u8, padding: usize, pkey: PKey, destination: Qpn) -> Self {
        Self {
            opcode,
            flags: u8::try_from(padding & 3).unwrap_or(0) << 4,
            pkey: pkey.get().into(),
            reserved: 0,
            destination: destination.octets(),
            acknowledge: 0,
            psn: [0; 3],
        }
    }

    pub(super) fn pad_count(&self) -> usize {
        usize::from(self.flags >> 4 & 3)
    }

    pub(super) const fn transport_version(&self) -> u8 {
        self.flags & 0x0f
    }
}

/// Layout of the datagram extended transport header (IBA vol. 1 §9.3.2).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct DethWire {
    pub qkey: U32,
    /// 0 when sent, ignored when read.
    pub reserved: u8,
    pub source: [u8; 3],
}

impl DethWire {
    pub(super) fn new(qkey: u32, source: Qpn) -> Self {
        Self { qkey: qkey.into(), reserved: 0, source: source.octets() }
    }
}

const _: () = {
    assert!(size_of::<LrhWire>() == 8);
    assert!(size_of::<GrhWire>() == 40);
    assert!(core::mem::offset_of!(GrhWire, sgid) == 8);
    assert!(core::mem::offset_of!(GrhWire, dgid) == 24);
    assert!(size_of::<BthWire>() == 12);
    assert!(core::mem::offset_of!(BthWire, destination) == 5);
    assert!(size_of::<DethWire>() == 8);
};
