// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Links and addresses as events and dumps of the kernel give them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ibarr_common::IfIndex;

use crate::counters::Counters;

use super::{AddressId, Bonding, Counter, Dad, InterfaceAddress, Limits, Link};

/// The kernel's state: the links and addresses of this network namespace, from events and dumps.
///
/// A dump is collected separately and takes effect as a whole when it is done. **An event since the
/// dump was requested overrules the dump**: the kernel reads the entries of a dump without the lock
/// under which it changes them and sends events (RCU since 6.9). An entry in the dump may therefore
/// have been deleted by an earlier event, and an entry not in the dump may have been added. Every
/// change causes an event, so for a key with an event the last event is right, and for a key
/// without one the dump is.
pub(super) struct Inventory {
    limits: Limits,
    links: BTreeMap<IfIndex, Link>,
    addresses: BTreeMap<AddressId, InterfaceAddress>,
    /// The state of `addresses` by interface.
    on_link: BTreeMap<(IfIndex, AddressId), Dad>,
    /// The `links` that are bonds or teams.
    masters: BTreeSet<IfIndex>,
    dump: Option<Dump>,
}

#[derive(Default)]
struct Dump {
    links: BTreeMap<IfIndex, Link>,
    /// `None` in a dump of the links alone.
    addresses: Option<BTreeMap<AddressId, InterfaceAddress>>,
    /// An address of the dump had no room.
    overflown: bool,
    /// Links with an event since the dump was requested.
    touched_links: BTreeSet<IfIndex>,
    touched_addresses: BTreeSet<AddressId>,
    /// Links deleted since the dump was requested. Their addresses in the dump may belong to the
    /// deleted link; the addresses of a new link with the same index arrive as events.
    gone_links: BTreeSet<IfIndex>,
    /// More keys had events than could be recorded: the dump cannot be merged.
    spoiled: bool,
}

/// Where each kind of address begins: IPv4, and IPv6 below, among and above the link-local ones.
const KINDS: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)),
    IpAddr::V6(Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0)),
];

/// The result of a dump.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Merged {
    /// The dump took effect, and these entries have changed; usually none.
    Done { links: Vec<IfIndex>, addresses: Listed },
    /// The dump was discarded, and another one is needed.
    Spoiled,
    /// No dump was in progress.
    None,
}

/// What a dump has said of addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Listed {
    /// Nothing: it was about the links alone.
    Nothing,
    /// All of them, and these have changed.
    All(Vec<AddressId>),
    /// As many as there is room for.
    Some(Vec<AddressId>),
}

impl Inventory {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
            on_link: BTreeMap::new(),
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

    /// All addresses, sorted by IP address.
    pub(super) fn addresses(&self) -> impl Iterator<Item = InterfaceAddress> {
        self.addresses.values().copied()
    }

    /// The addresses of one interface.
    pub(super) fn addresses_on(&self, ifindex: IfIndex) -> impl Iterator<Item = InterfaceAddress> {
        let first = (ifindex, AddressId::first_of(IpAddr::from([0; 4])));
        self.on_link
            .range(first..)
            .take_while(move |&(&(on, _), _)| on == ifindex)
            .map(|(&(_, id), &dad)| InterfaceAddress { id, dad })
    }

    /// Whether it is of IPv4, and the interface has no other such address. IPv4 sorts before IPv6.
    pub(super) fn is_only_ipv4(&self, id: &AddressId) -> bool {
        let of_ipv4 = self.addresses_on(id.ifindex).take_while(|it| it.id.address.is_ipv4());
        id.address.is_ipv4() && of_ipv4.take(2).all(|it| it.id == *id)
    }

    /// The first addresses of one interface that datagrams can have as their source: at most `max` of each of
    /// the [`KINDS`].
    pub(super) fn sources_on(&self, ifindex: IfIndex, max: usize) -> impl Iterator<Item = IpAddr> {
        let ends = KINDS.into_iter().skip(1).map(Some).chain([None]);
        KINDS
            .into_iter()
            .zip(ends)
            .flat_map(move |(first, end)| self.sources_between(ifindex, first, end).take(max))
    }

    /// Whether `max` addresses of the same kind and interface come before `id`, so that [`Self::sources_on`] has the
    /// same ones whatever becomes of `id`.
    pub(super) fn is_behind_sources(&self, id: &AddressId, max: usize) -> bool {
        let first = KINDS.into_iter().rfind(|first| *first <= id.address);
        first.is_some_and(|first| {
            let before = self.sources_between(id.ifindex, first, Some(id.address));
            before.take(max).count() == max
        })
    }

