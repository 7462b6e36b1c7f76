// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the manager of a class can do (IBA vol. 1 §13.4.8.1). All fields are big-endian.

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// As far as we look at it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClassPortInfo {
    /// Whether the SA knows of quality of service, so that its paths may differ by service and class
    /// (IBA vol. 1 Annex A13, `OSM_CAP2_IS_QOS_SUPPORTED` of OpenSM).
    pub has_qos: bool,
}

impl ClassPortInfo {
    /// The other way about [`From<ClassPortInfoWire>`], with all else at 0.
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
    /// 1.
    pub base_version: u8,
    /// Of the class.
    pub class_version: u8,
    /// The class decides.
    pub capability_mask: U16,
    /// 27 bits that the class decides, and 5 of RespTimeValue.
    pub capability_mask_2_and_resp_time: U32,
    /// Whom to ask instead.
    pub redirect: [u8; 32],
    /// Where traps go.
    pub trap: [u8; 32],
}

const RESP_TIME_BITS: u32 = 5;
const IS_QOS_SUPPORTED: u32 = 1 << 1;

const _: () = assert!(size_of::<ClassPortInfoWire>() == 72);
