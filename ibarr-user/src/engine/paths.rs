// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Ports, MADs, and users' requests for a path.

use std::collections::HashMap;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, PKey};
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa::PathQuestion;
use ibarr_proto::paths::{self, Input, Outcome, Partial, PortFacts, PortName, Source};
use ibarr_proto::request::UserRequest;
use ibarr_proto::resolver;
use ibarr_proto::sa::{PortIndex, Transmit};
use ibarr_proto::shares::User;
use tokio::sync::oneshot;

use super::{Engine, log};
use crate::control::messages::{
    Body, CachedPath, Failure, FailureKind, LastEvent, PathAnswer, PathHops, PathRequest,
    PathStatus, PortStatus, Probing, Response,
};
use crate::transport::ports;
use crate::transport::umad::{self, Meaning, Sending};

/// Users' requests for a path.
#[derive(Debug, Default)]
pub(super) struct PathAsks {
    next: u64,
    waiting: HashMap<UserRequest, Asked>,
}

#[derive(Debug)]
struct Asked {
    at: Instant,
    port: PortName,
    question: PathQuestion,
    to: oneshot::Sender<Response>,
}

/// Longer than the kernel waits for the daemon: people are more patient.
const DEADLINE: Duration = Duration::from_secs(5);

impl Engine {
    pub(super) fn handle_port(&mut self, now: Instant, event: ports::Event) {
        match event {
            ports::Event::Port { name, facts, opened, blocked } => {
                let Some(port) = self.umads.index(name) else { return };
                if let Some((opened, token)) = opened {
                    self.umads.open(port, opened, token);
                }
                self.umads.block(port, blocked);
                self.tell_facts(now, port, name, facts);
                self.take_reports(now, port);
                self.hear_events_of(now, port, name.device);
            }
            ports::Event::Gone(name) => {
                let Some(port) = self.umads.index(name) else { return };
                self.umads.close(port);
                self.tell_paths(now, Input::PortGone { port });
            }
        }
    }

    pub(super) fn handle_mad(&mut self, now: Instant, event: &umad::Event) {
        match self.umads.read(event) {
            Meaning::Mad { port, from, mad } => {
                log::mad(&self.umads, port, "from", mad);
                self.tell_paths(now, Input::Mad { port, from, mad });
            }
            Meaning::Unanswered => self.tell_paths(now, Input::Unanswered),
            Meaning::Lost(port) => self.lose_door(now, port),
            Meaning::Nothing => {}
        }
    }

    pub(super) fn send_mad(&mut self, now: Instant, transmit: &Transmit) {
        log::mad(&self.umads, transmit.port, "to", transmit.mad.as_ref());
        match self.umads.send(transmit) {
            Sending::Sent => {}
            Sending::Refused => {
                self.tell_paths(now, Input::NotSent);
                self.ports.look();
            }
            Sending::Lost => self.lose_door(now, transmit.port),
        }
    }

    /// Subscribes to reports of a port's SA, if that is configured and the umad device is open.
    fn take_reports(&mut self, now: Instant, port: PortIndex) {
        if self.config.inform && self.ends_at.is_none() && self.umads.take_reports(port) {
            self.tell_paths(now, Input::Reports { port, taken: true });
        }
    }

    /// Updates the subscriptions of all ports, after the configuration has changed from
    /// `was_wanted`.
    pub(super) fn reconsider_reports(&mut self, now: Instant, was_wanted: bool) {
        let ports: Vec<_> = self.node.paths().ports().map(|(port, ..)| port).collect();
        match self.config.inform {
            true if !was_wanted => ports.into_iter().for_each(|port| self.take_reports(now, port)),
            false if was_wanted => self.node.give_back(now, now + DEADLINE),
            _ => {}
        }
    }

    fn lose_door(&mut self, now: Instant, port: PortIndex) {
        self.tell_paths(now, Input::Reports { port, taken: false });
        let known = self.node.paths().ports().find(|(index, ..)| *index == port);
        if let Some((_, name, facts, _)) = known {
            let facts = facts.clone();
            self.tell_facts(now, port, name, facts);
        }
        self.ports.look();
    }

