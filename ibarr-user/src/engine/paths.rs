// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Ports, MADs, and users' requests for a path.

use std::collections::HashMap;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::PathRecord;
use ibarr_common::wire::path_record::Fields;
use ibarr_proto::health::{Device, Missing};
use ibarr_proto::node::{self, Node};
use ibarr_proto::paths::{self, Chosen, Input, Outcome, Partial, PortFacts, PortName, Sought};
use ibarr_proto::request::UserRequest;
use ibarr_proto::requests;
use ibarr_proto::sa::{PortIndex, Transmit};
use ibarr_proto::shares::User;
use tokio::sync::oneshot;

use super::events::Hearing;
use super::{Engine, log};
use crate::control::messages::{
    Body, CachedPath, Elapsed, Failure, FailureKind, LastEvent, PathAnswer, PathHops, PortAddress,
    PortStatus, Probing, Response, Silence,
};
use crate::transport::ports::{self, Ports};
use crate::transport::umad::{self, Meaning, Sending, Umads};

/// The ports of this node, their umad devices and their events.
pub(super) struct Rdma {
    ports: Ports,
    umads: Umads,
    pub(super) hearing: Hearing,
}

/// Users' requests for a path without an answer yet.
#[derive(Default)]
pub(super) struct PathAsks {
    last: u64,
    pending: HashMap<UserRequest, Asked>,
}

#[derive(Debug)]
struct Asked {
    at: Instant,
    chosen: Chosen,
    to: oneshot::Sender<Response>,
}

/// Longer than the kernel waits for the daemon: people are more patient.
const DEADLINE: Duration = Duration::from_secs(5);

impl Rdma {
    pub(super) fn new(ports: Ports, umads: Umads, hearing: Hearing) -> Self {
        Self { ports, umads, hearing }
    }

    pub(super) fn look(&self) {
        self.ports.look();
    }

    pub(super) fn facts(&self, node: &Node) -> Vec<Device> {
        let device = |(index, port, ..): (_, PortName, _, _)| Device {
            port,
            closed: self.umads.why_not(index).map(str::to_owned),
            unheard: self.hearing.failure(port.device).map(str::to_owned),
        };
        node.paths().ports().map(device).collect()
    }

    pub(super) fn port_name(&self, port: PortIndex) -> Option<PortName> {
        self.umads.port_name(port)
    }

    pub(super) fn index(&mut self, name: PortName) -> Option<PortIndex> {
        self.umads.index(name)
    }
}

impl Engine {
    pub(super) fn handle_port(&mut self, now: Instant, event: ports::Event) {
        match event {
            ports::Event::Port { name, facts, opened, blocked } => {
                let Some(port) = self.rdma.umads.index(name) else { return };
                if let Some((opened, token)) = opened {
                    self.rdma.umads.open(port, opened, token);
                }
                self.rdma.umads.block(port, blocked);
                self.tell_facts(now, port, name, facts);
                self.hear_events_of(now, port, name.device);
                self.preload(now);
            }
            ports::Event::Gone(name) => {
                let Some(port) = self.rdma.umads.index(name) else { return };
                self.rdma.umads.close(port);
                self.tell_paths(now, Input::PortGone { port });
            }
        }
    }

    pub(super) fn handle_mad(&mut self, now: Instant, event: &umad::Event) {
        match self.rdma.umads.read(event) {
            Meaning::Mad { port, from, mad } => {
                log::mad(&self.rdma.umads, port, "from", mad);
                self.trace_mad(now, port, from, mad);
                self.tell_paths(now, Input::Mad { port, from, mad });
            }
            Meaning::Unanswered => self.tell_paths(now, Input::Unanswered),
            Meaning::Lost(port) => self.lose_device(now, port),
            Meaning::Nothing => {}
        }
    }

    pub(super) fn send_mad(&mut self, now: Instant, transmit: &Transmit) {
        log::mad(&self.rdma.umads, transmit.port, "to", transmit.mad.as_ref());
        self.trace_mad_sent(now, transmit);
        match self.rdma.umads.send(transmit) {
            Sending::Sent => {}
            Sending::Refused => {
                self.tell_paths(now, Input::NotSent);
                self.rdma.look();
            }
            Sending::Lost => self.lose_device(now, transmit.port),
        }
    }

    fn lose_device(&mut self, now: Instant, port: PortIndex) {
        let known = self.node.paths().ports().find(|(index, ..)| *index == port);
        if let Some((_, name, facts, _)) = known {
            let facts = facts.clone();
            self.tell_facts(now, port, name, facts);
        }
        self.rdma.look();
    }

    fn tell_facts(&mut self, now: Instant, port: PortIndex, name: PortName, facts: PortFacts) {
        let facts = PortFacts { has_umad: self.rdma.umads.is_open(port), ..facts };
        self.tell_paths(now, Input::Port { port, name, facts });
    }

    pub(super) fn tell_paths(&mut self, now: Instant, input: Input<'_>) {
        self.node.handle_input(now, node::Input::Paths(input));
    }

