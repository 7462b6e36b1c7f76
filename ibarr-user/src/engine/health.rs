// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! States what only the driver knows of the daemon's health, and tells what the node decides.

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::health::{
    self, Cause, Configuration, Control, Event, Health, Input, Kernel, Listener, Peers, Programs,
    Served, Socket,
};
use ibarr_proto::node::{self, Node};
use ibarr_proto::responder::{self, BY_DECISION};
use nix::unistd::geteuid;
use tracing::{info, warn};

use super::Engine;
use crate::bpf::{self, Longevity, Responder};
use crate::causes::escaped;
use crate::config::Serve;
use crate::control::access::GroupId;
use crate::control::messages::{HealthReason, SubsystemHealth};
use crate::logging::ids;
use crate::process::RunOptions;
use crate::transport;
use crate::transport::server::HOLD;

impl Engine {
    /// Has the health assessed if that is due.
    pub(super) fn assess(&mut self, now: Instant) {
        if self.is_ready() {
            self.node.handle_input(now, node::Input::Health(Input::Ready));
        }
        if !self.node.health().is_due(now) {
            return;
        }
        for input in self.facts(now) {
            self.node.handle_input(now, node::Input::Health(input));
        }
        self.node.assess(now);
        while let Some(event) = self.node.poll_health() {
            log(&event);
        }
    }

    /// Has the health assessed for a user.
    pub(super) fn assess_anew(&mut self, now: Instant) {
        self.node.handle_input(now, node::Input::Health(Input::Asked));
        self.assess(now);
    }

    fn facts(&mut self, now: Instant) -> Vec<Input> {
        let settings = self.config.client.settings();
        let by_rules = self.node.view().diverted(geteuid().as_raw(), settings.udp_port);
        let socket = |(family, blocked, holds): (_, _, Option<usize>)| Socket {
            family,
            blocked,
            small: holds.filter(|&holds| holds < HOLD).map(|holds| (holds, HOLD)),
        };
        let peers = Peers {
            sockets: self.servers.states().map(socket).collect(),
            unused: self.servers.warnings().collect(),
            few_descriptors: self.options.descriptors.shortage(settings.sockets),
            diverted: self.queries.diverted(by_rules),
        };
        let group_unknown = match self.control.access.group() {
            GroupId::Unknown(reason) => Some(reason),
            GroupId::Absent | GroupId::Is(_) => None,
        };
        let control = Control {
            group_unknown,
            closed: self.control.closed.borrow().clone(),
            log_lost: self.log.untold(),
            metrics_closed: self.metrics_server.failure(),
        };
        let acm = health::Acm {
            is_on: self.config.acm.serve != Serve::Off,
            files: self.preloads.warnings(now).collect(),
            closed: self.acm.sockets.warning(self.config.acm.serve),
        };
        let configuration = Configuration {
            refused: self.reloads.failed().map(|failed| failed.message.clone()),
            reading_since: self.reloads.reading_since(),
            setting: self.config.setting(),
        };
        let nudge = self.kernel.nudges().last().filter(|_| self.config.local_service.nudge);
        let kernel = Kernel {
            silent: self.kernel.socket().status().1,
            nudges_fail: nudge.and_then(|last| last.clone().err()),
            listeners: self.kernel.socket().listeners().into_iter().map(printable).collect(),
        };
        let (rules, lease) = (self.node.responder(), self.config.responder.lease);
        let programs = programs(&self.responder, rules, &self.options, lease);
        let served = served(&self.node);
        let facts = [
            Input::Configuration(configuration),
            Input::Kernel(kernel),
            Input::Responder(programs, served),
            Input::Peers(peers),
            Input::Devices(self.rdma.facts(&self.node)),
            Input::Control(control),
            Input::Snapshot(self.snapshots.warning()),
            Input::Acm(acm),
        ];
        let counted = self.counted().into_iter();
        facts
            .into_iter()
            .chain(counted.map(|(cause, count)| Input::Counted(cause, count)))
            .collect()
    }

    pub(super) fn connections_refused(&self) -> u64 {
        self.sum(&[
            transport::Counter::ControlUserFull,
            transport::Counter::ControlAllFull,
            transport::Counter::ControlGaveWay,
            transport::Counter::ControlNoDescriptor,
        ])
    }

