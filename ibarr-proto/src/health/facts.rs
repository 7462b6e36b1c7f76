// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What each part of the daemon knows. A fact is not yet good or bad.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use ibarr_common::Instant;
use thiserror::Error;

use super::{Cause, Subsystem};
use crate::Fault;
use crate::ip2gid::Family;
use crate::ip2gid::client::Candidate;
use crate::local_view::rules::Diverted;
use crate::local_view::{InterfaceName, Pattern};
use crate::paths::{self, PortName};
use crate::responder::{Blocked, State};
use crate::sa::Shut;

/// What one part of the daemon knows. It holds until the next input of its kind; before the first one,
/// the part has no fault.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "its variants are named for what they state")]
pub enum Input {
    Start,
    /// A part of a subsystem has yet to say whether it works, for this reason. It holds until the next
    /// assessment.
    Unsettled(Subsystem, Fault),
    /// The configuration has changed, and parts of the daemon with it.
    Reconfigured,
    /// Someone asks for the [report](super::Health::report).
    Asked,
    /// The daemon ends, and nothing is judged any more.
    Stop,
    /// A datagram is sent to this peer.
    Sent(Candidate),
    Addresses(Addresses),
    /// See [`LocalService::refusal`](crate::local_service::LocalService::refusal).
    AnswersRefused(Option<i32>),
    Ports(Vec<Port>),
    /// A count that rises only while something is wrong, since the start.
    Counted(Cause, u64),
    Configuration(Configuration),
    Kernel(Kernel),
    /// The programs that answer in the kernel, and the interfaces on which peers are answered.
    Responder(Programs, Vec<Served>),
    Peers(Peers),
    /// Of ports that could not be opened, or whose events could not.
    Devices(Vec<Device>),
    Control(Control),
    /// Why paths are not saved for the next daemon.
    Snapshot(Option<Fault>),
    Acm(Acm),
}

/// The last input of each kind.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) addresses: Addresses,
    pub(super) answers_refused: Option<i32>,
    pub(super) ports: Vec<Port>,
    pub(super) configuration: Configuration,
    pub(super) kernel: Kernel,
    pub(super) programs: Programs,
    pub(super) served: Vec<Served>,
    pub(super) peers: Peers,
    pub(super) devices: Vec<Device>,
    pub(super) control: Control,
    pub(super) snapshot_failed: Option<Fault>,
    pub(super) acm: Acm,
}

/// What the local view knows.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Whether the addresses of this node are not known yet.
    pub unknown: bool,
    /// Whether no address of this node has a GID.
    pub no_gid: bool,
    /// Configured names that match no interface.
    pub unmatched: Vec<Pattern>,
    /// Addresses with several GIDs.
    pub contested: Vec<IpAddr>,
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
}

/// What is missing for asking a subnet administrator.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Missing {
    #[error("the port is not active")]
    Down,
    #[error("the port knows no subnet manager: does one run?")]
    SubnetManager,
    #[error("its umad device is not open")]
    Umad,
}

impl Missing {
    /// What a port lacks; `None` if its subnet administrator can be asked.
    pub fn of(port: &paths::PortFacts) -> Option<Self> {
        match port.sa() {
            Some(_) => None,
            None if !port.is_active => Some(Self::Down),
            None if port.has_umad || port.sm_lid.is_none() => Some(Self::SubnetManager),
            None => Some(Self::Umad),
        }
    }
}

/// What the configuration file does.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// The mistakes for which the last reload was refused.
    pub refused: Option<Fault>,
    /// Since when the file is being read.
    pub reading_since: Option<Instant>,
    /// A valid setting with an unwanted effect.
    pub setting: Option<Setting>,
}

/// A valid setting with an effect that is easily overlooked.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum Setting {
    /// The programs have no room for all sources that are allowed.
    #[error(
        "allow has {prefixes} prefixes, and the kernel holds {most}: the daemon answers all peers itself; \
         write fewer and wider prefixes, or responder = \"user\""
    )]
    #[expect(missing_docs, reason = "its fields are named for what they hold")]
    AllowTooLong { prefixes: usize, most: usize },
}

/// What the socket to the kernel and the nudges do.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// Why the kernel sends no requests to the daemon.
    pub silent: Option<KernelSilent>,
    /// Why the last nudge failed, if nudges are on.
    pub nudges_fail: Option<Fault>,
    /// Other processes that receive the kernel's requests. Their names have no control characters.
    pub listeners: Vec<Listener>,
}

/// Why the kernel sends no requests to the daemon, with the remedy.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum KernelSilent {
    #[error("waiting for the module ib_core: this kernel has no RDMA yet")]
    NoRdma,
    #[error(
        "not allowed: run the daemon with CAP_NET_ADMIN in the first user namespace; until then ibarr does \
         not answer the kernel"
    )]
    NotAllowed,
    #[error(
        "this is not the first network namespace, and the kernel accepts answers only from that one: run \
         the daemon there (nsenter --net=/proc/1/ns/net), or with --no-local-service if it shall only answer \
         the peers of this one; until then ibarr does not answer the kernel"
    )]
    OtherNamespace,
    #[error("the inherited socket was closed at its other end")]
    OtherEndClosed,
    #[error("{0}")]
    Failed(Fault),
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
    Absent(Blocked),
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

/// What the sockets for queries do.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Those for peers' queries.
    pub sockets: Vec<Socket>,
    /// Inherited sockets that are not used, with their remedy.
    pub unused: Vec<Fault>,
    /// What the limit of descriptors prevents.
    pub few_descriptors: Option<FewDescriptors>,
    /// Datagrams that policy rules divert.
    pub diverted: Vec<Diverted>,
}

/// A socket for peers' queries.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Socket {
    /// The version of IP.
    pub family: Family,
    /// Why it does not serve.
    pub blocked: Option<Fault>,
    /// The bytes that it holds and those that it should hold, if it holds too few.
    pub small: Option<(usize, usize)>,
}

/// How little the limit of descriptors permits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct FewDescriptors {
    pub limit: u64,
    /// Sockets of each IP version from which queries leave.
    pub query_sockets: u8,
    /// Connections of all users.
    pub connections: usize,
}

/// Why a port is used less than it could be.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Device {
    pub port: PortName,
    /// Why the umad device is not open.
    pub closed: Option<Fault>,
    /// Why events are not received.
    pub unheard: Option<Fault>,
}

/// What the control socket, the log and the metrics do.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// Why group ibarr is not known.
    pub group_unknown: Option<GroupUnknown>,
    /// Why no program finds the control socket.
    pub closed: Option<Fault>,
    /// How many lines the log lacks.
    pub log_lost: u64,
    /// Why the metrics are not served.
    pub metrics_closed: Option<Fault>,
}

/// Why group ibarr is not known.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum GroupUnknown {
    #[error("the user database has not answered yet")]
    NoAnswerYet,
    #[error("the user database cannot be read: {0}")]
    Unreadable(Fault),
}

/// What ACM does for its clients.
#[derive(Clone, Debug, Default)]
pub struct Acm {
    /// Whether it is on.
    pub is_on: bool,
    /// Since when its files are being read.
    pub reading_since: Option<Instant>,
    /// What is wrong with them.
    pub files: Vec<Fault>,
    /// Why its clients are not served, with the remedy.
    pub closed: Option<Fault>,
}
