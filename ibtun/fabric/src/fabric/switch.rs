// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Packets at a switch.

use crate::wire::packet::Packet;
use crate::wire::smp::Smp;
use ibarr_common::Instant;
use ibarr_common::ib::Lid;

use super::walk::{self, Step};
use super::{Arrival, Fabric, Next, answer, is_management, port_id, with_smp};
use crate::drops::DropReason;
use crate::topology::PortId;

impl Fabric {
    pub(super) fn arrive_at_switch(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        packet: &Packet<'_>,
    ) -> Next {
        let port = arrival.port;
        if packet.dlid.is_multicast() {
            self.replicate(now, arrival, packet);
            return Next::Nothing;
        }
        let is_for_us = packet.dlid == Lid::PERMISSIVE || self.is_own_lid(port, packet.dlid);
        if !is_for_us {
            let route =
                self.node(port.node).and_then(|node| node.switch.as_ref()?.route(packet.dlid));
            // Port 0 is the switch itself, and has another LID.
            if let Some(exit) = route.and_then(|number| port_id(port.node, number)) {
                return Next::Send(exit);
            }
            self.count_at(port, |counters| counters.relay_errors += 1);
            self.drop(DropReason::DestinationLid);
        } else if !is_management(packet) {
            self.arrive_at_services(now, port, packet);
        } else {
            match Smp::parse(packet.payload) {
                Err(error) => self.drop(DropReason::Smp(error)),
                Ok(smp) if smp.is_directed() => self.walk_on(now, arrival, packet, smp),
                Ok(mut smp) => self.answer_lid_routed(now, port, packet, &mut smp),
            }
        }
        Next::Nothing
    }

    fn walk_on(&mut self, now: Instant, arrival: &Arrival, packet: &Packet<'_>, mut smp: Smp) {
        let PortId { node, number } = arrival.port;
        let (exit, bytes) = match walk::arrive(&mut smp, number.get(), true) {
            Err(reason) => return self.drop(reason),
            Ok(Step::Forward(exit)) => (exit, with_smp(&arrival.packet, packet, &smp)),
            Ok(Step::Answer | Step::Deliver) => {
                if !self.ask_agent(node, number.get(), &mut smp) {
                    return;
                }
                let exit = walk::turn_back(&mut smp);
                let lid = Some(Lid::PERMISSIVE);
                let Some(bytes) = answer(packet, lid, smp.as_bytes(), lid) else { return };
                (exit, bytes)
            }
        };
        match port_id(node, exit) {
            Some(exit) => self.send(now, exit, bytes, arrival.hops),
            None => self.drop(DropReason::Route),
        }
    }

    /// Sends multicast through every port that leads to members, except the one it arrived at.
    fn replicate(&mut self, now: Instant, arrival: &Arrival, packet: &Packet<'_>) {
        let PortId { node, number } = arrival.port;
        let Some(at) = self.node(node) else { return };
        let Some(switch) = &at.switch else { return };
        let exits: Vec<_> = (1..=at.port_count())
            .filter(|&exit| exit != number.get() && switch.leads_to_group(packet.dlid, exit))
            .filter_map(|exit| port_id(node, exit))
            .collect();
        if exits.is_empty() && !switch.leads_to_group(packet.dlid, number.get()) {
            self.drop(DropReason::DestinationLid);
        }
        for exit in exits {
            self.send(now, exit, arrival.packet.clone(), arrival.hops);
        }
    }
}
