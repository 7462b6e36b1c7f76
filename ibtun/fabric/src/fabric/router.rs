// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Packets at a router: it has the agents of a channel adapter, and forwards packets with a global
//! route header to another subnet (IBA vol. 1 §19.2).
//!
//! By the specification a router asks the subnet administrator of the other subnet for the LID of a GID. This one looks
//! it up, or takes it from the GID: [`Routing`].

use crate::wire::packet::{self, Packet};
use crate::wire::smp::PortState;
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, Qpn};

use super::{Arrival, Fabric, Next, is_management, port_id};
use crate::drops::DropReason;
use crate::topology::{PortId, Routing};

impl Fabric {
    pub(super) fn arrive_at_router(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        packet: &Packet<'_>,
    ) -> Next {
        if is_management(packet) {
            return self.arrive_at_adapter(now, arrival, packet);
        }
        self.route_on(now, arrival, packet);
        Next::Nothing
    }

    fn route_on(&mut self, now: Instant, arrival: &Arrival, packet: &Packet<'_>) {
        let port = arrival.port;
        if !self.is_own_lid(port, packet.dlid) {
            return self.drop(DropReason::DestinationLid);
        }
        let Some(grh) = packet.grh else {
            return match packet.destination {
                Qpn::GSI => self.arrive_at_services(now, port, packet),
                _ => self.drop(DropReason::NotGlobal),
            };
        };
        let way = Gid::new(grh.dgid).and_then(|gid| self.way_to(port, gid));
        let Some((exit, slid, dlid)) = way else { return self.drop(DropReason::GlobalRoute) };
        let mut bytes = arrival.packet.clone();
        if packet::route(&mut bytes, slid, dlid).is_none() {
            return self.drop(DropReason::HopLimit);
        }
        self.send(now, exit, bytes, arrival.hops);
    }

    /// The router's port to the subnet of `gid`, the LID of that port, and the LID of `gid`.
    fn way_to(&self, router: PortId, gid: Gid) -> Option<(PortId, Lid, Lid)> {
        let node = self.node(router.node)?;
        let prefix = gid.subnet_prefix();
        let (number, exit) = node.ports().find(|(_, port)| {
            port.info.state() == PortState::Active && port.info.gid_prefix.get() == prefix.get()
        })?;
        let lid = match self.topology.node(router.node)?.routing {
            Routing::Guid => self.lid_of(gid)?,
            Routing::Lid => Lid::new(u16::try_from(gid.guid().get() & 0xffff).ok()?)?,
        };
        Some((port_id(router.node, number)?, exit.info.lid()?, lid))
    }

    /// The LID of the port that has `gid`, or was given it by its subnet manager.
    fn lid_of(&self, gid: Gid) -> Option<Lid> {
        let wanted = gid.guid();
        let in_subnet = |port: &PortId| {
            let port = self.node(port.node)?.port(port.number.get())?;
            port.info.lid().filter(|_| port.info.gid_prefix.get() == gid.subnet_prefix().get())
        };
        if let Some(port) = self.by_guid.get(&wanted) {
            return in_subnet(port);
        }
        let has_alias = |port: &&PortId| {
            let port = self.node(port.node).and_then(|node| node.port(port.number.get()));
            port.is_some_and(|port| port.guids.contains(&wanted.get()))
        };
        self.by_guid.values().filter(has_alias).find_map(in_subnet)
    }
}
