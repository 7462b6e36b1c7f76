// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ibarr_common::IfIndex;

use crate::counters::Counters;

use super::{AddressId, Bonding, Counter, InterfaceAddress, Limits, Link};

/// What the kernel said: the links and addresses of this network namespace, from events and dumps.
///
/// A dump is put aside while it comes in and takes effect as a whole when it is done. **What an
/// event said since the dump was asked for overrules what the dump lists**: the kernel reads the
/// entries of a dump without the lock under which it changes them and sends events (RCU since
/// 6.9), so an entry that the dump lists may have been deleted by an event that came before it, and
/// one that it does not list may have been added. Every change brings its event, so for a
/// key with an event the last event is the truth, and for one without the dump is.
pub(super) struct Inventory {
    limits: Limits,
    links: BTreeMap<IfIndex, Link>,
    addresses: BTreeMap<AddressId, InterfaceAddress>,
    /// `addresses` by interface.
    on_link: BTreeSet<(IfIndex, AddressId)>,
    /// The `links` that are bonds or teams.
    masters: BTreeSet<IfIndex>,
    dump: Option<Dump>,
}

#[derive(Default)]
struct Dump {
    links: BTreeMap<IfIndex, Link>,
    addresses: BTreeMap<AddressId, InterfaceAddress>,
    /// Had an event since the dump was asked for.
    touched_links: BTreeSet<IfIndex>,
    touched_addresses: BTreeSet<AddressId>,
    /// Deleted since the dump was asked for. What the dump lists on them may belong to the
    /// deleted link; what a new link with the same index has comes with events.
    gone_links: BTreeSet<IfIndex>,
    /// More keys had events than could be remembered: this dump cannot be told from them.
    spoiled: bool,
}

/// What became of a dump.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Merged {
    /// It took effect, and these are other than before; usually none.
    Done { links: Vec<IfIndex>, addresses: Vec<AddressId> },
    /// It was thrown away and is needed again.
    Spoiled,
    /// None had been started.
    None,
}