    fn tell_facts(&mut self, now: Instant, port: PortIndex, name: PortName, facts: PortFacts) {
        let facts = PortFacts { has_umad: self.umads.is_open(port), ..facts };
        self.tell_paths(now, Input::Port { port, name, facts });
    }

    pub(super) fn tell_paths(&mut self, now: Instant, input: Input<'_>) {
        self.node.handle_input(now, resolver::Input::Paths(input));
    }

    /// Starts a request of a user; the node's answer completes it.
    pub(super) fn ask_path(
        &mut self,
        now: Instant,
        user: User,
        request: &PathRequest,
        to: oneshot::Sender<Response>,
    ) {
        let (port, question) = match self.question(request) {
            Ok(question) => question,
            // The caller may have disconnected.
            Err(failure) => return drop(to.send(failure.into())),
        };
        let asks = &mut self.path_asks;
        asks.next += 1;
        let id = UserRequest(asks.next);
        asks.waiting.insert(id, Asked { at: now, port, question, to });
        let deadline = now + DEADLINE;
        let request = resolver::PathRequest { id, port, question, deadline };
        self.node.handle_input(now, resolver::Input::ResolvePath { user, request });
    }

    pub(super) fn path_answered(&mut self, now: Instant, id: UserRequest, outcome: Outcome) {
        let Some(Asked { at, port, question, to }) = self.path_asks.waiting.remove(&id) else {
            return;
        };
        let ms = now.since(at).as_secs_f64() * 1000.0;
        let path = Box::new(answer(port, &question, outcome, ms));
        // The caller may have disconnected.
        drop(to.send(Body::Path { path }.into()));
    }

    fn question(&self, request: &PathRequest) -> Result<(PortName, PathQuestion), Failure> {
        let usage = |message: String| Failure { kind: FailureKind::Usage, message };
        let gid = |text: &String| {
            let parsed: Result<Gid, _> = text.parse();
            parsed.map_err(|error| usage(format!("{text}: {error}")))
        };
        let port = |text: &String| {
            let mut ports = self.node.paths().ports().map(|(_, name, ..)| name);
            let named = ports.find(|name| name.to_string() == *text);
            named.ok_or_else(|| usage(format!("{text}: there is no such port; see ibarr ports")))
        };
        let pkey =
            |pkey| PKey::new(pkey).ok_or_else(|| usage(format!("0x{pkey:04x} is not a P_Key")));
        let partial = Partial {
            port: request.port.as_ref().map(port).transpose()?,
            dgid: gid(&request.dgid)?,
            sgid: request.sgid.as_ref().map(gid).transpose()?,
            pkey: request.pkey.map(pkey).transpose()?,
        };
        self.node.paths().complete(&partial).map_err(|incomplete| usage(incomplete.to_string()))
    }

    pub(super) fn port_status(&self, now: Instant) -> Vec<PortStatus> {
        let ports = self.node.paths().ports();
        let last_event = |port| {
            let (at, event) = self.node.paths().last_event(port)?;
            let ago_ms = u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
            Some(LastEvent { event: event.to_string(), ago_ms })
        };
        let status = |(index, name, facts, has_qos): (PortIndex, PortName, &PortFacts, bool)| {
            let load = self.node.paths().client().load(index);
            PortStatus {
                port: name.to_string(),
                active: facts.is_active,
                lid: facts.lid.map(ibarr_common::ib::Lid::get),
                lmc: facts.lmc,
                sm_lid: facts.sm_lid.map(ibarr_common::ib::Lid::get),
                sm_sl: facts.sm_sl.get(),
                gids: facts.gids.iter().map(ToString::to_string).collect(),
                pkeys: facts.pkeys.iter().map(|(_, pkey)| pkey.to_string()).collect(),
                qos: has_qos,
                questions: load.questions,
                in_air: load.in_air,
                window: load.window,
                probing: load.shut.map(|shut| Probing {
                    because: if shut.busy { "busy" } else { "silent" }.to_owned(),
                    for_ms: u64::try_from(now.since(shut.since).as_millis()).unwrap_or(u64::MAX),
                }),
                blocked: self.why_no_sa(index, facts),
                last_event: last_event(index),
                informed: self.informed(index),
                deaf: self.hearing.why_not(name.device).map(str::to_owned),
            }
        };
        ports.map(status).collect()
    }

