// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which addresses are ours, with the answer for each, and what has changed since the last report.

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use ibarr_common::IfIndex;

use super::{Event, Owned};

/// The subject of an answer. A link-local IPv6 address has a meaning only with its interface.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Key {
    pub(super) address: IpAddr,
    pub(super) scope: Option<IfIndex>,
}

impl Key {
    pub(super) const fn new(address: IpAddr, ifindex: IfIndex) -> Self {
        let scope = match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(ifindex),
            _ => None,
        };
        Self { address, scope }
    }
}

/// The decisions: which keys are ours, and the answer for each. Keeps what was reported, so that
/// any number of changes of a key between two calls of [`poll_event`](Self::poll_event) give one
/// event or none, and unreported changes are as bounded as the keys.
///
/// The maps hash with fixed keys, so that the same history gives the same bytes. Only the
/// administrator of this machine chooses the keys, so no peer can cause collisions.
#[derive(Default)]
pub(super) struct Facts {
    by_key: HashMap<Key, Owned, FixedState>,
    /// Number of keys with this address: more than one only if it is link-local.
    ours: HashMap<IpAddr, usize, FixedState>,
    /// Number of keys with a GID on each interface.
    answering: HashMap<IfIndex, usize, FixedState>,
    /// The interfaces that began or ceased to be [answering](Self::is_answering).
    answering_changed: BTreeSet<IfIndex>,
    /// Keys that differ from what was reported, with what was reported.
    untold: BTreeMap<Key, Option<Owned>>,
}

impl Facts {
    pub(super) fn lookup(&self, key: Key) -> Option<&Owned> {
        self.by_key.get(&key)
    }

    pub(super) fn is_ours(&self, address: IpAddr) -> bool {
        self.ours.contains_key(&address)
    }

    /// In the order of addresses, then scopes.
    pub(super) fn owned(&self) -> impl Iterator<Item = Owned> {
        let ordered: BTreeMap<_, _> = self.by_key.iter().collect();
        ordered.into_values().copied()
    }

    /// Whether the interface gives a GID to an address.
    pub(super) fn is_answering(&self, ifindex: IfIndex) -> bool {
        self.answering.contains_key(&ifindex)
    }

    /// Whether any interface does.
    pub(super) fn has_answers(&self) -> bool {
        !self.answering.is_empty()
    }

    /// The interfaces that began or ceased to be [answering](Self::is_answering) since the last call, if
    /// there are any.
    pub(super) fn take_answering_changed(&mut self) -> Option<BTreeSet<IfIndex>> {
        (!self.answering_changed.is_empty()).then(|| core::mem::take(&mut self.answering_changed))
    }

    pub(super) fn keys(&self) -> BTreeSet<Key> {
        self.by_key.keys().copied().collect()
    }

    /// The key is ours.
    pub(super) fn set(&mut self, key: Key, owned: Owned) {
        let before = self.by_key.insert(key, owned);
        if before.is_none() {
            *self.ours.entry(key.address).or_default() += 1;
        }
        self.note(key, before, Some(owned));
    }

    /// The key is not ours.
    pub(super) fn remove(&mut self, key: Key) {
        let Some(before) = self.by_key.remove(&key) else { return };
        if let Some(keys) = self.ours.get_mut(&key.address) {
            *keys -= 1;
            if *keys == 0 {
                self.ours.remove(&key.address);
            }
        }
        self.note(key, Some(before), None);
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        loop {
            let (key, told) = self.untold.pop_first()?;
            return Some(match (told, self.lookup(key).copied()) {
                (None, Some(now)) => Event::Added(now),
                (Some(told), None) => Event::Removed(told),
                (Some(_), Some(now)) => Event::Changed(now),
                (None, None) => continue,
            });
        }
    }

    fn note(&mut self, key: Key, before: Option<Owned>, now: Option<Owned>) {
        if before == now {
            return;
        }
        if let Some(owned) = now.filter(|owned| owned.gid.is_some()) {
            let keys = self.answering.entry(owned.ifindex).or_default();
            *keys += 1;
            if *keys == 1 {
                self.answering_changed.insert(owned.ifindex);
            }
        }
        if let Some(owned) = before.filter(|owned| owned.gid.is_some())
            && let Some(keys) = self.answering.get_mut(&owned.ifindex)
        {
            *keys -= 1;
            if *keys == 0 {
                self.answering.remove(&owned.ifindex);
                self.answering_changed.insert(owned.ifindex);
            }
        }
        let told = *self.untold.entry(key).or_insert(before);
        if told == now {
            self.untold.remove(&key);
        }
    }
}
