// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Names of ends: which addresses they have.
//!
//! The list of the administrator comes first, then what is remembered, then the driver, which asks the system's
//! resolver and may take as long as that does.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::acm::{Address, Name, Status};

use super::hosts::folded;
use super::{Acm, Ask, Counter, End, Known, Output, Resolution, Target};
use crate::ip2gid::{Question, is_link_local};
use crate::places::Room;
use crate::request::ResolutionId;
use crate::shares::{Limits, Shares, User};

impl Acm {
    /// Finds out what the names of a search stand for, then where its path starts.
    pub(super) fn seek_ends(&mut self, now: Instant, id: ResolutionId) {
        let Some(resolution) = self.resolutions.get_mut(&id) else { return };
        let Known::Said { source, target } = &mut resolution.known else { return };
        for end in source.iter_mut().chain([target]) {
            let End::Name(name) = end else { continue };
            if let Some(gid) = self.hosts.gid_of(&Address::Name(*name)) {
                *end = End::Gid(gid);
            } else if let Some(addresses) = self.names.lookup(now, name) {
                self.counters.count(Counter::NamesFromMemory);
                *end = End::Addresses(addresses);
            }
        }
        let missing: Vec<_> = resolution.known.names().collect();
        if missing.is_empty() {
            return self.seek_source(now, id);
        }
        self.not_remembered(id);
        for name in missing {
            self.ask_for_name(now, id, name);
        }
        self.ask_for_names(now);
    }

    fn ask_for_name(&mut self, now: Instant, id: ResolutionId, name: Name) {
        let Some(resolution) = self.resolutions.get(&id) else { return };
        let Resolution { client, user, deadline, .. } = **resolution;
        if self.names.is_under_way(&name) {
            // No client waits for this search, and another search remembers the name.
            if client.is_none() {
                self.forget(id);
            } else {
                self.names.join(&name, id, user);
            }
        } else if self.names.shares.offer(now, user, (id, name), deadline).is_err() {
            self.counters.count(Counter::NamesRefused);
            self.refuse(id, Status::NoMemory);
        }
    }

    /// Has the driver resolve the names for which their users have room.
    pub(super) fn ask_for_names(&mut self, now: Instant) {
        // Their searches have the same deadline.
        while self.names.shares.poll_refused(now).is_some() {}
        while let Some((user, (id, name))) = self.names.shares.poll_admitted(now) {
            let is_first = if !self.resolutions.contains_key(&id) {
                false
            } else if let Some(addresses) = self.names.lookup(now, &name) {
                self.set_addresses(now, id, &name, Some(addresses));
                false
            } else {
                self.names.join(&name, id, user)
            };
            if is_first {
                self.counters.count(Counter::NamesAsked);
                self.outputs.push_back(Output::Resolve(name));
            } else {
                self.names.shares.ended(user);
            }
        }
    }

    /// The driver has looked a name up.
    pub(super) fn named(&mut self, now: Instant, name: Name, addresses: &[IpAddr]) {
        let addresses = Addresses::new(addresses);
        for id in self.names.land(now, &name, addresses) {
            self.set_addresses(now, id, &name, addresses);
        }
        self.ask_for_names(now);
    }

    fn set_addresses(
        &mut self,
        now: Instant,
        id: ResolutionId,
        name: &Name,
        to: Option<Addresses>,
    ) {
        let Some(resolution) = self.resolutions.get_mut(&id) else { return };
        let Known::Said { source, target } = &mut resolution.known else { return };
        let is_it = |end: &End| matches!(end, End::Name(other) if folded(other) == folded(name));
        let Some(addresses) = to else {
            let is_source = source.as_ref().is_some_and(is_it);
            let status = if is_source { Status::SourceAddress } else { Status::DestinationAddress };
            return self.refuse(id, status);
        };
        for end in source.iter_mut().chain([target]).filter(|end| is_it(end)) {
            *end = End::Addresses(addresses);
        }
        if resolution.known.names().next().is_none() {
            self.seek_source(now, id);
        }
    }

