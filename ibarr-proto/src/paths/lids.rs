// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which LID a GID has, by what is remembered.
//!
//! A port of the subnet has one LID, and those next to it that LMC adds. So if the SA gives another
//! LID than it did, the subnet has changed. Routers are another matter: several may lead to one GID.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use ibarr_common::ib::PathRecord;
use ibarr_common::wire::path_record::Fields;

use crate::hash::Seeded;
use crate::sa::PortIndex;

/// What the answers that are remembered say of the ports of the subnets.
pub(super) struct Lids {
    said: HashMap<Host, Said, Seeded>,
}

/// The end of a path, 10 bytes.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
struct Host {
    guid: [u8; 8],
    /// Of ours, in whose subnet it is.
    port: PortIndex,
}

#[derive(Clone, Copy, Debug)]
struct Said {
    /// How many of the answers that are remembered lead there.
    answers: u32,
    /// The latest of theirs.
    epoch: u32,
    /// The first of its LIDs as they have it; `None` if they have two.
    lid: Option<u16>,
}

/// It has three bits (IBA volume 1, 14.2.5.6).
const MAX_LMC: u8 = 7;

impl Lids {
    pub(super) fn new(hasher: Seeded) -> Self {
        Self { said: HashMap::with_hasher(hasher) }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// An answer is remembered. `lmc` is the port's.
    pub(super) fn add(&mut self, port: PortIndex, record: &PathRecord, epoch: u32, lmc: u8) {
        let Some((host, lid)) = leads_to(port, record, lmc) else { return };
        match self.said.entry(host) {
            Entry::Vacant(vacant) => {
                vacant.insert(Said { answers: 1, epoch, lid: Some(lid) });
            }
            Entry::Occupied(mut occupied) => {
                let said = occupied.get_mut();
                said.answers += 1;
                if epoch > said.epoch {
                    (said.epoch, said.lid) = (epoch, Some(lid));
                } else if epoch == said.epoch && said.lid != Some(lid) {
                    said.lid = None;
                }
            }
        }
    }

    /// An answer is forgotten.
    pub(super) fn remove(&mut self, port: PortIndex, record: &PathRecord) {
        let Some((host, _)) = leads_to(port, record, 0) else { return };
        if let Entry::Occupied(mut occupied) = self.said.entry(host) {
            let said = occupied.get_mut();
            said.answers -= 1;
            if said.answers == 0 {
                occupied.remove();
            }
        }
    }

    /// Whether something else was said in the same epoch.
    pub(super) fn contradict(
        &self,
        port: PortIndex,
        record: &PathRecord,
        epoch: u32,
        lmc: u8,
    ) -> bool {
        leads_to(port, record, lmc).is_some_and(|(host, lid)| {
            self.said.get(&host).is_some_and(|said| said.epoch == epoch && said.lid != Some(lid))
        })
    }

    /// Whether something else was said at the same time or since.
    pub(super) fn overrule(&self, port: PortIndex, record: &PathRecord, lmc: u8) -> bool {
        leads_to(port, record, lmc).is_some_and(|(host, lid)| {
            self.said.get(&host).is_some_and(|said| said.lid != Some(lid))
        })
    }
}

/// The end of a path that does not leave the subnet, and the first of its LIDs.
fn leads_to(port: PortIndex, record: &PathRecord, lmc: u8) -> Option<(Host, u16)> {
    let fields = Fields::parse(record).ok().filter(|fields| fields.hop_limit <= 1)?;
    let host = Host { guid: fields.dgid.guid().get().to_be_bytes(), port };
    Some((host, fields.dlid.get() & u16::MAX << lmc.min(MAX_LMC)))
}

impl fmt::Debug for Lids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lids({})", self.said.len())
    }
}
