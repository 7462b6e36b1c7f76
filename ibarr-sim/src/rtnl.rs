// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's links and addresses, and the messages about them, in the form in which
//! `ibarr-user/src/transport/rtnetlink` passes them on. A dump reads without the lock that changes
//! take, so events and dumps overtake each other.

use std::net::{IpAddr, Ipv6Addr};

use ibarr_common::ib::Gid;
use ibarr_proto::local_view::Input;

use crate::dice::us;
use crate::machine::{IPOIB, Inbox, entry, entry_id, hwaddr};
use crate::record::{Entry, Id};
use crate::world::{What, World};

impl World {
    pub(crate) fn add_address(&mut self, id: Id, address: IpAddr) {
        let machine = &mut self.machines[id];
        let Some(is_up) = machine.network.ipoib().map(|link| link.up) else { return };
        machine.network.addresses.push(entry(address));
        if is_up {
            self.truth.begins(self.now, address, id);
        }
        self.note(id, &Entry::Network("has now", address));
        self.event(id, Input::Address(entry(address)));
    }

    pub(crate) fn remove_address(&mut self, id: Id, address: IpAddr) {
        let entries = &mut self.machines[id].network.addresses;
        entries.retain(|entry| entry.id != entry_id(address));
        if self.truth.owner(address) == Some(id) {
            self.truth.ends(self.now, address);
        }
        self.note(id, &Entry::Network("has no longer", address));
        self.event(id, Input::AddressGone(entry_id(address)));
    }

    /// Gives the addresses another GID. The kernel sends no event if a new subnet prefix causes
    /// this.
    pub(crate) fn change_gid(&mut self, id: Id, gid: Gid, silently: bool) {
        let Some(link) = self.machines[id].network.ipoib_mut() else { return };
        link.hwaddr = hwaddr(gid);
        let link = *link;
        self.truth.is_called(self.now, id, gid, silently);
        self.note(id, &Entry::Network("has the GID", Ipv6Addr::from(gid.octets()).into()));
        self.port_changes(id);
        if !silently {
            self.event(id, Input::Link(link));
        }
    }

    pub(crate) fn link_down(&mut self, id: Id) {
        self.set_link(id, false);
    }

    pub(crate) fn link_up(&mut self, id: Id) {
        self.set_link(id, true);
    }

    fn set_link(&mut self, id: Id, up: bool) {
        let network = &mut self.machines[id].network;
        let Some(link) = network.ipoib_mut() else { return };
        if link.up == up {
            return;
        }
        link.up = up;
        let link = *link;
        let addresses: Vec<_> = network.addresses.iter().map(|entry| entry.id.address()).collect();
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
    }

    /// Unloads the driver.
    pub(crate) fn link_gone(&mut self, id: Id) {
        let network = &mut self.machines[id].network;
        let gone: Vec<_> = network.addresses.drain(..).collect();
        network.links.retain(|link| link.ifindex != IPOIB);
        for entry in gone {
            let address = entry.id.address();
            if self.truth.owner(address) == Some(id) {
                self.truth.ends(self.now, address);
            }
            self.note(id, &Entry::Network("has no longer", address));
            self.event(id, Input::AddressGone(entry.id));
        }
        self.port_changes(id);
        self.event(id, Input::LinkGone(IPOIB));
    }

    /// Sends an event to the daemon.
    fn event(&mut self, id: Id, input: Input) {
        let is_lost = self.machines[id].troubles.rtnetlink_loses > self.now && self.dice.coin();
        let after = self.dice.within(us(0)..us(100));
        let machine = &mut self.machines[id];
        let at = machine.network.told_until.max(self.now + after);
        machine.network.told_until = at;
        let life = machine.life;
        if is_lost {
            // A running dump is incomplete; another one follows the pending events.
            machine.network.dump += 1;
            self.at(at, What::DumpStarts(id, life));
        } else {
            self.at(at, What::View(id, life, input));
        }
    }

    pub(crate) fn tell_view(&mut self, id: Id, life: u32, input: Input) {
        if self.machines[id].life == life {
            self.put(id, Inbox::View(input));
        }
    }

    pub(crate) fn dump_starts(&mut self, id: Id, life: u32) {
        let network = &mut self.machines[id].network;
        network.dump += 1;
        let dump = network.dump;
        self.tell_view(id, life, Input::DumpStarted);
        let at = self.now + self.dice.within(us(50)..us(400));
        self.at(at, What::DumpLinks(id, dump));
    }

    pub(crate) fn dump_links(&mut self, id: Id, dump: u32) {
        let machine = &self.machines[id];
        if machine.network.dump != dump {
            return;
        }
        let life = machine.life;
        for link in machine.network.links.clone() {
            self.tell_view(id, life, Input::ListedLink(link));
        }
        let at = self.now + self.dice.within(us(50)..us(400));
        self.at(at, What::DumpAddresses(id, dump));
    }

    pub(crate) fn dump_addresses(&mut self, id: Id, dump: u32) {
        let machine = &self.machines[id];
        if machine.network.dump != dump {
            return;
        }
        let life = machine.life;
        for entry in machine.network.addresses.clone() {
            self.tell_view(id, life, Input::ListedAddress(entry));
        }
        self.tell_view(id, life, Input::DumpDone);
    }
}
