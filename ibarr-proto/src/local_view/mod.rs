// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which IP address has which GID on this node.
//!
//! [`LocalView`] is told what rtnetlink says about links and addresses and alone decides what this
//! node answers, in user space and in the kernel alike:
//!
//! * an address is *ours* while an interface that is up (`IFF_UP`) has it and duplicate address
//!   detection has [passed](Dad::Passed);
//! * an address of ours has the GID that a [static entry](StaticGid) gives it, whatever its
//!   interface; else the GID of its interface, if the [filter](InterfaceFilter) selects that, it is
//!   of type InfiniBand, no slave of a bond or team, and its 20-byte hardware address holds a GID;
//! * a bond or team has the GID of its active slave, or of its own hardware address where the
//!   kernel names none (a team's, which teamd sets to that of the active port);
//! * an address on several interfaces has the GID of the one with the lowest index that has one,
//!   wherever the question arrives: the responder in the kernel knows one GID per address;
//! * a link-local IPv6 address is another one on each interface.
//!
//! Peers are answered in the kernel on the interfaces that are [`Served`]: those that are up, of
//! type Ethernet or InfiniBand, no slave, and either selected by the filter or the owner of an
//! address that has a GID.

mod facts;
mod filter;
mod inventory;
mod reread;
mod served;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ibarr_common::ib::Gid;
pub use ibarr_common::map::Origin;
use ibarr_common::{IfIndex, Instant};

use crate::counters::Counters;
use crate::ip2gid::server::Local;

use self::facts::{Facts, Key};
pub use self::filter::{ConfigError, InterfaceFilter, Pattern, StaticGid, StaticGids};
use self::inventory::{Inventory, Merged};
use self::reread::Reread;
use self::served::{Change, Serving, Subnets};
pub use self::served::{LinkHeader, Served, WayBack};
pub use self::types::{
    AddressId, Bonding, Dad, HwAddr, InterfaceAddress, InterfaceName, Link, LinkType,
};

/// What an administrator decides.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Config {
    /// Whose GIDs are served.
    pub interfaces: InterfaceFilter,
    /// GIDs of addresses, on whatever interface.
    pub static_gids: StaticGids,
}

/// How much of the kernel's tables is kept. What does not fit is refused and counted, and asked
/// for again with the next re-read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Links of any type.
    pub links: usize,
    /// Addresses on any link.
    pub addresses: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { links: 8192, addresses: 32_768 }
    }
}

/// Something that rtnetlink said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Input {
    /// Event: a link was made or changed.
    Link(Link),
    /// Event: a link was deleted, or moved to another network namespace.
    LinkGone(IfIndex),
    /// Event: an address was added or changed.
    Address(InterfaceAddress),
    /// Event: an address was deleted.
    AddressGone(AddressId),
    /// A dump is about to be asked for, and no event was lost since. A dump that was not done is
    /// void.
    DumpStarted,
    /// The dump lists a link.
    ListedLink(Link),
    /// The dump lists an address.
    ListedAddress(InterfaceAddress),
    /// The dump is complete and consistent (no `NLM_F_DUMP_INTR`): what it did not list is gone.
    DumpDone,
}

/// What the view needs of rtnetlink.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Request {
    /// A dump of all links and addresses.
    Dump,
}

/// A fact about this node changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// An address has become ours.
    Added(Owned),
    /// An address of ours has another GID, none any more, or another interface or origin.
    Changed(Owned),
    /// An address is not ours any more; this is what it was.
    Removed(Owned),
    /// An interface is served, or otherwise than before.
    Served(Served),
    /// An interface is not served any more.
    NotServed(IfIndex),
}

/// An address of this node and what is answered for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Owned {
    /// The address.
    pub address: IpAddr,
    /// The interface that a link-local IPv6 address means, `None` for any other.
    pub scope: Option<IfIndex>,
    /// Its GID. One without is never answered for, but ours: nobody else may ask in its name.
    pub gid: Option<Gid>,
    /// The interface that gives it the GID, or else has it.
    pub ifindex: IfIndex,
    /// Where the GID comes from.
    pub origin: Origin,
}

