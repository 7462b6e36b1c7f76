// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The local view: which IP address has which GID on this node.
//!
//! [`LocalView`] receives rtnetlink's messages about links and addresses. It alone decides what
//! this node answers, in the daemon and in the kernel:
//!
//! * an address is *ours* while an interface that is up (`IFF_UP`) has it and duplicate address
//!   detection has [passed](Dad::Passed);
//! * an address of ours has the GID of its [static entry](StaticGid), whatever its interface; else the
//!   GID of its interface, if the [filter](InterfaceFilter) selects the interface, and it is of type
//!   InfiniBand, no slave of a bond or team, and has a GID in its 20-byte hardware address;
//! * a bond or team has the GID of its active slave, or the GID of its own hardware address if the
//!   kernel names none (teamd gives a team the address of its active port);
//! * an address on several interfaces has the GID of the interface with the lowest index that has one,
//!   wherever the query arrives: the responder in the kernel knows one GID per address;
//! * a link-local IPv6 address is a different address on each interface.
//!
//! The kernel answers peers on the [`ServedInterface`] interfaces: those that are up, of type Ethernet or
//! InfiniBand, no slave, and either selected by the filter or the owner of an address that has a
//! GID. On such an interface it answers the sources to which replies leave by the same interface,
//! according to the [routes](routing). If the program has to know next hops, the view also reports
//! [neighbours].

mod answers;
mod facts;
mod filter;
mod inventory;
mod messages;
pub mod neighbours;
mod reread;
pub mod routing;
pub mod rules;
mod served;
#[cfg(test)]
mod tests;
mod types;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;

use ibarr_common::ib::Gid;
pub use ibarr_common::map::Origin;
use ibarr_common::{IfIndex, Instant};

use crate::counters::Counters;

use self::facts::{Facts, Key};
pub use self::filter::{Config, ConfigError, InterfaceFilter, Pattern, StaticGid, StaticGids};
use self::inventory::{Inventory, Listed, Merged};
pub use self::messages::{
    AddressStatus, Counter, Event, Input, Interface, Limits, NotServed, Owned, Request, Subject,
};
use self::neighbours::Neighbours;
use self::reread::Reread;
use self::routing::{NoWayBack, RouteBack, RoutesBack, Routing, WayBack};
use self::rules::Diverted;
use self::served::{Change, Serving};
pub use self::served::{LinkHeader, ServedInterface};
pub use self::types::{
    AddressId, AltNames, Bonding, Dad, HwAddr, InterfaceAddress, InterfaceName, Link, LinkType,
};

/// See the [module](self).
///
/// After each `handle_…` drain [`poll_transmit`](Self::poll_transmit) and
/// [`poll_event`](Self::poll_event), then wait until [`poll_timeout`](Self::poll_timeout).
pub struct LocalView {
    config: Config,
    inventory: Inventory,
    facts: Facts,
    /// Addresses with different GIDs on several interfaces.
    contested: BTreeSet<IpAddr>,
    serving: Serving,
    routing: Routing,
    routes_back: RoutesBack,
    neighbours: Neighbours,
    /// `serving` and `routes_back` have to be decided again.
    serving_due: bool,
    reread: Reread,
    /// The next dump has to list the addresses, too: they may differ from what the events said.
    reads_addresses: bool,
    reread_routes: Reread,
    confirmed_at: Option<Instant>,
    routes_confirmed: RoutesConfirmed,
    /// The interfaces that changed since the last [`Self::poll_egresses`], if these or the routes did.
    changed: Option<BTreeSet<IfIndex>>,
    counters: Counters<Counter>,
}

/// The state of the knowledge about routes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RoutesConfirmed {
    /// The first dump is not done.
    NotYet,
    /// A dump took effect at this time.
    At(Instant),
    /// Routes are unknown. None is in the maps, so none can be stale.
    Unknown,
}

impl LocalView {
    /// The view is empty until the first dump is done.
    pub fn new(config: Config) -> Self {
        Self::with_limits(config, Limits::default())
    }

    /// Uses other bounds than the default.
    pub fn with_limits(config: Config, limits: Limits) -> Self {
        Self {
            config,
            inventory: Inventory::new(limits),
            facts: Facts::default(),
            contested: BTreeSet::new(),
            serving: Serving::default(),
            routing: Routing::new(limits.routes),
            routes_back: RoutesBack::default(),
            neighbours: Neighbours::new(limits.neighbours),
            serving_due: false,
            reread: Reread::new(Reread::INTERVAL),
            reads_addresses: true,
            reread_routes: Reread::new(Reread::INTERVAL),
            confirmed_at: None,
            routes_confirmed: RoutesConfirmed::NotYet,
            changed: None,
            counters: Counters::default(),
        }
    }

