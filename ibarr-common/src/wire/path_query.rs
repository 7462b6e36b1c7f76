// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Questions to the SA for a path of which any fields are known: those that the component mask names
//! (IBA vol. 1 §15.2.5.16).
//!
//! | bits | fields | bits | fields |
//! |---|---|---|---|
//! | 0, 1 | ServiceID | 13 | P_Key |
//! | 2, 3 | DGID, SGID | 14, 15 | QoSClass, SL |
//! | 4, 5 | DLID, SLID | 16, 17 | MTU: selector, value |
//! | 6, 8, 9 | RawTraffic, FlowLabel, HopLimit | 18, 19 | Rate: selector, value |
//! | 10 | TClass | 20, 21 | PacketLifeTime: selector, value |
//! | 11, 12 | Reversible, NumbPath | 22 | Preference |

use zerocopy::big_endian::U64;
use zerocopy::transmute;

use super::mad::Error;
use super::path_record::{PathRecordWire, REVERSIBLE};
use crate::ib::{Gid, Lid, PKey, PathRecord, QosClass, ServiceId};

/// Asks for paths by any of their fields. The answer is one record, or as many as a [`PathCount`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PathQuery {
    /// The bits of the known fields, without NumbPath.
    mask: u64,
    /// Fields that the mask does not name are 0.
    record: PathRecord,
}

/// Asks for a path from `sgid` to `dgid`. The optional parts narrow the answer, which is one
/// record.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PathQuestion {
    /// Destination of the path.
    pub dgid: Gid,
    /// Source of the path.
    pub sgid: Gid,
    /// Whether the path must be usable in the opposite direction too.
    pub reversible: bool,
    /// The P_Key of the path.
    pub pkey: Option<PKey>,
    /// The traffic class of the path.
    pub tclass: Option<u8>,
    /// The service that the path is for.
    pub service_id: Option<ServiceId>,
    /// The class of service of the path.
    pub qos_class: Option<QosClass>,
}

/// How many paths an answer may have, 1 to 127 (NumbPath).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PathCount(u8);

impl PathCount {
    /// One path, as most questions ask for.
    pub const ONE: Self = Self(1);

    /// `None` for 0 and above 127.
    pub const fn new(count: u8) -> Option<Self> {
        if count == 0 || count >= REVERSIBLE {
            return None;
        }
        Some(Self(count))
    }

    /// The number, from 1 to 127.
    pub const fn get(self) -> u8 {
        self.0
    }
}

#[expect(missing_docs, reason = "its items are named for what they are")]
impl PathQuery {
    /// Nothing is known.
    pub const ANY: Self = Self { mask: 0, record: PathRecord::from_octets([0; PathRecord::LEN]) };

    /// The fields of a record that are not 0 are known.
    pub fn known(record: PathRecord) -> Self {
        Self::of(record, |_, part| part != 0)
    }

    pub(super) fn new(mask: u64, record: PathRecord) -> Self {
        Self::of(record, |bits, _| mask & bits == bits)
    }

    /// The fields of a record that are known, by their bits in the mask and by what is there.
    fn of(record: PathRecord, is_known: impl Fn(u64, u64) -> bool) -> Self {
        let from: [U64; 8] = transmute!(record.octets());
        let (mut mask, mut to) = (0, [U64::ZERO; 8]);
        for ((from, to), fields) in from.iter().zip(&mut to).zip(FIELDS) {
            for (bits, own) in fields {
                let part = from.get() & own;
                if is_known(*bits, part) {
                    mask |= bits;
                    *to |= U64::new(part);
                }
            }
        }
        Self { mask, record: PathRecord::from_octets(transmute!(to)) }
    }

    /// The mask and the record of the MAD.
    pub(super) fn emit(&self, PathCount(count): PathCount) -> (u64, PathRecordWire) {
        let mut wire = PathRecordWire::from(self.record);
        wire.reversible_and_numb_path |= count;
        (self.mask | NUMB_PATH, wire)
    }

    pub fn dgid(&self) -> Option<Gid> {
        Gid::new(self.wire().dgid)
    }

    pub fn sgid(&self) -> Option<Gid> {
        Gid::new(self.wire().sgid)
    }

    /// LID of the destination in this subnet.
    pub fn dlid(&self) -> Option<Lid> {
        Lid::new(self.wire().dlid.get()).filter(|_| self.has(DLID))
    }

    /// LID of the source.
    pub fn slid(&self) -> Option<Lid> {
        Lid::new(self.wire().slid.get()).filter(|_| self.has(SLID))
    }

    pub fn pkey(&self) -> Option<PKey> {
        PKey::new(self.wire().pkey.get())
    }

    /// The same question with this destination; `None` if it has another one.
    #[must_use]
    pub fn with_destination(self, dgid: Gid) -> Option<Self> {
        let is_it = self.dgid().is_none_or(|known| known.guid() == dgid.guid());
        is_it.then(|| self.with(DGID, |wire| wire.dgid = dgid.octets()))
    }

    /// The same question with this source; `None` if it has another one.
    #[must_use]
    pub fn with_source(self, sgid: Gid) -> Option<Self> {
        let is_it = self.sgid().is_none_or(|known| known.guid() == sgid.guid());
        is_it.then(|| self.with(SGID, |wire| wire.sgid = sgid.octets()))
    }

    /// The same question, by default in this partition.
    #[must_use]
    pub fn in_partition(self, pkey: PKey) -> Self {
        if self.has(PKEY) { self } else { self.with(PKEY, |wire| wire.pkey = pkey.get().into()) }
    }

    /// The same question for a path that can be used in the opposite direction, too.
    #[must_use]
    pub fn reversible(self) -> Self {
        self.with(REVERSIBLE_PATH, |wire| wire.reversible_and_numb_path |= REVERSIBLE)
    }