    /// Both ends are known as addresses or GIDs.
    fn seek_source(&mut self, now: Instant, id: ResolutionId) {
        let Some(resolution) = self.resolutions.get_mut(&id) else { return };
        let Known::Said { source, target } = resolution.known else { return };
        if matches!(target, End::Addresses(Addresses { first, .. }) if is_link_local(first)) {
            self.count(id, Counter::LinkLocal);
            return self.refuse(id, Status::DestinationAddress);
        }
        match (source, target) {
            (None, End::Gid(dgid)) => {
                self.seek(id, None, Some(dgid));
            }
            (Some(End::Gid(sgid)), End::Gid(dgid)) => {
                self.seek(id, Some(sgid), Some(dgid));
            }
            (None, End::Addresses(Addresses { first: target, .. })) => {
                let Some(target) = Question::new(target, None) else {
                    return self.refuse(id, Status::DestinationAddress);
                };
                resolution.known = Known::Unsourced(target);
                if let source @ Some(_) = self.sources.to(now, target) {
                    self.routed(id, source);
                } else if self.sources.wait(target, id) {
                    self.outputs.push_back(Output::Route(target));
                }
            }
            (Some(End::Gid(sgid)), End::Addresses(Addresses { first: target, .. })) => {
                resolution.known = Known::Target(Target::Ip(target));
                self.gid_of_source(id, Some(sgid));
            }
            (Some(End::Addresses(Addresses { first: source, .. })), End::Gid(dgid)) => {
                resolution.known = Known::Target(Target::Gid(dgid));
                self.ask(id, Ask::Source(source));
            }
            (Some(End::Addresses(sources)), End::Addresses(targets)) => {
                let (source, target) = sources.pair(targets);
                resolution.known = Known::Target(Target::Ip(target));
                self.ask(id, Ask::Source(source));
            }
            (Some(End::Name(_)), _) | (_, End::Name(_)) => {}
        }
    }

    /// Routing has chosen a source.
    pub(super) fn routed(&mut self, id: ResolutionId, source: Option<IpAddr>) {
        let Some(resolution) = self.resolutions.get_mut(&id) else { return };
        let Known::Unsourced(target) = resolution.known else { return };
        match source {
            Some(source) => {
                resolution.known = Known::Target(Target::Ip(target.target()));
                resolution.chosen = Some(Address::Ip(source));
                self.ask(id, Ask::Source(source));
            }
            None => self.refuse(id, Status::DestinationAddress),
        }
    }
}

impl Known {
    /// The names that stand for nothing yet.
    pub(super) fn names(&self) -> impl Iterator<Item = Name> + use<> {
        let ends = match self {
            Self::Said { source, target } => [*source, Some(*target)],
            _ => [None; 2],
        };
        ends.into_iter().flatten().filter_map(|end| match end {
            End::Name(name) => Some(name),
            End::Addresses(_) | End::Gid(_) => None,
        })
    }
}

/// The names that the driver resolves, each once, and those that are remembered.
#[derive(Debug)]
pub(super) struct Names {
    /// Names that searches wait for and that no thread resolves yet.
    shares: Shares<(ResolutionId, Name)>,
    flights: BTreeMap<String, Flight>,
    remembered: BTreeMap<String, Remembered>,
    /// In the order of their expiry, which is that of learning.
    by_expiry: VecDeque<(Instant, String)>,
}

#[derive(Debug)]
struct Flight {
    /// The user that asked first.
    user: User,
    waiters: BTreeSet<ResolutionId>,
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    addresses: Addresses,
    until: Instant,
}

/// The first address of a name, and the first of the other family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Addresses {
    pub(super) first: IpAddr,
    pub(super) other: Option<IpAddr>,
}

/// Names that are resolved at once, each by a thread. A resolver may hang, and cannot be stopped, so a user has few.
pub const NAMES: Limits = Limits {
    under_way: Room { all: 256, of_user: 8 },
    waiting: Room { all: 4096, of_user: 1024 },
    rate: 1000,
    burst: 1000,
};

/// How many names are remembered. Beyond that, the oldest is forgotten.
const MAX_REMEMBERED: usize = 4096;

/// How long a name is remembered. The resolver does not say how long it is valid.
const TTL: Duration = Duration::from_mins(1);

impl Default for Names {
    fn default() -> Self {
        let (flights, remembered) = (BTreeMap::new(), BTreeMap::new());
        Self { shares: Shares::new(NAMES), flights, remembered, by_expiry: VecDeque::new() }
    }
}

