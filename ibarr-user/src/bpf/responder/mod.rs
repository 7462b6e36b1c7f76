// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ibarr_common::map::{GidEntry, GidKey, Interface, Neighbour, NeighbourKey, ResponderCfg};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::counters::Counters;
use ibarr_proto::ip2gid::Prefixes;
use ibarr_proto::local_view::neighbours;
use ibarr_proto::local_view::routing::WayBack;
use ibarr_proto::local_view::{
    Event, InterfaceName, LinkHeader, LocalView, Owned, Pattern, Served,
};
use tracing::{debug, info, warn};

use super::kernel::{Hook, Kernel, MapUpdate};
use super::work::{Done, Now, Outcome, Wanted, Wish, Work};
use super::{Error, allow, routes};
use crate::causes::chain;
use crate::logging::ids;

/// The administrator's settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The programs to use.
    pub mode: Mode,
    /// Exceptions for some interfaces; the first matching pattern decides.
    pub on: Vec<(Pattern, Mode)>,
    /// How long programs answer without the daemon.
    pub lease: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { mode: Mode::default(), on: Vec::new(), lease: Duration::from_mins(1) }
    }
}

impl Settings {
    /// Whether programs are to answer on any interface.
    pub(crate) fn want_kernel(&self) -> bool {
        let mut modes = self.on.iter().map(|(_, mode)| mode);
        self.mode != Mode::User || modes.any(|mode| *mode != Mode::User)
    }

    /// On which interfaces the view has to know neighbours: where XDP answers. The program needs
    /// them only on IPoIB, and the view follows no others.
    pub(crate) fn wants_neighbours(&self) -> neighbours::Wanted {
        let is_xdp = |mode: Mode| mode.hooks(LinkHeader::Ipoib).contains(&Hook::XdpGeneric);
        neighbours::Wanted {
            on: self.on.iter().map(|(pattern, mode)| (pattern.clone(), is_xdp(*mode))).collect(),
            otherwise: is_xdp(self.mode),
        }
    }

    fn mode_on(&self, interface: InterfaceName) -> Mode {
        let found = self.on.iter().find(|(pattern, _)| pattern.matches(&interface));
        found.map_or(self.mode, |(_, mode)| *mode)
    }
}

/// The kind of program to attach.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// The best that the kernel has: tc ingress.
    #[default]
    Auto,
    /// tc ingress, by a link or a filter.
    Tc,
    /// tc ingress by a filter.
    Clsact,
    /// XDP: in the driver on Ethernet, in the stack on IPoIB, whose drivers have none.
    Xdp,
    /// XDP in the stack.
    XdpGeneric,
    /// No program: the daemon answers.
    User,
}

impl Mode {
    /// The hooks to try, the best first.
    const fn hooks(self, header: LinkHeader) -> &'static [Hook] {
        match (self, header) {
            (Self::Auto | Self::Tc, _) => &[Hook::Tcx, Hook::Clsact],
            (Self::Clsact, _) => &[Hook::Clsact],
            (Self::Xdp, LinkHeader::Ethernet) => &[Hook::XdpNative],
            (Self::Xdp, LinkHeader::Ipoib) | (Self::XdpGeneric, _) => &[Hook::XdpGeneric],
            (Self::User, _) => &[],
        }
    }
}

ibarr_proto::counters! {
    /// Counters of the BPF responder.
    pub enum Counter {
        /// Programs that were attached, or replaced older ones.
        Attached = "attached",
        /// Programs that were attached and then found missing: another process has removed them, or
        /// the interface was replaced.
        Lost = "lost",
        /// How often the programs could not be loaded.
        NotLoaded = "not-loaded",
        /// Interfaces on which no program could be attached.
        NotAttached = "not-attached",
        /// How often a map or pin could not be changed. Programs answer nothing until all maps are
        /// correct again.
        Faults = "faults",
        /// How often the map of peers' answers could not be changed; the next daemon asks these
        /// peers again.
        MirrorFaults = "mirror-faults",
        /// How often the lease was renewed.
        LeaseRenewals = "lease-renewals",
        /// How often the lease was due but the local view was too old.
        LeaseWithheld = "lease-withheld",
    }
}

