// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The LID of each GID, according to the remembered answers.
//!
//! A port of the subnet has one LID, plus the adjacent ones of its LMC. If the SA gives another LID
//! than before, the subnet has changed. Routers are different: several may lead to one GID.

use core::hash::BuildHasher as _;

use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;
use ibarr_common::ib::PathRecord;
use ibarr_common::wire::path_record::Fields;

use super::slab::{Slab, Slot};
use crate::hash::Seeded;
use crate::sa::PortIndex;

/// The LIDs of hosts in the subnets, according to the remembered answers.
#[derive(Debug)]
pub(super) struct Lids {
    hasher: Seeded,
    index: HashTable<Slot>,
    said: Slab<HostAnswers>,
}

/// The destination of a path, 10 bytes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Host {
    guid: [u8; 8],
    /// The local port, in whose subnet the host is.
    port: PortIndex,
}

#[derive(Clone, Copy, Debug)]
struct HostAnswers {
    host: Host,
    /// Number of remembered answers that lead to it.
    answers: u32,
    /// The latest epoch of these answers.
    epoch: u32,
    /// The lowest of its LIDs according to these answers; `None` if they differ.
    lid: Option<u16>,
}

/// LMC has three bits (IBA volume 1, 14.2.5.6).
pub(super) const MAX_LMC: u8 = 7;

const _: () = assert!(size_of::<Option<HostAnswers>>() == 24);

impl Lids {
    pub(super) fn new(hasher: Seeded) -> Self {
        Self { hasher, index: HashTable::new(), said: Slab::default() }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.index.is_empty() && self.said.len() == 0
    }

    /// Fails unless these are the answers that are counted.
    #[cfg(test)]
    pub(super) fn check_count(&self, answers: impl Iterator<Item = (PortIndex, PathRecord)>) {
        let mut hosts = std::collections::HashMap::new();
        for (host, _) in answers.filter_map(|(port, record)| leads_to(port, &record, 0)) {
            *hosts.entry(host).or_default() += 1;
        }
        for (host, answers) in &hosts {
            assert_eq!(self.of(*host).map(|said| said.answers), Some(*answers), "{host:?}");
        }
        assert_eq!((self.index.len(), self.said.len()), (hosts.len(), hosts.len()));
    }

    /// An answer is remembered. `lmc` is the port's.
    pub(super) fn add(&mut self, port: PortIndex, record: &PathRecord, epoch: u32, lmc: u8) {
        let Some((host, lid)) = leads_to(port, record, lmc) else { return };
        if let Some(said) = self.find(host).and_then(|slot| self.said.get_mut(slot)) {
            said.answers += 1;
            if epoch > said.epoch {
                (said.epoch, said.lid) = (epoch, Some(lid));
            } else if epoch == said.epoch && said.lid != Some(lid) {
                said.lid = None;
            }
        } else if let Some(slot) =
            self.said.insert(HostAnswers { host, answers: 1, epoch, lid: Some(lid) })
        {
            let Self { hasher, index, said } = self;
            let hash = |&slot: &Slot| said.get(slot).map_or(0, |said| hasher.hash_one(said.host));
            index.insert_unique(hash(&slot), slot, hash);
        }
    }

    /// An answer is dropped.
    pub(super) fn remove(&mut self, port: PortIndex, record: &PathRecord) {
        let Some((host, _)) = leads_to(port, record, 0) else { return };
        let Some(slot) = self.find(host) else { return };
        if let Some(said) = self.said.get_mut(slot) {
            said.answers -= 1;
            if said.answers == 0 {
                self.said.remove(slot);
                let indexed = self.index.find_entry(self.hasher.hash_one(host), |it| *it == slot);
                indexed.map(OccupiedEntry::remove).ok();
            }
        }
    }

    /// Whether another answer of the same epoch differs.
    pub(super) fn contradict(
        &self,
        port: PortIndex,
        record: &PathRecord,
        epoch: u32,
        lmc: u8,
    ) -> bool {
        leads_to(port, record, lmc).is_some_and(|(host, lid)| {
            self.of(host).is_some_and(|said| said.epoch == epoch && said.lid != Some(lid))
        })
    }

    /// Whether another answer of the same or a later epoch differs.
    pub(super) fn overrule(&self, port: PortIndex, record: &PathRecord, lmc: u8) -> bool {
        leads_to(port, record, lmc)
            .is_some_and(|(host, lid)| self.of(host).is_some_and(|said| said.lid != Some(lid)))
    }

    fn of(&self, host: Host) -> Option<&HostAnswers> {
        self.said.get(self.find(host)?)
    }

    fn find(&self, host: Host) -> Option<Slot> {
        let is_it = |&slot: &Slot| self.said.get(slot).is_some_and(|said| said.host == host);
        self.index.find(self.hasher.hash_one(host), is_it).copied()
    }
}

/// The destination of a path within the subnet, and the lowest of its LIDs.
fn leads_to(port: PortIndex, record: &PathRecord, lmc: u8) -> Option<(Host, u16)> {
    let fields = Fields::parse(record).ok().filter(|_| !record.leaves_subnet())?;
    let host = Host { guid: fields.dgid.guid().get().to_be_bytes(), port };
    Some((host, fields.dlid.get() & u16::MAX << lmc.min(MAX_LMC)))
}
