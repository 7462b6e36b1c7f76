// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The rules of the BPF responder: when programs may answer, what their maps hold, and on which
//! interfaces they are attached.
//!
//! **An event of the view is in the maps before its turn ends, or no program answers.** The node
//! passes each event on and hands out its [`MapUpdate`] in the same drain; the driver reports the
//! result before it takes the next output, and a failed write ends the lease as that next output.

mod allow;
mod elements;
mod life;
mod maps;
mod routes;
mod settings;
#[cfg(test)]
mod tests;
mod types;
mod work;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use core::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use ibarr_common::map::ResponderCfg;
use ibarr_common::{IfIndex, Instant};

use self::life::Life;
pub use self::life::{Blocked, Done, Kind, NotLoaded, Order};
pub use self::maps::{AllowKey, MapElements, MapUpdate, RouteKey};
pub use self::settings::{Counter, Settings};
pub use self::types::{Event, Input, Output, State};
use self::work::{Attachment, Outcome, Version};
pub use self::work::{Hook, Mode, Step, Work, WorkResult};
use crate::Fault;
use crate::counters::Counters;
use crate::ip2gid::Prefixes;
use crate::local_view::{Event as Fact, LocalView, ServedInterface};
use crate::retry::Repair;

/// Keeps programs and maps equal to the local view.
///
/// **Programs answer only what the view has said within the lease.** The lease is written only when
/// all maps are equal to the view, and is revoked as soon as a map cannot be written. It is counted
/// from the last dump of this node's addresses, not from the end of the daemon.
///
/// It hands out changes of programs as [`Order`]s, one at a time; another thread executes each, and later
/// changes go into the next.
#[derive(Debug, Default)]
pub struct Responder {
    settings: Settings,
    allow: Prefixes,
    life: Life,
    interfaces: BTreeMap<IfIndex, Slot>,
    /// The last version that an interface has.
    version: Version,
    maps: Maps,
    /// Updates that the driver has yet to take.
    updates: VecDeque<MapUpdate>,
    /// The update whose result is awaited.
    writing: Writing,
    /// The lease has to be revoked before anything else.
    revokes: bool,
    /// The lease has to be renewed when all updates are done: the time now, and that of the last dump.
    renewal: Option<(Instant, Instant)>,
    need: WorkDue,
    /// The driver has to close the maps.
    closes: bool,
    /// The dump of the view after which the attachments were last checked.
    looked_after: Option<Instant>,
    /// The lease cannot be revoked, so the programs have to be detached.
    gives_up: bool,
    fault: Option<Fault>,
    /// `None` until the view knows this node.
    due: Option<Instant>,
    /// What the map of settings holds, as far as this daemon has written it.
    cfg: ResponderCfg,
    counters: Counters<Counter>,
    events: VecDeque<Event>,
}

/// An interface that is served.
#[derive(Clone, Debug)]
struct Slot {
    served: ServedInterface,
    state: State,
    version: Version,
    repair: Repair,
    /// When a program that others have removed is attached again.
    repair_at: Option<Instant>,
}

/// How far the maps are equal to the view.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Maps {
    #[default]
    Closed,
    Unequal,
    /// Their keys are awaited.
    Reading,
    /// The updates that make them equal are on their way.
    Filling,
    Equal,
}

/// An update that the driver carries out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Writing {
    #[default]
    Element,
    Cfg(ResponderCfg),
    Lease(ResponderCfg),
    Revocation,
}

/// The pending work on programs.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
enum WorkDue {
    #[default]
    Nothing,
    /// Check whether others have removed a program.
    Look,
    /// Attach and detach: the attachments may differ from what is wanted.
    All,
}

/// The reason given during the pauses of a [`Repair`].
const AGAIN: &str =
    "another program removes ours again and again; it is attached again after a while";

/// How long to wait before a failure is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How long the view is trusted after a dump, if the lease is shorter. The view is dumped every few
/// seconds.
const TRUST: Duration = Duration::from_secs(15);

impl Responder {
    /// Loads the programs, if `settings` want any.
    pub fn new(settings: Settings, allow: Prefixes) -> Self {
        Self { settings, allow, ..Self::default() }
    }

    fn changed(&mut self, fact: &Fact) {
        if self.maps == Maps::Closed {
            return;
        }
        match fact {
            Fact::Served(served) => self.serve(served),
            Fact::NotServed(ifindex) => drop(self.interfaces.remove(ifindex)),
            _ => {}
        }
        if let Fact::Served(_) | Fact::NotServed(_) = fact {
            self.need = WorkDue::All;
        }
        // Otherwise all maps will be filled from the view.
        if matches!(self.maps, Maps::Filling | Maps::Equal) || self.due.is_none() {
            self.updates.push_back(elements::update(fact));
        }
    }

