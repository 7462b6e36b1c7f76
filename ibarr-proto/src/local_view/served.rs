// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::collections::{BTreeMap, BTreeSet};

use ibarr_common::IfIndex;

use crate::ip2gid::{Family, Prefix, is_link_local};

use super::{HwAddr, InterfaceName, Link};

/// An interface on which the kernel is to answer peers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Served {
    /// Its index.
    pub ifindex: IfIndex,
    /// Its name now.
    pub name: InterfaceName,
    /// The header of its frames.
    pub header: LinkHeader,
    /// Its hardware address.
    pub hwaddr: HwAddr,
    /// Whether those who ask over IPv4 are answered in the kernel.
    pub ipv4: WayBack,
    /// Whether those who ask over IPv6 are answered in the kernel.
    pub ipv6: WayBack,
}

/// The header of the frames of a link.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum LinkHeader {
    /// 14 bytes.
    Ethernet,
    /// 20 bytes of hardware address and 4 of RFC 4391 section 6, as the kernel shows it to programs
    /// (`IPOIB_HARD_LEN` of drivers/infiniband/ulp/ipoib/ipoib.h).
    Ipoib,
}

impl LinkHeader {
    /// Each of them.
    pub const ALL: [Self; 2] = [Self::Ethernet, Self::Ipoib];

    /// Bytes of it.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Ethernet => 14,
            Self::Ipoib => 24,
        }
    }
}

/// Whether the replies to those who ask over an interface leave by it. The kernel answers only
/// then: its programs send by the interface that the query came from, whatever the routes say.
///
/// Judged by addresses alone: where the same subnet is on no other interface, the routes that come
/// with the addresses lead back. What other routes and rules say is not known here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WayBack {
    /// They do.
    Here,
    /// It has no address to be asked by.
    NoAddress,
    /// A subnet of it is also on this interface.
    Shared(IfIndex),
}

/// The interfaces that are served, and those that were when last told.
#[derive(Debug, Default)]
pub(super) struct Serving {
    now: BTreeMap<IfIndex, Served>,
    told: BTreeMap<IfIndex, Served>,
    /// May differ from `told`.
    untold: BTreeSet<IfIndex>,
}

/// A change to one of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Served(Served),
    NotServed(IfIndex),
}

impl Serving {
    pub(super) fn set(&mut self, now: BTreeMap<IfIndex, Served>) {
        self.untold.extend(self.told.keys().chain(now.keys()));
        self.now = now;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Served> {
        self.now.values()
    }

    pub(super) fn poll(&mut self) -> Option<Change> {
        loop {
            let ifindex = self.untold.pop_first()?;
            let now = self.now.get(&ifindex);
            if now == self.told.get(&ifindex) {
                continue;
            }
            let Some(served) = now else {
                self.told.remove(&ifindex);
                return Some(Change::NotServed(ifindex));
            };
            self.told.insert(ifindex, *served);
            return Some(Change::Served(*served));
        }
    }
}

/// Which interfaces are on which subnets.
#[derive(Debug, Default)]
pub(super) struct Subnets {
    has_address: BTreeSet<(IfIndex, Family)>,
    /// Another interface that one shares a subnet with.
    shared: BTreeMap<(IfIndex, Family), IfIndex>,
}

impl Subnets {
    /// Of the `entries` of interfaces that are up: the prefix that each brings, and whether the
    /// address is usable.
    pub(super) fn new(entries: impl IntoIterator<Item = (IfIndex, Prefix, bool)>) -> Self {
        let mut subnets = Self::default();
        let mut prefixes = BTreeSet::new();
        for (ifindex, prefix, usable) in entries {
            if usable {
                subnets.has_address.insert((ifindex, Family::of(prefix.first())));
            }
            // A host alone brings no neighbours; a link-local subnet is another one on each link.
            if !prefix.is_host() && !is_link_local(prefix.first()) {
                prefixes.insert((prefix, ifindex));
            }
        }
        // Those that hold the prefix at hand: each sorts before those inside it.
        let mut around: Vec<(Prefix, IfIndex)> = Vec::new();
        for (prefix, ifindex) in prefixes {
            while around.pop_if(|(outer, _)| !outer.overlaps(prefix)).is_some() {}
            for &(_, other) in around.iter().filter(|(_, other)| *other != ifindex) {
                let family = Family::of(prefix.first());
                subnets.shared.entry((ifindex, family)).or_insert(other);
                subnets.shared.entry((other, family)).or_insert(ifindex);
            }
            around.push((prefix, ifindex));
        }
        subnets
    }

    pub(super) fn way_back(&self, ifindex: IfIndex, family: Family) -> WayBack {
        match self.shared.get(&(ifindex, family)) {
            Some(&other) => WayBack::Shared(other),
            None if self.has_address.contains(&(ifindex, family)) => WayBack::Here,
            None => WayBack::NoAddress,
        }
    }

    pub(super) fn served(&self, link: &Link, header: LinkHeader) -> Served {
        Served {
            ifindex: link.ifindex,
            name: link.name,
            header,
            hwaddr: link.hwaddr,
            ipv4: self.way_back(link.ifindex, Family::V4),
            ipv6: self.way_back(link.ifindex, Family::V6),
        }
    }
}
