// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which address has which GID, and had.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;

use crate::record::Id;

#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// Who had it, one after another.
    addresses: BTreeMap<IpAddr, Vec<Tenure>>,
    /// The GIDs that a machine had; a GID is never given again.
    gids: BTreeMap<(Id, Gid), Name>,
    gid: BTreeMap<Id, Gid>,
}

/// A machine has an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenure {
    pub(crate) machine: Id,
    from: Instant,
    until: Option<Instant>,
}

/// A machine has a GID.
#[derive(Clone, Copy, Debug, Default)]
struct Name {
    until: Option<Instant>,
    /// The kernel said nothing of its end.
    ended_silently: bool,
}

impl Truth {
    /// From now on the machine has this GID, which the kernel tells or not.
    pub(crate) fn is_called(&mut self, now: Instant, machine: Id, gid: Gid, silently: bool) {
        if let Some(old) = self.gid.insert(machine, gid) {
            let name = Name { until: Some(now), ended_silently: silently };
            self.gids.insert((machine, old), name);
        }
        self.gids.insert((machine, gid), Name::default());
    }

    /// From now on `machine` has the address, which nobody has.
    pub(crate) fn begins(&mut self, now: Instant, address: IpAddr, machine: Id) {
        let tenure = Tenure { machine, from: now, until: None };
        self.addresses.entry(address).or_default().push(tenure);
    }

    /// From now on nobody has the address.
    pub(crate) fn ends(&mut self, now: Instant, address: IpAddr) {
        let last = self.addresses.get_mut(&address).and_then(|all| all.last_mut());
        if let Some(last) = last {
            last.until.get_or_insert(now);
        }
    }

    /// Who has it now.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<Id> {
        let last = self.addresses.get(&address)?.last()?;
        last.until.is_none().then_some(last.machine)
    }

    /// Who has had it all the time since.
    pub(crate) fn owner_since(&self, address: IpAddr, since: Instant) -> Option<Id> {
        let last = self.addresses.get(&address)?.last()?;
        (last.until.is_none() && last.from <= since).then_some(last.machine)
    }

    /// Who had the address at some time since, the last first.
    pub(crate) fn owners(&self, address: IpAddr, since: Instant) -> impl Iterator<Item = Id> {
        let all = self.addresses.get(&address).map(Vec::as_slice).unwrap_or_default();
        let is_recent = move |tenure: &&Tenure| tenure.until.is_none_or(|until| until >= since);
        all.iter().rev().take_while(is_recent).map(|tenure| tenure.machine)
    }

    /// Whether the machine had the GID since the one time, or the other if the kernel said nothing of
    /// its end.
    pub(crate) fn had(&self, machine: Id, gid: Gid, since: Instant, silently: Instant) -> bool {
        self.gids.get(&(machine, gid)).is_some_and(|name| {
            let since = if name.ended_silently { silently } else { since };
            name.until.is_none_or(|until| until >= since)
        })
    }
}