/// Why an interface serves no GID of its own.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, thiserror::Error)]
pub enum NotServed {
    /// The filter does not select it.
    #[error("not among the interfaces configured")]
    NotSelected,
    /// It has no InfiniBand port under it.
    #[error("not an IPoIB interface")]
    NotIpoib,
    /// It is part of this bond or team.
    #[error("a slave of interface {0}, which serves in its place")]
    Slave(IfIndex),
    /// Not `IFF_UP`.
    #[error("down")]
    Down,
    /// Its hardware address holds none, as before the subnet manager has brought the port up.
    #[error("its hardware address holds no GID")]
    NoGid,
}

/// An interface, for people.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Interface {
    /// Its index.
    pub ifindex: IfIndex,
    /// Its name.
    pub name: InterfaceName,
    /// Its type.
    pub link_type: LinkType,
    /// The GID that it serves, or why it serves none.
    pub gid: Result<Gid, NotServed>,
    /// Its addresses.
    pub addresses: Vec<AddressStatus>,
}

/// An address of an interface, for people.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressStatus {
    /// The address.
    pub address: IpAddr,
    /// Whether it may be used yet.
    pub dad: Dad,
    /// What it is, if it is ours; `ifindex` may be that of another interface.
    pub owned: Option<Owned>,
}

crate::counters! {
    /// What happens to the view.
    pub enum Counter {
        /// Dumps that took effect.
        DumpsDone = "dumps-done",
        /// Dumps that were replaced by another before they were done.
        DumpsAbandoned = "dumps-abandoned",
        /// Dumps thrown away because more entries than fit had events meanwhile.
        DumpsSpoiled = "dumps-spoiled",
        /// Dumps that were asked for and did not come in time.
        DumpsOverdue = "dumps-overdue",
        /// Entries and ends of dumps that nobody had started.
        ListedOutsideDump = "listed-outside-dump",
        /// Links that did not fit.
        LinksRefused = "links-refused",
        /// Addresses that did not fit.
        AddressesRefused = "addresses-refused",
        /// Times that an address came to be on several interfaces with different GIDs.
        Contested = "contested",
    }
}

/// See the [module](self).
///
/// After each `handle_…` drain [`poll_transmit`](Self::poll_transmit) and
/// [`poll_event`](Self::poll_event), then wait until [`poll_timeout`](Self::poll_timeout).
pub struct LocalView {
    config: Config,
    inventory: Inventory,
    facts: Facts,
    /// Addresses on several interfaces with different GIDs.
    contested: BTreeSet<IpAddr>,
    serving: Serving,
    /// `serving` is to be decided again.
    serving_due: bool,
    reread: Reread,
    confirmed_at: Option<Instant>,
    counters: Counters<Counter>,
}

impl LocalView {
    /// Knows nothing until the first dump is done.
    pub fn new(config: Config) -> Self {
        Self::with_limits(config, Limits::default())
    }

    /// With other bounds than the default.
    pub fn with_limits(config: Config, limits: Limits) -> Self {
        Self {
            config,
            inventory: Inventory::new(limits),
            facts: Facts::default(),
            contested: BTreeSet::new(),
            serving: Serving::default(),
            serving_due: false,
            reread: Reread::new(),
            confirmed_at: None,
            counters: Counters::default(),
        }
    }

    /// Rtnetlink said something.
    pub fn handle_input(&mut self, now: Instant, input: Input) {
        match input {
            Input::Link(link) => {
                let ifindex = link.ifindex;
                if !self.inventory.set_link(link) {
                    self.counters.count(Counter::LinksRefused);
                }
                self.decide_link(ifindex);
                self.serving_due = true;
                self.reread.wanted(now);
            }
            Input::LinkGone(ifindex) => {
                for address in self.inventory.remove_link(ifindex) {
                    self.decide(Key::new(address, ifindex));
                }
                self.decide_link(ifindex);
                self.serving_due = true;
                self.reread.wanted(now);
            }
            Input::Address(entry) => {
                if !self.inventory.set_address(entry) {
                    self.counters.count(Counter::AddressesRefused);
                    self.reread.wanted(now);
                }
                self.decide(Key::new(entry.id.address, entry.id.ifindex));
                self.serving_due = true;
            }
            Input::AddressGone(id) => {
                self.inventory.remove_address(id);
                self.decide(Key::new(id.address, id.ifindex));
                self.serving_due = true;
            }
            Input::DumpStarted => {
                if self.inventory.start_dump() {
                    self.counters.count(Counter::DumpsAbandoned);
                }
                self.reread.started(now);
            }
            Input::ListedLink(link) => self.inventory.list_link(link, &mut self.counters),
            Input::ListedAddress(entry) => self.inventory.list_address(entry, &mut self.counters),
            Input::DumpDone => self.finish_dump(now),
        }
    }

