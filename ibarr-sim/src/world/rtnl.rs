// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's links and addresses, and the messages about them, in the form in which
//! `ibarr-user/src/transport/rtnetlink` passes them on. A dump reads without the lock that changes
//! take, so events and dumps overtake each other.

use std::net::{IpAddr, Ipv6Addr};

use ibarr_common::ib::Gid;
use ibarr_proto::local_view::routing::{Route, Way};
use ibarr_proto::local_view::{Input, Subject, neighbours};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::addresses::{gateway, hwaddr};
use super::network::{IPOIB, entry, entry_id};
use super::process::Inbox;
use super::subnet::router;
use super::troubles::Trouble;
use super::{What, World};
use crate::dice::us;
use crate::record::Entry;

impl World {
    pub(super) fn add_address(&mut self, id: usize, address: IpAddr) {
        let machine = &mut self.machines[id];
        let Some(is_up) = machine.network.ipoib().map(|link| link.up) else { return };
        machine.network.add(address);
        if is_up {
            self.truth.begins(self.now, address, id);
        }
        self.note(id, &Entry::Network("has now", address));
        self.event(id, Input::Address(entry(address)));
    }

    pub(super) fn remove_address(&mut self, id: usize, address: IpAddr) {
        self.machines[id].network.remove(address);
        if self.truth.owner(address) == Some(id) {
            self.truth.ends(self.now, address);
        }
        self.note(id, &Entry::Network("has no longer", address));
        self.event(id, Input::AddressGone(entry_id(address)));
    }

    /// Gives the addresses another GID. The kernel sends no event if a new subnet prefix causes
    /// this.
    pub(super) fn change_gid(&mut self, id: usize, gid: Gid, silently: bool) {
        let link = self.machines[id].network.change(|link| link.hwaddr = hwaddr(gid));
        let Some(link) = link else { return };
        self.truth.gid_changed(self.now, id, gid, silently);
        self.note(id, &Entry::Network("has the GID", Ipv6Addr::from(gid.octets()).into()));
        self.port_changes(id);
        if !silently {
            self.event(id, Input::Link(link));
        }
    }

    pub(super) fn link_down(&mut self, id: usize) {
        self.set_link(id, false);
    }

    pub(super) fn link_up(&mut self, id: usize) {
        self.set_link(id, true);
    }

    fn set_link(&mut self, id: usize, up: bool) {
        let network = &mut self.machines[id].network;
        if network.ipoib().is_none_or(|link| link.up == up) {
            return;
        }
        let Some(link) = network.change(|link| link.up = up) else { return };
        let addresses: Vec<_> =
            network.addresses().iter().map(|entry| entry.id.address()).collect();
        for address in addresses {
            if up {
                self.truth.begins(self.now, address, id);
            } else {
                self.truth.ends(self.now, address);
            }
            self.note(id, &Entry::Network(if up { "link up:" } else { "link down:" }, address));
        }
        self.port_changes(id);
        self.event(id, Input::Link(link));
        self.event(id, Input::RoutesChanged);
    }

    /// Unloads the driver.
    pub(super) fn link_gone(&mut self, id: usize) {
        for entry in self.machines[id].network.unload() {
            let address = entry.id.address();
            if self.truth.owner(address) == Some(id) {
                self.truth.ends(self.now, address);
            }
            self.note(id, &Entry::Network("has no longer", address));
            self.event(id, Input::AddressGone(entry.id));
        }
        self.port_changes(id);
        self.event(id, Input::LinkGone(IPOIB));
        self.event(id, Input::RoutesChanged);
    }

    /// IPoIB can send to a next hop at once.
    pub(super) fn neighbour_is_known(&mut self, id: usize, next_hop: IpAddr) {
        if self.machines[id].network.tells_neighbours() {
            let entry = self.neighbour_entry(id, next_hop);
            self.event(id, Input::Neighbour(entry));
        }
    }

    pub(super) fn neighbour_is_forgotten(&mut self, id: usize, next_hop: IpAddr) {
        if self.machines[id].network.tells_neighbours() {
            self.event(id, Input::NeighbourGone(IPOIB, next_hop));
        }
    }

    fn neighbour_entry(&self, id: usize, address: IpAddr) -> neighbours::Entry {
        let owner = self.truth.owner(address).and_then(|owner| self.machines[owner].gid());
        let gid = owner.unwrap_or_else(|| router(self.machines[id].subnet));
        let state = neighbours::State::Reachable;
        neighbours::Entry { ifindex: IPOIB, address, state, hwaddr: hwaddr(gid) }
    }

