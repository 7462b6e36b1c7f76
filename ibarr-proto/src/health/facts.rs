// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the driver states about the daemon. A fact is not yet good or bad.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use ibarr_common::Instant;

use super::Cause;
use crate::ip2gid::Family;
use crate::ip2gid::client;
use crate::local_service;
use crate::local_view::rules::Diverted;
use crate::local_view::{InterfaceName, Pattern};
use crate::node::Node;
use crate::paths::{self, PortName};
use crate::responder::State;
use crate::sa::Shut;

/// All facts at one time. The default is a daemon without a fault, and without anything to do.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The mistakes for which the last reload was refused.
    pub refused_reload: Option<String>,
    /// How long the configuration file has been read, if that is unusually long.
    pub slow_reload: Option<Duration>,
    /// Valid settings with an unwanted effect, with their remedy.
    pub settings: Vec<String>,
    /// Whether the addresses of this node are not known yet.
    pub view_unknown: bool,
    /// Whether no address of this node has a GID.
    pub no_gid: bool,
    /// Configured names that match no interface.
    pub unmatched: Vec<Pattern>,
    /// Addresses with several GIDs.
    pub contested: Vec<IpAddr>,
    /// Why the kernel sends no requests to the daemon.
    pub kernel_silent: Option<String>,
    /// See [`LocalService::refusal`](local_service::LocalService::refusal).
    pub answers_refused: Option<i32>,
    /// Why the last nudge failed, if nudges are on.
    pub nudges_fail: Option<String>,
    /// Other processes that receive the kernel's requests. Their names have no control characters.
    pub listeners: Vec<Listener>,
    /// Datagrams that policy rules divert.
    pub diverted: Vec<Diverted>,
    /// The programs that answer in the kernel.
    pub programs: Programs,
    /// The interfaces on which peers are answered.
    pub served: Vec<Served>,
    /// The sockets for peers' queries.
    pub sockets: Vec<Socket>,
    /// Inherited sockets that are not used, with their remedy.
    pub unused_sockets: Vec<String>,
    /// What the limit of descriptors prevents, with the remedy.
    pub few_descriptors: Option<String>,
    /// All InfiniBand ports.
    pub ports: Vec<Port>,
    /// Why group ibarr is not known.
    pub group_unknown: Option<String>,
    /// Why no program finds the control socket.
    pub control_closed: Option<String>,
    /// How many lines the log lacks.
    pub log_lost: u64,
    /// Why the metrics are not served.
    pub metrics_closed: Option<String>,
    /// Why paths are not saved for the next daemon.
    pub snapshot_failed: Option<String>,
    /// What is wrong with the files of ACM.
    pub acm_files: Vec<String>,
    /// Why clients of ACM are not served, with the remedy.
    pub acm_closed: Option<String>,
    /// Whether ACM is on.
    pub acm: bool,
    /// Counts that rise only while something is wrong, since the start.
    pub counted: Vec<(Cause, u64)>,
}

/// Another process with a socket in the group to which the kernel sends requests.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Listener {
    /// Process id; `None` if the owner of the socket is not visible.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub pid: Option<u32>,
    /// Name of the process (chosen by itself), or of the socket.
    pub name: String,
}

/// The programs of the responder as a whole.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Programs {
    /// The configuration wants none.
    #[default]
    Unwanted,
    /// None answers, for this reason.
    Absent(String),
    /// They answer until the end of the lease.
    Loaded {
        /// When the lease ends if it is not renewed.
        lease_end: Instant,
        /// How long a lease is.
        lease: Duration,
        /// The directory of the pins, if they last only as long as the mount namespace of the daemon.
        private_pins: Option<String>,
    },
}

/// An interface on which peers are answered.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Served {
    pub interface: InterfaceName,
    pub program: State,
}

/// A socket for peers' queries.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Socket {
    /// The version of IP.
    pub family: Family,
    /// Why it does not serve.
    pub blocked: Option<String>,
    /// The bytes that it holds and those that it should hold, if it holds too few.
    pub small: Option<(usize, usize)>,
}

/// A port and its subnet administrator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Port {
    /// Its name.
    pub name: PortName,
    /// Why the subnet administrator cannot be asked.
    pub missing: Option<Missing>,
    /// Its silence, which lasts until it answers, even if the port is down meanwhile.
    pub silence: Option<Shut>,
    /// Why its events are not received.
    pub unheard: Option<String>,
}

/// What is missing for asking a subnet administrator.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Missing {
    Down,
    SubnetManager,
    /// The umad device, for this reason if it is known.
    Umad(Option<String>),
}

impl Missing {
    /// What a port lacks; `None` if its subnet administrator can be asked.
    pub fn of(port: &paths::PortFacts) -> Option<Self> {
        match port.sa() {
            Some(_) => None,
            None if !port.is_active => Some(Self::Down),
            None if port.has_umad || port.sm_lid.is_none() => Some(Self::SubnetManager),
            None => Some(Self::Umad(None)),
        }
    }
}

impl Facts {
    /// What the cores know: all but the facts about sockets, programs, files and devices.
    pub fn of(node: &Node) -> Self {
        let (view, local_service, paths) = (node.view(), node.local_service(), node.paths());
        let port = |(index, name, facts, _): (_, _, &paths::PortFacts, _)| Port {
            name,
            missing: Missing::of(facts),
            silence: paths.client().tally(index).silence,
            unheard: None,
        };
        let counted = [
            (Cause::RequestsLost, local_service.counters().get(local_service::Counter::Overruns)),
            (Cause::AddressesEvicted, node.client().counters().get(client::Counter::CacheEvicted)),
            (Cause::PathsEvicted, paths.counters().get(paths::Counter::Evicted)),
        ];
        Self {
            view_unknown: !view.is_synced(),
            no_gid: view.is_synced() && view.owned().all(|owned| owned.gid.is_none()),
            unmatched: view.unmatched_patterns().cloned().collect(),
            contested: view.contested().collect(),
            answers_refused: local_service.refusal(),
            ports: paths.ports().map(port).collect(),
            counted: counted.into(),
            ..Self::default()
        }
    }
}
