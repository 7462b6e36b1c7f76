// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Packets at a channel adapter: its agents handle theirs, the host gets all others.
//!
//! A subnet manager behind a port answers SMInfo itself. But Linux drops a directed-route request
//! that software has to answer (`smi_check_local_smp` of drivers/infiniband/core/smi.h leaves that
//! to the hardware). So such a request is turned into a LID-routed one, and its answer back.

use std::collections::VecDeque;

use crate::wire::packet::{Datagram, MAX_LEN, Packet};
use crate::wire::smp::{PortInfoWire, SM_INFO, Smp};
use ibarr_common::Instant;
use ibarr_common::ib::{Lid, PKey, Qpn};
use ibarr_common::wire::mad::{Method, Tid};

use super::walk::{self, Step};
use super::{Arrival, Fabric, MAX_HOPS, Next, answer, is_management, port_id, with_smp};
use crate::drops::DropReason;
use crate::topology::PortId;

/// Limit of directed-route requests that wait for a subnet manager. The oldest one is dropped.
const MAX_PROXIED: usize = 64;

/// The requests whose answers have to be turned back.
#[derive(Debug, Default)]
pub(super) struct ManagerProxy {
    requests: VecDeque<Proxied>,
}

#[derive(Debug)]
struct Proxied {
    port: PortId,
    tid: Tid,
    /// The packet as it arrived, after the walk of its request.
    packet: Vec<u8>,
    smp: Smp,
}

impl ManagerProxy {
    fn take(&mut self, port: PortId, tid: Tid) -> Option<Proxied> {
        let at = self.requests.iter().position(|one| one.port == port && one.tid == tid)?;
        self.requests.remove(at)
    }

    fn take_any(&mut self, port: PortId) -> Option<Proxied> {
        let at = self.requests.iter().position(|one| one.port == port)?;
        self.requests.remove(at)
    }
}

impl Fabric {
    pub(super) fn arrive_at_adapter(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        packet: &Packet<'_>,
    ) -> Next {
        let port = arrival.port;
        if !is_management(packet) {
            if packet.dlid.is_unicast() && !self.is_own_lid(port, packet.dlid) {
                self.drop(DropReason::DestinationLid);
                return Next::Nothing;
            }
            if packet.destination == Qpn::GSI && self.answer_counters(now, port, packet) {
                return Next::Nothing;
            }
            return Next::Host;
        }
        match Smp::parse(packet.payload) {
            Err(error) => self.drop(DropReason::Smp(error)),
            Ok(smp) if smp.is_directed() => return self.end_walk(now, arrival, packet, smp),
            Ok(_) if packet.dlid != Lid::PERMISSIVE && !self.is_own_lid(port, packet.dlid) => {
                self.drop(DropReason::DestinationLid);
            }
            Ok(mut smp) if is_for_agent(&smp) => {
                self.answer_lid_routed(now, port, packet, &mut smp);
            }
            Ok(_) => return Next::Host,
        }
        Next::Nothing
    }

    fn end_walk(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        packet: &Packet<'_>,
        mut smp: Smp,
    ) -> Next {
        let port = arrival.port;
        match walk::arrive(&mut smp, port.number.get(), false) {
            Err(reason) => self.drop(reason),
            Ok(Step::Deliver) => return Next::Host,
            Ok(_) if smp.attribute() == SM_INFO && self.has_manager(port) => {
                self.ask_manager(port, packet, &arrival.packet, smp);
            }
            Ok(_) => {
                if self.ask_agent(port.node, port.number.get(), &mut smp) {
                    self.send_back(now, port, packet, &mut smp);
                }
            }
        }
        Next::Nothing
    }

    /// Sends the answer to a directed-route SMP whose route ended here.
    fn send_back(&mut self, now: Instant, port: PortId, request: &Packet<'_>, smp: &mut Smp) {
        let exit = walk::turn_back(smp);
        let lid = Some(Lid::PERMISSIVE);
        let bytes = answer(request, lid, smp.as_bytes(), lid);
        match (port_id(port.node, exit), bytes) {
            (Some(exit), Some(bytes)) => self.send_first(now, exit, bytes),
            _ => self.drop(DropReason::Route),
        }
    }

    fn has_manager(&self, port: PortId) -> bool {
        let info = self.node(port.node).and_then(|node| node.port(port.number.get()));
        self.is_hosted(port.node)
            && info.is_some_and(|port| port.info.capability_mask.get() & PortInfoWire::IS_SM != 0)
    }

    fn ask_manager(&mut self, port: PortId, packet: &Packet<'_>, bytes: &[u8], smp: Smp) {
        let mut by_lid = smp;
        by_lid.set_directed(false);
        by_lid.forget_route();
        // Linux answers only a LID that exists.
        let Some(request) = self.lid_routed(port, packet, &by_lid) else { return };
        if self.proxy.requests.len() >= MAX_PROXIED {
            self.proxy.requests.pop_front();
            self.drop(DropReason::Unanswered);
        }
        self.proxy.requests.push_back(Proxied {
            port,
            tid: smp.tid(),
            packet: bytes.to_vec(),
            smp,
        });
        self.hand_to_host(port, request);
    }

