// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The fields of a [`PathRecord`] (IBA vol. 1 §15.2.5.16). All fields are big-endian.
//!
//! | bytes | field | bytes | field |
//! |---|---|---|---|
//! | 0..7 | ServiceID | 49 | Reversible (bit 7), NumbPath |
//! | 8..23 | DGID | 50..51 | P_Key |
//! | 24..39 | SGID | 52..53 | QoSClass (upper 12 bits), SL |
//! | 40..41 | DLID | 54 | selector (upper 2 bits), MTU |
//! | 42..43 | SLID | 55 | selector, Rate |
//! | 44..47 | RawTraffic (bit 31), FlowLabel (bits 8..27), HopLimit | 56 | selector, PacketLifeTime |
//! | 48 | TClass | 57, 58..63 | Preference, reserved |

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::Error;
use crate::ib::{FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, Rate, Sl};

/// The parsed fields of a usable record. ibarr passes on the record itself; these fields are for
/// code that has to interpret it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Fields {
    pub dgid: Gid,
    pub sgid: Gid,
    /// Destination LID within this subnet: the port of `dgid`, or a router.
    pub dlid: Lid,
    pub slid: Lid,
    /// Flow label for routers.
    pub flow_label: FlowLabel,
    /// Number of routers that the path may cross, as [`PathRecord::leaves_subnet`] understands it.
    pub hop_limit: u8,
    /// Traffic class for routers.
    pub tclass: u8,
    /// Whether the path can be used in the opposite direction too.
    pub reversible: bool,
    pub pkey: PKey,
    pub sl: Sl,
    pub mtu: Mtu,
    pub rate: Rate,
    /// Maximum time that a packet takes.
    pub life_time: PacketLifeTime,
}

impl PathRecord {
    /// Whether the path leads by a router into another subnet: its hop limit is above 1.
    pub fn leaves_subnet(&self) -> bool {
        let [.., hop_limit] = PathRecordWire::from(*self).flow.get().to_be_bytes();
        hop_limit > 1
    }
}

impl Fields {
    /// Parses a record.
    ///
    /// # Errors
    /// A record whose ends are not ports.
    pub fn parse(record: &PathRecord) -> Result<Self, Error> {
        let wire = PathRecordWire::from(*record);
        let unicast =
            |lid: U16| Lid::new(lid.get()).filter(|lid| lid.is_unicast()).ok_or(Error::Lid);
        let [.., hop_limit] = wire.flow.get().to_be_bytes();
        let [.., qos_and_sl] = wire.qos_and_sl.get().to_be_bytes();
        Ok(Self {
            dgid: Gid::new(wire.dgid).ok_or(Error::Gid)?,
            sgid: Gid::new(wire.sgid).ok_or(Error::Gid)?,
            dlid: unicast(wire.dlid)?,
            slid: unicast(wire.slid)?,
            flow_label: FlowLabel::from_low_bits(wire.flow.get() >> 8),
            hop_limit,
            tclass: wire.tclass,
            reversible: wire.reversible_and_numb_path & REVERSIBLE != 0,
            pkey: PKey::new(wire.pkey.get()).ok_or(Error::PKey)?,
            sl: Sl::from_low_bits(qos_and_sl),
            mtu: Mtu::from_low_bits(wire.mtu),
            rate: Rate::from_low_bits(wire.rate),
            life_time: PacketLifeTime::from_low_bits(wire.life_time),
        })
    }

    /// A record with these fields and no others; each selector is "exactly".
    pub fn emit(&self) -> PathRecord {
        PathRecordWire {
            service_id: 0.into(),
            dgid: self.dgid.octets(),
            sgid: self.sgid.octets(),
            dlid: self.dlid.get().into(),
            slid: self.slid.get().into(),
            flow: (self.flow_label.get() << 8 | u32::from(self.hop_limit)).into(),
            tclass: self.tclass,
            reversible_and_numb_path: if self.reversible { REVERSIBLE } else { 0 },
            pkey: self.pkey.get().into(),
            qos_and_sl: u16::from(self.sl.get()).into(),
            mtu: EXACTLY | self.mtu.get(),
            rate: EXACTLY | self.rate.get(),
            life_time: EXACTLY | self.life_time.get(),
            preference: 0,
            reserved: [0; 6],
        }
        .into()
    }
}

/// Layout of a [`PathRecord`].
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct PathRecordWire {
    pub service_id: U64,
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: U16,
    pub slid: U16,
    /// Raw traffic, flow label, hop limit.
    pub flow: U32,
    pub tclass: u8,
    /// The upper bit is [`Fields::reversible`], the others are the number of paths requested.
    pub reversible_and_numb_path: u8,
    pub pkey: U16,
    /// See [`crate::ib::QosClass`], [`Sl`].
    pub qos_and_sl: U16,
    /// Selector and [`Fields::mtu`].
    pub mtu: u8,
    /// Selector and [`Fields::rate`].
    pub rate: u8,
    /// Selector and [`Fields::life_time`].
    pub life_time: u8,
    /// Rank among several paths to the same port.
    pub preference: u8,
    /// 0 when sent, ignored when read.
    pub reserved: [u8; 6],
}

impl From<PathRecord> for PathRecordWire {
    fn from(record: PathRecord) -> Self {
        zerocopy::transmute!(record.octets())
    }
}

impl From<PathRecordWire> for PathRecord {
    fn from(wire: PathRecordWire) -> Self {
        Self::from_octets(zerocopy::transmute!(wire))
    }
}

pub(super) const REVERSIBLE: u8 = 0x80;

/// Selector of MTU, rate and lifetime.
const EXACTLY: u8 = 2 << 6;

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<PathRecordWire>() == PathRecord::LEN);
    assert!(offset_of!(PathRecordWire, dgid) == 8);
    assert!(offset_of!(PathRecordWire, dlid) == 40);
    assert!(offset_of!(PathRecordWire, flow) == 44);
    assert!(offset_of!(PathRecordWire, pkey) == 50);
    assert!(offset_of!(PathRecordWire, preference) == 57);
};