impl Inventory {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
            on_link: BTreeSet::new(),
            masters: BTreeSet::new(),
            dump: None,
        }
    }

    pub(super) fn link(&self, ifindex: IfIndex) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    /// In the order of their indices.
    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// All addresses, those of one IP side by side.
    pub(super) fn addresses(&self) -> impl Iterator<Item = InterfaceAddress> {
        self.addresses.values().copied()
    }

    /// The addresses of one interface.
    pub(super) fn addresses_on(&self, ifindex: IfIndex) -> impl Iterator<Item = InterfaceAddress> {
        let first = (ifindex, AddressId::first_of(IpAddr::from([0; 4])));
        self.on_link
            .range(first..)
            .take_while(move |&&(on, _)| on == ifindex)
            .filter_map(|(_, id)| self.addresses.get(id).copied())
    }

    /// The entries of one IP, in the order of their interfaces.
    pub(super) fn entries_of(&self, address: IpAddr) -> impl Iterator<Item = InterfaceAddress> {
        self.addresses
            .range(AddressId::first_of(address)..)
            .take_while(move |(id, _)| id.address == address)
            .map(|(_, &entry)| entry)
    }

    /// The bonds and teams whose active slave `ifindex` is.
    pub(super) fn masters_of(&self, ifindex: IfIndex) -> impl Iterator<Item = IfIndex> {
        self.masters.iter().copied().filter(move |master| {
            let active_slave = Some(ifindex);
            self.links.get(master).is_some_and(|m| m.bonding == Bonding::Master { active_slave })
        })
    }

    /// `false` if the table is full; the next dump may find room.
    pub(super) fn set_link(&mut self, link: Link) -> bool {
        let ifindex = link.ifindex;
        if self.links.len() >= self.limits.links && !self.links.contains_key(&ifindex) {
            return false;
        }
        self.touch(|dump| dump.touched_links.insert(ifindex));
        if matches!(link.bonding, Bonding::Master { .. }) {
            self.masters.insert(ifindex);
        } else {
            self.masters.remove(&ifindex);
        }
        self.links.insert(ifindex, link);
        true
    }

    /// Its addresses go with it. Tells their IPs.
    pub(super) fn remove_link(&mut self, ifindex: IfIndex) -> Vec<IpAddr> {
        self.touch(|dump| {
            dump.gone_links.insert(ifindex);
            dump.touched_links.insert(ifindex)
        });
        self.links.remove(&ifindex);
        self.masters.remove(&ifindex);
        let gone: Vec<_> = self.addresses_on(ifindex).map(|entry| entry.id).collect();
        for id in &gone {
            self.addresses.remove(id);
            self.on_link.remove(&(ifindex, *id));
        }
        gone.into_iter().map(|id| id.address).collect()
    }

    /// `false` if the table is full; the next dump may find room.
    pub(super) fn set_address(&mut self, entry: InterfaceAddress) -> bool {
        let id = entry.id;
        if self.addresses.len() >= self.limits.addresses && !self.addresses.contains_key(&id) {
            return false;
        }
        self.touch(|dump| dump.touched_addresses.insert(id));
        self.addresses.insert(id, entry);
        self.on_link.insert((id.ifindex, id));
        true
    }

    pub(super) fn remove_address(&mut self, id: AddressId) {
        self.touch(|dump| dump.touched_addresses.insert(id));
        self.addresses.remove(&id);
        self.on_link.remove(&(id.ifindex, id));
    }

    /// Tells whether it replaces one that was not done.
    pub(super) fn start_dump(&mut self) -> bool {
        self.dump.replace(Dump::default()).is_some()
    }

    pub(super) fn list_link(&mut self, link: Link, counters: &mut Counters<Counter>) {
        let Some(dump) = &mut self.dump else {
            counters.count(Counter::ListedOutsideDump);
            return;
        };
        if dump.links.len() >= self.limits.links && !dump.links.contains_key(&link.ifindex) {
            counters.count(Counter::LinksRefused);
            return;
        }
        dump.links.insert(link.ifindex, link);
    }

    pub(super) fn list_address(
        &mut self,
        address: InterfaceAddress,
        counters: &mut Counters<Counter>,
    ) {
        let Some(dump) = &mut self.dump else {
            counters.count(Counter::ListedOutsideDump);
            return;
        };
        if dump.addresses.len() >= self.limits.addresses
            && !dump.addresses.contains_key(&address.id)
        {
            counters.count(Counter::AddressesRefused);
            return;
        }
        dump.addresses.insert(address.id, address);
    }

    pub(super) fn finish_dump(&mut self, counters: &mut Counters<Counter>) -> Merged {
        let Some(mut dump) = self.dump.take() else { return Merged::None };
        if dump.spoiled {
            return Merged::Spoiled;
        }
        dump.addresses.retain(|id, _| !dump.gone_links.contains(&id.ifindex));
        overrule(&mut dump.links, &self.links, &dump.touched_links);
        overrule(&mut dump.addresses, &self.addresses, &dump.touched_addresses);
        // Entries of the dump and of events can be too many together.
        while dump.links.len() > self.limits.links {
            dump.links.pop_last();
            counters.count(Counter::LinksRefused);
        }
        while dump.addresses.len() > self.limits.addresses {
            dump.addresses.pop_last();
            counters.count(Counter::AddressesRefused);
        }
        let links = differences(&self.links, &dump.links);
        let addresses = differences(&self.addresses, &dump.addresses);
        if !links.is_empty() {
            self.links = dump.links;
            self.masters = self
                .links
                .values()
                .filter(|link| matches!(link.bonding, Bonding::Master { .. }))
                .map(|link| link.ifindex)
                .collect();
        }
        if !addresses.is_empty() {
            self.addresses = dump.addresses;
            self.on_link = self.addresses.keys().map(|id| (id.ifindex, *id)).collect();
        }
        Merged::Done { links, addresses }
    }

    fn touch(&mut self, remember: impl FnOnce(&mut Dump) -> bool) {
        let Some(dump) = &mut self.dump else { return };
        if dump.touched_links.len() + dump.touched_addresses.len()
            >= self.limits.links + self.limits.addresses
        {
            dump.spoiled = true;
            return;
        }
        remember(dump);
    }
}

/// Lets what events said win over what the dump lists.
pub(super) fn overrule<K: Copy + Ord, V: Copy>(
    listed: &mut BTreeMap<K, V>,
    said: &BTreeMap<K, V>,
    keys: &BTreeSet<K>,
) {
    for key in keys {
        match said.get(key) {
            Some(value) => listed.insert(*key, *value),
            None => listed.remove(key),
        };
    }
}

/// The keys that have another value, or one in only one of them.
fn differences<K: Copy + Ord, V: PartialEq>(
    before: &BTreeMap<K, V>,
    now: &BTreeMap<K, V>,
) -> Vec<K> {
    if before == now {
        return Vec::new();
    }
    let gone = before.keys().filter(|key| !now.contains_key(key));
    let other = now.iter().filter(|(key, value)| before.get(key) != Some(value));
    gone.chain(other.map(|(key, _)| key)).copied().collect()
}
