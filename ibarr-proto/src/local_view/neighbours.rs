// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Who can be reached over a link without asking the kernel: for XDP on IPoIB, which has to write the
//! hardware address of the next hop itself.
//!
//! * Only neighbours of interfaces that are served and [wanted](Wanted) are kept.
//! * Only those are, of whom the kernel would not ask either: [confirmed](State::Reachable) ones,
//!   those that an administrator has written down, those that need no asking, and those that are
//!   being asked and are believed until they do not answer. A stale one goes: then user space
//!   answers whoever it is, the kernel uses its entry and asks, and if the neighbour is still there
//!   the entry comes back.
//! * A hardware address must be that of a port: a subnet's broadcast address is an entry, too, and
//!   its hardware address is a multicast group.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ibarr_common::ib::IpoibHwAddr;
use ibarr_common::map::max_entries;
use ibarr_common::{IfIndex, Instant};

use crate::counters::Counters;

use super::inventory::overrule;
use super::reread::Reread;
use super::{Counter, HwAddr, InterfaceName, Pattern, Request, Subject};

/// How many neighbours are kept. To others user space answers.
pub const MAX_NEIGHBOURS: usize = 1 << 15;

// While changes are told, the map can hold those before and those after.
const _: () = assert!(2 * MAX_NEIGHBOURS <= max_entries::NEIGHBOURS);

/// An entry of the kernel's neighbour tables as `RTM_NEWNEIGH` tells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The interface.
    pub ifindex: IfIndex,
    /// `NDA_DST`.
    pub address: IpAddr,
    /// `ndm_state`.
    pub state: State,
    /// `NDA_LLADDR`, if there is one.
    pub hwaddr: HwAddr,
}

/// What the kernel knows of a neighbour (RFC 4861 section 7.3.2; `NUD_*` of
/// include/uapi/linux/neighbour.h).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Confirmed lately.
    Reachable,
    /// Not confirmed for some time, and not used since.
    Stale,
    /// Stale and used: it is given some seconds to confirm it by itself. The kernel does not say
    /// when an entry comes here from [`Self::Stale`].
    Delay,
    /// It is being asked.
    Probe,
    /// Written down by an administrator.
    Permanent,
    /// Needs no asking, as a multicast address.
    NoArp,
    /// It is being looked for, does not answer, or is nothing yet.
    Unresolved,
}

impl State {
    const fn is_believed(self) -> bool {
        match self {
            Self::Reachable | Self::Delay | Self::Probe | Self::Permanent | Self::NoArp => true,
            Self::Stale | Self::Unresolved => false,
        }
    }
}

/// A neighbour that can be sent to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Neighbour {
    /// On which interface.
    pub ifindex: IfIndex,
    /// Its address.
    pub address: IpAddr,
    /// Where it is.
    pub hwaddr: IpoibHwAddr,
}

/// On which IPoIB interfaces neighbours are wanted: as the first pattern that matches says, or else
/// as on all others.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Wanted {
    /// By the name of the interface.
    pub on: Vec<(Pattern, bool)>,
    /// On all others.
    pub otherwise: bool,
}

impl Wanted {
    pub(super) fn anywhere(&self) -> bool {
        self.otherwise || self.on.iter().any(|(_, wanted)| *wanted)
    }

    pub(super) fn includes(&self, name: InterfaceName) -> bool {
        let found = self.on.iter().find(|(pattern, _)| pattern.matches(&name));
        found.map_or(self.otherwise, |(_, wanted)| *wanted)
    }
}