    /// Handles a report of the driver; all changes of `view` were inputs before.
    pub fn handle_input(&mut self, now: Instant, view: &LocalView, input: Input) {
        match input {
            Input::Fact(fact) => self.changed(&fact),
            Input::Opened if self.settings.want_kernel() => self.maps = Maps::Unequal,
            // The settings have changed meanwhile.
            Input::Opened => self.closes = true,
            Input::MapDone(Ok(())) => self.written(now),
            Input::MapDone(Err(fault)) => self.not_written(now, view, fault),
            Input::Keys(Ok(held)) => {
                self.maps = Maps::Filling;
                self.fill(view, &held);
            }
            Input::Keys(Err(fault)) => self.fail(now, fault),
            Input::Done(done) => self.handle_done(now, done),
            Input::Report(on) => self.life.reporting.want(on),
        }
    }

    fn handle_done(&mut self, now: Instant, done: Done) {
        self.life.is_busy = false;
        match done {
            Done::Opened(Ok(private_pins)) => {
                let news = self.life.loaded(private_pins, self.maps != Maps::Closed);
                self.events.extend(news.map(Event::PrivatePins));
            }
            Done::Opened(Err(why)) => self.not_loaded(now, why),
            Done::Closed => self.life.generation += 1,
            Done::Arranged(done) => {
                self.life.reporting.may_be_attached &= self.life.reporting.is_ordered;
                self.arranged(now, done);
            }
            Done::Lost(why) => {
                self.counters.count(Counter::Lost);
                self.not_loaded(now, why);
            }
            Done::Reporting(done) => {
                if let Err(fault) = done {
                    self.life.reporting.failure = Some(fault);
                }
                // The guards change with the programs.
                self.life.generation += 1;
                self.need = self.need.max(WorkDue::Look);
            }
        }
    }

    fn not_loaded(&mut self, now: Instant, why: NotLoaded) {
        self.close();
        let fault = why.fault.clone();
        if self.life.not_loaded(now, why) {
            self.counters.count(Counter::NotLoaded);
            self.events.push_back(Event::Silent(fault));
        }
    }

