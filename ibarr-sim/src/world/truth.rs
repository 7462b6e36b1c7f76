// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The true GIDs of all addresses, now and in the past.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;

#[derive(Debug, Default)]
pub(super) struct Truth {
    /// The owners of each address, one after another.
    addresses: BTreeMap<IpAddr, Vec<Tenure>>,
    /// The GIDs of each machine; a GID is never reused.
    gids: BTreeMap<(usize, Gid), Name>,
    gid: BTreeMap<usize, Gid>,
}

/// A period in which a machine has an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenure {
    pub(super) machine: usize,
    from: Instant,
    until: Option<Instant>,
}

/// A period in which a machine has a GID.
#[derive(Clone, Copy, Debug, Default)]
struct Name {
    until: Option<Instant>,
    /// The kernel sent no event at its end.
    ended_silently: bool,
}

impl Truth {
    /// Gives the machine this GID, with or without an event of the kernel.
    pub(super) fn gid_changed(&mut self, now: Instant, machine: usize, gid: Gid, silently: bool) {
        if let Some(old) = self.gid.insert(machine, gid) {
            let name = Name { until: Some(now), ended_silently: silently };
            self.gids.insert((machine, old), name);
        }
        self.gids.insert((machine, gid), Name::default());
    }

    /// Gives `machine` the address, which must be free.
    pub(super) fn begins(&mut self, now: Instant, address: IpAddr, machine: usize) {
        let tenure = Tenure { machine, from: now, until: None };
        self.addresses.entry(address).or_default().push(tenure);
    }

    /// Frees the address.
    pub(super) fn ends(&mut self, now: Instant, address: IpAddr) {
        let last = self.addresses.get_mut(&address).and_then(|all| all.last_mut());
        if let Some(last) = last {
            last.until.get_or_insert(now);
        }
    }

    pub(super) fn owner(&self, address: IpAddr) -> Option<usize> {
        let last = self.addresses.get(&address)?.last()?;
        last.until.is_none().then_some(last.machine)
    }

    /// The machine that has had the address all the time since.
    pub(super) fn owner_since(&self, address: IpAddr, since: Instant) -> Option<usize> {
        let last = self.addresses.get(&address)?.last()?;
        (last.until.is_none() && last.from <= since).then_some(last.machine)
    }

    /// The owners of the address at any time since, the last one first.
    pub(super) fn owners(&self, address: IpAddr, since: Instant) -> impl Iterator<Item = usize> {
        let all = self.addresses.get(&address).map(Vec::as_slice).unwrap_or_default();
        let is_recent = move |tenure: &&Tenure| tenure.until.is_none_or(|until| until >= since);
        all.iter().rev().take_while(is_recent).map(|tenure| tenure.machine)
    }

    /// Whether the machine had the GID at some time since `since`, or since `silently` if the
    /// kernel sent no event at its end.
    pub(super) fn had(&self, machine: usize, gid: Gid, since: Instant, silently: Instant) -> bool {
        self.gids.get(&(machine, gid)).is_some_and(|name| {
            let since = if name.ended_silently { silently } else { since };
            name.until.is_none_or(|until| until >= since)
        })
    }
}