    /// Whether a record has the known ends. The SA may write a GID of its subnet with another prefix than the
    /// question's (OpenSM does so for `fe80::/64`).
    pub fn has_ends_of(&self, record: &PathRecord) -> bool {
        let wire = PathRecordWire::from(*record);
        let has_gid = |known: Option<Gid>, octets| {
            known.is_none_or(|known| Gid::new(octets).is_some_and(|gid| gid.guid() == known.guid()))
        };
        let is_at = |known: Option<Lid>, lid| known.is_none_or(|known| known.get() == lid);
        has_gid(self.dgid(), wire.dgid)
            && has_gid(self.sgid(), wire.sgid)
            && is_at(self.dlid(), wire.dlid.get())
            && is_at(self.slid(), wire.slid.get())
    }

    fn wire(&self) -> PathRecordWire {
        self.record.into()
    }

    fn has(&self, bits: u64) -> bool {
        self.mask & bits == bits
    }

    fn with(self, bits: u64, set: impl FnOnce(&mut PathRecordWire)) -> Self {
        let mut wire = self.wire();
        set(&mut wire);
        Self { mask: self.mask | bits, record: wire.into() }
    }
}

impl From<PathQuestion> for PathQuery {
    fn from(question: PathQuestion) -> Self {
        let mut mask = DGID | SGID;
        let mut add = |component, is_there: bool| mask |= if is_there { component } else { 0 };
        add(REVERSIBLE_PATH, question.reversible);
        add(PKEY, question.pkey.is_some());
        add(TCLASS, question.tclass.is_some());
        add(SERVICE_ID, question.service_id.is_some());
        add(QOS_CLASS, question.qos_class.is_some());
        let wire = PathRecordWire {
            service_id: question.service_id.map_or(0, ServiceId::get).into(),
            dgid: question.dgid.octets(),
            sgid: question.sgid.octets(),
            tclass: question.tclass.unwrap_or_default(),
            reversible_and_numb_path: if question.reversible { REVERSIBLE } else { 0 },
            pkey: question.pkey.map_or(0, PKey::get).into(),
            qos_and_sl: (question.qos_class.map_or(0, QosClass::get) << SL_BITS).into(),
            ..Self::ANY.wire()
        };
        Self { mask, record: wire.into() }
    }
}

impl TryFrom<PathQuery> for PathQuestion {
    type Error = Error;

    /// Only the fields of the question may be known, and both GIDs have to be.
    fn try_from(query: PathQuery) -> Result<Self, Error> {
        const POSSIBLE: u64 =
            DGID | SGID | REVERSIBLE_PATH | PKEY | TCLASS | SERVICE_ID | QOS_CLASS;
        if !query.has(DGID | SGID) || query.mask & !POSSIBLE != 0 {
            return Err(Error::Components);
        }
        let wire = query.wire();
        Ok(Self {
            dgid: query.dgid().ok_or(Error::Gid)?,
            sgid: query.sgid().ok_or(Error::Gid)?,
            reversible: wire.reversible_and_numb_path & REVERSIBLE != 0,
            pkey: query.has(PKEY).then(|| query.pkey().ok_or(Error::PKey)).transpose()?,
            tclass: query.has(TCLASS).then_some(wire.tclass),
            service_id: query.has(SERVICE_ID).then(|| ServiceId::new(wire.service_id.get())),
            // A value of 12 bits is always legal.
            qos_class: QosClass::new(wire.qos_and_sl.get() >> SL_BITS)
                .filter(|_| query.has(QOS_CLASS)),
        })
    }
}

/// NumbPath in the record of a MAD with this mask.
pub(super) fn numb_path(mask: u64, record: PathRecord) -> Option<PathCount> {
    let PathRecordWire { reversible_and_numb_path, .. } = record.into();
    PathCount::new(reversible_and_numb_path & !REVERSIBLE).filter(|_| mask & NUMB_PATH != 0)
}

const SERVICE_ID: u64 = 0b11;
const DGID: u64 = 1 << 2;
const SGID: u64 = 1 << 3;
const DLID: u64 = 1 << 4;
const SLID: u64 = 1 << 5;
const TCLASS: u64 = 1 << 10;
const REVERSIBLE_PATH: u64 = 1 << 11;
const NUMB_PATH: u64 = 1 << 12;
const PKEY: u64 = 1 << 13;
const QOS_CLASS: u64 = 1 << 14;

/// The service level is in the low bits of the field of the class of service.
const SL_BITS: u32 = 4;

/// The fields in each eight octets of a record: their bits in the component mask, and which bits are their own there. A
/// GID has two parts.
const FIELDS: [&[(u64, u64)]; 8] = [
    &[(SERVICE_ID, !0)],
    &[(DGID, !0)],
    &[(DGID, !0)],
    &[(SGID, !0)],
    &[(SGID, !0)],
    &[
        (DLID, 0xffff << 48),
        (SLID, 0xffff << 32),
        (1 << 6, 0x80 << 24),
        (1 << 8, 0x0f_ffff << 8),
        (1 << 9, 0xff),
    ],
    &[
        (TCLASS, 0xff << 56),
        (REVERSIBLE_PATH, (REVERSIBLE as u64) << 48),
        (PKEY, 0xffff << 32),
        (QOS_CLASS, 0xfff << 20),
        (1 << 15, 0xf << 16),
        (1 << 16, 0xc0 << 8),
        (1 << 17, 0x3f << 8),
        (1 << 18, 0xc0),
        (1 << 19, 0x3f),
    ],
    &[(1 << 20, 0xc0 << 56), (1 << 21, 0x3f << 56), (1 << 22, 0xff << 48)],
];