    /// `None` if reports are not wanted.
    fn informed(&self, port: PortIndex) -> Option<String> {
        if !self.config.inform {
            return None;
        }
        Some(match (self.umads.why_no_reports(port), self.node.paths().is_informed(port)) {
            (Some(reason), _) => reason.to_owned(),
            (None, Some(true)) => "yes".to_owned(),
            (None, _) => "not yet".to_owned(),
        })
    }

    fn why_no_sa(&self, port: PortIndex, facts: &PortFacts) -> Option<String> {
        if let Some(reason) = self.umads.why_not(port) {
            return Some(reason.to_owned());
        }
        match facts.sa() {
            Some(_) => None,
            None if !facts.is_active => Some("the port is not active".to_owned()),
            None if facts.sm_lid.is_none() => {
                Some("the port knows no subnet manager: does one run?".to_owned())
            }
            None => Some("its umad device is not open".to_owned()),
        }
    }
}

pub(super) fn cached_path(now: Instant, entry: &paths::Cached) -> CachedPath {
    CachedPath {
        port: entry.port.to_string(),
        sgid: entry.question.sgid.to_string(),
        dgid: entry.question.dgid.to_string(),
        pkey: entry.question.pkey.map(|pkey| pkey.to_string()),
        tclass: entry.question.tclass,
        hops: entry.record.as_ref().and_then(hops),
        doubted: entry.is_doubted,
        expires_in_ms: u64::try_from(entry.expires_at.since(now).as_millis()).unwrap_or(u64::MAX),
    }
}

fn answer(port: PortName, question: &PathQuestion, outcome: Outcome, ms: f64) -> PathAnswer {
    let from = |source| match source {
        Source::Sa => "sa",
        Source::Cache => "cache",
        Source::Doubted => "doubted",
    };
    let (status, record, source, refusal) = match outcome {
        Outcome::Found { record, source } => (PathStatus::Found, Some(record), Some(source), None),
        Outcome::NoRecord { source } => (PathStatus::NoRecord, None, Some(source), None),
        Outcome::Refused(refusal) => (PathStatus::Refused, None, None, refusal),
        Outcome::Silent => (PathStatus::Silent, None, None, None),
        Outcome::Busy => (PathStatus::Busy, None, None, None),
        Outcome::UnknownPort => (PathStatus::UnknownPort, None, None, None),
        Outcome::NoSa => (PathStatus::NoSa, None, None, None),
        Outcome::Overloaded => (PathStatus::Overloaded, None, None, None),
    };
    PathAnswer {
        port: port.to_string(),
        sgid: question.sgid.to_string(),
        dgid: question.dgid.to_string(),
        status,
        source: source.map(|source| from(source).to_owned()),
        refusal: refusal.map(|refusal| refusal.to_string()),
        hops: record.as_ref().and_then(hops),
        ms,
    }
}

fn hops(record: &ibarr_common::ib::PathRecord) -> Option<PathHops> {
    let fields = Fields::parse(record).ok()?;
    Some(PathHops {
        slid: fields.slid.get(),
        dlid: fields.dlid.get(),
        hop_limit: fields.hop_limit,
        flow_label: fields.flow_label.get(),
        tclass: fields.tclass,
        sl: fields.sl.get(),
        mtu: fields.mtu.bytes(),
        gbit_s: fields.rate.half_gigabits().map(|half| f64::from(half) / 2.0),
        pkey: fields.pkey.to_string(),
        reversible: fields.reversible,
    })
}