/// Keeps programs and maps equal to the local view.
///
/// **Programs answer only what the view has said within the lease.** The lease is written only when
/// all maps are equal to the view, and is revoked as soon as a map cannot be written. It is counted
/// from the last dump of this node's addresses, not from the end of the daemon.
///
/// It writes maps itself. It hands out changes of programs as [`Work`], one at a time; another
/// thread executes each, and later changes go into the next.
pub(super) struct Responder<K> {
    kernel: K,
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
    fault: Option<String>,
    /// `None` until the view knows this node.
    due: Option<Instant>,
    lease_end: Instant,
    counters: Counters<Counter>,
}

/// An interface that is served.
#[derive(Clone, Debug)]
struct Slot {
    served: Served,
    state: State,
    wish: Wish,
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
pub(super) const BY_DECISION: &str = "responder = \"user\"";

/// How long to wait before a failure is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How long the view is trusted after a dump, if the lease is shorter. The view is dumped every few
/// seconds.
const TRUST: Duration = Duration::from_secs(15);

impl<K: Kernel> Responder<K> {
    pub(super) fn new(kernel: K, settings: Settings, allow: Prefixes) -> Self {
        Self {
            kernel,
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
        }
    }

    /// Handles an event of the view. The maps are up to date when this returns.
    pub(super) fn handle_event(&mut self, event: &Event) {
        match event {
            Event::Added(owned) | Event::Changed(owned) => {
                self.update(&MapUpdate::Address(entry(owned)));
            }
            Event::Removed(owned) => self.update(&MapUpdate::NoAddress(entry(owned).key)),
            Event::Served(served) => {
                self.serve(served);
                self.update(&MapUpdate::Interface(served.ifindex, interface(served)));
                self.need = Need::All;
            }
            Event::NotServed(ifindex) => {
                self.interfaces.remove(ifindex);
                self.update(&MapUpdate::NoInterface(*ifindex));
                self.need = Need::All;
            }
            Event::Route(route) => self.update(&routes::update(*route)),
            Event::NoRoute(ifindex, prefix) => {
                self.update(&MapUpdate::NoRoute(routes::key(*ifindex, *prefix)));
            }
            Event::Neighbour(neighbour) => self.update(&next_hop(neighbour)),
            Event::NoNeighbour(ifindex, address) => {
                self.update(&MapUpdate::NoNeighbour(NeighbourKey::new(*address, *ifindex)));
            }
        }
    }

    /// Call it when all events of the view were handled. Early calls do nothing.
    pub(super) fn handle_timeout(&mut self, now: Instant, view: &LocalView) {
        let Some(confirmed_at) = view.confirmed_at() else { return };
        // Check every few seconds, and after link events: a link can be detached, and an interface
        // can be replaced under the same index before we hear of its removal.
        if self.looked_after.replace(confirmed_at) != Some(confirmed_at) {
            self.need = self.need.max(Need::Look);
        }
        if self.due.is_some_and(|due| now < due) {
            return;
        }
        if !self.consistent {
            match self.fill(view) {
                Ok(()) => {
                    self.consistent = true;
                    self.gives_up = false;
                    self.fault = None;
                }
                Err(error) => self.fail(&error),
            }
        }
        if !self.consistent || !self.renew(now, confirmed_at) {
            self.due = Some(now + RETRY);
            return;
        }
        // An earlier failure may succeed now.
        self.need = Need::All;
    }

