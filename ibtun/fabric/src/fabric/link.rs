// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Links: the packets that cross them, their faults, and their state.

use std::time::Duration;

use crate::wire::packet::Packet;
use crate::wire::smp::{PhysicalState, PortInfoWire, PortState, SwitchInfoWire};
use ibarr_common::Instant;
use ibarr_common::ib::Qpn;
use ibarr_common::wire::mad::Class;
use rand_core::Rng as _;

use super::{
    Arrival, Crossing, Fabric, MANAGEMENT_LANE, MAX_HOPS, MAX_IN_FLIGHT, MAX_QUEUED, is_management,
    port_id,
};
use crate::drops::DropReason;
use crate::fault::{Fault, LinkFault};
use crate::node::{Host, Port};
use crate::topology::{self, NodeId, PortId};

/// The bits of PortInfo:CapabilityMask that software behind a port sets: for a subnet manager, a
/// connection manager and a device manager.
const SOFTWARE_CAPABILITIES: u32 = PortInfoWire::IS_SM | 1 << 16 | 1 << 19;

/// A link that a packet is about to cross.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    from: PortId,
    to: PortId,
    /// Number of links that the packet may cross after this one.
    hops: u8,
}

impl Fabric {
    /// Sends a packet over its first link.
    pub(super) fn send_first(&mut self, now: Instant, from: PortId, packet: Vec<u8>) {
        self.send(now, from, packet, MAX_HOPS);
    }

    /// Sends a packet over the link of `from`. `hops` is the number of links that it may cross,
    /// including this one.
    pub(super) fn send(&mut self, now: Instant, from: PortId, packet: Vec<u8>, hops: u8) {
        match Packet::parse(&packet) {
            Ok(parsed) => {
                if let Some(link) = self.leave(from, &parsed, packet.len(), hops) {
                    self.cross(now, link, packet);
                }
            }
            Err(error) => self.drop(DropReason::Packet(error)),
        }
    }

    /// Counts a packet of `len` bytes that leaves through a port. `None` if it is dropped.
    pub(super) fn leave(
        &mut self,
        from: PortId,
        parsed: &Packet<'_>,
        len: usize,
        hops: u8,
    ) -> Option<Link> {
        let Some(hops) = hops.checked_sub(1) else {
            self.drop(DropReason::HopLimit);
            return None;
        };
        let Some(to) = self.topology.peer(from) else {
            self.drop(DropReason::LinkDown);
            return None;
        };
        if let Err(reason) = self.may_leave(from, parsed) {
            self.count_at(from, |counters| match reason {
                DropReason::Partition => counters.send_constraint_errors += 1,
                _ => counters.send_discards += 1,
            });
            self.drop(reason);
            return None;
        }
        let (words, multicast) = (len as u64 / 4, parsed.dlid.is_multicast());
        self.count_at(from, |counters| {
            counters.sent_packets += 1;
            counters.sent_words += words;
            counters.sent_multicast += u64::from(multicast);
        });
        Some(Link { from, to, hops })
    }

    /// Lets a packet cross the link, as well as the link's faults allow.
    pub(super) fn cross(&mut self, now: Instant, link: Link, packet: Vec<u8>) {
        let Link { from, to, hops } = link;
        let fault = self.link_fault(from);
        if self.chance(fault.loss) {
            // As of a bad cable: the packet arrives damaged, and its checksum is wrong.
            self.count_at(to, |counters| {
                counters.symbol_errors += 1;
                counters.receive_errors += 1;
            });
            return self.drop(DropReason::Lost);
        }
        let arrival = Arrival { port: to, packet, hops, crossed: true };
        if self.chance(fault.duplication) {
            let after = self.delay(fault);
            self.schedule(now + after, arrival.clone());
        }
        let after = self.delay(fault);
        self.schedule(now + after, arrival);
    }

    /// Delivers a packet to a port of its own node.
    pub(super) fn loop_back(&mut self, now: Instant, port: PortId, packet: Vec<u8>) {
        self.schedule(now, Arrival { port, packet, hops: MAX_HOPS, crossed: false });
    }

    fn schedule(&mut self, at: Instant, arrival: Arrival) {
        if self.in_flight.len() + self.due.len() >= MAX_IN_FLIGHT {
            return self.drop(DropReason::InFlight);
        }
        if at <= self.now {
            return self.due.push_back(arrival);
        }
        self.sent += 1;
        self.in_flight.insert((at, self.sent), arrival);
    }

