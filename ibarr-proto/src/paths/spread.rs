// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The paths of answers that have several, and whose turn it is ([`several`](super::several)).

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;
use ibarr_common::Instant;
use ibarr_common::ib::PathRecord;
use ibarr_common::wire::path_record::PathRecordWire;

use super::lids::MAX_LMC;
use super::slab::Slot;
use crate::hash::Seeded;

/// The paths of the answers that have several, by the slot of the answer.
#[derive(Debug)]
pub(super) struct Spread(HashMap<Slot, Turns, Seeded>);

/// The paths of an answer after its first one, and how many of all were given.
#[derive(Debug)]
struct Turns {
    others: Box<[PathRecord]>,
    given: usize,
}

impl Spread {
    pub(super) fn new(hasher: Seeded) -> Self {
        Self(HashMap::with_hasher(hasher))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.0.keys().copied()
    }

    /// The answer in a slot has several paths. The turn begins at a place that its end decides, which is
    /// random: otherwise all nodes would use a destination's first LID first.
    pub(super) fn insert(&mut self, slot: Slot, others: Vec<PathRecord>, expires_at: Instant) {
        let count = others.len() as u64 + 1;
        let given = usize::try_from(expires_at.as_nanos() % count).unwrap_or(0);
        self.0.insert(slot, Turns { others: others.into(), given });
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        if !self.is_empty() {
            self.0.remove(&slot);
        }
    }

    /// The paths after the first one.
    pub(super) fn others(&self, slot: Slot) -> &[PathRecord] {
        self.0.get(&slot).map_or(&[], |turns| &turns.others)
    }

    /// The path whose turn it is, if it is another than the first one.
    pub(super) fn take_turn(&mut self, slot: Slot) -> Option<PathRecord> {
        let turns = self.0.get_mut(&slot)?;
        let turn = turns.given;
        turns.given = (turn + 1) % (turns.others.len() + 1);
        turns.others.get(turn.checked_sub(1)?).copied()
    }
}

/// Those of `others` that lead from the port where `first` starts to the port where it ends, each to a
/// LID of its own. They may differ in nothing else but service level, MTU, rate, and lifetime.
pub(super) fn alike(first: &PathRecord, mut others: Vec<PathRecord>, lmc: u8) -> Vec<PathRecord> {
    let mut lids = Vec::from([PathRecordWire::from(*first).dlid.get()]);
    others.retain(|other| {
        let lid = PathRecordWire::from(*other).dlid.get();
        let is_new = ends(first, lmc) == ends(other, lmc) && !lids.contains(&lid);
        if is_new {
            lids.push(lid);
        }
        is_new
    });
    others
}

/// A record without what may differ: each LID is the lowest one of its port.
fn ends(record: &PathRecord, lmc: u8) -> PathRecord {
    let wire = PathRecordWire::from(*record);
    let lowest = |lid: u16| (lid & u16::MAX << lmc.min(MAX_LMC)).into();
    PathRecordWire {
        dlid: lowest(wire.dlid.get()),
        slid: lowest(wire.slid.get()),
        qos_and_sl: 0.into(),
        mtu: 0,
        rate: 0,
        life_time: 0,
        preference: 0,
        reserved: [0; 6],
        ..wire
    }
    .into()
}
