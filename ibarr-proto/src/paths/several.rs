// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Several paths to one destination, given in turn, where ports have several LIDs ([`Config::spread`]).
//!
//! The SA is asked for them all in one question. None is made from another one by counting LIDs: by
//! some routings (LASH, DFSSSP, torus-2QoS) the service level depends on the LIDs. All of an answer
//! lead from one port to one port, so what is true of the first one is true of all: whether it is
//! in doubt, contradicted, or expired.

use alloc::vec::Vec;

use ibarr_common::ib::PathRecord;
use ibarr_common::wire::sa::{PathCount, PathQuestion, Question};

use super::cache::{Cache, Key, Remembered};
use super::lids::MAX_LMC;
use super::ports::Port;
use super::slab::Slot;
use super::spread::alike;
use super::{Config, Flight, Paths, PortName};
use crate::sa::{self, PortIndex};

impl Cache {
    /// Remembers more paths of an answer, if its first one is remembered.
    pub(super) fn insert_others(
        &mut self,
        key: &Key,
        first: PathRecord,
        others: Vec<PathRecord>,
        lmc: u8,
    ) {
        let others = alike(&first, others, lmc);
        if let Some((slot, remembered)) = self.slot_of(key, first)
            && !others.is_empty()
        {
            self.spread.insert(slot, others, remembered.expires_at);
        }
    }

    /// Whether an answer has several paths. Without the option none has, and then an answer costs nothing more.
    pub(super) fn has_several(&self) -> bool {
        !self.spread.is_empty()
    }

    /// The path of an answer whose turn it is, if this is the first one.
    #[cold]
    pub(super) fn take_turn(&mut self, key: &Key, first: PathRecord) -> PathRecord {
        let slot = self.slot_of(key, first).map(|(slot, _)| slot);
        slot.and_then(|slot| self.spread.take_turn(slot)).unwrap_or(first)
    }

    /// The paths beside the first one.
    pub(super) fn others(&self, key: &Key) -> &[PathRecord] {
        if !self.has_several() {
            return &[];
        }
        self.slot(key).map_or(&[], |slot| self.spread.others(slot))
    }

    fn slot_of(&self, key: &Key, first: PathRecord) -> Option<(Slot, Remembered)> {
        let slot = self.slot(key)?;
        let (_, remembered) = self.entry(slot)?;
        (remembered.record == Some(first)).then_some((slot, remembered))
    }
}

impl Paths {
    /// All the remembered paths to a destination, if they are several.
    pub fn several(&self, port: &PortName, question: PathQuestion) -> Vec<PathRecord> {
        let Ok((_, key, _)) = self.key(port, question) else { return Vec::new() };
        let others = self.cache.others(&key);
        let first = self.cache.lookup(self.now, &key).filter(|_| !others.is_empty());
        let first = first.and_then(|remembered| remembered.record);
        first.map_or(Vec::new(), |first| [&[first], others].concat())
    }

    /// What the SA is asked: for as many paths as are wanted, but no more than a port has LIDs. Beyond these OpenSM
    /// 3.3.23 gives the same LIDs in other pairs. An SA that refuses such questions is asked for one path.
    pub(super) fn asked(&self, port: PortIndex, question: PathQuestion) -> Question {
        let takes_tables =
            |port: &&Port| port.refused_tables.is_none_or(|sa| port.sa() != Some(sa));
        let port = self.ports.get(port).filter(takes_tables);
        let lids = port.map_or(1, |port| 1 << port.lmc().min(MAX_LMC));
        match PathCount::new(self.config.spread.get().min(lids)) {
            Some(count) if count != PathCount::ONE => Question::Paths(question, count),
            _ => Question::Path(question),
        }
    }

    /// The SA may take no question for several paths, and then it takes none until it is another one. What was asked in
    /// an earlier epoch may have been refused by another SA.
    pub(super) fn note_refusal(&mut self, flight: &Flight, outcome: &sa::Outcome) {
        let is_refused = match outcome {
            sa::Outcome::Refused(refusal) => !refusal.is_final(),
            outcome => *outcome == sa::Outcome::Unusable,
        };
        if is_refused
            && self.config.has_spread()
            && let Some(port) = self.ports.get_mut(flight.key.port())
            && port.epoch == flight.epoch
        {
            port.refused_tables = port.sa();
        }
    }
}

impl Config {
    /// Whether the SA may be asked for several paths.
    pub fn has_spread(&self) -> bool {
        self.spread != PathCount::ONE
    }
}
