// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Ports, their MADs and their events.

use std::collections::BTreeSet;

use ibarr_common::Instant;
use ibarr_common::ib::DeviceName;
use ibarr_proto::health::Missing;
use ibarr_proto::node::Node;
use ibarr_proto::paths::{Input, PortFacts, PortName};
use ibarr_proto::sa::{PortIndex, Transmit};
use tracing::info;

use super::events::{DeviceEvents, tell};
use super::{log, trace};
use crate::control::messages::{LastEvent, PortAddress, PortStatus, Probing, Silence, TableGid};
use crate::transport::events::Event;
use crate::transport::ports::{self, Ports};
use crate::transport::umad::{self, EventKind, SendResult, Umads};

/// The ports of this node, their umad devices and their events.
pub(super) struct Rdma {
    pub(super) ports: Ports,
    pub(super) umads: Umads,
    pub(super) device_events: DeviceEvents,
    /// The devices whose ports have yet to be read; `None` before it is known which there are.
    pub(super) unread: Option<BTreeSet<DeviceName>>,
}

impl Rdma {
    pub(super) fn handle_port(&mut self, now: Instant, event: ports::Event, node: &mut Node) {
        match event {
            ports::Event::Port { name, facts, opened, blocked } => {
                let Some(port) = self.umads.index(name) else { return };
                if let Some((opened, token)) = opened {
                    self.umads.open(port, opened, token);
                }
                self.umads.block(port, blocked);
                self.tell_facts(now, port, name, facts, node);
                self.device_events.watch(now, port, name.device, node);
            }
            ports::Event::Gone(name) => {
                let Some(port) = self.umads.index(name) else { return };
                self.umads.close(port);
                tell(node, now, Input::PortGone { port });
            }
            ports::Event::Listed(devices) => self.unread = Some(devices.into_iter().collect()),
            ports::Event::Read(device) => {
                if let Some(unread) = &mut self.unread {
                    unread.remove(&device);
                }
            }
        }
    }

    pub(super) fn handle_mad(&mut self, now: Instant, event: &umad::Event, node: &mut Node) {
        match self.umads.read(event) {
            EventKind::Mad { port, from, mad } => {
                log::mad(&self.umads, port, "from", mad);
                trace::mad(node, now, &self.umads, port, from, mad);
                tell(node, now, Input::Mad { port, from, mad });
            }
            EventKind::Unanswered => tell(node, now, Input::Unanswered),
            EventKind::Lost(port) => self.lose_device(now, port, node),
            EventKind::Nothing => {}
        }
    }

    pub(super) fn send(&mut self, now: Instant, transmit: &Transmit, node: &mut Node) {
        log::mad(&self.umads, transmit.port, "to", transmit.mad.as_ref());
        trace::mad_sent(node, now, &self.umads, transmit);
        match self.umads.send(transmit) {
            SendResult::Sent => {}
            SendResult::Refused => {
                tell(node, now, Input::NotSent);
                self.ports.look();
            }
            SendResult::Lost => self.lose_device(now, transmit.port, node),
        }
    }

    pub(super) fn handle_event(&mut self, now: Instant, event: Event, node: &mut Node) {
        match event {
            Event::Happened(name, event) => {
                info!(port = %name, %event, "the kernel reported an event");
                // Read the new state of the port at once.
                self.ports.look();
                if let Some(port) = self.umads.index(name) {
                    tell(node, now, Input::Happened { port, event });
                }
            }
            Event::Heard(device) => {
                self.ports.note_heard(device, true);
                self.device_events.note(now, device, Ok(()), node);
            }
            Event::Deaf(device, reason) => {
                self.ports.note_heard(device, false);
                self.device_events.note(now, device, Err(reason), node);
            }
        }
    }

    fn lose_device(&self, now: Instant, port: PortIndex, node: &mut Node) {
        let known = node.paths().ports().find(|(index, ..)| *index == port);
        if let Some((_, name, facts, _)) = known {
            let facts = facts.clone();
            self.tell_facts(now, port, name, facts, node);
        }
        self.ports.look();
    }

    fn tell_facts(
        &self,
        now: Instant,
        port: PortIndex,
        name: PortName,
        facts: PortFacts,
        node: &mut Node,
    ) {
        let facts = PortFacts { has_umad: self.umads.is_open(port), ..facts };
        tell(node, now, Input::Port { port, name, facts });
    }

    pub(super) fn status(&self, now: Instant, node: &Node) -> Vec<PortStatus> {
        let ports = node.paths().ports();
        let last_event = |port| {
            let (at, event) = node.paths().last_event(port)?;
            Some(LastEvent { event, ago_ms: now.since(at).into() })
        };
        let status = |(index, name, facts, has_qos): (PortIndex, PortName, &PortFacts, bool)| {
            let load = node.paths().client().load(index);
            PortStatus {
                port: name,
                active: facts.is_active,
                lid: facts.lid,
                lmc: facts.lmc,
                sm_lid: facts.sm_lid,
                sm_sl: facts.sm_sl,
                gids: facts.gids.iter().collect(),
                gid_table: table_of(facts, node),
                pkeys: facts.pkeys.iter().map(|(_, pkey)| *pkey).collect(),
                addresses: addresses_of(facts, node),
                qos: has_qos,
                load,
                sa: node.paths().client().tally(index),
                probing: load.shut.map(|shut| Probing {
                    because: if shut.busy { Silence::Busy } else { Silence::Silent },
                    for_ms: now.since(shut.since).into(),
                }),
                blocked: self.why_no_sa(index, facts),
                last_event: last_event(index),
                deaf: self.device_events.why_not(name.device).map(|fault| fault.to_string()),
            }
        };
        ports.map(status).collect()
    }

    fn why_no_sa(&self, port: PortIndex, facts: &PortFacts) -> Option<String> {
        let closed = self.umads.why_not(port).map(ToString::to_string);
        closed.or_else(|| Some(Missing::of(facts)?.to_string()))
    }
}

/// The GIDs of the port, and the interfaces that have them.
fn table_of(facts: &PortFacts, node: &Node) -> Vec<TableGid> {
    let entry = |(index, gid)| {
        let links = node.view().interfaces().filter(|link| link.gid == Ok(gid));
        TableGid { index, gid, interfaces: links.map(|link| link.name.to_string()).collect() }
    };
    facts.gids.entries().map(entry).collect()
}

/// The addresses that are answered with a GID of the port.
fn addresses_of(facts: &PortFacts, node: &Node) -> Vec<PortAddress> {
    let mut addresses = Vec::new();
    for link in node.view().interfaces() {
        for address in &link.addresses {
            let Some(gid) = address.owned.and_then(|owned| owned.gid) else { continue };
            if facts.gids.contains(gid) {
                let (ip, interface) = (address.address, link.name.to_string());
                addresses.push(PortAddress { ip, interface, gid });
            }
        }
    }
    addresses
}
