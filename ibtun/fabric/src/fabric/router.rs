// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Packets at a router: it has the agents of a channel adapter, and forwards packets with a global
//! route header to another subnet (IBA vol. 1 §19.2).
//!
//! By the specification a router asks the subnet administrator of the other subnet for the LID of a GID. This one looks
//! it up, or takes it from the GID: [`Routing`]. To a subnet in which it has no port it sends by the next router.

use std::collections::VecDeque;

use crate::wire::packet::{self, Packet};
use crate::wire::smp::{NodeType, PortState};
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, Qpn};

use super::{Arrival, Fabric, Next, is_management, port_id};
use crate::drops::DropReason;
use crate::node::Port;
use crate::topology::{NodeId, PortId, Routing};

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

    /// The port that leads to the subnet of `gid`, the LID of that port, and the LID of `gid` or of the next router.
    fn way_to(&self, router: PortId, gid: Gid) -> Option<(PortId, Lid, Lid)> {
        let wanted = gid.subnet_prefix().get();
        if let Some((exit, slid)) = self.exit_to(router.node, wanted) {
            let lid = match self.topology.node(router.node)?.routing {
                Routing::Guid => self.lid_of(gid)?,
                Routing::Lid => Lid::new(u16::try_from(gid.guid().get() & 0xffff).ok()?)?,
            };
            return Some((exit, slid, lid));
        }
        let (near, next) = self.next_router(router.node, wanted)?;
        let (exit, slid) = self.exit_to(router.node, near)?;
        Some((exit, slid, next))
    }

    /// The port of a router in the subnet with this prefix, and its LID.
    fn exit_to(&self, router: NodeId, prefix: u64) -> Option<(PortId, Lid)> {
        let is_there = |(_, port): &(u8, &Port)| {
            port.info.state() == PortState::Active && port.info.gid_prefix.get() == prefix
        };
        let (number, port) = self.node(router)?.ports().find(is_there)?;
        Some((port_id(router, number)?, port.info.lid()?))
    }

    /// On the shortest way from a router to a subnet in which it has no port: the subnet that comes next, and the LID of
    /// the next router there. The subnet managers tell a real router the way.
    fn next_router(&self, from: NodeId, wanted: u64) -> Option<(u64, Lid)> {
        let is_other = |id: NodeId, kind| kind == NodeType::Router && id != from;
        let nodes = self.topology.nodes().filter(|(id, node)| is_other(*id, node.kind));
        let mut left: Vec<_> = nodes.map(|(id, _)| id).collect();
        // From the end of the way: each router is taken once.
        let mut reached = VecDeque::from([wanted]);
        while let Some(subnet) = reached.pop_front() {
            for router in left.extract_if(.., |router| self.exit_to(*router, subnet).is_some()) {
                for (_, port) in self.node(router)?.ports() {
                    let near = port.info.gid_prefix.get();
                    let entry = self.exit_to(router, near);
                    match entry.filter(|_| self.exit_to(from, near).is_some()) {
                        Some((_, lid)) => return Some((near, lid)),
                        None => reached.push_back(near),
                    }
                }
            }
        }
        None
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
