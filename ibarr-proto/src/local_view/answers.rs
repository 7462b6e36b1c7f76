// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What others ask: what an interface has, whether an address is this node's, and by which interfaces peers are asked.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use ibarr_common::IfIndex;
use ibarr_common::ib::{Gid, PKey};

use super::{
    AddressId, AddressStatus, Input, Interface, InterfaceAddress, InterfaceName, Key, Link,
    LinkType, LocalView, Subject,
};
use crate::ip2gid::client::Egress;
use crate::ip2gid::server::Local;
use crate::ip2gid::{Question, is_link_local};
use crate::paths::GidTable;
use crate::request::{Outcome, Source};

impl LocalView {
    /// Every interface, in the order of their indices.
    pub fn interfaces(&self) -> impl Iterator<Item = Interface> {
        self.inventory.links().map(|link| Interface {
            ifindex: link.ifindex,
            name: link.name,
            link_type: link.link_type,
            vrf: link.vrf,
            gid: self.served_gid(link),
            addresses: self
                .inventory
                .addresses_on(link.ifindex)
                .map(|InterfaceAddress { id, dad, .. }| AddressStatus {
                    address: id.address,
                    dad,
                    owned: self.facts.lookup(Key::new(id.address, id.ifindex)).copied(),
                })
                .collect(),
        })
    }

    /// The addresses that have one of these GIDs, and their interfaces, in the order of both.
    pub fn addresses_with(&self, gids: &GidTable) -> impl Iterator<Item = (IpAddr, &Link)> {
        self.inventory.links().flat_map(move |link| {
            let addresses = self.inventory.addresses_on(link.ifindex).map(|entry| entry.id.address);
            let has_gid = move |address: &IpAddr| {
                let owned = self.facts.lookup(Key::new(*address, link.ifindex));
                let gid = owned.filter(|owned| owned.ifindex == link.ifindex)?.gid?;
                gids.contains(gid).then_some(())
            };
            let those = addresses.filter(move |address| has_gid(address).is_some());
            those.map(move |address| (address, link))
        })
    }

    /// The answer for an address of this node; `None` if it is not one.
    pub fn lookup(&self, question: Question) -> Option<Outcome> {
        let target = question.target();
        // Without an interface, a link-local address may be any node's; any other address has the same GID on all.
        let ingress = match question.egress() {
            Some(egress) => egress,
            None if is_link_local(target) => return None,
            None => IfIndex::MIN,
        };
        match self.gid_of(target, ingress) {
            Some(gid) => Some(Outcome::Found { gid, source: Source::Local }),
            None if !is_link_local(target) && self.is_ours(target) => Some(Outcome::NotFound),
            None => None,
        }
    }

    /// Whether the kernel may have what [`Self::lookup`] says. A request by an ifindex that is neither an interface of
    /// IPoIB here nor one that the configuration names comes from another network namespace, where the address may be
    /// another node's: it gets only GIDs that the configuration gives.
    pub fn tells_kernel(&self, question: Question) -> bool {
        let is_here =
            |egress| self.inventory.link(egress).is_some_and(|link| self.is_on_fabric(link));
        let is_fixed = || self.config.static_gids.lookup(question.target()).is_some();
        question.egress().is_none_or(is_here) || is_fixed()
    }

    /// Whether the kernel may ask by this interface: one of IPoIB, or one that the configuration names or gives a GID.
    fn is_on_fabric(&self, link: &Link) -> bool {
        let is_configured =
            || self.config.interfaces.selects(link) || self.facts.is_answering(link.ifindex);
        link.link_type == LinkType::INFINIBAND || is_configured()
    }

    /// Whether any address of this node has a GID. Takes constant time.
    pub fn has_answers(&self) -> bool {
        self.facts.has_answers()
    }

    /// The name of an interface of this node.
    pub fn interface_name(&self, ifindex: IfIndex) -> Option<InterfaceName> {
        self.inventory.link(ifindex).map(|link| link.name)
    }

    /// The GID of an own address, and the partition of its interface. `None` as long as any address may be one.
    pub fn own(&self, address: IpAddr) -> Option<(Option<Gid>, Option<PKey>)> {
        let owned = self.facts.lookup(Key::new(address, IfIndex::MIN));
        let pkey = owned.and_then(|owned| self.inventory.link(owned.ifindex)?.pkey);
        self.is_synced().then_some((owned.and_then(|owned| owned.gid), pkey))
    }

    /// The interfaces that may have changed since the last call, if these or the routes may have; `None` for
    /// one that is gone.
    ///
    /// Takes time proportional to their number, not to that of their addresses.
    pub fn poll_egresses(&mut self) -> Option<BTreeMap<IfIndex, Option<Egress>>> {
        self.note_answering();
        let changed = self.changed.take()?;
        let egress = |ifindex| {
            let link = self.inventory.link(ifindex)?;
            let addresses = self.inventory.sources_on(ifindex, Egress::MAX_SOURCES).collect();
            Some(Egress { vrf: link.vrf, is_on_fabric: self.is_on_fabric(link), addresses })
        };
        Some(changed.into_iter().map(|ifindex| (ifindex, egress(ifindex))).collect())
    }

    pub(super) fn note_input(&mut self, input: &Input) {
        match input {
            Input::Link(Link { ifindex, .. }) | Input::LinkGone(ifindex) => self.note(*ifindex),
            Input::Address(InterfaceAddress { id, .. }) | Input::AddressGone(id) => {
                self.note_address(*id);
            }
            Input::DumpDone
            | Input::RoutesChanged
            | Input::OwnRoute
            | Input::OwnRouteGone(_)
            | Input::RoutesTooMany
            | Input::DumpFailed(Subject::Routes) => {
                self.changed.get_or_insert_default();
            }
            _ => {}
        }
    }

    /// The client is told only the first addresses of an interface, so others change nothing for it.
    pub(super) fn note_address(&mut self, id: AddressId) {
        let changed = self.changed.get_or_insert_default();
        let is_told = || !self.inventory.is_behind_sources(&id, Egress::MAX_SOURCES);
        if !changed.contains(&id.ifindex) && is_told() {
            changed.insert(id.ifindex);
        }
    }
}

/// Both look-ups take constant time.
impl Local for LocalView {
    fn is_known(&self) -> bool {
        self.is_synced()
    }

    fn gid_of(&self, address: IpAddr, ingress: IfIndex) -> Option<Gid> {
        self.facts.lookup(Key::new(address, ingress))?.gid
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.facts.is_ours(address)
    }
}