    /// Processes an input.
    pub fn handle_input(&mut self, now: Instant, input: Input) {
        self.note_input(&input);
        if self.may_change_routes(&input) {
            self.reread_routes.wanted(now);
        }
        match input {
            Input::Link(link) => {
                let ifindex = link.ifindex;
                // The kernel makes kept addresses tentative when a link goes down, without an event
                // (`addrconf_ifdown`, net.ipv6.conf.*.keep_addr_on_down).
                let was_up = self.inventory.link(ifindex).is_some_and(|before| before.up);
                self.reads_addresses |= link.up && !was_up;
                if !self.inventory.set_link(link) {
                    self.counters.count(Counter::LinksRefused);
                }
                self.link_changed(now, ifindex);
            }
            Input::LinkGone(ifindex) => {
                for address in self.inventory.remove_link(ifindex) {
                    self.decide(Key::new(address, ifindex));
                }
                self.link_changed(now, ifindex);
            }
            Input::Address(entry) => {
                if !self.inventory.set_address(entry) {
                    self.counters.count(Counter::AddressesRefused);
                    self.reads_addresses = true;
                    self.reread.wanted(now);
                }
                self.decide(Key::new(entry.id.address, entry.id.ifindex));
            }
            Input::AddressGone(id) => {
                self.inventory.remove_address(id);
                self.decide(Key::new(id.address, id.ifindex));
            }
            Input::DumpStarted => {
                if self.inventory.start_dump() {
                    self.counters.count(Counter::DumpsAbandoned);
                }
                self.reads_addresses = false;
                self.reread.started(now);
            }
            Input::LinksStarted => {
                if self.inventory.start_links() {
                    self.counters.count(Counter::DumpsAbandoned);
                    self.reads_addresses = true;
                }
                self.reread.started(now);
            }
            Input::ListedLink(link) => self.inventory.list_link(link, &mut self.counters),
            Input::ListedAddress(entry) => self.inventory.list_address(entry, &mut self.counters),
            Input::DumpDone => self.finish_dump(now),
            Input::RoutesChanged | Input::OwnRoute | Input::OwnRouteGone(_) => {}
            Input::RoutesStarted => {
                self.routing.start();
                self.reread_routes.started(now);
            }
            Input::ListedRule(rule) => {
                let listed = self.routing.list_rule(rule);
                self.count_if(!listed, Counter::ListedOutsideDump);
            }
            Input::ListedRoute(route) => {
                let listed = self.routing.list_route(route);
                self.count_if(!listed, Counter::ListedOutsideDump);
            }
            Input::RoutesDone => match self.routing.finish() {
                Some(is_new) => self.routes_done(now, is_new),
                None => self.counters.count(Counter::ListedOutsideDump),
            },
            Input::RoutesTooMany => {
                let is_new = self.routing.set_unknown(NoWayBack::TooMany);
                self.routes_done(now, is_new);
            }
            Input::Neighbour(entry) => self.neighbours.set(now, entry, &mut self.counters),
            Input::NeighbourGone(ifindex, address) => self.neighbours.remove(ifindex, address),
            Input::NeighboursStarted => self.neighbours.start_dump(now),
            Input::ListedNeighbour(entry) => self.neighbours.list(entry, &mut self.counters),
            Input::NeighboursDone => self.neighbours.finish_dump(now, &mut self.counters),
            Input::DumpFailed(Subject::Node) => {
                self.reads_addresses = true;
                self.reread.failed(now);
            }
            Input::DumpFailed(Subject::Routes) => self.reread_routes.failed(now),
            Input::DumpFailed(Subject::Neighbours) => self.neighbours.dump_failed(now),
        }
    }

