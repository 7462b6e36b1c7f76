// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The rules of the BPF responder: when programs may answer, what their maps hold, and on which
//! interfaces they are attached. The driver carries out the changes.

mod allow;
mod maps;
mod routes;
#[cfg(test)]
mod tests;
mod work;

use alloc::borrow::ToOwned as _;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::num::NonZeroU16;
use core::time::Duration;

use hashbrown::HashMap;
use ibarr_common::map::{GidEntry, GidKey, Interface, Neighbour, NeighbourKey, ResponderCfg};
use ibarr_common::{IfIndex, Instant};

pub use self::maps::{AllowKey, Fault, Held, MapUpdate, Maps, RouteKey};
pub use self::work::{Attacher, Done, Hook, Mode, Work};
use self::work::{Outcome, Wanted, Wish};
use crate::counters::Counters;
use crate::hash::Fixed;
use crate::ip2gid::{Prefixes, client};
use crate::local_view::neighbours;
use crate::local_view::routing::WayBack;
use crate::local_view::{
    Event as Fact, InterfaceName, LinkHeader, LocalView, Owned, Pattern, Served,
};
use crate::retry::Repair;

/// The administrator's settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The programs to use.
    pub mode: Mode,
    /// Exceptions for some interfaces; the first matching pattern decides.
    pub on: Vec<(Pattern, Mode)>,
    /// How long programs answer without the daemon.
    pub lease: Duration,
    /// The UDP port whose queries they answer.
    pub udp_port: NonZeroU16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            on: Vec::new(),
            lease: Duration::from_mins(1),
            udp_port: client::Settings::default().udp_port,
        }
    }
}

impl Settings {
    /// Whether programs are to answer on any interface.
    pub fn want_kernel(&self) -> bool {
        let mut modes = self.on.iter().map(|(_, mode)| mode);
        self.mode != Mode::User || modes.any(|mode| *mode != Mode::User)
    }

    /// On which interfaces the view has to know neighbours: where XDP answers. The program needs
    /// them only on IPoIB, and the view follows no others.
    pub fn wants_neighbours(&self) -> neighbours::Wanted {
        let is_xdp = |mode: Mode| mode.hooks(LinkHeader::Ipoib).contains(&Hook::XdpGeneric);
        neighbours::Wanted {
            on: self.on.iter().map(|(pattern, mode)| (pattern.clone(), is_xdp(*mode))).collect(),
            otherwise: is_xdp(self.mode),
        }
    }

    fn mode_on(&self, served: &Served) -> Mode {
        let names = (&served.name, &served.altnames);
        let found = self.on.iter().find(|(pattern, _)| pattern.matches(names.0, names.1));
        found.map_or(self.mode, |(_, mode)| *mode)
    }
}

crate::counters! {
    /// Counters of the BPF responder.
    pub enum Counter {
        /// Programs that were attached, or replaced older ones.
        Attached = normal("attached"),
        /// Programs that were attached and then found missing: another process has removed them, or
        /// the interface was replaced.
        Lost = error("lost"),
        /// How often the programs could not be loaded.
        NotLoaded = error("not-loaded"),
        /// Interfaces on which no program could be attached.
        NotAttached = error("not-attached"),
        /// How often a map or pin could not be changed. Programs answer nothing until all maps are
        /// correct again.
        Faults = error("faults"),
        /// How often the map of peers' answers could not be changed; the next daemon asks these
        /// peers again.
        MirrorFaults = error("mirror-faults"),
        /// How often the lease was renewed.
        LeaseRenewals = normal("lease-renewals"),
        /// How often the lease was due but the local view was too old.
        LeaseWithheld = error("lease-withheld"),
    }
}