    /// The next change of programs, if there is one. Its [`Done`] must be
    /// [reported](Self::handle_done) before the next call.
    pub(super) fn poll_work(&mut self) -> Option<Work> {
        if !self.wants_work() {
            return None;
        }
        let need = std::mem::replace(&mut self.need, Need::Nothing);
        if std::mem::take(&mut self.gives_up) {
            return Some(Work::default());
        }
        let mut work = Work::default();
        for slot in self.interfaces.values_mut() {
            let hooks = self.settings.mode_on(slot.served.name).hooks(slot.served.header);
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
    pub(super) fn wants_work(&self) -> bool {
        // A program without a lease answers nothing, and may replace one that does.
        let is_leased = self.consistent && self.lease_end > Instant::BOOT;
        self.gives_up || self.need > Need::Nothing && is_leased
    }

    /// Takes the outcome of the last work.
    pub(super) fn handle_done(&mut self, now: Instant, done: Done) {
        for (ifindex, wish, outcome) in done.interfaces {
            match self.interfaces.get_mut(&ifindex) {
                Some(slot) if slot.wish == wish => note(slot, outcome, &mut self.counters),
                // The wish has changed meanwhile, so there is new work.
                _ => {}
            }
        }
        if let Err(error) = done.settled {
            warn!("{}", chain(&error));
            self.due = self.due.map(|due| due.min(now + RETRY));
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next, besides after every event.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Takes new settings of the administrator.
    pub(super) fn reconfigure(&mut self, now: Instant, settings: Settings, allow: Prefixes) {
        self.allow = allow;
        if self.consistent
            && let Err(error) = self.change_allow()
        {
            self.fail(&error);
        }
        if (settings.mode, &settings.on) != (self.settings.mode, &self.settings.on) {
            self.want_all_anew();
        }
        self.settings = settings;
        if self.due.is_some() {
            self.due = Some(now);
        }
    }

    pub(super) fn into_kernel(self) -> K {
        self.kernel
    }

    pub(super) fn kernel(&self) -> &K {
        &self.kernel
    }

    #[cfg(test)]
    fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// The state of an interface that is served.
    pub(super) fn state(&self, ifindex: IfIndex) -> Option<&State> {
        self.interfaces.get(&ifindex).map(|slot| &slot.state)
    }

    /// Why the programs answer nothing at all.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    pub(super) fn lease_end(&self) -> Instant {
        self.lease_end
    }

    pub(super) fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    fn update(&mut self, update: &MapUpdate) {
        // Otherwise all maps will be filled from the view.
        if (self.consistent || self.due.is_none())
            && let Err(error) = self.kernel.update(update)
        {
            self.fail(&error);
        }
    }

    /// Makes the maps equal to the view; stale elements are removed first.
    fn fill(&mut self, view: &LocalView) -> Result<(), Error> {
        for served in view.served() {
            self.serve(served);
        }
        let held = self.kernel.held()?;
        let entries: HashMap<GidKey, GidEntry> =
            view.owned().map(|owned| entry(&owned)).map(|entry| (entry.key, entry)).collect();
        for key in held.addresses.iter().filter(|key| !entries.contains_key(key)) {
            self.kernel.update(&MapUpdate::NoAddress(*key))?;
        }
        for ifindex in held.interfaces.iter().filter(|index| !self.interfaces.contains_key(index)) {
            self.kernel.update(&MapUpdate::NoInterface(*ifindex))?;
        }
        for entry in entries.into_values() {
            self.kernel.update(&MapUpdate::Address(entry))?;
        }
        for update in routes::change(&held, view.routes_back()) {
            self.kernel.update(&update)?;
        }
        let neighbours: HashMap<_, _> = view
            .neighbours()
            .map(|there| (NeighbourKey::new(there.address, there.ifindex), next_hop(&there)))
            .collect();
        for key in held.neighbours.iter().filter(|key| !neighbours.contains_key(key)) {
            self.kernel.update(&MapUpdate::NoNeighbour(*key))?;
        }
        for update in neighbours.values() {
            self.kernel.update(update)?;
        }
        for (ifindex, slot) in &self.interfaces {
            self.kernel.update(&MapUpdate::Interface(*ifindex, interface(&slot.served)))?;
        }
        self.change_allow()
    }

    fn change_allow(&mut self) -> Result<(), Error> {
        let held = self.kernel.held()?;
        allow::change(&held, &self.allow).iter().try_for_each(|update| self.kernel.update(update))
    }

    /// `false` if the lease stays as it is.
    fn renew(&mut self, now: Instant, confirmed_at: Instant) -> bool {
        let lease = self.settings.lease;
        let end = (now + lease).min(confirmed_at + lease.max(TRUST));
        if end <= now {
            self.counters.count(Counter::LeaseWithheld);
            debug!("no lease: the last dump of addresses is too old");
            return false;
        }
        let restrict = self.allow.iter().next().is_some();
        let cfg = ResponderCfg {
            lease_end: end.as_nanos(),
            switches: if restrict { ResponderCfg::RESTRICT } else { 0 },
            reserved: 0,
        };
        if let Err(error) = self.kernel.update(&MapUpdate::Cfg(cfg)) {
            self.fail(&error);
            return false;
        }
        self.counters.count(Counter::LeaseRenewals);
        self.lease_end = end;
        self.due = Some(now + lease / 3);
        true
    }

    /// Revokes the lease: the maps may be wrong.
    fn fail(&mut self, error: &Error) {
        self.counters.count(Counter::Faults);
        let fault = chain(error);
        if self.fault.as_ref() != Some(&fault) {
            warn!(
                message_id = ids::USER_ANSWERS,
                cause = fault,
                "the daemon answers peers in user space: {fault}"
            );
        }
        self.fault = Some(fault);
        self.consistent = false;
        // At the end of this turn, if the view is known.
        self.due = self.due.map(|_| Instant::BOOT);
        self.lease_end = Instant::BOOT;
        let Err(error) = self.kernel.update(&MapUpdate::Cfg(ResponderCfg::default())) else {
            return;
        };
        // The programs cannot be told to stop, so they must be detached.
        warn!("detaching all: {}", chain(&error));
        self.gives_up = true;
        self.want_all_anew();
    }

    fn serve(&mut self, served: &Served) {
        let slot = self.interfaces.entry(served.ifindex).or_insert_with(|| {
            self.wish.0 += 1;
            Slot { served: *served, state: State::Pending, wish: self.wish }
        });
        if slot.served.name != served.name {
            // The choice of hooks may depend on the settings.
            self.wish.0 += 1;
            (slot.state, slot.wish) = (State::Pending, self.wish);
        }
        slot.served = *served;
    }

    fn want_all_anew(&mut self) {
        for slot in self.interfaces.values_mut() {
            self.wish.0 += 1;
            (slot.state, slot.wish) = (State::Pending, self.wish);
        }
        self.need = Need::All;
    }
}

/// Notes the outcome for one interface.
fn note(slot: &mut Slot, outcome: Outcome, counters: &mut Counters<Counter>) {
    let interface = slot.served.name;
    if outcome.lost {
        warn!(
            message_id = ids::PROGRAM_REMOVED,
            %interface,
            "the program is not attached any more: another process has removed it"
        );
        counters.count(Counter::Lost);
    }
    match outcome.now {
        Now::Kept => {}
        Now::Attached(hook) => {
            counters.count(Counter::Attached);
            info!(
                message_id = ids::KERNEL_ANSWERS,
                %interface,
                %hook,
                "peers are answered in the kernel"
            );
            slot.state = State::Attached(hook);
        }
        Now::Failed(reason) => {
            let failed = State::Failed(reason);
            if slot.state != failed
                && let State::Failed(reason) = &failed
            {
                counters.count(Counter::NotAttached);
                warn!(
                    message_id = ids::USER_ANSWERS,
                    cause = reason,
                    %interface,
                    "the daemon answers peers in user space: {reason}"
                );
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