    fn sources_between(
        &self,
        ifindex: IfIndex,
        first: IpAddr,
        end: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> {
        let entries = self.on_link.range((ifindex, AddressId::first_of(first))..);
        let usable = entries
            .take_while(move |((on, id), _)| {
                *on == ifindex && end.is_none_or(|end| id.address < end)
            })
            .filter(|(_, dad)| **dad == Dad::Passed)
            .map(|((_, id), _)| id.address);
        let mut before = None;
        usable.filter(move |&address| before.replace(address) != Some(address))
    }

    /// The entries of one IP address, in the order of their interfaces.
    pub(super) fn entries_of(&self, address: IpAddr) -> impl Iterator<Item = InterfaceAddress> {
        self.addresses
            .range(AddressId::first_of(address)..)
            .take_while(move |(id, _)| id.address == address)
            .map(|(_, &entry)| entry)
    }

    /// The bonds and teams whose active slave is `ifindex`.
    pub(super) fn masters_of(&self, ifindex: IfIndex) -> impl Iterator<Item = IfIndex> {
        self.masters.iter().copied().filter(move |master| {
            let active_slave = Some(ifindex);
            self.links.get(master).is_some_and(|m| m.bonding == Bonding::Master { active_slave })
        })
    }

    /// Returns `false` if the table is full; the next dump may find room.
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

    /// Also removes its addresses. Returns the IP addresses.
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

    /// Returns `false` if the table is full; the next dump may find room.
    pub(super) fn set_address(&mut self, entry: InterfaceAddress) -> bool {
        let id = entry.id;
        if self.addresses.len() >= self.limits.addresses && !self.addresses.contains_key(&id) {
            return false;
        }
        self.touch(|dump| dump.touched_addresses.insert(id));
        self.addresses.insert(id, entry);
        self.on_link.insert((id.ifindex, id), entry.dad);
        true
    }

    pub(super) fn remove_address(&mut self, id: AddressId) {
        self.touch(|dump| dump.touched_addresses.insert(id));
        self.addresses.remove(&id);
        self.on_link.remove(&(id.ifindex, id));
    }

    /// Returns whether it replaces an unfinished dump.
    pub(super) fn start_dump(&mut self) -> bool {
        let addresses = Some(BTreeMap::new());
        self.dump.replace(Dump { addresses, ..Dump::default() }).is_some()
    }

    /// Starts a dump of the links alone. Returns whether it replaces an unfinished dump.
    pub(super) fn start_links(&mut self) -> bool {
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
        let Some(Dump { addresses: Some(addresses), overflown, .. }) = &mut self.dump else {
            counters.count(Counter::ListedOutsideDump);
            return;
        };
        if addresses.len() >= self.limits.addresses && !addresses.contains_key(&address.id) {
            counters.count(Counter::AddressesRefused);
            *overflown = true;
            return;
        }
        addresses.insert(address.id, address);
    }

    pub(super) fn finish_dump(&mut self, counters: &mut Counters<Counter>) -> Merged {
        let Some(mut dump) = self.dump.take() else { return Merged::None };
        if dump.spoiled {
            return Merged::Spoiled;
        }
        overrule(&mut dump.links, &self.links, &dump.touched_links);
        // The entries of the dump and of events can exceed the limit together.
        while dump.links.len() > self.limits.links {
            dump.links.pop_last();
            counters.count(Counter::LinksRefused);
        }
        let links = differences(&self.links, &dump.links);
        if !links.is_empty() {
            self.links = dump.links;
            self.masters = self
                .links
                .values()
                .filter(|link| matches!(link.bonding, Bonding::Master { .. }))
                .map(|link| link.ifindex)
                .collect();
        }
        let Some(mut listed) = dump.addresses else {
            return Merged::Done { links, addresses: Listed::Nothing };
        };
        listed.retain(|id, _| !dump.gone_links.contains(&id.ifindex));
        overrule(&mut listed, &self.addresses, &dump.touched_addresses);
        while listed.len() > self.limits.addresses {
            listed.pop_last();
            counters.count(Counter::AddressesRefused);
            dump.overflown = true;
        }
        let addresses = differences(&self.addresses, &listed);
        if !addresses.is_empty() {
            self.addresses = listed;
            let entries = self.addresses.iter();
            self.on_link = entries.map(|(id, entry)| ((id.ifindex, *id), entry.dad)).collect();
        }
        let listed = if dump.overflown { Listed::Some } else { Listed::All };
        Merged::Done { links, addresses: listed(addresses) }
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

/// Events overrule the entries of a dump.
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

/// The keys whose value differs, or that are in only one of the two maps.
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
