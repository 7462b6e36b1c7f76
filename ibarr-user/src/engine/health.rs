// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! States what only the driver knows of the daemon's health, and tells what the node decides.

use ibarr_common::Instant;
pub(super) use ibarr_proto::health::Input;
use ibarr_proto::health::{
    self, Cause, Configuration, Control, Device, Event, GroupUnknown, Health, Listener, Peers,
    Socket, Subsystem,
};
use ibarr_proto::node::Node;
use nix::unistd::geteuid;
use tracing::{info, warn};

use super::Engine;
use super::acm::Acm;
use super::kernel::Kernel;
use super::queries::Queries;
use super::rdma::Rdma;
use super::reload::Settings;
use super::servers::Servers;
use super::service::Service;
use crate::bpf::Responder;
use crate::causes::{Fault, escaped};
use crate::config::Serve;
use crate::control::access::GroupId;
use crate::control::messages::{HealthReason, SubsystemHealth, UnknownSubsystem};
use crate::logging::ids;
use crate::transport;
use crate::transport::rtnetlink;
use crate::transport::server::HOLD;

pub(super) fn configuration(settings: &Settings) -> Input {
    Input::Configuration(Configuration {
        refused: settings.reloads.failed.as_ref().map(|failed| Fault::new(failed.message.as_str())),
        reading_since: settings.reloads.reading.as_ref().map(|(since, _)| *since),
        setting: settings.config.setting(),
    })
}

pub(super) fn kernel(kernel: &Kernel, settings: &Settings) -> Input {
    let nudge = kernel.nudges.last.as_ref().filter(|_| settings.config.local_service.nudge);
    Input::Kernel(health::Kernel {
        silent: kernel.socket.status().1,
        nudges_fail: nudge.and_then(|last| last.clone().err()),
        listeners: kernel.socket.listeners().into_iter().flatten().map(printable).collect(),
    })
}

pub(super) fn peers(servers: &Servers, settings: &Settings, node: &mut Node) -> Input {
    let client = settings.config.client.settings();
    let socket = |(family, blocked, holds): (_, _, Option<usize>)| Socket {
        family,
        blocked,
        small: holds.filter(|&holds| holds < HOLD).map(|holds| (holds, HOLD)),
    };
    let (user, port) = (geteuid().as_raw(), client.udp_port);
    let way = |(peer, traffic)| Some(((peer, traffic), rtnetlink::way(peer, traffic).ok()?));
    let ways: Vec<_> = node.ways(user, port).into_iter().filter_map(way).collect();
    Input::Peers(Peers {
        sockets: servers.states().map(socket).collect(),
        unused: servers.warnings().collect(),
        few_descriptors: settings.options.descriptors.shortage(client.sockets),
        diverted: node.diverted(user, port, &ways),
    })
}

pub(super) fn devices(rdma: &Rdma, node: &Node) -> Input {
    let ports = node.paths().ports();
    let devices = ports.map(|(index, port, ..)| Device {
        port,
        closed: rdma.umads.why_not(index).cloned(),
        unheard: rdma.device_events.failure(port.device),
    });
    Input::Devices(devices.collect())
}

pub(super) fn control(service: &Service) -> Input {
    let group_unknown = match service.control.access.group() {
        GroupId::Unknown(reason) => Some(reason),
        GroupId::Absent | GroupId::Is(_) => None,
    };
    Input::Control(Control {
        group_unknown,
        closed: service.control.closed.borrow().clone(),
        log_lost: service.log.untold(),
        metrics_closed: service.metrics.failure(),
    })
}

pub(super) fn acm(acm: &Acm, settings: &Settings) -> Input {
    let serve = settings.config.acm.serve;
    Input::Acm(health::Acm {
        is_on: serve != Serve::Off,
        reading_since: acm.preloads.reading,
        files: acm.preloads.warnings().collect(),
        closed: acm.sockets.warning(serve),
    })
}

/// The parts that have yet to say whether they work.
pub(super) fn unsettled(engine: &Engine) -> Vec<Input> {
    let Engine { node, kernel, servers, responder, rdma, acm, service, .. } = engine;
    let mut unsettled = Vec::new();
    let mut add = |is_so: bool, subsystem, why: &str| {
        unsettled.extend(is_so.then(|| Input::Unsettled(subsystem, Fault::new(why))));
    };
    match &rdma.unread {
        None => add(true, Subsystem::LocalView, "RDMA devices are being listed"),
        Some(unread) => unread.iter().for_each(|device| {
            add(true, Subsystem::LocalView, &format!("the ports of {device} are being read"));
        }),
    }
    for (_, port, ..) in node.paths().ports() {
        let is_known = rdma.device_events.is_known(port.device);
        add(!is_known, Subsystem::Sa(port), "the device is being opened for its events");
    }
    let searches = kernel.socket.listeners().is_none();
    add(searches, Subsystem::Kernel, "other listeners are being searched for");
    add(!servers.have_started(), Subsystem::Peers, "the sockets are being opened");
    add(!responder.is_settled(), Subsystem::Responder, "the sockets are being guarded");
    let group = service.control.access.group();
    let is_asked = group == GroupId::Unknown(GroupUnknown::NoAnswerYet);
    add(is_asked, Subsystem::Control, "group ibarr is being looked up");
    add(
        !service.metrics.has_tried(),
        Subsystem::Control,
        "the address of the metrics is being opened",
    );
    add(!acm.sockets.is_settled(), Subsystem::Acm, "the sockets are being opened");
    add(acm.preloads.reading.is_some(), Subsystem::Acm, "hosts and routes are being read");
    unsettled
}

pub(super) fn counted(
    service: &Service,
    queries: &Queries,
    servers: &Servers,
    responder: &Responder,
) -> [Input; 10] {
    use transport::Counter::{
        FileMadeAgain, QueryForbidden, QueryNoRoom, QueryNoRoute, QueryTooLong, RefusalDropped,
        ReplyDropped, RtnetlinkOverrun, SocketNoDescriptor, SocketNoPort,
    };
    let replies_lost = service.sum(&[ReplyDropped, RefusalDropped]) + queries.dropped();
    let counted = [
        (Cause::EventsLost, service.sum(&[RtnetlinkOverrun])),
        (Cause::RepliesLost, replies_lost),
        (Cause::ConnectionsRefused, service.connections_refused()),
        (Cause::FilesRemoved, service.sum(&[FileMadeAgain])),
        (Cause::QueriesForbidden, service.sum(&[QueryForbidden])),
        (Cause::QueriesUnroutable, service.sum(&[QueryNoRoute])),
        (Cause::QueriesNotSent, service.sum(&[QueryNoRoom, QueryTooLong])),
        (Cause::NoFreePort, service.sum(&[SocketNoPort])),
        (Cause::NoFreeDescriptor, service.sum(&[SocketNoDescriptor])),
        (Cause::QueriesLost, servers.dropped(responder)),
    ];
    counted.map(|(cause, count)| Input::Counted(cause, count))
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

/// The subsystems without a verdict.
pub(super) fn unknown(health: &Health) -> Vec<UnknownSubsystem> {
    let unknown = health.unknown().map(|(subsystem, awaited)| UnknownSubsystem {
        subsystem: subsystem.name().to_owned(),
        of: subsystem.object(),
        awaited: awaited.to_string(),
    });
    unknown.collect()
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

pub(super) fn log(event: &Event) {
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
