// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The interfaces on which programs may answer, and their changes.

use alloc::collections::{BTreeMap, BTreeSet};

use ibarr_common::IfIndex;

use super::routing::WayBack;
use super::{AltNames, HwAddr, InterfaceName};

/// An interface on which the kernel answers peers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct ServedInterface {
    pub ifindex: IfIndex,
    pub name: InterfaceName,
    pub altnames: AltNames,
    /// The VRF that it is in.
    pub vrf: Option<InterfaceName>,
    /// The kind of header of its frames.
    pub header: LinkHeader,
    pub hwaddr: HwAddr,
    /// Whether the kernel answers queries over IPv4.
    pub ipv4: WayBack,
    /// Whether the kernel answers queries over IPv6.
    pub ipv6: WayBack,
}

/// The header of the frames of a link.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum LinkHeader {
    /// 14 bytes.
    Ethernet,
    /// 20 bytes of hardware address and 4 of RFC 4391 section 6, as the kernel presents it to
    /// programs (`IPOIB_HARD_LEN` of drivers/infiniband/ulp/ipoib/ipoib.h).
    Ipoib,
}

impl LinkHeader {
    /// Length of the header in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Ethernet => 14,
            Self::Ipoib => 24,
        }
    }
}

/// The served interfaces, and those last reported.
#[derive(Debug, Default)]
pub(super) struct Serving {
    now: BTreeMap<IfIndex, ServedInterface>,
    told: BTreeMap<IfIndex, ServedInterface>,
    /// Interfaces that may differ from `told`.
    untold: BTreeSet<IfIndex>,
}

/// A change of a served interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "it is passed on at once, and not kept")]
pub(super) enum Change {
    Served(ServedInterface),
    NotServed(IfIndex),
}

impl Serving {
    pub(super) fn set(&mut self, now: BTreeMap<IfIndex, ServedInterface>) {
        self.untold.extend(self.told.keys().chain(now.keys()));
        self.now = now;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ServedInterface> {
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