    /// Lets the agent answer requests that wait for a manager which is gone.
    pub(super) fn answer_for_manager(&mut self, now: Instant, port: PortId) {
        if self.has_manager(port) {
            return;
        }
        while let Some(Proxied { packet, mut smp, .. }) = self.proxy.take_any(port) {
            if let Ok(request) = Packet::parse(&packet)
                && self.ask_agent(port.node, port.number.get(), &mut smp)
            {
                self.send_back(now, port, &request, &mut smp);
            }
        }
    }

    /// A LID-routed packet to `port` with an SMP that arrived by directed route.
    fn lid_routed(&self, port: PortId, packet: &Packet<'_>, smp: &Smp) -> Option<Vec<u8>> {
        let datagram = Datagram {
            vl: packet.vl,
            sl: packet.sl,
            dlid: self.own_lid(port).unwrap_or(Lid::PERMISSIVE),
            slid: packet.slid.or(Some(Lid::PERMISSIVE)),
            grh: None,
            pkey: packet.pkey.unwrap_or(PKey::DEFAULT),
            destination: Qpn::SMI,
            qkey: 0,
            source: packet.source?,
        };
        let mut bytes = vec![0; MAX_LEN];
        let len = datagram.emit(smp.as_bytes(), &mut bytes)?;
        bytes.truncate(len);
        Some(bytes)
    }

    /// Sends a packet of a host.
    pub(super) fn host_sends(&mut self, now: Instant, port: PortId, bytes: &[u8]) {
        if !self.is_hosted(port.node) {
            return self.drop(DropReason::NoHost);
        }
        if bytes.len() > MAX_LEN {
            return self.drop(DropReason::Packet(crate::wire::packet::Error::Length));
        }
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.drop(DropReason::Packet(error)),
        };
        if is_management(&packet) {
            return match Smp::parse(packet.payload) {
                Err(error) => self.drop(DropReason::Smp(error)),
                Ok(smp) if smp.is_directed() => self.begin_walk(now, port, &packet, bytes, smp),
                Ok(smp) => self.lid_routed_from_host(now, port, &packet, bytes, &smp),
            };
        }
        match packet.slid {
            Some(slid) if self.is_own_lid(port, slid) => {}
            _ => return self.drop(DropReason::SourceLid),
        }
        if packet.dlid.is_multicast() {
            // The host itself may be a member of the group; it decides.
            self.loop_back(now, port, bytes.to_vec());
        } else if self.is_own_lid(port, packet.dlid) {
            return self.loop_back(now, port, bytes.to_vec());
        }
        if let Some(link) = self.leave(port, &packet, bytes.len(), MAX_HOPS) {
            self.cross(now, link, bytes.to_vec());
        }
    }

    fn begin_walk(
        &mut self,
        now: Instant,
        port: PortId,
        packet: &Packet<'_>,
        bytes: &[u8],
        mut smp: Smp,
    ) {
        match walk::depart(&mut smp, port.number.get()) {
            Err(reason) => self.drop(reason),
            Ok(Step::Forward(_)) => self.send_first(now, port, with_smp(bytes, packet, &smp)),
            Ok(_) => {
                if !self.ask_agent(port.node, port.number.get(), &mut smp) {
                    return;
                }
                let lid = Some(Lid::PERMISSIVE);
                if let Some(bytes) = answer(packet, lid, smp.as_bytes(), lid) {
                    self.hand_to_host(port, bytes);
                }
            }
        }
    }

    fn lid_routed_from_host(
        &mut self,
        now: Instant,
        port: PortId,
        packet: &Packet<'_>,
        bytes: &[u8],
        smp: &Smp,
    ) {
        if smp.attribute() == SM_INFO
            && smp.method() == Method::GET_RESP
            && let Some(proxied) = self.proxy.take(port, smp.tid())
        {
            return self.answer_proxied(now, port, &proxied, smp);
        }
        if packet.dlid != Lid::PERMISSIVE && !self.is_own_lid(port, packet.dlid) {
            return self.send_first(now, port, bytes.to_vec());
        }
        let mut answered = *smp;
        if !is_for_agent(smp) {
            return self.hand_to_host(port, bytes.to_vec());
        }
        if self.ask_agent(port.node, port.number.get(), &mut answered) {
            let own = Some(packet.dlid);
            if let Some(bytes) = answer(packet, packet.slid, answered.as_bytes(), own) {
                self.hand_to_host(port, bytes);
            }
        }
    }

    /// Turns a manager's LID-routed answer into the answer to the directed-route request.
    fn answer_proxied(&mut self, now: Instant, port: PortId, proxied: &Proxied, answer: &Smp) {
        let mut smp = proxied.smp;
        *smp.data_mut() = *answer.data();
        smp.answer(answer.status());
        if let Ok(request) = Packet::parse(&proxied.packet) {
            self.send_back(now, port, &request, &mut smp);
        }
    }
}

/// Whether the agent of a channel adapter handles the SMP, and not a subnet manager behind it. The
/// agent sends no traps, so an answer to a trap is for the manager.
fn is_for_agent(smp: &Smp) -> bool {
    matches!(smp.method(), Method::GET | Method::SET) && smp.attribute() != SM_INFO
}