    fn sum(&self, counters: &[transport::Counter]) -> u64 {
        counters.iter().map(|&counter| self.control.counters.get(counter)).sum()
    }

    fn counted(&self) -> [(Cause, u64); 12] {
        use transport::Counter::{
            FileMadeAgain, QueryForbidden, QueryNoRoom, QueryNoRoute, QueryTooLong, RefusalDropped,
            ReplyDropped, RtnetlinkOverrun, SocketNoDescriptor, SocketNoPort,
        };
        let programs = self.responder.counters(self.node.responder());
        let replies_lost = self.sum(&[ReplyDropped, RefusalDropped]) + self.queries.dropped();
        [
            (Cause::EventsLost, self.sum(&[RtnetlinkOverrun])),
            (Cause::RepliesLost, replies_lost),
            (Cause::ConnectionsRefused, self.connections_refused()),
            (Cause::ProgramsRemoved, programs.get(bpf::Counter::Lost)),
            (Cause::FilesRemoved, self.sum(&[FileMadeAgain])),
            (Cause::QueriesForbidden, self.sum(&[QueryForbidden])),
            (Cause::QueriesUnroutable, self.sum(&[QueryNoRoute])),
            (Cause::QueriesNotSent, self.sum(&[QueryNoRoom, QueryTooLong])),
            (Cause::NoFreePort, self.sum(&[SocketNoPort])),
            (Cause::NoFreeDescriptor, self.sum(&[SocketNoDescriptor])),
            (Cause::QueriesLost, self.queries_dropped()),
            (Cause::MapFaults, programs.get(bpf::Counter::Faults)),
        ]
    }
}

fn programs(
    responder: &Responder,
    rules: &responder::Responder,
    options: &RunOptions,
    lease: Duration,
) -> Programs {
    match responder.why_not(rules) {
        Some(BY_DECISION) => Programs::Unwanted,
        Some(reason) => Programs::Absent(reason.to_owned()),
        None => {
            let is_private = responder.longevity() == Longevity::Namespace;
            let private_pins = is_private.then(|| options.bpf_dir.display().to_string());
            Programs::Loaded { lease_end: rules.lease_end(), lease, private_pins }
        }
    }
}

fn served(node: &Node) -> Vec<Served> {
    let state = |ifindex| node.responder().state(ifindex).cloned();
    let served = node.view().served().map(|served| Served {
        interface: served.name,
        program: state(served.ifindex).unwrap_or(responder::State::Pending),
    });
    served.collect()
}

pub(super) fn status(now: Instant, health: &Health) -> Vec<SubsystemHealth> {
    let since = |then| now.since(then).into();
    let reason = |(cause, reason): (Cause, &health::Reason)| HealthReason {
        cause: cause.to_string(),
        state: reason.state,
        since_s: since(reason.since),
        why: reason.why.clone(),
        remedy: reason.remedy.clone(),
    };
    let report = health.report().map(|report| SubsystemHealth {
        subsystem: report.subsystem.name().to_owned(),
        of: report.subsystem.object(),
        state: report.state,
        since_s: since(report.since),
        reasons: report.reasons.into_iter().map(reason).collect(),
    });
    report.collect()
}

/// The reasons of all subsystems.
pub(super) fn warnings(health: &Health) -> Vec<String> {
    let reasons = health.report().flat_map(|report| report.reasons);
    reasons.map(|(_, reason)| format!("{}: {}", reason.why, reason.remedy)).collect()
}

fn printable(mut listener: Listener) -> Listener {
    listener.name = escaped(&listener.name, |_| true).into_owned();
    listener
}

fn log(event: &Event) {
    match event {
        Event::Worse(subsystem, cause, health::Reason { state, why, remedy, .. }) => warn!(
            message_id = ids::HEALTH_WORSE,
            cause = %cause,
            %subsystem,
            "{state}: {why}: {remedy}"
        ),
        Event::Better { subsystem, cause, state, lasted } => info!(
            message_id = ids::HEALTH_BETTER,
            cause = %cause,
            %subsystem,
            "{state}: {cause} has ended after {} s",
            lasted.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_row_with_its_remedy_in_the_documentation() {
        let page = include_str!("../../../docs/operate.md");
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| ")).collect();
        for cause in Cause::ALL {
            let name = format!("`{cause}`");
            assert!(rows.iter().any(|row| row.contains(&name)), "{name} is not in operate.md");
        }
    }
}
