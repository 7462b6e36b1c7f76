// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The agents of a node, and the effects of their requests on the fabric.

use crate::wire::packet::Packet;
use crate::wire::smp::Smp;
use ibarr_common::Instant;
use ibarr_common::ib::{Lid, Qpn};
use ibarr_common::wire::mad::Method;

use super::{Fabric, answer};
use crate::drops::DropReason;
use crate::pma;
use crate::sma::{self, Effect, LinkCommand};
use crate::topology::{NodeId, PortId};

impl Fabric {
    /// Makes the agent of `node` answer `smp`, which arrived at port `entry`. `false` if there is
    /// no answer.
    pub(super) fn ask_agent(&mut self, node: NodeId, entry: u8, smp: &mut Smp) -> bool {
        let Some(at) = self.node_mut(node) else { return false };
        let Ok(effect) = sma::handle(at, entry, smp) else {
            self.drop(DropReason::MKey);
            return false;
        };
        if let Effect::Port { number, link, reregister } = effect {
            self.mark_changed(node, number, reregister);
            if let (Some(command), Some(port)) = (link, super::port_id(node, number)) {
                match command {
                    LinkCommand::Retrain => self.retrain(port),
                    LinkCommand::Disable => self.set_disabled(port, true),
                }
            }
        }
        true
    }

    /// Answers a LID-routed SMP to the node of `port`.
    pub(super) fn answer_lid_routed(
        &mut self,
        now: Instant,
        port: PortId,
        request: &Packet<'_>,
        smp: &mut Smp,
    ) {
        if smp.method().is_response() {
            let is_heard =
                smp.method() == Method::TRAP_REPRESS && self.traps.repress(port.node, smp.tid());
            if !is_heard {
                self.drop(DropReason::Unsolicited);
            }
            return;
        }
        if !self.ask_agent(port.node, port.number.get(), smp) {
            return;
        }
        let lid = self.own_lid(port);
        if let Some(packet) = answer(request, request.slid, smp.as_bytes(), lid) {
            self.send_first(now, port, packet);
        }
    }

    /// Handles a packet to the general services of a switch or router.
    pub(super) fn arrive_at_services(&mut self, now: Instant, port: PortId, packet: &Packet<'_>) {
        if packet.destination != Qpn::GSI || !self.answer_counters(now, port, packet) {
            self.drop(DropReason::NoAgent);
        }
    }

    /// Answers a request for counters. `false` if it is another request.
    pub(super) fn answer_counters(
        &mut self,
        now: Instant,
        port: PortId,
        packet: &Packet<'_>,
    ) -> bool {
        let Some(node) = self.node_mut(port.node) else { return false };
        let Some(mad) = pma::handle(node, packet.payload) else { return false };
        let lid = self.own_lid(port);
        if let Some(answer) = answer(packet, packet.slid, &mad, lid) {
            // A node that reads its own counters gets them without a link.
            if packet.slid.is_some_and(|slid| self.is_own_lid(port, slid)) {
                self.hand_to_host(port, answer);
            } else {
                self.send_first(now, port, answer);
            }
        }
        true
    }

    /// The source LID of packets that the node sends through `port`.
    pub(super) fn own_lid(&self, port: PortId) -> Option<Lid> {
        let node = self.node(port.node)?;
        node.port(node.addressed_port(port.number.get()))?.info.lid()
    }

    /// Whether the node behind `port` has this LID.
    pub(super) fn is_own_lid(&self, port: PortId, lid: Lid) -> bool {
        let node = self.node(port.node);
        let port = node.and_then(|node| node.port(node.addressed_port(port.number.get())));
        port.is_some_and(|port| port.info.has_lid(lid))
    }
}
