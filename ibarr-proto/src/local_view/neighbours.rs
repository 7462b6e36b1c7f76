// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The neighbours to which a program can send without asking the kernel: for XDP on IPoIB, which
//! writes the hardware address of the next hop itself.
//!
//! * Only neighbours on interfaces that are served and [selected](Selection) are kept.
//! * Only neighbours are kept to which the kernel would send at once: [confirmed](State::Reachable)
//!   ones, permanent ones of the administrator, those that need no resolution, and those that are
//!   being probed and remain valid until the probe fails.
//! * The kernel also sends at once to a stale neighbour (`neigh_event_send` in
//!   include/net/neighbour.h), but probes it after [`STALE_USE`]. It does not see packets of a
//!   program, so it would never probe, and a neighbour that has moved would never be found again.
//!   A stale neighbour therefore stays for as long as the kernel would use it without a probe, and is
//!   then removed. The daemon answers its next query, the kernel probes it, and if it still exists
//!   the entry returns. Newly met peers need those few seconds: a host that asks for our hardware
//!   address becomes a stale neighbour (`arp_process`), and next asks for a GID.
//! * A hardware address must be that of a port: the broadcast address of a subnet also has an entry,
//!   whose hardware address is a multicast group.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use ibarr_common::ib::{Gid, IpoibHwAddr};
use ibarr_common::map::max_entries;
use ibarr_common::{IfIndex, Instant};

use crate::counters::Counters;

use crate::timer::Timers;

use super::inventory::overrule;
use super::reread::Reread;
use super::{Counter, HwAddr, Pattern, Request, ServedInterface, Subject};

/// Maximum number of neighbours. The daemon answers all others.
pub const MAX_NEIGHBOURS: usize = 1 << 15;

/// How long the kernel sends to a stale neighbour before it probes it, by default
/// (`delay_first_probe_time`).
pub const STALE_USE: Duration = Duration::from_secs(5);

// While changes are reported, the map can hold the old and the new neighbours.
const _: () = assert!(2 * MAX_NEIGHBOURS <= max_entries::NEIGHBOURS);

/// An entry of the kernel's neighbour tables as in `RTM_NEWNEIGH`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Entry {
    pub ifindex: IfIndex,
    /// `NDA_DST`.
    pub address: IpAddr,
    /// `ndm_state`.
    pub state: State,
    /// `NDA_LLADDR`, if there is one.
    pub hwaddr: HwAddr,
}

impl Entry {
    /// The GID of a neighbour on an IPoIB interface to which the kernel would send.
    pub fn gid(&self) -> Option<Gid> {
        usable(self).map(IpoibHwAddr::gid)
    }
}

/// The kernel's state of a neighbour (RFC 4861 section 7.3.2; `NUD_*` of
/// include/uapi/linux/neighbour.h).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Confirmed recently.
    Reachable,
    /// Not confirmed for some time, or never, and not used since.
    Stale,
    /// Stale, but used: the neighbour has a few seconds to be confirmed without a probe. The kernel
    /// does not report the change from [`Self::Stale`] to this state.
    Delay,
    /// The kernel is probing it.
    Probe,
    /// Configured by an administrator.
    Permanent,
    /// Needs no resolution, such as a multicast address.
    NoArp,
    /// Unresolved: being resolved, not answering, or new.
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
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Neighbour {
    pub ifindex: IfIndex,
    pub address: IpAddr,
    pub hwaddr: IpoibHwAddr,
}

/// The IPoIB interfaces on which neighbours are wanted: the first matching pattern decides, or else
/// the value for all others.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Selection {
    /// Patterns of interface names, with the decision of each.
    pub on: Vec<(Pattern, bool)>,
    /// The decision for all other interfaces.
    pub otherwise: bool,
}

impl Selection {
    pub(super) fn anywhere(&self) -> bool {
        self.otherwise || self.on.iter().any(|(_, wanted)| *wanted)
    }

    pub(super) fn includes(&self, served: &ServedInterface) -> bool {
        let names = (&served.name, &served.altnames);
        let found = self.on.iter().find(|(pattern, _)| pattern.matches(names.0, names.1));
        found.map_or(self.otherwise, |(_, wanted)| *wanted)
    }
}

/// The neighbours of the followed interfaces, and what was reported of them.
///
/// **When a dump is done and no event is in transit, these are the neighbours that the kernel last
/// reported**: as in the [inventory](super::inventory), an event since the dump was requested
/// overrules the dump. A dump requested before an interface was followed is void, because the
/// interface's events were skipped.
pub(super) struct Neighbours {
    limit: usize,
    followed: BTreeSet<IfIndex>,
    now: BTreeMap<Key, Known>,
    /// When stale neighbours are removed.
    stale: Timers<Key>,
    /// Changed neighbours, with what was reported of them.
    untold: BTreeMap<Key, Option<IpoibHwAddr>>,
    dump: Option<Dump>,
    reread: Reread,
    /// No more events are needed.
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
    /// When it is removed, if it is stale.
    until: Option<Instant>,
}

#[derive(Debug, Default)]
struct Dump {
    listed: BTreeMap<Key, Known>,
    /// Neighbours with an event since the dump was requested.
    touched: BTreeSet<Key>,
    /// More had events than could be recorded.
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

    /// Keeps only the neighbours of these interfaces from now on.
    pub(super) fn follow(&mut self, followed: BTreeSet<IfIndex>) {
        let before = core::mem::replace(&mut self.followed, followed);
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

    /// Whether the neighbours are known, cannot be known, or are not needed.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Handles an event that sets a neighbour.
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

    /// Handles an event that removes a neighbour.
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
            // The dump does not show how long it has been stale.
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
            // The entries of the dump and of events can exceed the limit together.
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

    pub(super) fn dump_failed(&mut self, now: Instant) {
        self.reread.failed(now);
    }

    /// If a dump is overdue, the neighbours are forgotten.
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
        if core::mem::take(&mut self.leave) {
            return Some(Request::Leave(Subject::Neighbours));
        }
        self.reread.poll_request().then_some(Request::Dump(Subject::Neighbours))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Neighbour> {
        self.now.iter().map(|(key, known)| key.at(known.hwaddr))
    }

    /// The next change: a neighbour that exists now, or the key of one that no longer does.
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

    /// Returns whether its interface is followed.
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

/// The hardware address, if a program can send to it.
fn usable(entry: &Entry) -> Option<IpoibHwAddr> {
    // No query comes from an IPv4-mapped address, and the map would confuse it with the IPv4
    // address.
    let is_mapped = matches!(entry.address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if !entry.state.is_valid() || is_mapped {
        return None;
    }
    IpoibHwAddr::parse(entry.hwaddr.as_bytes())
}