    fn may_leave(&self, from: PortId, packet: &Packet<'_>) -> Result<(), DropReason> {
        let node = self.node(from.node).ok_or(DropReason::LinkDown)?;
        let port = node.port(from.number.get()).ok_or(DropReason::LinkDown)?;
        if !is_up(port) {
            return Err(DropReason::LinkDown);
        }
        if self.is_cut_off(from, packet) {
            return Err(DropReason::CutOff);
        }
        if (packet.vl == MANAGEMENT_LANE) != is_management(packet) {
            return Err(DropReason::Lane);
        }
        if is_management(packet) {
            return Ok(());
        }
        if port.info.state() != PortState::Active {
            return Err(DropReason::PortState);
        }
        if packet.payload.len() > 128 << port.info.mtu() {
            return Err(DropReason::Mtu);
        }
        let enforces = node.switch.is_some() && port.info.enforces_outbound();
        if enforces && !port.shares_partition(packet.pkey) {
            return Err(DropReason::Partition);
        }
        Ok(())
    }

    /// Counts a packet that arrives over the link of `port`. `false` if it is dropped.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        port: PortId,
        parsed: &Packet<'_>,
        packet: &[u8],
    ) -> bool {
        if let Err(reason) = self.may_enter(port, parsed) {
            self.count_at(port, |counters| match reason {
                DropReason::Partition => counters.receive_constraint_errors += 1,
                _ => counters.receive_errors += 1,
            });
            self.drop(reason);
            return false;
        }
        let (words, multicast) = (packet.len() as u64 / 4, parsed.dlid.is_multicast());
        self.count_at(port, |counters| {
            counters.received_packets += 1;
            counters.received_words += words;
            counters.received_multicast += u64::from(multicast);
        });
        if let Some(capture) = &mut self.capture
            && capture.len() < MAX_QUEUED
        {
            capture.push_back(Crossing { at: now, port, packet: packet.to_vec() });
        }
        true
    }

    fn may_enter(&self, at: PortId, packet: &Packet<'_>) -> Result<(), DropReason> {
        let node = self.node(at.node).ok_or(DropReason::LinkDown)?;
        let port = node.port(at.number.get()).ok_or(DropReason::LinkDown)?;
        // The link may have gone down while the packet was in flight.
        if !is_up(port) {
            return Err(DropReason::LinkDown);
        }
        if self.is_cut_off(at, packet) {
            return Err(DropReason::CutOff);
        }
        if is_management(packet) {
            return Ok(());
        }
        if port.info.state() < PortState::Armed {
            return Err(DropReason::PortState);
        }
        let enforces = node.switch.is_some() && port.info.enforces_inbound();
        if enforces && !port.shares_partition(packet.pkey) {
            return Err(DropReason::Partition);
        }
        Ok(())
    }

    fn is_cut_off(&self, port: PortId, packet: &Packet<'_>) -> bool {
        let administration = packet.destination == Qpn::GSI
            && packet.payload.get(1) == Some(&Class::SUBNET_ADM.get());
        (is_management(packet) || administration) && self.cut_off.contains(&port)
    }

    /// A link is identified by the lower one of its ports.
    fn link_fault(&self, port: PortId) -> LinkFault {
        self.faults.get(&self.link_of(port)).copied().unwrap_or_default()
    }

    fn link_of(&self, port: PortId) -> PortId {
        self.topology.peer(port).map_or(port, |peer| peer.min(port))
    }

    fn delay(&mut self, fault: LinkFault) -> Duration {
        let jitter = u64::try_from(fault.jitter.as_nanos()).unwrap_or(u64::MAX);
        if jitter == 0 {
            return fault.delay;
        }
        // The bias of the remainder is far too small to notice.
        fault.delay + Duration::from_nanos(self.rng.next_u64() % jitter)
    }

    pub(super) fn set_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Link { port, fault } => {
                let link = self.link_of(port);
                if fault == LinkFault::NONE {
                    self.faults.remove(&link);
                } else {
                    self.faults.insert(link, fault);
                }
            }
            Fault::Cable { port, down } => {
                let number = port.number.get();
                if let Some(port) = self.node_mut(port.node).and_then(|node| node.port_mut(number))
                {
                    port.is_broken = down;
                }
                self.update_link(port);
            }
            Fault::Node { node, down } => {
                if down {
                    self.broken_nodes.insert(node);
                } else if self.broken_nodes.remove(&node) {
                    self.power_on(node);
                }
                self.update_links(node);
            }
            Fault::Manager { port, cut: true } => {
                self.cut_off.insert(port);
            }
            Fault::Manager { port, cut: false } => {
                self.cut_off.remove(&port);
            }
        }
    }

    pub(super) fn attach(&mut self, node: NodeId) {
        // An earlier host is gone: the links go down and up.
        self.set_host(node, Host::Expected);
        self.power_on(node);
        self.set_host(node, Host::Present);
        let numbers = self.topology.node(node).map(topology::Node::port_numbers);
        for number in numbers.into_iter().flatten() {
            self.changed.entry(PortId { node, number }).or_default();
        }
    }

    pub(super) fn detach(&mut self, node: NodeId) {
        self.set_host(node, Host::Expected);
        self.queue.retain(|(port, _)| port.node != node);
        self.queued.retain(|port, _| port.node != node);
    }

    fn set_host(&mut self, node: NodeId, host: Host) {
        if let Some(node) = self.node_mut(node) {
            node.host = host;
        }
        self.update_links(node);
    }

    /// Resets all that a subnet manager has set.
    fn power_on(&mut self, node: NodeId) {
        if let Some(node) = self.node_mut(node) {
            let kind = node.kind;
            for number in 0..=node.port_count() {
                if let Some(port) = node.port_mut(number) {
                    port.reset(kind);
                }
            }
            if let Some(switch) = &mut node.switch {
                switch.linear.clear();
                switch.multicast.clear();
                switch.info.linear_top = 0.into();
                switch.info.multicast_top = 0.into();
            }
        }
    }

    pub(super) fn set_capabilities(&mut self, port: PortId, mask: u32) {
        let number = port.number.get();
        if let Some(port) = self.node_mut(port.node).and_then(|node| node.port_mut(number)) {
            let own = port.info.capability_mask.get() & !SOFTWARE_CAPABILITIES;
            port.info.capability_mask = (own | mask & SOFTWARE_CAPABILITIES).into();
        }
    }

    pub(super) fn update_all_links(&mut self) {
        let nodes: Vec<_> = self.topology.nodes().map(|(node, _)| node).collect();
        for node in nodes {
            self.update_links(node);
        }
    }

    fn update_links(&mut self, node: NodeId) {
        let numbers = self.topology.node(node).map(topology::Node::port_numbers);
        for number in numbers.into_iter().flatten() {
            self.update_link(PortId { node, number });
        }
    }

    /// Takes a link down, and up again unless something prevents it.
    pub(super) fn retrain(&mut self, port: PortId) {
        self.set_disabled(port, true);
        self.set_disabled(port, false);
    }

    pub(super) fn set_disabled(&mut self, at: PortId, disabled: bool) {
        let number = at.number.get();
        if let Some(port) = self.node_mut(at.node).and_then(|node| node.port_mut(number)) {
            port.is_disabled = disabled;
        }
        self.update_link(at);
    }

    /// A link is up if both ends enable it, and both nodes are on.
    pub(super) fn update_link(&mut self, one: PortId) {
        let Some(other) = self.topology.peer(one) else { return };
        let up = [one, other].iter().all(|&port| self.wants_link(port));
        for end in [one, other] {
            let number = end.number.get();
            let is_broken = self.broken_nodes.contains(&end.node);
            let Some(node) = self.node_mut(end.node) else { continue };
            let Some(port) = node.port_mut(number) else { continue };
            let was_up = is_up(port);
            let physical = match (up, port.is_disabled) {
                (true, _) => PhysicalState::LinkUp,
                (false, true) => PhysicalState::Disabled,
                (false, false) => PhysicalState::Polling,
            };
            port.info.set_physical_state(physical);
            if was_up == up {
                continue;
            }
            // A host that joins a link which was never used causes no link error.
            let was_used = port.info.state() > PortState::Initialize;
            port.counters.link_downed += u64::from(!up && was_used);
            port.info.set_state(if up { PortState::Initialize } else { PortState::Down });
            if let Some(switch) = &mut node.switch {
                switch.info.life_time |= SwitchInfoWire::PORT_STATE_CHANGE;
                // Without a manager there is no receiver, and a node that is off sends nothing.
                if switch.port_0.info.sm_lid().is_some() && !is_broken {
                    let now = self.now;
                    self.traps.add(now, end.node);
                }
            }
            self.changed.entry(end).or_default();
        }
    }

    fn wants_link(&self, port: PortId) -> bool {
        let Some(node) = self.node(port.node) else { return false };
        node.host != Host::Expected
            && !self.broken_nodes.contains(&port.node)
            && node.port(port.number.get()).is_some_and(Port::wants_link)
    }

    /// Notes that the host has to be told about the port `number`.
    pub(super) fn mark_changed(&mut self, node: NodeId, number: u8, reregister: bool) {
        if let Some(port) = port_id(node, number) {
            self.changed.entry(port).or_default().reregister |= reregister;
        }
    }
}

fn is_up(port: &Port) -> bool {
    port.info.physical_state() == PhysicalState::LinkUp
}