/// Keeps programs and maps equal to the local view.
///
/// **Programs answer only what the view has said within the lease.** The lease is written only when
/// all maps are equal to the view, and is revoked as soon as a map cannot be written. It is counted
/// from the last dump of this node's addresses, not from the end of the daemon.
///
/// It writes the [`Maps`] that each call gets. It hands out changes of programs as [`Work`], one at a
/// time; another thread executes each, and later changes go into the next.
#[derive(Debug)]
pub struct Responder {
    settings: Settings,
    allow: Prefixes,
    interfaces: BTreeMap<IfIndex, Slot>,
    /// The last wish handed out.
    wish: Wish,
    /// All maps are equal to the view.
    consistent: bool,
    need: Need,
    /// The dump of the view after which the attachments were last checked.
    looked_after: Option<Instant>,
    /// The lease cannot be revoked, so the programs have to be detached.
    gives_up: bool,
    fault: Option<Fault>,
    /// `None` until the view knows this node.
    due: Option<Instant>,
    lease_end: Instant,
    counters: Counters<Counter>,
    events: VecDeque<Event>,
}

/// What an administrator may want to know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// No program answers: the maps may be wrong.
    Revoked(Fault),
    /// The lease cannot be revoked either, so all programs will be detached.
    Detaches(Fault),
    /// The lease is not renewed, because the last dump of this node's addresses is too old.
    Withheld,
    /// The program of the interface is not attached any more: another process has removed it.
    Lost(InterfaceName),
    /// A program answers on the interface.
    Attached(InterfaceName, Hook),
    /// No program can be attached to the interface, for this reason.
    NotAttached(InterfaceName, String),
    /// Old programs or maps cannot be removed.
    NotSettled(Fault),
}

/// An interface that is served.
#[derive(Clone, Debug)]
struct Slot {
    served: Served,
    state: State,
    wish: Wish,
    repair: Repair,
    /// When a program that others have removed is attached again.
    repair_at: Option<Instant>,
}

/// The pending work on programs.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Need {
    Nothing,
    /// Check whether others have removed a program.
    Look,
    /// Attach and detach: the attachments may differ from the wish.
    All,
}

/// The state of an interface that is served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// Not attached yet.
    Pending,
    /// A program is attached.
    Attached(Hook),
    /// No program could be attached, for this reason.
    Failed(String),
}

/// The reason given where no program is wanted.
pub const BY_DECISION: &str = "responder = \"user\"";

/// The reason given during the pauses of a [`Repair`].
const AGAIN: &str =
    "another program removes ours again and again; it is attached again after a while";

/// How long to wait before a failure is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How long the view is trusted after a dump, if the lease is shorter. The view is dumped every few
/// seconds.
const TRUST: Duration = Duration::from_secs(15);

impl Responder {
    /// Trusts no map until all of them were compared with the view.
    pub fn new(settings: Settings, allow: Prefixes) -> Self {
        Self {
            settings,
            allow,
            interfaces: BTreeMap::new(),
            wish: Wish::default(),
            consistent: false,
            need: Need::Nothing,
            looked_after: None,
            gives_up: false,
            fault: None,
            due: None,
            lease_end: Instant::BOOT,
            counters: Counters::default(),
            events: VecDeque::new(),
        }
    }

    /// Handles a change of the view. The maps are up to date when this returns.
    pub fn handle_fact(&mut self, fact: &Fact, maps: &mut impl Maps) {
        let update = match fact {
            Fact::Added(owned) | Fact::Changed(owned) => MapUpdate::Address(entry(owned)),
            Fact::Removed(owned) => MapUpdate::NoAddress(entry(owned).key),
            Fact::Served(served) => {
                self.serve(served);
                self.need = Need::All;
                MapUpdate::Interface(served.ifindex, interface(served))
            }
            Fact::NotServed(ifindex) => {
                self.interfaces.remove(ifindex);
                self.need = Need::All;
                MapUpdate::NoInterface(*ifindex)
            }
            Fact::Route(route) => routes::update(*route),
            Fact::NoRoute(ifindex, prefix) => MapUpdate::NoRoute(routes::key(*ifindex, *prefix)),
            Fact::Neighbour(neighbour) => next_hop(neighbour),
            Fact::NoNeighbour(ifindex, address) => {
                MapUpdate::NoNeighbour(NeighbourKey::new(*address, *ifindex))
            }
        };
        // Otherwise all maps will be filled from the view.
        if (self.consistent || self.due.is_none())
            && let Err(fault) = maps.update(&update)
        {
            self.fail(fault, maps);
        }
    }

