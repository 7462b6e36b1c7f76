// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Changes of the subnet without an event: how they are noticed, and what follows.

use ibarr_common::ib::PathRecord;
use ibarr_common::wire::path_record::Fields;

use super::cache::{Key, Remembered};
use super::ports::Port;
use super::{Config, Counter, Doubted, Memory, Outcome, Paths, REFRESH_DEADLINE};
use crate::sa::{PortIndex, Rank};

impl Paths {
    /// A caller that keeps its paths asks again only after it was told of an event.
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

    /// A GID of the subnet has another LID than before, or the requested path leads elsewhere than
    /// before. It is unknown which of the two answers is newer: both may have been in transit.
    pub(super) fn note_contradiction(&mut self, key: &Key, record: &PathRecord) {
        let index = key.port();
        if let Some(port) = self.ports.get(index)
            && (self.cache.lids().contradict(index, record, port.epoch, port.lmc())
                || self.leads_elsewhere(key, record))
        {
            self.counters.count(Counter::Contradicted);
            self.doubt(index);
        }
    }

    /// Whether a sure path leads through another router than this answer to the same question. Not
    /// if the SA has replaced one router by the other and now returns to it: then both lead there.
    fn leads_elsewhere(&mut self, key: &Key, record: &PathRecord) -> bool {
        let Memory::Sure(Remembered { record: Some(known), .. }) = self.recall(key) else {
            return false;
        };
        let router = |record| Fields::parse(record).ok().filter(|_| record.leaves_subnet());
        match (router(&known), router(record), self.ports.get_mut(key.port())) {
            (Some(known), Some(now), Some(port)) if known.dlid != now.dlid => {
                port.routers.replaced(known.dlid, now.dlid)
            }
            _ => false,
        }
    }

    /// A path was given from memory. From time to time one of those is asked for again, because it
    /// may have changed without an event.
    pub(super) fn note_used(&mut self, key: &Key, remembered: &Remembered) {
        let every = self.config.canary_every;
        if let Some(port) = self.ports.get_mut(key.port())
            && let Some(record) = &remembered.record
            && !every.is_zero()
        {
            let times = match port.hears_events {
                true if record.leaves_subnet() => Config::CANARIES_IF_ROUTED,
                true => Config::CANARIES_IF_HEARD,
                false => 1,
            };
            let is_new = port.canaries.due().is_none()
                || times == Config::CANARIES_IF_ROUTED
                    && port.canaries.hurry(self.now, every * times, &mut self.rng);
            self.canaries_set += u64::from(is_new);
            port.canaries.used(self.now, key, every * times, &mut self.rng);
        }
    }

    pub(super) fn send_canaries(&mut self) {
        while let Some(key) = self.ports.take_canary(self.now) {
            if let Memory::Sure(_) = self.recall(&key)
                && !self.by_key.contains_key(&key)
                && self.ports.get(key.port()).is_some_and(Port::can_ask)
                && let Some(question) = key.question()
            {
                self.counters.count(Counter::Canaries);
                self.ask(key, question, None, Rank::Other, self.now + REFRESH_DEADLINE);
            }
        }
    }

    /// Whether the SA has since given the destination of a path another LID.
    pub(super) fn is_overruled(&self, index: PortIndex, record: &PathRecord) -> bool {
        self.cache.lids().overrule(index, record, self.lmc(index))
    }

    /// The path in doubt, in preference to no path.
    pub(super) fn or_doubted(
        &self,
        index: PortIndex,
        doubted: Option<Doubted>,
        otherwise: Outcome,
    ) -> Outcome {
        let valid_from = self.ports.get(index).map_or(u32::MAX, |port| port.valid_from);
        // Requests that join keep a question going for longer than a path may be remembered.
        let of_use = doubted.filter(|doubted| {
            doubted.epoch >= valid_from
                && doubted.expires_at > self.now
                && !self.is_overruled(index, &doubted.record)
        });
        of_use.map_or(otherwise, Doubted::given)
    }

    fn doubt(&mut self, port: PortIndex) {
        self.ports.doubt(port, self.now, &mut self.rng);
    }
}