impl Names {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.shares.poll_timeout()
    }

    fn lookup(&self, now: Instant, name: &Name) -> Option<Addresses> {
        let remembered = self.remembered.get(&folded(name))?;
        (now < remembered.until).then_some(remembered.addresses)
    }

    /// Whether the driver is looking a name up.
    fn is_under_way(&self, name: &Name) -> bool {
        self.flights.contains_key(&folded(name))
    }

    /// A search waits for a name. Returns whether it is the first.
    fn join(&mut self, name: &Name, id: ResolutionId, user: User) -> bool {
        let flight = self.flights.entry(folded(name));
        let is_first = matches!(flight, Entry::Vacant(_));
        let new = || Flight { user, waiters: BTreeSet::new() };
        flight.or_insert_with(new).waiters.insert(id);
        is_first
    }

    /// How many names are being resolved.
    #[cfg(test)]
    pub(super) fn hanging(&self) -> usize {
        self.flights.len()
    }

    /// A search has ended.
    pub(super) fn leave(&mut self, name: &Name, id: ResolutionId) {
        if let Some(flight) = self.flights.get_mut(&folded(name)) {
            flight.waiters.remove(&id);
        }
    }

    /// The driver has looked a name up. Returns the searches that wait for it.
    fn land(
        &mut self,
        now: Instant,
        name: &Name,
        addresses: Option<Addresses>,
    ) -> BTreeSet<ResolutionId> {
        let name = folded(name);
        let Some(flight) = self.flights.remove(&name) else { return BTreeSet::new() };
        self.shares.ended(flight.user);
        if let Some(addresses) = addresses {
            let until = now + TTL;
            self.by_expiry.push_back((until, name.clone()));
            self.remembered.insert(name, Remembered { addresses, until });
            self.forget_old(now);
        }
        flight.waiters
    }

    pub(super) fn forget(&mut self) {
        self.remembered.clear();
        self.by_expiry.clear();
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some((until, _)) = self.by_expiry.front()
            && (*until <= now || self.by_expiry.len() > MAX_REMEMBERED)
            && let Some((until, name)) = self.by_expiry.pop_front()
        {
            // It may have been learned again.
            if self.remembered.get(&name).is_some_and(|it| it.until == until) {
                self.remembered.remove(&name);
            }
        }
    }
}

impl Addresses {
    pub(super) fn of(ip: IpAddr) -> Self {
        Self { first: ip, other: None }
    }

    /// `None` if none of them can be an interface's: loopback has no GID.
    pub(super) fn new(addresses: &[IpAddr]) -> Option<Self> {
        let is_usable = |ip: &IpAddr| {
            Question::new(*ip, None).is_some() && !ip.is_loopback() && !is_link_local(*ip)
        };
        let mut usable = addresses.iter().copied().filter(is_usable);
        let first = usable.next()?;
        let other = usable.find(|ip| ip.is_ipv4() != first.is_ipv4());
        Some(Self { first, other })
    }

    /// A source and a target of the same family, as early in the target's order as possible. Without one, the
    /// first of each: a path has GIDs for its ends, whatever addresses lead to them.
    pub(super) fn pair(self, target: Self) -> (IpAddr, IpAddr) {
        let sources = [Some(self.first), self.other].into_iter().flatten();
        let targets = [Some(target.first), target.other].into_iter().flatten();
        let alike = targets.into_iter().find_map(|target| {
            let source = sources.clone().find(|source| source.is_ipv4() == target.is_ipv4())?;
            Some((source, target))
        });
        alike.unwrap_or((self.first, target.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    fn name(n: usize) -> Name {
        Name::new(&format!("node{n}")).unwrap()
    }

    fn addresses(texts: &[&str]) -> Option<Addresses> {
        let parsed: Vec<_> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Addresses::new(&parsed)
    }

    #[test]
    fn name_is_remembered_for_a_minute_and_the_oldest_gives_way() {
        let mut names = Names::default();
        let found = addresses(&["10.2.0.5"]);
        for n in 0..=MAX_REMEMBERED {
            assert!(names.join(&name(n), ResolutionId(1), User(1)));
            assert_eq!(names.land(NOW, &name(n), found), BTreeSet::from([ResolutionId(1)]));
        }
        assert_eq!(names.lookup(NOW, &name(0)), None);
        assert_eq!(names.lookup(NOW, &name(1)), found);
        assert_eq!(
            (names.remembered.len(), names.by_expiry.len()),
            (MAX_REMEMBERED, MAX_REMEMBERED)
        );
        assert_eq!(names.lookup(NOW + TTL, &name(1)), None);
        // A name without addresses is not remembered.
        names.join(&name(0), ResolutionId(1), User(1));
        names.land(NOW, &name(0), None);
        assert_eq!(names.lookup(NOW, &name(0)), None);
        names.join(&name(1), ResolutionId(1), User(1));
        names.land(NOW + TTL, &name(1), found);
        assert_eq!((names.remembered.len(), names.by_expiry.len()), (1, 1));
        names.forget();
        assert_eq!((names.lookup(NOW + TTL, &name(1)), names.by_expiry.len()), (None, 0));
    }

    #[test]
    fn ends_get_addresses_of_one_family() {
        assert_eq!(addresses(&["127.0.1.1", "::1"]), None);
        let both = addresses(&["127.0.1.1", "fd00::1", "fd00::2", "10.2.0.5"]).unwrap();
        let [v4, v6] = ["10.2.0.5", "fd00::1"].map(|text| text.parse().unwrap());
        assert_eq!(both, Addresses { first: v6, other: Some(v4) });
        let source = addresses(&["10.1.0.1"]).unwrap();
        assert_eq!(source.pair(both), (source.first, v4));
        assert_eq!(both.pair(both), (v6, v6));
        assert_eq!(source.pair(Addresses::of(v6)), (source.first, v6));
    }
}