    /// Call it when all events of the view were handled. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant, view: &LocalView, maps: &mut impl Maps) {
        let Some(confirmed_at) = view.confirmed_at() else { return };
        self.repair(now);
        // Check every few seconds, and after link events: a link can be detached, and an interface
        // can be replaced under the same index before we hear of its removal.
        if self.looked_after.replace(confirmed_at) != Some(confirmed_at) {
            self.need = self.need.max(Need::Look);
        }
        if self.due.is_some_and(|due| now < due) {
            return;
        }
        if !self.consistent {
            match self.fill(view, maps) {
                Ok(()) => {
                    self.consistent = true;
                    self.gives_up = false;
                    self.fault = None;
                }
                Err(fault) => self.fail(fault, maps),
            }
        }
        if !self.consistent || !self.renew(now, confirmed_at, maps) {
            self.due = Some(now + RETRY);
            return;
        }
        // An earlier failure may succeed now.
        self.need = Need::All;
    }

    /// The next change of programs, if there is one. Its [`Done`] must be
    /// [reported](Self::handle_done) before the next call.
    pub fn poll_work(&mut self) -> Option<Work> {
        if !self.wants_work() {
            return None;
        }
        let need = core::mem::replace(&mut self.need, Need::Nothing);
        if core::mem::take(&mut self.gives_up) {
            return Some(Work::default());
        }
        let mut work = Work::default();
        for slot in self.interfaces.values_mut().filter(|slot| slot.repair_at.is_none()) {
            let hooks = self.settings.mode_on(&slot.served).hooks(slot.served.header);
            if hooks.is_empty() {
                slot.state = State::Failed(BY_DECISION.to_owned());
                continue;
            }
            let attached = match slot.state {
                State::Attached(hook) => Some(hook),
                State::Pending | State::Failed(_) => None,
            };
            if need == Need::Look && attached.is_none() {
                continue;
            }
            work.wanted.push(Wanted { served: slot.served, wish: slot.wish, hooks, attached });
        }
        Some(work)
    }

    /// Whether [`poll_work`](Self::poll_work) has work.
    pub fn wants_work(&self) -> bool {
        // A program without a lease answers nothing, and may replace one that does.
        let is_leased = self.consistent && self.lease_end > Instant::BOOT;
        self.gives_up || self.need > Need::Nothing && is_leased
    }

    /// Takes the outcome of the last work.
    pub fn handle_done(&mut self, now: Instant, done: Done) {
        for (ifindex, wish, outcome) in done.interfaces {
            match self.interfaces.get_mut(&ifindex) {
                Some(slot) if slot.wish == wish => {
                    note(now, slot, outcome, &mut self.counters, &mut self.events);
                }
                // The wish has changed meanwhile, so there is new work.
                _ => {}
            }
        }
        self.repair(now);
        if let Err(fault) = done.settled {
            self.events.push_back(Event::NotSettled(fault));
            self.due = self.due.map(|due| due.min(now + RETRY));
        }
    }

    /// Looks at the attachments soon: another variant of the programs is wanted.
    pub fn look(&mut self) {
        self.need = self.need.max(Need::Look);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next, besides after every event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.interfaces.values().filter_map(|slot| slot.repair_at).chain(self.due).min()
    }

    /// The next event. Take all of them after each call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes new settings of the administrator.
    pub fn reconfigure(
        &mut self,
        now: Instant,
        settings: Settings,
        allow: Prefixes,
        maps: &mut impl Maps,
    ) {
        self.allow = allow;
        if self.consistent
            && let Err(fault) = self.change_allow(maps)
        {
            self.fail(fault, maps);
        }
        if (settings.mode, &settings.on) != (self.settings.mode, &self.settings.on) {
            self.want_all_anew();
        }
        self.settings = settings;
        if self.due.is_some() {
            self.due = Some(now);
        }
    }

    /// The state of an interface that is served.
    pub fn state(&self, ifindex: IfIndex) -> Option<&State> {
        self.interfaces.get(&ifindex).map(|slot| &slot.state)
    }

    /// Why the programs answer nothing at all.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_ref().map(|fault| fault.0.as_str())
    }

    /// When the programs stop answering, unless the lease is renewed.
    pub fn lease_end(&self) -> Instant {
        self.lease_end
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// Makes the maps equal to the view; stale elements are removed first.
    fn fill(&mut self, view: &LocalView, maps: &mut impl Maps) -> Result<(), Fault> {
        for served in view.served() {
            self.serve(served);
        }
        let held = maps.held()?;
        let entries: HashMap<GidKey, GidEntry, Fixed> =
            view.owned().map(|owned| entry(&owned)).map(|entry| (entry.key, entry)).collect();
        for key in held.addresses.iter().filter(|key| !entries.contains_key(*key)) {
            maps.update(&MapUpdate::NoAddress(*key))?;
        }
        for ifindex in held.interfaces.iter().filter(|index| !self.interfaces.contains_key(index)) {
            maps.update(&MapUpdate::NoInterface(*ifindex))?;
        }
        for entry in entries.into_values() {
            maps.update(&MapUpdate::Address(entry))?;
        }
        for update in routes::change(&held, view.routes_back()) {
            maps.update(&update)?;
        }
        let neighbours: HashMap<_, _, Fixed> = view
            .neighbours()
            .map(|there| (NeighbourKey::new(there.address, there.ifindex), next_hop(&there)))
            .collect();
        for key in held.neighbours.iter().filter(|key| !neighbours.contains_key(*key)) {
            maps.update(&MapUpdate::NoNeighbour(*key))?;
        }
        for update in neighbours.values() {
            maps.update(update)?;
        }
        for (ifindex, slot) in &self.interfaces {
            maps.update(&MapUpdate::Interface(*ifindex, interface(&slot.served)))?;
        }
        self.change_allow(maps)
    }

    fn change_allow(&self, maps: &mut impl Maps) -> Result<(), Fault> {
        let held = maps.held()?;
        allow::change(&held, &self.allow).iter().try_for_each(|update| maps.update(update))
    }

    /// `false` if the lease stays as it is.
    fn renew(&mut self, now: Instant, confirmed_at: Instant, maps: &mut impl Maps) -> bool {
        let lease = self.settings.lease;
        let end = (now + lease).min(confirmed_at + lease.max(TRUST));
        if end <= now {
            self.counters.count(Counter::LeaseWithheld);
            self.events.push_back(Event::Withheld);
            return false;
        }
        let restrict = self.allow.iter().next().is_some();
        let cfg = ResponderCfg {
            lease_end: end.as_nanos(),
            switches: if restrict { ResponderCfg::RESTRICT } else { 0 },
            udp_port: self.settings.udp_port.get(),
            reserved: 0,
        };
        if let Err(fault) = maps.update(&MapUpdate::Cfg(cfg)) {
            self.fail(fault, maps);
            return false;
        }
        self.counters.count(Counter::LeaseRenewals);
        self.lease_end = end;
        self.due = Some(now + lease / 3);
        true
    }

    /// Revokes the lease: the maps may be wrong.
    fn fail(&mut self, fault: Fault, maps: &mut impl Maps) {
        self.counters.count(Counter::Faults);
        if self.fault.as_ref() != Some(&fault) {
            self.events.push_back(Event::Revoked(fault.clone()));
        }
        self.fault = Some(fault);
        self.consistent = false;
        // At the end of this turn, if the view is known.
        self.due = self.due.map(|_| Instant::BOOT);
        self.lease_end = Instant::BOOT;
        let Err(fault) = maps.update(&MapUpdate::Cfg(ResponderCfg::default())) else {
            return;
        };
        // The programs cannot be told to stop, so they must be detached.
        self.events.push_back(Event::Detaches(fault));
        self.gives_up = true;
        self.want_all_anew();
    }

    fn serve(&mut self, served: &Served) {
        let slot = self.interfaces.entry(served.ifindex).or_insert_with(|| {
            self.wish.0 += 1;
            let (repair, repair_at) = (Repair::default(), None);
            Slot { served: *served, state: State::Pending, wish: self.wish, repair, repair_at }
        });
        if (slot.served.name, slot.served.altnames) != (served.name, served.altnames) {
            // The choice of hooks may depend on the settings.
            self.wish.0 += 1;
            (slot.state, slot.wish) = (State::Pending, self.wish);
        }
        slot.served = *served;
    }

    /// Has programs attached again whose pause is over.
    fn repair(&mut self, now: Instant) {
        for slot in self.interfaces.values_mut() {
            if slot.repair_at.take_if(|at| *at <= now).is_some() {
                self.need = Need::All;
            }
        }
    }

    fn want_all_anew(&mut self) {
        for slot in self.interfaces.values_mut() {
            slot.repair_at = None;
            self.wish.0 += 1;
            (slot.state, slot.wish) = (State::Pending, self.wish);
        }
        self.need = Need::All;
    }
}