    fn rtnetlink_loses(&mut self, id: usize) -> bool {
        self.machines[id].troubles.has(self.now, Trouble::RtnetlinkLoses) && self.dice.coin()
    }

    /// Sends an event to the daemon.
    fn event(&mut self, id: usize, input: Input) {
        let is_lost = self.rtnetlink_loses(id);
        let after = self.dice.within(us(0)..us(100));
        let machine = &mut self.machines[id];
        let at = machine.network.deliver(self.now, after);
        let life = machine.life;
        if is_lost {
            // A running dump is incomplete; another one follows the pending events.
            machine.network.next_dump();
            self.at(at, What::DumpStarts(id, life));
        } else {
            self.at(at, What::View(id, life, input));
        }
    }

    pub(super) fn tell_view(&mut self, id: usize, life: u32, input: Input) {
        if self.machines[id].life == life {
            self.put(id, Inbox::View(input));
        }
    }

    pub(super) fn dump_starts(&mut self, id: usize, life: u32) {
        let dump = self.machines[id].network.next_dump();
        self.tell_view(id, life, Input::DumpStarted);
        let at = self.now + self.dice.within(us(50)..us(400));
        self.at(at, What::DumpLinks(id, dump));
    }

    /// A dump of the links alone.
    pub(super) fn list_links(&mut self, id: usize, life: u32) {
        self.machines[id].network.next_dump();
        self.tell_view(id, life, Input::LinksStarted);
        if self.dump_fails(id, life, Subject::Node) {
            return;
        }
        for link in self.machines[id].network.links().to_vec() {
            self.tell_view(id, life, Input::ListedLink(link));
        }
        self.tell_view(id, life, Input::DumpDone);
    }

    /// A dump may end with an error.
    fn dump_fails(&mut self, id: usize, life: u32, subject: Subject) -> bool {
        let fails = self.rtnetlink_loses(id);
        if fails {
            self.tell_view(id, life, Input::DumpFailed(subject));
        }
        fails
    }

    pub(super) fn dump_routes(&mut self, id: usize, life: u32) {
        if self.dump_fails(id, life, Subject::Routes) {
            return;
        }
        let machine = &self.machines[id];
        if machine.network.is_up() {
            for home in machine.home {
                let (all, bits) = match home {
                    IpAddr::V4(_) => (IpNet::V4(Ipv4Net::default()), 16),
                    IpAddr::V6(_) => (IpNet::V6(Ipv6Net::default()), 64),
                };
                let subnet = IpNet::new(home, bits).expect("a legal length");
                let gateway = Some(gateway(self.machines[id].subnet, home));
                for (prefix, gateway) in [(all, gateway), (subnet, None)] {
                    let way = Way::By { ifindex: IPOIB, gateway };
                    let route = Route { prefix, metric: 0, way, source: None };
                    self.tell_view(id, life, Input::ListedRoute(route));
                }
            }
        }
        self.tell_view(id, life, Input::RoutesDone);
    }

    pub(super) fn dump_neighbours(&mut self, id: usize, life: u32) {
        if self.dump_fails(id, life, Subject::Neighbours) {
            return;
        }
        let open = self.machines[id].ipoib.open_hops();
        let open: Vec<_> = open.map(|next_hop| self.neighbour_entry(id, next_hop)).collect();
        for entry in open {
            self.tell_view(id, life, Input::ListedNeighbour(entry));
        }
        self.tell_view(id, life, Input::NeighboursDone);
    }

    pub(super) fn dump_links(&mut self, id: usize, dump: u32) {
        let machine = &self.machines[id];
        if !machine.network.is_running(dump) {
            return;
        }
        let life = machine.life;
        for link in machine.network.links().to_vec() {
            self.tell_view(id, life, Input::ListedLink(link));
        }
        let at = self.now + self.dice.within(us(50)..us(400));
        self.at(at, What::DumpAddresses(id, dump));
    }

    pub(super) fn dump_addresses(&mut self, id: usize, dump: u32) {
        let machine = &self.machines[id];
        if !machine.network.is_running(dump) {
            return;
        }
        let life = machine.life;
        if self.dump_fails(id, life, Subject::Node) {
            return;
        }
        for entry in self.machines[id].network.addresses().to_vec() {
            self.tell_view(id, life, Input::ListedAddress(entry));
        }
        self.tell_view(id, life, Input::DumpDone);
    }
}
