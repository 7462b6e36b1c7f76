// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The links and addresses of a machine's kernel, and the state of rtnetlink.

use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::local_view::{
    AddressId, AltNames, Bonding, Dad, HwAddr, InterfaceAddress, InterfaceName, Link, LinkType,
};

use super::addresses::hwaddr;
use crate::record::START;

#[derive(Debug)]
pub(super) struct Network {
    links: Vec<Link>,
    addresses: Vec<InterfaceAddress>,
    /// Messages keep their order: none is delivered before this time.
    last_delivery: Instant,
    /// Number of the running dump of links and addresses.
    dump: u32,
    /// The daemon gets the events of neighbours.
    tells_neighbours: bool,
}

/// The interface with the addresses.
pub(super) const IPOIB: IfIndex = match IfIndex::new(4) {
    Some(ifindex) => ifindex,
    None => unreachable!(),
};

impl Network {
    pub(super) fn new(gid: Gid, addresses: [IpAddr; 2]) -> Self {
        Self {
            links: links(gid),
            addresses: addresses.map(entry).into(),
            last_delivery: START,
            dump: 0,
            tells_neighbours: false,
        }
    }

    pub(super) fn listener_starts(&mut self) {
        self.dump += 1;
        self.tells_neighbours = false;
    }

    pub(super) fn load(&mut self, gid: Gid) {
        self.links = links(gid);
    }

    /// Unloads the driver; returns the lost addresses.
    pub(super) fn unload(&mut self) -> Vec<InterfaceAddress> {
        self.links.retain(|link| link.ifindex != IPOIB);
        std::mem::take(&mut self.addresses)
    }

    pub(super) fn ipoib(&self) -> Option<&Link> {
        self.links.iter().find(|link| link.ifindex == IPOIB)
    }

    pub(super) fn is_up(&self) -> bool {
        self.ipoib().is_some_and(|link| link.up)
    }

    /// Changes the IPoIB interface, if there is one; returns it.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Link)) -> Option<Link> {
        let link = self.links.iter_mut().find(|link| link.ifindex == IPOIB)?;
        change(link);
        Some(*link)
    }

    pub(super) fn add(&mut self, address: IpAddr) {
        self.addresses.push(entry(address));
    }

    pub(super) fn remove(&mut self, address: IpAddr) {
        self.addresses.retain(|entry| entry.id != entry_id(address));
    }

    pub(super) fn links(&self) -> &[Link] {
        &self.links
    }

    pub(super) fn addresses(&self) -> &[InterfaceAddress] {
        &self.addresses
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|entry| entry.id.address() == address)
    }

    /// Starts a dump of links and addresses, which ends an earlier one; returns its number.
    pub(super) fn next_dump(&mut self) -> u32 {
        self.dump += 1;
        self.dump
    }

    pub(super) fn is_running(&self, dump: u32) -> bool {
        self.dump == dump
    }

    /// When a message that is sent now arrives: after `after`, and not before earlier ones.
    pub(super) fn deliver(&mut self, now: Instant, after: Duration) -> Instant {
        self.last_delivery = self.last_delivery.max(now + after);
        self.last_delivery
    }

    /// When all messages are delivered.
    pub(super) fn last_delivery(&self) -> Instant {
        self.last_delivery
    }

    pub(super) fn tell_neighbours(&mut self, tells: bool) {
        self.tells_neighbours = tells;
    }

    pub(super) fn tells_neighbours(&self) -> bool {
        self.tells_neighbours
    }
}

/// `lo` and `ib0` at the start.
pub(super) fn links(gid: Gid) -> Vec<Link> {
    let link = |ifindex, name: &[u8], link_type, hwaddr| Link {
        ifindex,
        name: InterfaceName::new(name)
            .unwrap_or_else(|| unreachable!("the kernel gives this name")),
        link_type,
        hwaddr,
        up: true,
        bonding: Bonding::None,
        altnames: AltNames::default(),
        vrf: None,
        pkey: None,
    };
    vec![
        link(IfIndex::MIN, b"lo", LinkType::LOOPBACK, HwAddr::default()),
        link(IPOIB, b"ib0", LinkType::INFINIBAND, hwaddr(gid)),
    ]
}

pub(super) fn entry(address: IpAddr) -> InterfaceAddress {
    let prefix_len = if address.is_ipv4() { 16 } else { 64 };
    InterfaceAddress::new(IPOIB, address, prefix_len, None, Dad::Passed)
}

pub(super) fn entry_id(address: IpAddr) -> AddressId {
    entry(address).id
}
