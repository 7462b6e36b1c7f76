// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Names of ends: which addresses they have.
//!
//! The list of the administrator comes first, then what is remembered, then the driver, which asks the system's
//! resolver and may take as long as that does.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::acm::{Address, Name, Status};

use super::hosts::folded;
use super::{Acm, Ask, Counter, End, Known, Lookup, NotNamed, Output, Target};
use crate::ip2gid::Question;
use crate::request::LookupId;
use crate::shares::User;

impl Acm {
    /// Finds out what the names of a search stand for, then where its path starts.
    pub(super) fn seek_ends(&mut self, now: Instant, id: LookupId) {
        let Some(lookup) = self.lookups.get_mut(&id) else { return };
        let Known::Said { source, target } = &mut lookup.known else { return };
        for end in source.iter_mut().chain([target]) {
            let End::Name(name) = end else { continue };
            if let Some(gid) = self.hosts.gid_of(&Address::Name(*name)) {
                *end = End::Gid(gid);
            } else if let Some(addresses) = self.names.lookup(now, name) {
                self.counters.count(Counter::NamesFromMemory);
                *end = End::Addresses(addresses);
            }
        }
        let missing: Vec<_> = lookup.known.names().collect();
        if missing.is_empty() {
            return self.seek_source(id);
        }
        self.not_remembered(id);
        for name in missing {
            self.look_up(id, &name);
        }
    }

    fn look_up(&mut self, id: LookupId, name: &Name) {
        let Some(lookup) = self.lookups.get(&id) else { return };
        let Lookup { client, user, deadline, .. } = **lookup;
        // No client waits for this search, and another search remembers the name.
        if client.is_none() && self.names.is_under_way(name) {
            self.forget(id);
            return;
        }
        match self.names.join(name, id, user) {
            Joined::Waits => {}
            Joined::First => {
                self.counters.count(Counter::NamesAsked);
                self.outputs.push_back(Output::LookUp { name: *name, deadline });
            }
            Joined::Full => {
                self.counters.count(Counter::NamesRefused);
                self.refuse(id, Status::NoMemory);
            }
        }
    }

    /// The driver has looked a name up.
    pub(super) fn named(
        &mut self,
        now: Instant,
        name: Name,
        addresses: Result<&[IpAddr], NotNamed>,
    ) {
        if addresses == Err(NotNamed::Late) {
            // Others may have joined meanwhile, and still wait.
            let of = |id| Some(self.lookups.get(&id)?.deadline);
            if let Some(deadline) = self.names.waiters(&name).filter_map(of).max() {
                return self.outputs.push_back(Output::LookUp { name, deadline });
            }
        }
        let addresses = addresses.ok().and_then(Addresses::new);
        for id in self.names.land(now, &name, addresses) {
            let Some(lookup) = self.lookups.get_mut(&id) else { continue };
            let Known::Said { source, target } = &mut lookup.known else { continue };
            let is_it =
                |end: &End| matches!(end, End::Name(other) if folded(other) == folded(&name));
            let Some(addresses) = addresses else {
                let is_source = source.as_ref().is_some_and(is_it);
                let status =
                    if is_source { Status::SourceAddress } else { Status::DestinationAddress };
                self.refuse(id, status);
                continue;
            };
            for end in source.iter_mut().chain([target]).filter(|end| is_it(end)) {
                *end = End::Addresses(addresses);
            }
            if lookup.known.names().next().is_none() {
                self.seek_source(id);
            }
        }
    }