    /// Starts a request of a user; the node's answer completes it.
    pub(super) fn ask_path(
        &mut self,
        now: Instant,
        user: User,
        request: &Partial,
        to: oneshot::Sender<Response>,
    ) {
        let chosen = match self.node.paths().chosen(request) {
            Ok(chosen) => chosen,
            Err(incomplete) => {
                let message = incomplete.to_string();
                // The caller may have disconnected.
                return drop(to.send(Failure { kind: FailureKind::Absent, message }.into()));
            }
        };
        let asks = &mut self.users.paths;
        asks.last += 1;
        let id = UserRequest::Control(asks.last);
        let Chosen { port, question, .. } = chosen;
        asks.pending.insert(id, Asked { at: now, chosen, to });
        let question = if request.fresh { Sought::Fresh(question) } else { question.into() };
        let deadline = now + DEADLINE;
        let request = requests::PathRequest::of_user(id, user, port, question, deadline);
        self.node.handle_input(now, node::Input::ResolvePath(request));
    }

    pub(super) fn path_answered(&mut self, now: Instant, id: UserRequest, outcome: Outcome) {
        let Some(Asked { at, chosen, to }) = self.users.paths.pending.remove(&id) else { return };
        let ms = Elapsed(now.since(at));
        let path = Box::new(answer(&chosen, outcome, ms));
        // The caller may have disconnected.
        drop(to.send(Body::Path { path }.into()));
    }

    pub(super) fn port_status(&self, now: Instant) -> Vec<PortStatus> {
        let ports = self.node.paths().ports();
        let last_event = |port| {
            let (at, event) = self.node.paths().last_event(port)?;
            Some(LastEvent { event, ago_ms: now.since(at).into() })
        };
        let status = |(index, name, facts, has_qos): (PortIndex, PortName, &PortFacts, bool)| {
            let load = self.node.paths().client().load(index);
            PortStatus {
                port: name,
                active: facts.is_active,
                lid: facts.lid,
                lmc: facts.lmc,
                sm_lid: facts.sm_lid,
                sm_sl: facts.sm_sl,
                gids: facts.gids.clone(),
                pkeys: facts.pkeys.iter().map(|(_, pkey)| *pkey).collect(),
                addresses: self.addresses_of(facts),
                qos: has_qos,
                load,
                sa: self.node.paths().client().tally(index),
                probing: load.shut.map(|shut| Probing {
                    because: if shut.busy { Silence::Busy } else { Silence::Silent },
                    for_ms: now.since(shut.since).into(),
                }),
                blocked: self.why_no_sa(index, facts),
                last_event: last_event(index),
                deaf: self.rdma.hearing.why_not(name.device).map(str::to_owned),
            }
        };
        ports.map(status).collect()
    }

    /// The addresses that are answered with a GID of the port.
    fn addresses_of(&self, facts: &PortFacts) -> Vec<PortAddress> {
        let mut addresses = Vec::new();
        for link in self.node.view().interfaces() {
            for address in &link.addresses {
                let Some(gid) = address.owned.and_then(|owned| owned.gid) else { continue };
                if facts.gids.contains(&gid) {
                    let (ip, interface) = (address.address, link.name.to_string());
                    addresses.push(PortAddress { ip, interface, gid });
                }
            }
        }
        addresses
    }

    fn why_no_sa(&self, port: PortIndex, facts: &PortFacts) -> Option<String> {
        let reason = self.rdma.umads.why_not(port).or_else(|| {
            Some(match Missing::of(facts)? {
                Missing::Down => "the port is not active",
                Missing::SubnetManager => "the port knows no subnet manager: does one run?",
                Missing::Umad => "its umad device is not open",
            })
        });
        reason.map(str::to_owned)
    }
}

pub(super) fn cached_path(now: Instant, entry: &paths::Cached) -> CachedPath {
    CachedPath {
        port: entry.port,
        sgid: entry.question.sgid,
        dgid: entry.question.dgid,
        pkey: entry.question.pkey,
        tclass: entry.question.tclass,
        hops: entry.record.as_ref().and_then(hops),
        doubted: entry.is_doubted,
        expires_in_ms: entry.expires_at.since(now).into(),
    }
}

fn answer(chosen: &Chosen, outcome: Outcome, ms: Elapsed) -> PathAnswer {
    let Chosen { port, question, why } = *chosen;
    let (status, record, source, refusal) = outcome.parts();
    PathAnswer {
        port,
        chosen: Some(why),
        sgid: question.sgid,
        dgid: question.dgid,
        status,
        source,
        refusal: refusal.map(|refusal| refusal.to_string()),
        hops: record.as_ref().and_then(hops),
        ms,
    }
}

fn hops(record: &PathRecord) -> Option<PathHops> {
    let fields = Fields::parse(record).ok()?;
    let (mtu, half_gigabits) = (fields.mtu.bytes(), fields.rate.half_gigabits());
    Some(PathHops {
        slid: fields.slid,
        dlid: fields.dlid,
        hop_limit: fields.hop_limit,
        flow_label: fields.flow_label,
        tclass: fields.tclass,
        sl: fields.sl,
        mtu,
        mtu_code: mtu.is_none().then_some(fields.mtu.get()),
        gbit_s: half_gigabits.map(|half| f64::from(half) / 2.0),
        rate_code: half_gigabits.is_none().then_some(fields.rate.get()),
        pkey: fields.pkey,
        reversible: fields.reversible,
    })
}
