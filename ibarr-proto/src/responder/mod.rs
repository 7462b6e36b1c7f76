// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The rules of the BPF responder: when programs may answer, what their maps hold, and on which
//! interfaces they are attached. The driver carries out the changes.

mod allow;
mod elements;
mod maps;
mod routes;
mod settings;
#[cfg(test)]
mod tests;
mod work;

use alloc::borrow::ToOwned as _;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use core::time::Duration;

use hashbrown::HashMap;
use ibarr_common::map::ResponderCfg;
use ibarr_common::{IfIndex, Instant};

pub use self::maps::{AllowKey, Fault, Held, MapUpdate, Maps, RouteKey};
pub use self::settings::{Counter, Settings};
pub use self::work::{Attacher, Done, Hook, Mode, Work};
use self::work::{Outcome, Wanted, Wish};
use crate::counters::Counters;
use crate::hash::Fixed;
use crate::ip2gid::Prefixes;
use crate::local_view::{Event as Fact, InterfaceName, LocalView, Served};
use crate::retry::Repair;

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
        match fact {
            Fact::Served(served) => self.serve(served),
            Fact::NotServed(ifindex) => drop(self.interfaces.remove(ifindex)),
            _ => {}
        }
        if let Fact::Served(_) | Fact::NotServed(_) = fact {
            self.need = Need::All;
        }
        // Otherwise all maps will be filled from the view.
        if (self.consistent || self.due.is_none())
            && let Err(fault) = maps.update(&elements::update(fact))
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
        let entries = view.owned().map(|owned| elements::entry(&owned));
        let entries: HashMap<_, _, Fixed> = entries.map(|entry| (entry.key, entry)).collect();
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
        let neighbours = view.neighbours().map(|there| elements::next_hop(&there));
        let neighbours: HashMap<_, _, Fixed> = neighbours.collect();
        for key in held.neighbours.iter().filter(|key| !neighbours.contains_key(*key)) {
            maps.update(&MapUpdate::NoNeighbour(*key))?;
        }
        for (key, neighbour) in neighbours {
            maps.update(&MapUpdate::Neighbour(key, neighbour))?;
        }
        for slot in self.interfaces.values() {
            maps.update(&elements::update(&Fact::Served(slot.served)))?;
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