    /// Both ends are known as addresses or GIDs.
    fn seek_source(&mut self, id: LookupId) {
        let Some(lookup) = self.lookups.get_mut(&id) else { return };
        let Known::Said { source, target } = lookup.known else { return };
        match (source, target) {
            (None, End::Gid(dgid)) => {
                self.seek(id, None, Some(dgid));
            }
            (Some(End::Gid(sgid)), End::Gid(dgid)) => {
                self.seek(id, Some(sgid), Some(dgid));
            }
            (None, End::Addresses(Addresses { first: target, .. })) => {
                lookup.known = Known::Target(Target::Ip(target));
                self.outputs.push_back(Output::Route { id, target });
            }
            (Some(End::Gid(sgid)), End::Addresses(Addresses { first: target, .. })) => {
                lookup.known = Known::Target(Target::Ip(target));
                self.gid_of_source(id, Some(sgid));
            }
            (Some(End::Addresses(Addresses { first: source, .. })), End::Gid(dgid)) => {
                lookup.known = Known::Target(Target::Gid(dgid));
                self.asks.push_back(Ask::Source { id, source });
            }
            (Some(End::Addresses(sources)), End::Addresses(targets)) => {
                let (source, target) = sources.pair(targets);
                lookup.known = Known::Target(Target::Ip(target));
                self.asks.push_back(Ask::Source { id, source });
            }
            (Some(End::Name(_)), _) | (_, End::Name(_)) => {}
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

/// The names that the driver looks up, each once, and those that are remembered.
#[derive(Debug, Default)]
pub(super) struct Names {
    flights: BTreeMap<String, Flight>,
    remembered: BTreeMap<String, Remembered>,
    /// In the order of their expiry, which is that of learning.
    by_expiry: VecDeque<(Instant, String)>,
}

#[derive(Debug)]
struct Flight {
    /// The user that asked first.
    user: User,
    waiters: BTreeSet<LookupId>,
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

/// What becomes of a search that needs a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Joined {
    /// The driver has to look the name up.
    First,
    /// The driver does so already.
    Waits,
    /// There is no room.
    Full,
}

/// How many names the driver looks up at once.
pub const MAX_FLIGHTS: usize = 256;

/// How many of them may be one user's.
pub(super) const MAX_OF_USER: usize = MAX_FLIGHTS / 4;

/// How many names are remembered. Beyond that, the oldest is forgotten.
const MAX_REMEMBERED: usize = 4096;

/// How long a name is remembered. The resolver does not say how long it is valid.
const TTL: Duration = Duration::from_mins(1);

impl Names {
    pub(super) fn lookup(&self, now: Instant, name: &Name) -> Option<Addresses> {
        let remembered = self.remembered.get(&folded(name))?;
        (now < remembered.until).then_some(remembered.addresses)
    }

    /// Whether the driver is looking a name up.
    pub(super) fn is_under_way(&self, name: &Name) -> bool {
        self.flights.contains_key(&folded(name))
    }

    pub(super) fn join(&mut self, name: &Name, id: LookupId, user: User) -> Joined {
        let of_user = || self.flights.values().filter(|flight| flight.user == user).count();
        let is_full = self.flights.len() >= MAX_FLIGHTS || of_user() >= MAX_OF_USER;
        match self.flights.entry(folded(name)) {
            Entry::Occupied(mut flight) => {
                flight.get_mut().waiters.insert(id);
                Joined::Waits
            }
            Entry::Vacant(_) if is_full => Joined::Full,
            Entry::Vacant(entry) => {
                entry.insert(Flight { user, waiters: BTreeSet::from([id]) });
                Joined::First
            }
        }
    }

    /// A search has ended.
    pub(super) fn leave(&mut self, name: &Name, id: LookupId) {
        if let Some(flight) = self.flights.get_mut(&folded(name)) {
            flight.waiters.remove(&id);
        }
    }

    /// The searches that wait for a name.
    pub(super) fn waiters(&self, name: &Name) -> impl Iterator<Item = LookupId> {
        self.flights.get(&folded(name)).into_iter().flat_map(|it| it.waiters.iter().copied())
    }

    /// The driver has looked a name up. Returns the searches that wait for it.
    pub(super) fn land(
        &mut self,
        now: Instant,
        name: &Name,
        addresses: Option<Addresses>,
    ) -> BTreeSet<LookupId> {
        let name = folded(name);
        let Some(flight) = self.flights.remove(&name) else { return BTreeSet::new() };
        if let Some(addresses) = addresses {
            let until = now + TTL;
            self.by_expiry.push_back((until, name.clone()));
            self.remembered.insert(name, Remembered { addresses, until });
            self.forget_old(now);
        }
        flight.waiters
    }

    /// Forgets all addresses.
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
        let is_usable = |ip: &IpAddr| Question::new(*ip, None).is_some() && !ip.is_loopback();
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
    fn user_with_many_names_leaves_room_for_others() {
        let mut names = Names::default();
        let mut joined = 0;
        for (user, id) in (0..5).zip(0..) {
            for (n, lookup) in (0..100).zip(0..) {
                let first = names.join(&name(user * 100 + n), LookupId(lookup), User(id));
                joined += usize::from(first == Joined::First);
            }
            assert_eq!(joined, ((user + 1) * MAX_OF_USER).min(MAX_FLIGHTS));
        }
        // The names that are looked up already take no room.
        assert_eq!(names.join(&name(0), LookupId(1), User(9)), Joined::Waits);
    }

    #[test]
    fn name_is_remembered_for_a_minute_and_the_oldest_gives_way() {
        let mut names = Names::default();
        let found = addresses(&["10.2.0.5"]);
        for n in 0..=MAX_REMEMBERED {
            names.join(&name(n), LookupId(1), User(1));
            assert_eq!(names.land(NOW, &name(n), found), BTreeSet::from([LookupId(1)]));
        }
        assert_eq!(names.lookup(NOW, &name(0)), None);
        assert_eq!(names.lookup(NOW, &name(1)), found);
        assert_eq!(
            (names.remembered.len(), names.by_expiry.len()),
            (MAX_REMEMBERED, MAX_REMEMBERED)
        );
        assert_eq!(names.lookup(NOW + TTL, &name(1)), None);
        // A name without addresses is not remembered.
        names.join(&name(0), LookupId(1), User(1));
        names.land(NOW, &name(0), None);
        assert_eq!(names.lookup(NOW, &name(0)), None);
        names.join(&name(1), LookupId(1), User(1));
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