/// Notes the outcome for one interface.
fn note(
    now: Instant,
    slot: &mut Slot,
    outcome: Outcome,
    counters: &mut Counters<Counter>,
    events: &mut VecDeque<Event>,
) {
    let interface = slot.served.name;
    match outcome {
        Outcome::Kept => {}
        Outcome::Lost => {
            counters.count(Counter::Lost);
            events.push_back(Event::Lost(interface));
            let due = slot.repair.schedule(now);
            slot.repair_at = Some(due);
            slot.state = if due > now { State::Failed(AGAIN.to_owned()) } else { State::Pending };
        }
        Outcome::Attached(hook) => {
            counters.count(Counter::Attached);
            events.push_back(Event::Attached(interface, hook));
            slot.state = State::Attached(hook);
        }
        Outcome::Failed(reason) => {
            let failed = State::Failed(reason.clone());
            if slot.state != failed {
                counters.count(Counter::NotAttached);
                events.push_back(Event::NotAttached(interface, reason));
            }
            slot.state = failed;
        }
    }
}

fn entry(owned: &Owned) -> GidEntry {
    let key = GidKey::new(owned.address, owned.scope.unwrap_or(owned.ifindex));
    GidEntry::new(key, owned.gid, Some(owned.ifindex), owned.origin)
}

fn next_hop(there: &neighbours::Neighbour) -> MapUpdate {
    let key = NeighbourKey::new(there.address, there.ifindex);
    MapUpdate::Neighbour(key, Neighbour::new(&key, there.hwaddr))
}

fn interface(served: &Served) -> Interface {
    let switch = |way_back, all, routed| match way_back {
        WayBack::All => all,
        WayBack::Routed => routed,
        WayBack::None(_) => 0,
    };
    let mut hwaddr = [0; _];
    hwaddr.iter_mut().zip(served.hwaddr.as_bytes()).for_each(|(to, from)| *to = *from);
    Interface {
        switches: switch(served.ipv4, Interface::ANSWER_IPV4, Interface::ROUTED_IPV4)
            | switch(served.ipv6, Interface::ANSWER_IPV6, Interface::ROUTED_IPV6),
        hwaddr,
    }
}
