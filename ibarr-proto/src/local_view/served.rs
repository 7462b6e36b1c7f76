// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::collections::{BTreeMap, BTreeSet};

use ibarr_common::IfIndex;

use super::routing::WayBack;
use super::{HwAddr, InterfaceName};

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