    /// May be called at any time; early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.reread.handle_timeout(now) {
            self.counters.count(Counter::DumpsOverdue);
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next. Before the first dump that is in
    /// the past.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Some(self.reread.due())
    }

    /// What to ask rtnetlink for.
    pub fn poll_transmit(&mut self) -> Option<Request> {
        self.reread.poll_request().then_some(Request::Dump)
    }

    /// The next change of a fact. Several changes of one fact between two calls are told as one, and
    /// none if it is again what was told before.
    ///
    /// Addresses come before interfaces.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.facts.poll_event() {
            return Some(event);
        }
        if std::mem::take(&mut self.serving_due) {
            let served = self.decide_served();
            self.serving.set(served);
        }
        self.serving.poll().map(|change| match change {
            Change::Served(served) => Event::Served(served),
            Change::NotServed(ifindex) => Event::NotServed(ifindex),
        })
    }

    /// Every address that is ours, in their order.
    pub fn owned(&self) -> impl Iterator<Item = Owned> {
        self.facts.owned()
    }

    /// Every interface that is served, as of the last [`poll_event`](Self::poll_event).
    pub fn served(&self) -> impl Iterator<Item = &Served> {
        self.serving.iter()
    }

    /// Every interface, in the order of their indices.
    pub fn interfaces(&self) -> impl Iterator<Item = Interface> {
        self.inventory.links().map(|link| Interface {
            ifindex: link.ifindex,
            name: link.name,
            link_type: link.link_type,
            gid: self.served_gid(link),
            addresses: self
                .inventory
                .addresses_on(link.ifindex)
                .map(|InterfaceAddress { id, dad, .. }| AddressStatus {
                    address: id.address,
                    dad,
                    owned: self.facts.lookup(Key::new(id.address, id.ifindex)).copied(),
                })
                .collect(),
        })
    }

    /// The IPoIB interface with the lowest index, whatever the filter says of it. One that has a GID
    /// is no tunnel which only has the type: there all neighbours of IPv4 are one (`arp_constructor`).
    pub fn first_ipoib(&self) -> Option<&Link> {
        self.inventory.links().find(|link| link.own_gid().is_some())
    }

    /// Names and globs of the configuration that no interface has now.
    pub fn unmatched_patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.config
            .interfaces
            .patterns()
            .filter(|pattern| !self.inventory.links().any(|link| pattern.matches(&link.name)))
    }

    /// Addresses on several interfaces with different GIDs, of which one is answered.
    pub fn contested(&self) -> impl Iterator<Item = IpAddr> {
        self.contested.iter().copied()
    }

    /// Whether a first dump was done: before, an address that is not ours may become so.
    pub fn is_synced(&self) -> bool {
        self.counters.get(Counter::DumpsDone) > 0
    }

    /// When the last dump took effect: as of then, the view holds all that the kernel has.
    pub fn confirmed_at(&self) -> Option<Instant> {
        self.confirmed_at
    }

    /// What has happened since the start.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// What the administrator decides from now on.
    pub fn reconfigure(&mut self, config: Config) {
        self.config = config;
        self.decide_all();
    }

    fn finish_dump(&mut self, now: Instant) {
        match self.inventory.finish_dump(&mut self.counters) {
            Merged::Done { links, addresses } => {
                self.counters.count(Counter::DumpsDone);
                self.confirmed_at = Some(now);
                self.serving_due |= !(links.is_empty() && addresses.is_empty());
                for id in addresses {
                    self.decide(Key::new(id.address, id.ifindex));
                }
                for ifindex in links {
                    self.decide_link(ifindex);
                }
            }
            Merged::Spoiled => {
                self.counters.count(Counter::DumpsSpoiled);
                self.reread.wanted(now);
            }
            Merged::None => {
                self.counters.count(Counter::ListedOutsideDump);
                return;
            }
        }
        self.reread.done(now);
    }

    fn decide_all(&mut self) {
        self.serving_due = true;
        let mut keys = self.facts.keys();
        keys.extend(
            self.inventory.addresses().map(|entry| Key::new(entry.id.address, entry.id.ifindex)),
        );
        for key in keys {
            self.decide(key);
        }
    }

    /// Whatever may depend on a link: its own addresses, and those of a bond that it is active in.
    fn decide_link(&mut self, ifindex: IfIndex) {
        let keys: BTreeSet<_> = std::iter::once(ifindex)
            .chain(self.inventory.masters_of(ifindex))
            .flat_map(|on| self.inventory.addresses_on(on))
            .map(|entry| Key::new(entry.id.address, entry.id.ifindex))
            .collect();
        for key in keys {
            self.decide(key);
        }
    }

    fn decide(&mut self, key: Key) {
        let mut links: Vec<&Link> = self
            .inventory
            .entries_of(key.address)
            .filter(|entry| entry.dad == Dad::Passed)
            .map(|entry| entry.id.ifindex)
            .filter(|&ifindex| key.scope.is_none_or(|scope| scope == ifindex))
            .filter_map(|ifindex| self.inventory.link(ifindex))
            .filter(|link| link.up)
            .collect();
        links.dedup_by_key(|link| link.ifindex);
        let Some(first) = links.first() else {
            self.facts.remove(key);
            self.contested.remove(&key.address);
            return;
        };
        let mut contested = false;
        let (ifindex, gid, origin) = if let Some(gid) = self.config.static_gids.lookup(key.address)
        {
            (first.ifindex, Some(gid), Origin::Static)
        } else {
            let mut served =
                links.iter().filter_map(|link| Some((link.ifindex, self.served_gid(link).ok()?)));
            let chosen = served.next();
            contested = chosen.is_some_and(|(_, gid)| served.any(|(_, other)| other != gid));
            (
                chosen.map_or(first.ifindex, |(ifindex, _)| ifindex),
                chosen.map(|(_, gid)| gid),
                Origin::Local,
            )
        };
        let Key { address, scope } = key;
        self.facts.set(key, Owned { address, scope, gid, ifindex, origin });
        if !contested {
            self.contested.remove(&key.address);
        } else if self.contested.insert(key.address) {
            self.counters.count(Counter::Contested);
        }
    }

    fn decide_served(&self) -> BTreeMap<IfIndex, Served> {
        let answering: BTreeSet<_> = self
            .facts
            .in_any_order()
            .filter(|owned| owned.gid.is_some())
            .map(|owned| owned.ifindex)
            .collect();
        let links: Vec<_> = self
            .inventory
            .links()
            .filter(|link| link.up && !matches!(link.bonding, Bonding::Slave { .. }))
            .filter(|link| {
                self.config.interfaces.selects(link) || answering.contains(&link.ifindex)
            })
            .filter_map(|link| Some((link, link.header()?)))
            .collect();
        if links.is_empty() {
            return BTreeMap::new();
        }
        let is_up = |ifindex| self.inventory.link(ifindex).is_some_and(|link| link.up);
        let subnets = Subnets::new(
            self.inventory
                .addresses()
                .filter(|entry| is_up(entry.id.ifindex))
                .map(|entry| (entry.id.ifindex, entry.on_link, entry.dad == Dad::Passed)),
        );
        links
            .into_iter()
            .map(|(link, header)| (link.ifindex, subnets.served(link, header)))
            .collect()
    }

    fn served_gid(&self, link: &Link) -> Result<Gid, NotServed> {
        if !self.config.interfaces.selects(link) {
            return Err(NotServed::NotSelected);
        }
        if let Bonding::Slave { of } = link.bonding {
            return Err(NotServed::Slave(of));
        }
        if link.link_type != LinkType::INFINIBAND {
            return Err(NotServed::NotIpoib);
        }
        if !link.up {
            return Err(NotServed::Down);
        }
        let bearer = match link.bonding {
            Bonding::Master { active_slave: Some(slave) } => self.inventory.link(slave),
            _ => Some(link),
        };
        bearer.and_then(Link::own_gid).ok_or(NotServed::NoGid)
    }
}

/// Both in constant time.
impl Local for LocalView {
    fn is_known(&self) -> bool {
        self.is_synced()
    }

    fn gid_of(&self, address: IpAddr, ingress: IfIndex) -> Option<Gid> {
        self.facts.lookup(Key::new(address, ingress))?.gid
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.facts.is_ours(address)
    }
}
