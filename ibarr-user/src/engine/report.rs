// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Logs, warnings and the document of `ibarr status`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use ibarr_proto::ip2gid::Family;
use ibarr_proto::ip2gid::client::Slow;
use ibarr_proto::local_view::neighbours::Neighbour;
use ibarr_proto::local_view::routing::WayBack;
use ibarr_proto::local_view::{Event, Interface, LinkHeader};
use ibarr_proto::node::Node;
use ibarr_proto::{counters, local_service, paths, sa, shares};
use tracing::{debug, info};

use super::descriptions::Other;
use super::trace::name_of;
use super::{Engine, health};
use crate::bpf::{self, Blocked, Hook};
use crate::control::messages::{
    ControlStatus, Elapsed, FailedReload, InterfaceStatus, LocalServiceStatus, Millis, NudgeState,
    PathRequests, ResponderStatus, SlowPeer, Status, UsersStatus,
};
use crate::transport::local_service::SocketState;

/// Logs a change of this node's answers.
pub(super) fn log(node: &Node, event: &Event) {
    let (Event::Added(owned) | Event::Changed(owned) | Event::Removed(owned)) = event else {
        return;
    };
    let (address, interface) = (owned.address, name_of(node, owned.ifindex));
    match (event, owned.gid) {
        (Event::Added(_), Some(gid)) => info!(ip = %address, %gid, interface, "answering"),
        (Event::Changed(_), Some(gid)) => info!(ip = %address, %gid, interface, "now answering"),
        (Event::Changed(_), None) => info!(ip = %address, "not answering"),
        (Event::Removed(_), Some(_)) => info!(ip = %address, "no longer answering"),
        (_, None) => debug!(ip = %address, ?event, "no GID"),
        _ => {}
    }
}

