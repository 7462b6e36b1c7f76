// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! ClassPortInfo: the capabilities of the manager of a class (IBA vol. 1 §13.4.8.1). All fields are
//! big-endian.

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The part of ClassPortInfo that ibarr reads.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClassPortInfo {
    /// Whether the SA supports quality of service, so that its paths may differ by service and
    /// class (IBA vol. 1 Annex A13, `OSM_CAP2_IS_QOS_SUPPORTED` of OpenSM).
    pub has_qos: bool,
}

impl ClassPortInfo {
    /// The inverse of [`From<ClassPortInfoWire>`]; all other fields are 0.
    pub fn wire(self) -> ClassPortInfoWire {
        let mask = if self.has_qos { IS_QOS_SUPPORTED } else { 0 };
        ClassPortInfoWire {
            base_version: 1,
            class_version: 2,
            capability_mask: 0.into(),
            capability_mask_2_and_resp_time: (mask << RESP_TIME_BITS).into(),
            redirect: [0; 32],
            trap: [0; 32],
        }
    }
}

impl From<ClassPortInfoWire> for ClassPortInfo {
    fn from(wire: ClassPortInfoWire) -> Self {
        let mask = wire.capability_mask_2_and_resp_time.get() >> RESP_TIME_BITS;
        Self { has_qos: mask & IS_QOS_SUPPORTED != 0 }
    }
}

/// Layout of the attribute.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ClassPortInfoWire {
    /// Always 1.
    pub base_version: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Meaning defined by the class.
    pub capability_mask: U16,
    /// 27 bits defined by the class, then 5 bits of RespTimeValue.
    pub capability_mask_2_and_resp_time: U32,
    /// The manager to ask instead.
    pub redirect: [u8; 32],
    /// The destination of traps.
    pub trap: [u8; 32],
}

const RESP_TIME_BITS: u32 = 5;
const IS_QOS_SUPPORTED: u32 = 1 << 1;

const _: () = assert!(size_of::<ClassPortInfoWire>() == 72);
