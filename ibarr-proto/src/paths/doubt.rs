// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What shows that the subnet has changed although nobody has told us, and what that means.

use ibarr_common::ib::PathRecord;
use rand_core::{CryptoRng, SeedableRng};

use super::cache::Key;
use super::ports::Port;
use super::{Counter, Doubted, Outcome, Paths};
use crate::sa::PortIndex;

impl<R: CryptoRng + SeedableRng> Paths<R> {
    /// Who keeps a path asks for it again only if he has heard of something.
    pub(super) fn note_asked_again(&mut self, key: &Key) {
        if !key.is_kept() {
            return;
        }
        if let Some(port) = self.ports.get(key.port())
            && let Some(given) = self.cache.lookup(self.now, key)
            && given.record.is_some()
            && given.epoch >= port.kept_from
        {
            self.counters.count(Counter::AskedAgain);
            self.doubt(key.port());
            if let Some(port) = self.ports.get_mut(key.port()) {
                port.kept_from = port.epoch;
            }
        }
    }

    /// A GID of the subnet has another LID than it had. Which of two answers is the younger is not
    /// known: both may have been on their way.
    pub(super) fn note_contradiction(&mut self, index: PortIndex, record: &PathRecord) {
        if let Some(port) = self.ports.get(index)
            && self.cache.lids().contradict(index, record, port.epoch, port.lmc())
        {
            self.counters.count(Counter::Contradicted);
            self.doubt(index);
        }
    }

    /// Whether the SA has given the end of a path another LID since.
    pub(super) fn is_overruled(&self, index: PortIndex, record: &PathRecord) -> bool {
        let lmc = self.ports.get(index).map_or(0, Port::lmc);
        self.cache.lids().overrule(index, record, lmc)
    }

    /// What is in doubt, before nothing at all.
    pub(super) fn or_doubted(
        &self,
        index: PortIndex,
        doubted: Option<Doubted>,
        otherwise: Outcome,
    ) -> Outcome {
        let valid_from = self.ports.get(index).map_or(u32::MAX, |port| port.valid_from);
        let of_use = doubted.filter(|doubted| {
            doubted.epoch >= valid_from && !self.is_overruled(index, &doubted.record)
        });
        of_use.map_or(otherwise, Doubted::given)
    }

    fn doubt(&mut self, port: PortIndex) {
        self.ports.doubt(port, self.now, &mut self.rng);
    }
}