impl Engine {
    pub(super) fn status(&self, now: Instant) -> Status {
        let load = self.node.client().load();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.service.node.clone(),
            pid: std::process::id(),
            uptime_s: now.since(self.service.started).into(),
            config: (!self.settings.config.files.is_empty())
                .then(|| self.settings.config.files.join(", ")),
            reloaded_ago_s: self.settings.reloads.succeeded.map(|at| now.since(at).into()),
            failed_reload: self.settings.reloads.failed.as_ref().map(|failed| FailedReload {
                ago_s: now.since(failed.at).into(),
                message: failed.message.clone(),
            }),
            health: health::status(now, self.node.health()),
            unknown: health::unknown(self.node.health()),
            warnings: health::warnings(self.node.health()),
            servers: self.servers.status(),
            local_service: self.local_service_status(),
            responder: self.responder_status(now),
            ports: self.rdma.status(now, &self.node),
            cached_paths: self.node.paths().load().cached,
            path_requests: self.path_requests(),
            interfaces: self.node.view().interfaces().map(|link| self.interface(&link)).collect(),
            pending: load.flights,
            cached: load.cached,
            slowest_peers: self.slowest_peers(now),
            control: self.control_status(),
            users: self.users_status(),
        }
    }

    fn slowest_peers(&self, now: Instant) -> Vec<SlowPeer> {
        let name = |ifindex| name_of(&self.node, ifindex);
        let peer = |Slow { question, took, at }: Slow| SlowPeer {
            ip: question.target(),
            interface: question.egress().map(name),
            ms: Elapsed(took),
            ago_ms: now.since(at).into(),
        };
        self.node.client().slowest(now).into_iter().map(peer).collect()
    }

    fn users_status(&self) -> Vec<UsersStatus> {
        let status = |(what, counters, (under_way, waiting)): (shares::Kind, _, _)| {
            let refused = counters::Counters::get(counters, shares::Counter::Refused);
            UsersStatus { what, under_way, waiting, refused }
        };
        self.node.users().into_iter().map(status).collect()
    }

    fn control_status(&self) -> ControlStatus {
        ControlStatus {
            connections: self.service.control.connections.count(),
            refused: self.service.connections_refused(),
            group: self.service.control.access.group().to_string(),
        }
    }

    pub(super) fn path_requests(&self) -> PathRequests {
        let node = self.node.paths();
        let sum = |counts: &[u64]| counts.iter().sum();
        let (sa, asked) = (node.client().counters(), self.node.local_service().counters());
        PathRequests {
            sa_queries: sum(&[
                sa.get(sa::Counter::Queries),
                sa.get(sa::Counter::Resends),
                sa.get(sa::Counter::ResendsBusy),
                sa.get(sa::Counter::ResendsMoved),
            ]),
            avoided: sum(&[
                node.counters().get(paths::Counter::FoundCache),
                node.counters().get(paths::Counter::NoRecordCache),
                node.counters().get(paths::Counter::Joined),
            ]),
            left_to_kernel: LEFT_TO_KERNEL
                .iter()
                .map(|(why, counter)| ((*why).to_owned(), asked.get(*counter)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }

    pub(super) fn local_service_status(&self) -> LocalServiceStatus {
        let (state, blocked) = self.kernel.socket.status();
        let (nudges, nudge_interface) = match self.kernel.nudges.last.as_ref() {
            _ if !self.settings.config.local_service.nudge => (NudgeState::Off, None),
            Some(&Err(_)) => (NudgeState::Failing, None),
            Some(&Ok(ifindex)) => {
                let name = self.node.view().interface_name(ifindex);
                (NudgeState::On, name.map(|name| name.to_string()))
            }
            None => (NudgeState::On, None),
        };
        LocalServiceStatus {
            state,
            blocked: match state {
                SocketState::Off => Some("it was started with --no-local-service".to_owned()),
                _ => blocked.map(|why| why.to_string()),
            },
            waiting: self.node.local_service().load().waiting,
            nudges,
            nudge_interface,
            listeners: self.kernel.socket.listeners().unwrap_or_default(),
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        add(&mut counts, "ip2gid.server", self.node.server().counters());
        add(&mut counts, "ip2gid.client", self.node.client().counters());
        add(&mut counts, "local-service", self.node.local_service().counters());
        add(&mut counts, "paths", self.node.paths().counters());
        add(&mut counts, "sa", self.node.paths().client().counters());
        add(&mut counts, "acm", self.node.acm().counters());
        for (what, counters, _) in self.node.users() {
            add(&mut counts, &format!("users.{what}"), counters);
        }
        add(&mut counts, "local-view", self.node.view().counters());
        let mut responder = self.node.responder().counters().clone();
        responder.add(bpf::Counter::MirrorFaults, self.node.client().mirror_faults());
        add(&mut counts, "responder", &responder);
        let programs = self.responder.counts().into_iter();
        counts.extend(programs.map(|(name, count)| (format!("bpf.{name}"), count)));
        counts.extend(
            self.service.control.counters.iter().map(|(name, count)| (name.to_string(), count)),
        );
        counts.insert(Other::LogDropped.to_string(), self.service.log.dropped());
        counts.insert(Other::QueryDropped.to_string(), self.servers.dropped(&self.responder));
        counts.insert(Other::ReplyNotReceived.to_string(), self.queries.dropped());
        counts
    }

    fn responder_status(&self, now: Instant) -> ResponderStatus {
        let lease_ends_in_ms = self.node.responder().lease_end().since(now).into();
        let blocked = match self.node.responder().blocked() {
            Some(reason) => Some(reason.to_string()),
            None if lease_ends_in_ms == Millis::default() => Some("the lease has ended".to_owned()),
            None if self.node.view().served().next().is_none() => {
                Some("no interface is served".to_owned())
            }
            None => None,
        };
        let private = self.node.responder().private_pins().filter(|_| blocked.is_none());
        let ends_early = private.map(|dir| {
            format!(
                "only the daemon's mount namespace has the bpffs of {dir}: programs end with the last \
                 process in it; mount the bpffs for the whole machine before the daemon starts"
            )
        });
        let bpf_dir = Some(self.settings.options.bpf_dir.display().to_string());
        ResponderStatus { lease_ends_in_ms, blocked, ends_early, bpf_dir }
    }

    /// The responder that serves an interface, and why the daemon answers there.
    fn responder_of(&self, link: &Interface) -> (Option<Hook>, Option<String>) {
        let ifindex = link.ifindex;
        let Some(served) = self.node.view().served().find(|served| served.ifindex == ifindex)
        else {
            return (None, None);
        };
        let hook = match self.node.responder().state(ifindex) {
            Some(bpf::State::Attached(hook)) => *hook,
            Some(bpf::State::Failed(fault)) => return (None, Some(fault.to_string())),
            Some(bpf::State::Unwanted) => return (None, Some(Blocked::Unwanted.to_string())),
            Some(bpf::State::Pending) | None => {
                let reason = self.node.responder().blocked().map(|reason| reason.to_string());
                return (None, reason.or(Some("no program is attached yet".to_owned())));
            }
        };
        let has_address =
            |family| link.addresses.iter().any(|address| Family::of(address.address) == family);
        let elsewhere = |family, way_back| match way_back {
            _ if !has_address(family) => None,
            WayBack::All => None,
            WayBack::Routed => {
                Some(format!("{family} sources that no route on this interface covers"))
            }
            WayBack::None(why) => Some(format!("{family}: {why}")),
        };
        let is_blind = hook == Hook::XdpGeneric && served.header == LinkHeader::Ipoib;
        let neighbours = is_blind.then(|| {
            let here = |there: &Neighbour| there.ifindex == ifindex;
            let known = self.node.view().neighbours().filter(here).count();
            format!("sources whose next hop is not among the {known} neighbours confirmed lately")
        });
        let in_user_space =
            [elsewhere(Family::V4, served.ipv4), elsewhere(Family::V6, served.ipv6), neighbours];
        let in_user_space: Vec<_> = in_user_space.into_iter().flatten().collect();
        let in_user_space = (!in_user_space.is_empty()).then(|| in_user_space.join("; "));
        (Some(hook), in_user_space)
    }

    fn interface(&self, link: &Interface) -> InterfaceStatus {
        let addresses: BTreeMap<IpAddr, Gid> = link
            .addresses
            .iter()
            .filter_map(|address| Some((address.address, address.owned?.gid?)))
            .collect();
        let (gid, reason) = match &link.gid {
            Ok(gid) => (Some(*gid), "it has no usable address".to_owned()),
            Err(reason) => (None, reason.to_string()),
        };
        let (responder, in_user_space) = self.responder_of(link);
        InterfaceStatus {
            name: link.name.to_string(),
            ifindex: link.ifindex,
            gid,
            responder,
            in_user_space,
            not_served: addresses.is_empty().then_some(reason),
            addresses,
        }
    }
}

/// The reasons for telling the kernel to ask the SA.
pub(super) const LEFT_TO_KERNEL: [(&str, local_service::Counter); 8] = [
    ("unknown-port", local_service::Counter::PathsUnknown),
    ("no-sa", local_service::Counter::PathsNoSa),
    ("no-record", local_service::Counter::PathsNoRecord),
    ("silent", local_service::Counter::PathsSilent),
    ("refused", local_service::Counter::PathsRefused),
    ("overloaded", local_service::Counter::PathsOverloaded),
    ("abandoned", local_service::Counter::PathsAbandoned),
    ("malformed", local_service::Counter::PathsMalformed),
];

fn add<C: counters::Counter>(
    counts: &mut BTreeMap<String, u64>,
    prefix: &str,
    counters: &counters::Counters<C>,
) {
    counts.extend(counters.iter().map(|(name, count)| (format!("{prefix}.{name}"), count)));
}
