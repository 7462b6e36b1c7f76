// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Who can be reached over a link without asking the kernel: for XDP on IPoIB, which has to write the
//! hardware address of the next hop itself.
//!
//! * Only neighbours of interfaces that are served and [wanted](Wanted) are kept.
//! * Only those are, to whom the kernel would send at once: [confirmed](State::Reachable) ones,
//!   those that an administrator has written down, those that need no asking, and those that are
//!   being asked and are believed until they do not answer.
//! * A stale one the kernel sends to at once as well (`neigh_event_send` in include/net/neighbour.h),
//!   but then, after [`STALE_USE`], it asks. What a program sends it does not see, so that it would
//!   never ask: a neighbour that has moved would be sent to where it was for ever. So a stale one
//!   stays for as long as the kernel would use it unasked, and goes: then user space answers whoever
//!   it is, the kernel asks, and if the neighbour is still there the entry comes back. Those few
//!   seconds are what whoever has just been met needs: who asks for our hardware address is a stale
//!   neighbour (`arp_process`), and asks for a GID next.
//! * A hardware address must be that of a port: a subnet's broadcast address is an entry, too, and
//!   its hardware address is a multicast group.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::ib::IpoibHwAddr;
use ibarr_common::map::max_entries;
use ibarr_common::{IfIndex, Instant};

use crate::counters::Counters;

use crate::timer::Timers;

use super::inventory::overrule;
use super::reread::Reread;
use super::{Counter, HwAddr, InterfaceName, Pattern, Request, Subject};

/// How many neighbours are kept. To others user space answers.
pub const MAX_NEIGHBOURS: usize = 1 << 15;

/// How long the kernel sends to a stale neighbour before it asks, unless told otherwise
/// (`delay_first_probe_time`).
pub const STALE_USE: Duration = Duration::from_secs(5);

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
    /// Not confirmed for some time, or never, and not used since.
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

    const fn is_valid(self) -> bool {
        self.is_believed() || matches!(self, Self::Stale)
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
    now: BTreeMap<Key, Known>,
    /// When those go that are stale.
    stale: Timers<Key>,
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

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Known {
    hwaddr: IpoibHwAddr,
    /// When it goes, if it is stale.
    until: Option<Instant>,
}

#[derive(Debug, Default)]
struct Dump {
    listed: BTreeMap<Key, Known>,
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
            stale: Timers::default(),
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
        if let Some(dump) = &mut self.dump {
            dump.listed.retain(|key, _| self.followed.contains(&key.ifindex));
        }
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
    pub(super) fn set(&mut self, now: Instant, entry: Entry, counters: &mut Counters<Counter>) {
        let key = Key { ifindex: entry.ifindex, address: entry.address };
        if !self.touch(key) {
            return;
        }
        let until = (entry.state == State::Stale).then(|| now + STALE_USE);
        let known = usable(&entry).map(|hwaddr| Known { hwaddr, until });
        if known.is_some() && self.now.len() >= self.limit && !self.now.contains_key(&key) {
            counters.count(Counter::NeighboursRefused);
        } else {
            self.note(key, known);
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
        if self.reread.started(now) {
            self.dump = Some(Dump::default());
        }
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
        let known = if entry.state.is_believed() {
            Known { hwaddr, until: None }
        } else {
            // The dump does not say for how long it has been stale.
            let same = |known: &&Known| known.hwaddr == hwaddr && known.until.is_some();
            let Some(known) = self.now.get(&key).filter(same) else { return };
            *known
        };
        if dump.listed.len() < self.limit || dump.listed.contains_key(&key) {
            dump.listed.insert(key, known);
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
            for (key, known) in dump.listed {
                self.note(key, Some(known));
            }
            self.is_settled = true;
        }
        self.reread.done(now);
    }

    /// Without a dump in time, nothing is known any more.
    pub(super) fn handle_timeout(&mut self, now: Instant, counters: &mut Counters<Counter>) {
        while let Some(key) = self.stale.pop(now) {
            self.note(key, None);
        }
        if !self.followed.is_empty() && self.reread.handle_timeout(now) {
            counters.count(Counter::NeighbourDumpsOverdue);
            self.dump = None;
            self.keep(|_, _| false);
            self.is_settled = true;
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let reread = (!self.followed.is_empty()).then(|| self.reread.due());
        reread.into_iter().chain(self.stale.next()).min()
    }

    pub(super) fn poll_request(&mut self) -> Option<Request> {
        if std::mem::take(&mut self.leave) {
            return Some(Request::Leave(Subject::Neighbours));
        }
        self.reread.poll_request().then_some(Request::Dump(Subject::Neighbours))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Neighbour> {
        self.now.iter().map(|(key, known)| key.at(known.hwaddr))
    }

    /// The next change: who is there now, or is not any more.
    pub(super) fn poll(&mut self) -> Option<Result<Neighbour, (IfIndex, IpAddr)>> {
        let (key, _) = self.untold.pop_first()?;
        let now = self.now.get(&key).map(|known| key.at(known.hwaddr));
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

    fn note(&mut self, key: Key, known: Option<Known>) {
        let before = match known {
            Some(known) => self.now.insert(key, known),
            None => self.now.remove(&key),
        };
        self.stale.set(key, known.and_then(|known| known.until));
        let [before, now] = [before, known].map(|known| known.map(|known| known.hwaddr));
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
    if !entry.state.is_valid() || is_mapped {
        return None;
    }
    IpoibHwAddr::parse(entry.hwaddr.as_bytes())
}
