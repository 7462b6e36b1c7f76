// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Collects the facts for the core that decides about health, and tells its decisions.

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::health::{self, Cause, Event, Facts, Listener, Missing, Programs, Served, Socket};
use ibarr_proto::ip2gid::server;
use ibarr_proto::responder::{self, BY_DECISION};
use nix::unistd::geteuid;
use tracing::{info, warn};

use super::Engine;
use crate::bpf::{self, Longevity};
use crate::causes::escaped;
use crate::control::access::GroupId;
use crate::control::messages::{HealthReason, SubsystemHealth};
use crate::logging::ids;
use crate::transport;
use crate::transport::server::HOLD;

/// The health is assessed for the first time when the daemon is ready, and at the latest after this.
const START: Duration = Duration::from_secs(10);

impl Engine {
    pub(super) fn health_due(&self) -> Instant {
        self.health.poll_timeout().unwrap_or(self.started + START)
    }

    /// Assesses the health if that is due. Early calls do nothing.
    pub(super) fn assess(&mut self, now: Instant) {
        let is_due = match self.health.poll_timeout() {
            Some(_) => self.health.is_due(now),
            None => self.is_ready() || self.started + START <= now,
        };
        if is_due && self.ends_at.is_none() {
            self.assess_now(now);
        }
    }

    /// Assesses the health for a user, once the daemon is ready.
    pub(super) fn assess_anew(&mut self, now: Instant) {
        if self.health.poll_timeout().is_some() && self.ends_at.is_none() {
            self.assess_now(now);
        }
    }

    fn assess_now(&mut self, now: Instant) {
        let udp_port = self.config.client.settings().udp_port;
        let by_rules = self.node.view().diverted(geteuid().as_raw(), udp_port);
        let diverted = self.queries.diverted(by_rules);
        self.health.assess(now, &Facts { diverted, ..self.facts(now) });
        while let Some(event) = self.health.poll_event() {
            log(&event);
        }
    }

    pub(super) fn health_status(&self, now: Instant) -> Vec<SubsystemHealth> {
        let since = |then| now.since(then).into();
        let reason = |(cause, reason): (Cause, &health::Reason)| HealthReason {
            cause: cause.to_string(),
            state: reason.state,
            since_s: since(reason.since),
            why: reason.why.clone(),
            remedy: reason.remedy.clone(),
        };
        let report = self.health.report().map(|report| SubsystemHealth {
            subsystem: report.subsystem.name().to_owned(),
            of: report.subsystem.object(),
            state: report.state,
            since_s: since(report.since),
            reasons: report.reasons.into_iter().map(reason).collect(),
        });
        report.collect()
    }

    /// The reasons of all subsystems.
    pub(super) fn warnings(&self) -> Vec<String> {
        let reasons = self.health.report().flat_map(|report| report.reasons);
        reasons.map(|(_, reason)| format!("{}: {}", reason.why, reason.remedy)).collect()
    }

    fn facts(&self, now: Instant) -> Facts {
        let mut facts = Facts::of(&self.node);
        for ((index, name, ..), port) in self.node.paths().ports().zip(&mut facts.ports) {
            if let Some(reason) = self.rdma.why_not(index)
                && port.missing != Some(Missing::Down)
            {
                port.missing = Some(Missing::Umad(Some(reason.to_owned())));
            }
            port.unheard = self.rdma.hearing.failure(name.device).map(str::to_owned);
        }
        facts.counted.extend(self.counted());
        let group = self.control.access.group();
        let nudge = self.kernel.nudges().last().filter(|_| self.config.local_service.nudge);
        Facts {
            refused_reload: self.reloads.failed().map(|failed| failed.message.clone()),
            slow_reload: self.reloads.slow(now),
            settings: self.config.warnings(),
            kernel_silent: self.local_service_status().blocked,
            nudges_fail: nudge.and_then(|last| last.clone().err()),
            listeners: self.kernel.socket().listeners().into_iter().map(printable).collect(),
            programs: self.programs(),
            served: self.served(),
            sockets: self.sockets_of_servers(),
            unused_sockets: self.servers.warnings().collect(),
            few_descriptors: {
                let sockets = self.config.client.settings().sockets;
                self.options.descriptors.shortage(sockets)
            },
            group_unknown: matches!(group, GroupId::Unknown | GroupId::Failed(_))
                .then(|| group.to_string()),
            control_closed: self.control.closed.borrow().clone(),
            log_lost: self.log.untold(),
            metrics_closed: self.metrics_server.failure(),
            snapshot_failed: self.snapshots.warning(),
            acm_files: self.preloads.warnings(now).collect(),
            acm_closed: self.acm.sockets.warning(self.config.acm.serve),
            acm: self.config.acm.serve != crate::config::Serve::Off,
            ..facts
        }
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

    fn counted(&self) -> [(Cause, u64); 15] {
        use server::Counter::{NotSentForbidden, NotSentNoRoom, NotSentNoRoute, NotSentTooLong};
        use transport::Counter::{
            FileMadeAgain, QueryForbidden, QueryNoRoom, QueryNoRoute, QueryTooLong, RefusalDropped,
            ReplyDropped, RtnetlinkOverrun, SocketNoDescriptor, SocketNoPort,
        };
        let (server, programs) = (self.node.server().counters(), self.responder.counters());
        let replies_lost = self.sum(&[ReplyDropped, RefusalDropped]) + self.queries.dropped();
        let replies_not_sent = server.get(NotSentNoRoom) + server.get(NotSentTooLong);
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
            (Cause::RepliesForbidden, server.get(NotSentForbidden)),
            (Cause::RepliesUnroutable, server.get(NotSentNoRoute)),
            (Cause::RepliesNotSent, replies_not_sent),
            (Cause::MapFaults, programs.get(bpf::Counter::Faults)),
        ]
    }

    fn programs(&self) -> Programs {
        match (self.responder.why_not(), self.responder.lease_end()) {
            (Some(BY_DECISION), _) | (None, None) => Programs::Unwanted,
            (Some(reason), _) => Programs::Absent(reason.to_owned()),
            (None, Some(lease_end)) => {
                let is_private = self.responder.longevity() == Longevity::Namespace;
                let private_pins = is_private.then(|| self.options.bpf_dir.display().to_string());
                let lease = self.config.responder.lease;
                Programs::Loaded { lease_end, lease, private_pins }
            }
        }
    }

    fn served(&self) -> Vec<Served> {
        let served = self.node.view().served().map(|served| Served {
            interface: served.name,
            program: self
                .responder
                .state(served.ifindex)
                .cloned()
                .unwrap_or(responder::State::Pending),
        });
        served.collect()
    }

    fn sockets_of_servers(&self) -> Vec<Socket> {
        let socket = |(family, blocked, holds): (_, Option<String>, Option<usize>)| Socket {
            family,
            blocked,
            small: holds.filter(|&holds| holds < HOLD).map(|holds| (holds, HOLD)),
        };
        self.servers.states().map(socket).collect()
    }
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