/// The neighbours of the interfaces that are followed, and what was told of them.
///
/// **With a dump done and no event on its way, these are those that the kernel last said**: as in
/// the [inventory](super::inventory), an event since the dump was asked for overrules what the dump
/// lists. A dump that was asked for before an interface was followed is void, for events of it were
/// passed over.
pub(super) struct Neighbours {
    limit: usize,
    followed: BTreeSet<IfIndex>,
    now: BTreeMap<Key, IpoibHwAddr>,
    /// What was told of those of whom something else is true now.
    untold: BTreeMap<Key, Option<IpoibHwAddr>>,
    dump: Option<Dump>,
    reread: Reread,
    /// Nothing more is to be heard.
    leave: bool,
    is_settled: bool,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Key {
    ifindex: IfIndex,
    address: IpAddr,
}

#[derive(Debug, Default)]
struct Dump {
    listed: BTreeMap<Key, IpoibHwAddr>,
    /// Had an event since the dump was asked for.
    touched: BTreeSet<Key>,
    /// More had events than could be remembered.
    spoiled: bool,
}

impl Neighbours {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.min(MAX_NEIGHBOURS),
            followed: BTreeSet::new(),
            now: BTreeMap::new(),
            untold: BTreeMap::new(),
            dump: None,
            reread: Reread::new(Reread::LONG_INTERVAL),
            leave: false,
            is_settled: false,
        }
    }

    /// From now on, those of these interfaces are kept, and no others.
    pub(super) fn follow(&mut self, followed: BTreeSet<IfIndex>) {
        let before = std::mem::replace(&mut self.followed, followed);
        self.is_settled |= self.followed.is_empty();
        if self.followed == before {
            return;
        }
        self.keep(|key, followed| followed.contains(&key.ifindex));
        if self.followed.is_empty() || !self.followed.is_subset(&before) {
            self.leave = self.followed.is_empty();
            self.dump = None;
            self.reread.restart();
        }
    }

    /// It was found out who the neighbours are, or that this cannot be, or need not.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// An event.
    pub(super) fn set(&mut self, entry: Entry, counters: &mut Counters<Counter>) {
        let key = Key { ifindex: entry.ifindex, address: entry.address };
        if !self.touch(key) {
            return;
        }
        let hwaddr = usable(&entry);
        if hwaddr.is_some() && self.now.len() >= self.limit && !self.now.contains_key(&key) {
            counters.count(Counter::NeighboursRefused);
        } else {
            self.note(key, hwaddr);
        }
    }

    /// An event: it is not there any more.
    pub(super) fn remove(&mut self, ifindex: IfIndex, address: IpAddr) {
        let key = Key { ifindex, address };
        if self.touch(key) {
            self.note(key, None);
        }
    }

    pub(super) fn start_dump(&mut self, now: Instant) {
        self.dump = Some(Dump::default());
        self.reread.started(now);
    }

    pub(super) fn list(&mut self, entry: Entry, counters: &mut Counters<Counter>) {
        let Some(dump) = &mut self.dump else {
            return counters.count(Counter::ListedOutsideDump);
        };
        let Some(hwaddr) = usable(&entry) else { return };
        let key = Key { ifindex: entry.ifindex, address: entry.address };
        if !self.followed.contains(&key.ifindex) {
            return;
        }
        if dump.listed.len() < self.limit || dump.listed.contains_key(&key) {
            dump.listed.insert(key, hwaddr);
        } else {
            counters.count(Counter::NeighboursRefused);
        }
    }

    pub(super) fn finish_dump(&mut self, now: Instant, counters: &mut Counters<Counter>) {
        let Some(mut dump) = self.dump.take() else {
            return counters.count(Counter::ListedOutsideDump);
        };
        if dump.spoiled {
            counters.count(Counter::DumpsSpoiled);
            self.reread.wanted(now);
        } else {
            counters.count(Counter::NeighbourDumpsDone);
            overrule(&mut dump.listed, &self.now, &dump.touched);
            // Entries of the dump and of events can be too many together.
            while dump.listed.len() > self.limit {
                dump.listed.pop_last();
                counters.count(Counter::NeighboursRefused);
            }
            self.keep(|key, _| dump.listed.contains_key(key));
            for (key, hwaddr) in dump.listed {
                self.note(key, Some(hwaddr));
            }
            self.is_settled = true;
        }
        self.reread.done(now);
    }

    /// Without a dump in time, nothing is known any more.
    pub(super) fn handle_timeout(&mut self, now: Instant, counters: &mut Counters<Counter>) {
        if !self.followed.is_empty() && self.reread.handle_timeout(now) {
            counters.count(Counter::NeighbourDumpsOverdue);
            self.dump = None;
            self.keep(|_, _| false);
            self.is_settled = true;
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        (!self.followed.is_empty()).then(|| self.reread.due())
    }

    pub(super) fn poll_request(&mut self) -> Option<Request> {
        if std::mem::take(&mut self.leave) {
            return Some(Request::Leave(Subject::Neighbours));
        }
        self.reread.poll_request().then_some(Request::Dump(Subject::Neighbours))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Neighbour> {
        self.now.iter().map(|(key, &hwaddr)| key.at(hwaddr))
    }

    /// The next change: who is there now, or is not any more.
    pub(super) fn poll(&mut self) -> Option<Result<Neighbour, (IfIndex, IpAddr)>> {
        let (key, _) = self.untold.pop_first()?;
        let now = self.now.get(&key).map(|&hwaddr| key.at(hwaddr));
        Some(now.ok_or((key.ifindex, key.address)))
    }

    fn keep(&mut self, stays: impl Fn(&Key, &BTreeSet<IfIndex>) -> bool) {
        let goes = |key: &&Key| !stays(key, &self.followed);
        let gone: Vec<_> = self.now.keys().filter(goes).copied().collect();
        for key in gone {
            self.note(key, None);
        }
    }

    /// Whether it is on an interface that is followed.
    fn touch(&mut self, key: Key) -> bool {
        if !self.followed.contains(&key.ifindex) {
            return false;
        }
        if let Some(dump) = &mut self.dump {
            if dump.touched.len() < self.limit {
                dump.touched.insert(key);
            } else {
                dump.spoiled |= !dump.touched.contains(&key);
            }
        }
        true
    }

    fn note(&mut self, key: Key, now: Option<IpoibHwAddr>) {
        let before = match now {
            Some(hwaddr) => self.now.insert(key, hwaddr),
            None => self.now.remove(&key),
        };
        if before != now && *self.untold.entry(key).or_insert(before) == now {
            self.untold.remove(&key);
        }
    }
}

impl Key {
    const fn at(self, hwaddr: IpoibHwAddr) -> Neighbour {
        Neighbour { ifindex: self.ifindex, address: self.address, hwaddr }
    }
}

/// The hardware address, if it is one to send to.
fn usable(entry: &Entry) -> Option<IpoibHwAddr> {
    // Nobody asks from the latter, and the map could not tell it from the address of IPv4.
    let is_mapped = matches!(entry.address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if !entry.state.is_believed() || is_mapped {
        return None;
    }
    IpoibHwAddr::parse(entry.hwaddr.as_bytes())
}