    /// Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant, view: &LocalView) {
        self.life.handle_timeout(now);
        let Some(confirmed_at) = view.confirmed_at() else { return };
        if self.maps == Maps::Closed {
            return;
        }
        self.repair(now);
        // Check every few seconds, and after link events: a link can be detached, and an interface
        // can be replaced under the same index before we hear of its removal.
        if self.looked_after.replace(confirmed_at) != Some(confirmed_at) {
            self.need = self.need.max(WorkDue::Look);
        }
        if self.due.is_none_or(|due| due <= now) {
            self.due = Some(now);
            self.renewal = Some((now, confirmed_at));
        }
    }

    /// The next update of the maps because of what was handled.
    pub fn poll_update(&mut self) -> Option<Output> {
        if core::mem::take(&mut self.closes) {
            return Some(Output::Close);
        }
        // Programs must not answer from maps that may be wrong.
        if core::mem::take(&mut self.revokes) {
            self.writing = Writing::Revocation;
            return Some(Output::Map(MapUpdate::Cfg(ResponderCfg::default())));
        }
        let update = self.updates.pop_front()?;
        self.writing = match update {
            MapUpdate::Cfg(cfg) => Writing::Cfg(cfg),
            _ => Writing::Element,
        };
        Some(Output::Map(update))
    }

    /// The next action, if all changes of the view were handled.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some(update) = self.poll_update() {
            return Some(update);
        }
        if self.maps == Maps::Unequal && self.renewal.is_some() {
            self.maps = Maps::Reading;
            return Some(Output::Keys);
        }
        if let Some((now, confirmed_at)) = self.renewal.take() {
            if self.maps == Maps::Filling {
                self.maps = Maps::Equal;
                self.gives_up = false;
                self.fault = None;
                self.updates = VecDeque::new();
            }
            if let Some(cfg) = self.next_lease(now, confirmed_at) {
                self.writing = Writing::Lease(cfg);
                return Some(Output::Map(MapUpdate::Cfg(cfg)));
            }
        }
        if let Some(event) = self.events.pop_front() {
            return Some(Output::Event(event));
        }
        self.poll_order().map(Output::Program)
    }

    fn poll_order(&mut self) -> Option<Order> {
        if self.life.is_busy {
            return None;
        }
        let order = match self.life.poll_order(self.settings.want_kernel()) {
            Some(order) => order,
            None => Order::Arrange(self.poll_work()?),
        };
        self.life.is_busy = true;
        Some(order)
    }

    fn poll_work(&mut self) -> Option<Work> {
        if !self.wants_work() {
            return None;
        }
        let need = core::mem::replace(&mut self.need, WorkDue::Nothing);
        if core::mem::take(&mut self.gives_up) {
            return Some(Work::default());
        }
        let mut work = Work::default();
        for slot in self.interfaces.values_mut().filter(|slot| slot.repair_at.is_none()) {
            let hooks = self.settings.mode_on(&slot.served).hooks(slot.served.header);
            if hooks.is_empty() {
                slot.state = State::Unwanted;
                continue;
            }
            let attached = match slot.state {
                State::Attached(hook) => Some(hook),
                _ => None,
            };
            if need == WorkDue::Look && attached.is_none() {
                continue;
            }
            let Slot { served, version, .. } = *slot;
            work.wanted.push(Attachment { served, version, hooks, attached });
        }
        Some(work)
    }

    fn wants_work(&self) -> bool {
        // A program without a lease answers nothing, and may replace one that does.
        let is_leased = self.maps == Maps::Equal && self.cfg.lease_end > 0;
        self.gives_up || self.need > WorkDue::Nothing && is_leased
    }

    fn arranged(&mut self, now: Instant, done: WorkResult) {
        for (ifindex, version, outcome) in done.interfaces {
            match self.interfaces.get_mut(&ifindex) {
                Some(slot) if slot.version == version => {
                    note(now, slot, outcome, &mut self.counters, &mut self.events);
                }
                // Another version is wanted meanwhile, so there is new work.
                _ => {}
            }
        }
        self.repair(now);
        if let Err(fault) = done.settled {
            self.events.push_back(Event::NotSettled(fault));
            self.due = self.due.map(|due| due.min(now + RETRY));
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next, besides after every event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.life.wants_order() {
            return Some(Instant::BOOT);
        }
        let repairs = self.interfaces.values().filter_map(|slot| slot.repair_at);
        repairs.chain(self.due).chain(self.life.poll_timeout()).min()
    }

    /// Takes new settings of the administrator.
    pub fn reconfigure(&mut self, now: Instant, settings: Settings, allow: Prefixes) {
        let old = core::mem::replace(&mut self.allow, allow);
        if self.maps == Maps::Closed || !settings.want_kernel() {
            self.settings = settings;
            self.close();
            return self.life.restart();
        }
        if self.maps == Maps::Equal {
            let allow = old.iter().map(allow::key).collect();
            self.change_allow(&MapElements { allow, cfg: self.cfg, ..MapElements::default() });
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

    /// How long a lease is.
    pub fn lease(&self) -> Duration {
        self.settings.lease
    }

    /// The directory of the pins, if they last only as long as the mount namespace of the daemon.
    pub fn private_pins(&self) -> Option<&String> {
        self.life.private_pins.as_ref()
    }

    /// Why the programs answer nothing at all.
    pub fn blocked(&self) -> Option<Blocked> {
        self.life.blocked().or_else(|| self.fault.clone().map(Blocked::Fault))
    }

    /// Whether all decisions have taken effect, or have failed.
    pub fn is_settled(&self) -> bool {
        !(self.life.is_busy || self.life.wants_change() || self.wants_work())
    }

    /// Changes when each socket of the port has to be guarded again.
    pub fn generation(&self) -> u32 {
        self.life.generation
    }

    /// What [`Input::Report`] said last.
    pub fn wants_packets(&self) -> bool {
        self.life.reporting.is_wanted
    }

    /// Whether programs that report packets may be attached.
    pub fn is_reporting(&self) -> bool {
        self.life.reporting.may_be_attached
    }

    /// Whether all programs report their packets, or why they do not; `None` until this is known.
    pub fn reporting(&self) -> Option<Result<(), Blocked>> {
        let reporting = &self.life.reporting;
        let failure = self.life.absent().or(reporting.failure.clone().map(Blocked::Fault));
        failure.map(Err).or((reporting.is_ordered && self.is_settled()).then_some(Ok(())))
    }

    /// When the programs stop answering, unless the lease is renewed.
    pub fn lease_end(&self) -> Instant {
        Instant::from_nanos(self.cfg.lease_end)
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// Makes the maps equal to the view; stale elements are removed first.
    fn fill(&mut self, view: &LocalView, held: &MapElements) {
        for served in view.served() {
            self.serve(served);
        }
        let owned = view.owned().map(|owned| elements::entry(&owned));
        let owned: HashMap<_, _, FixedState> = owned.map(|entry| (entry.key, entry)).collect();
        let next_hops = view.neighbours().map(|there| elements::next_hop(&there));
        let next_hops: HashMap<_, _, FixedState> = next_hops.collect();
        let served =
            self.interfaces.values().map(|slot| elements::update(&Fact::Served(slot.served)));

        let stale = held.addresses.iter().filter(|key| !owned.contains_key(*key));
        self.updates.extend(stale.map(|key| MapUpdate::NoAddress(*key)));
        let stale = held.interfaces.iter().filter(|index| !self.interfaces.contains_key(index));
        self.updates.extend(stale.map(|ifindex| MapUpdate::NoInterface(*ifindex)));
        self.updates.extend(owned.into_values().map(MapUpdate::Address));
        self.updates.extend(routes::change(held, view.routes_back()));
        let stale = held.neighbours.iter().filter(|key| !next_hops.contains_key(*key));
        self.updates.extend(stale.map(|key| MapUpdate::NoNeighbour(*key)));
        self.updates.extend(next_hops.into_iter().map(|(key, at)| MapUpdate::Neighbour(key, at)));
        self.updates.extend(served);
        self.change_allow(held);
    }

    fn change_allow(&mut self, held: &MapElements) {
        self.updates.extend(allow::change(held, &self.allow));
    }

    /// `None` if the lease stays as it is.
    fn next_lease(&mut self, now: Instant, confirmed_at: Instant) -> Option<ResponderCfg> {
        let lease = self.settings.lease;
        let end = (now + lease).min(confirmed_at + lease.max(TRUST));
        if end <= now {
            self.counters.count(Counter::LeaseWithheld);
            self.events.push_back(Event::Withheld);
            self.due = Some(now + RETRY);
            return None;
        }
        let restrict = self.allow.iter().next().is_some();
        Some(ResponderCfg {
            lease_end: end.as_nanos(),
            switches: if restrict { ResponderCfg::RESTRICT } else { 0 },
            udp_port: self.settings.udp_port.get(),
            reserved: 0,
        })
    }

    fn written(&mut self, now: Instant) {
        match self.writing {
            Writing::Element | Writing::Revocation => {}
            Writing::Cfg(cfg) => self.cfg = cfg,
            Writing::Lease(cfg) => {
                self.cfg = cfg;
                self.counters.count(Counter::LeaseRenewals);
                self.due = Some(now + self.settings.lease / 3);
                // An earlier failure may succeed now.
                self.need = WorkDue::All;
            }
        }
    }

    fn not_written(&mut self, now: Instant, view: &LocalView, fault: Fault) {
        if self.writing == Writing::Revocation {
            // The programs cannot be told to stop, so they must be detached.
            self.events.push_back(Event::Detaches(fault));
            self.gives_up = true;
            self.want_all_anew();
            return;
        }
        let is_of_an_event = self.maps == Maps::Equal && !matches!(self.writing, Writing::Lease(_));
        self.fail(now, fault);
        // All maps are filled from the view in this turn.
        self.renewal = view.confirmed_at().filter(|_| is_of_an_event).map(|at| (now, at));
    }

    /// Revokes the lease: the maps may be wrong.
    fn fail(&mut self, now: Instant, fault: Fault) {
        self.counters.count(Counter::Faults);
        if self.fault.as_ref() != Some(&fault) {
            self.events.push_back(Event::Silent(fault.clone()));
        }
        self.fault = Some(fault);
        self.maps = Maps::Unequal;
        self.updates.clear();
        self.revokes = true;
        self.renewal = None;
        self.cfg = ResponderCfg::default();
        self.due = self.due.map(|_| now + RETRY);
    }

    /// Begins anew, with the counters.
    fn close(&mut self) {
        let closes = self.closes || self.maps != Maps::Closed;
        let Self { settings, allow, life, version, counters, events, .. } = core::mem::take(self);
        *self =
            Self { settings, allow, life, version, closes, counters, events, ..Self::default() };
    }

    fn serve(&mut self, served: &ServedInterface) {
        let slot = self.interfaces.entry(served.ifindex).or_insert_with(|| {
            self.version.0 += 1;
            let (served, version) = (*served, self.version);
            let (state, repair, repair_at) = (State::Pending, Repair::default(), None);
            Slot { served, state, version, repair, repair_at }
        });
        if (slot.served.name, slot.served.altnames) != (served.name, served.altnames) {
            // The choice of hooks may depend on the settings.
            self.version.0 += 1;
            (slot.state, slot.version) = (State::Pending, self.version);
        }
        slot.served = *served;
    }

    /// Has programs attached again whose pause is over.
    fn repair(&mut self, now: Instant) {
        for slot in self.interfaces.values_mut() {
            if slot.repair_at.take_if(|at| *at <= now).is_some() {
                self.need = WorkDue::All;
            }
        }
    }

    fn want_all_anew(&mut self) {
        for slot in self.interfaces.values_mut() {
            slot.repair_at = None;
            self.version.0 += 1;
            (slot.state, slot.version) = (State::Pending, self.version);
        }
        self.need = WorkDue::All;
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
            slot.state = if due > now { State::Failed(Fault::new(AGAIN)) } else { State::Pending };
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