    /// Performs all actions that are due. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.reread.handle_timeout(now) {
            self.counters.count(Counter::DumpsOverdue);
            self.reads_addresses = true;
        }
        if self.reread_routes.handle_timeout(now) {
            self.counters.count(Counter::RouteDumpsOverdue);
            self.serving_due |= self.routing.set_unknown(NoWayBack::Unknown);
            self.routes_confirmed = RoutesConfirmed::Unknown;
        }
        self.neighbours.handle_timeout(now, &mut self.counters);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next. Before the first dump, this time
    /// is in the past.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.reread.due().min(self.reread_routes.due());
        Some(self.neighbours.due().map_or(due, |of_neighbours| of_neighbours.min(due)))
    }

    /// The next request to rtnetlink.
    pub fn poll_transmit(&mut self) -> Option<Request> {
        if self.reread.poll_request() {
            let all = Request::Dump(Subject::Node);
            return Some(if self.reads_addresses { all } else { Request::Links });
        }
        if self.reread_routes.poll_request() {
            return Some(Request::Dump(Subject::Routes));
        }
        self.neighbours.poll_request()
    }

    /// The next change of a fact. Several changes of one fact between two calls are reported as
    /// one, or not at all if the fact is as reported before.
    ///
    /// Changes of addresses come first, then routes, neighbours and interfaces. Only addresses are
    /// reported before the first dump of routes is done or overdue.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.facts.poll_event() {
            return Some(event);
        }
        self.note_answering();
        // A daemon that has just started keeps the entries of its predecessor until it knows the
        // routes.
        if self.routes_confirmed != RoutesConfirmed::NotYet
            && core::mem::take(&mut self.serving_due)
        {
            self.decide_served();
        }
        if let Some(change) = self.routes_back.poll() {
            return Some(match change {
                Ok(route) => Event::Route(route),
                Err((ifindex, prefix)) => Event::NoRoute(ifindex, prefix),
            });
        }
        if let Some(change) = self.neighbours.poll() {
            return Some(match change {
                Ok(neighbour) => Event::Neighbour(neighbour),
                Err((ifindex, address)) => Event::NoNeighbour(ifindex, address),
            });
        }
        self.serving.poll().map(|change| match change {
            Change::Served(served) => Event::Served(served),
            Change::NotServed(ifindex) => Event::NotServed(ifindex),
        })
    }

    /// Every address that is ours, in order.
    pub fn owned(&self) -> impl Iterator<Item = Owned> {
        self.facts.owned()
    }

    /// Every served interface, as of the last [`poll_event`](Self::poll_event).
    pub fn served(&self) -> impl Iterator<Item = &ServedInterface> {
        self.serving.iter()
    }

    /// The routes of the served interfaces, as of the last [`poll_event`](Self::poll_event).
    pub fn routes_back(&self) -> impl Iterator<Item = RouteBack> {
        self.routes_back.iter()
    }

    /// How policy rules may divert datagrams of a daemon with the id of `user` and this UDP port.
    pub fn diverted(&self, user: u32, port: NonZeroU16) -> Vec<Diverted> {
        self.routing.diverted(user, port)
    }

    /// The neighbours that can be sent to, on the followed interfaces.
    pub fn neighbours(&self) -> impl Iterator<Item = neighbours::Neighbour> {
        self.neighbours.iter()
    }

    /// The IPoIB interface with the lowest index, whatever the filter says. It must have a GID: a
    /// tunnel can have the same type, but all its IPv4 neighbours are one (`arp_constructor`).
    pub fn first_ipoib(&self) -> Option<&Link> {
        self.inventory.links().find(|link| link.own_gid().is_some())
    }

    /// Whether there is an IPoIB interface, or one may be found by the first dump.
    pub fn may_have_ipoib(&self) -> bool {
        !self.is_synced() || self.first_ipoib().is_some()
    }

    /// Configured names and globs that match no interface now.
    pub fn unmatched_patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.config.interfaces.patterns().filter(|pattern| {
            !self.inventory.links().any(|link| pattern.matches(&link.name, &link.altnames))
        })
    }

    /// Addresses with different GIDs on several interfaces; one of the GIDs is answered.
    pub fn contested(&self) -> impl Iterator<Item = IpAddr> {
        self.contested.iter().copied()
    }

    /// Whether a first dump is done: before that, any other address may turn out to be ours.
    pub fn is_synced(&self) -> bool {
        self.confirmed_at.is_some()
    }

    /// When the last dumps took effect: at that time the view contained the whole state of the
    /// kernel, except for unknown routes and neighbours. `None` until the first dump of routes, and
    /// of neighbours if they are wanted, is done or overdue.
    pub fn confirmed_at(&self) -> Option<Instant> {
        if !self.neighbours.is_settled() && self.config.neighbours.anywhere() {
            return None;
        }
        let confirmed_at = self.confirmed_at?;
        match self.routes_confirmed {
            RoutesConfirmed::NotYet => None,
            RoutesConfirmed::At(at) => Some(confirmed_at.min(at)),
            RoutesConfirmed::Unknown => Some(confirmed_at),
        }
    }

    /// The counters since the start.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// Replaces the configuration.
    pub fn reconfigure(&mut self, config: Config) {
        self.config = config;
        self.changed
            .get_or_insert_default()
            .extend(self.inventory.links().map(|link| link.ifindex));
        self.decide_all();
    }

    /// Whether an event means, perhaps with others that the kernel does not send, that routes are to be read again.
    fn may_change_routes(&self, input: &Input) -> bool {
        match input {
            Input::RoutesChanged => true,
            Input::Address(InterfaceAddress { id, .. }) | Input::AddressGone(id) => {
                self.inventory.is_only_ipv4(id)
            }
            Input::OwnRouteGone(address) => self.routing.may_need((*address).into()),
            _ => false,
        }
    }

    fn finish_dump(&mut self, now: Instant) {
        match self.inventory.finish_dump(&mut self.counters) {
            Merged::Done { links, addresses } => {
                self.serving_due |= !links.is_empty();
                self.addresses_listed(now, addresses, !links.is_empty());
                for ifindex in links {
                    self.note(ifindex);
                    self.decide_link(ifindex);
                }
            }
            Merged::Spoiled => {
                self.counters.count(Counter::DumpsSpoiled);
                self.reads_addresses = true;
                self.reread.wanted(now);
            }
            Merged::None => {
                self.counters.count(Counter::ListedOutsideDump);
                return;
            }
        }
        self.reread.done(now);
    }

    fn addresses_listed(&mut self, now: Instant, listed: Listed, links_differ: bool) {
        if listed != Listed::Nothing && self.is_synced() {
            self.reread_routes.wanted(now);
        }
        let changed = match listed {
            Listed::Nothing => {
                self.counters.count(Counter::LinkDumpsDone);
                self.reads_addresses |= links_differ;
                if self.reads_addresses {
                    return self.reread.wanted(now);
                }
                Vec::new()
            }
            Listed::All(changed) => {
                self.counters.count(Counter::DumpsDone);
                changed
            }
            Listed::Some(changed) => {
                self.counters.count(Counter::DumpsDone);
                self.reads_addresses = true;
                changed
            }
        };
        self.confirmed_at = Some(now);
        for id in changed {
            self.note(id.ifindex);
            self.decide(Key::new(id.address, id.ifindex));
        }
    }

    /// The routes are known now, or known to exceed the limit.
    fn routes_done(&mut self, now: Instant, is_new: bool) {
        self.serving_due |= is_new;
        if self.routing.is_full() {
            self.counters.count(Counter::RoutesTooMany);
            self.routes_confirmed = RoutesConfirmed::Unknown;
            self.reread_routes.pause(now);
        } else {
            self.counters.count(Counter::RouteDumpsDone);
            self.routes_confirmed = RoutesConfirmed::At(now);
            self.reread_routes.done(now);
        }
    }

    fn link_changed(&mut self, now: Instant, ifindex: IfIndex) {
        self.decide_link(ifindex);
        self.serving_due = true;
        self.reread.wanted(now);
        self.reread_routes.wanted(now);
    }

    /// An interface may have got the first address with a GID, or lost the last.
    fn note_answering(&mut self) {
        if let Some(changed) = self.facts.take_answering_changed() {
            self.serving_due = true;
            self.changed.get_or_insert_default().extend(changed);
        }
    }

    fn note(&mut self, ifindex: IfIndex) {
        self.changed.get_or_insert_default().insert(ifindex);
    }

    fn count_if(&mut self, condition: bool, counter: Counter) {
        if condition {
            self.counters.count(counter);
        }
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

    /// Decides everything that may depend on a link: its own addresses, and those of a bond whose
    /// active slave it is.
    fn decide_link(&mut self, ifindex: IfIndex) {
        let keys: BTreeSet<_> = core::iter::once(ifindex)
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

    /// Takes time proportional to the number of links and routes, not of addresses.
    fn decide_served(&mut self) {
        let links: Vec<_> = self
            .inventory
            .links()
            .filter(|link| link.up && !matches!(link.bonding, Bonding::Slave { .. }))
            .filter(|link| {
                self.config.interfaces.selects(link) || self.facts.is_answering(link.ifindex)
            })
            .filter_map(|link| Some((link, link.header()?)))
            .collect();
        let outside = links.iter().filter(|(link, _)| link.vrf.is_none());
        let decided = self.routing.decide(&outside.map(|(link, _)| link.ifindex).collect());
        let served = links.into_iter().map(|(link, header)| {
            let way_back = decided.ways_back.get(&link.ifindex).copied();
            let [ipv4, ipv6] = way_back.unwrap_or([WayBack::None(NoWayBack::Vrf); 2]);
            let Link { ifindex, name, altnames, hwaddr, .. } = *link;
            let vrf = link.vrf.and_then(|vrf| Some(self.inventory.link(vrf)?.name));
            (ifindex, ServedInterface { ifindex, name, altnames, vrf, header, hwaddr, ipv4, ipv6 })
        });
        let served: BTreeMap<_, _> = served.collect();
        let wants = |served: &&ServedInterface| {
            served.header == LinkHeader::Ipoib && self.config.neighbours.includes(served)
        };
        let followed = served.values().filter(wants).map(|served| served.ifindex).collect();
        self.serving.set(served);
        self.routes_back.set(decided.routes);
        self.neighbours.follow(followed);
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
        // No other GID of the port: the kernel refuses connections to it (`ipoib_match_gid_pkey_addr`).
        bearer.and_then(Link::own_gid).ok_or(NotServed::NoGid)
    }
}
