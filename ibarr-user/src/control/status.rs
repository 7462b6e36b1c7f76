// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What `ibarr status` and `ibarr top` show.

#![expect(missing_docs, reason = "the fields are named for what they hold")]

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

use ibarr_common::IfIndex;
use ibarr_common::ib::{Gid, Lid, PKey, Sl};
use ibarr_proto::health::{self, Listener};
use ibarr_proto::paths::{GidIndex, PortEvent, PortName};
use ibarr_proto::sa::{Load, Tally};
use ibarr_proto::shares;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::values::{Elapsed, Millis, Seconds, is_default};
use crate::bpf::Hook;
use crate::transport::local_service::SocketState;

/// The document of `ibarr status`.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Host name of the node when the daemon started.
    #[serde(default)]
    pub node: Option<String>,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_s: Seconds,
    /// Paths of the configuration files, with commas; absent if the daemon runs on defaults.
    pub config: Option<String>,
    /// Seconds since the last reload that took effect; absent if there was none.
    pub reloaded_ago_s: Option<Seconds>,
    /// The last reload, if it failed.
    pub failed_reload: Option<FailedReload>,
    /// What works and what does not, by subsystem, as far as it is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<SubsystemHealth>,
    /// The subsystems of which it is not known yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<UnknownSubsystem>,
    /// The server sockets of the ip2gid port.
    pub servers: Vec<ServerStatus>,
    /// State of the socket to the kernel's RDMA core.
    pub local_service: LocalServiceStatus,
    /// State of the BPF responder.
    pub responder: ResponderStatus,
    #[serde(default)]
    pub ports: Vec<PortStatus>,
    /// Number of entries in the path cache.
    #[serde(default)]
    pub cached_paths: usize,
    /// How many requests the path cache has saved, since the start.
    #[serde(default)]
    pub path_requests: PathRequests,
    /// All interfaces that were considered.
    pub interfaces: Vec<InterfaceStatus>,
    /// Questions that wait for a peer now.
    pub pending: usize,
    /// Number of entries in the client cache.
    pub cached: usize,
    /// The peers that took longest to answer in the last minute, the slowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slowest_peers: Vec<SlowPeer>,
    /// Use of the control socket.
    #[serde(default)]
    pub control: ControlStatus,
    /// Requests of users, for addresses and for paths.
    #[serde(default)]
    pub users: Vec<UsersStatus>,
    /// The reasons in `health`, each with its remedy, for people; empty if there are none.
    pub warnings: Vec<String>,
}

/// A reload that changed nothing, because the file has mistakes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FailedReload {
    /// Seconds since the reload.
    pub ago_s: Seconds,
    /// The mistakes, one a line.
    pub message: String,
}

/// A subsystem of the daemon.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SubsystemHealth {
    /// Its name, such as `sa`. Names may be added.
    pub subsystem: String,
    /// The interface or port, if there is one for each.
    pub of: Option<String>,
    /// How well it works.
    pub state: health::State,
    /// Seconds since the state last changed.
    pub since_s: Seconds,
    /// What is wrong with it, or could be better.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<HealthReason>,
}

impl fmt::Display for SubsystemHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.subsystem)?;
        self.of.as_ref().map_or(Ok(()), |of| write!(f, " {of}"))
    }
}

/// A subsystem that has yet to say whether it works.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct UnknownSubsystem {
    /// Its name, such as `acm`.
    pub subsystem: String,
    /// The interface or port, if there is one for each.
    pub of: Option<String>,
    /// What is going on, for people.
    pub awaited: String,
}

impl fmt::Display for UnknownSubsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.subsystem)?;
        self.of.as_ref().map_or(Ok(()), |of| write!(f, " {of}"))
    }
}

/// What is wrong with a subsystem, or could be better.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct HealthReason {
    /// Its name for programs, such as `sa-silent`. Names may be added.
    pub cause: String,
    /// What it makes of the subsystem; `ok` if it is only advice.
    pub state: health::State,
    /// Seconds since it was first seen.
    pub since_s: Seconds,
    /// What is wrong, for people.
    pub why: String,
    /// What to do, for people.
    pub remedy: String,
}

/// A server socket of the ip2gid port.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServerStatus {
    /// The version of IP: `ipv4` or `ipv6`.
    pub family: String,
    pub port: NonZeroU16,
    /// The VRF whose datagrams it receives; absent for all others.
    pub vrf: Option<String>,
    /// Why the socket does not serve; absent if it does.
    pub blocked: Option<String>,
    /// Size of the receive buffer in bytes; absent if the socket does not serve.
    pub receive_buffer: Option<usize>,
}

/// The socket to the kernel's RDMA core.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LocalServiceStatus {
    /// Whether the socket is open.
    pub state: SocketState,
    /// Why the kernel does not send requests to the daemon; absent if it does.
    pub blocked: Option<String>,
    /// Address requests that wait for an answer now.
    pub waiting: usize,
    /// Whether nudges are made.
    pub nudges: NudgeState,
    /// The interface of the last nudge; absent if there was none, or it failed.
    pub nudge_interface: Option<String>,
    /// Other processes that receive the kernel's requests.
    pub listeners: Vec<Listener>,
}

ibarr_common::words! {
    NudgeState {
        /// The last one succeeded, or there was none yet.
        On = "on",
        /// The configuration turns them off.
        Off = "off",
        /// The last one failed.
        Failing = "failing",
    }
}

#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ResponderStatus {
    /// Milliseconds until the programs stop answering, if the lease is not renewed.
    pub lease_ends_in_ms: Millis,
    /// Why the responder answers nothing; absent if it answers.
    pub blocked: Option<String>,
    /// Why the responder may end with the daemon, before its lease; absent if it outlives the
    /// daemon.
    pub ends_early: Option<String>,
    /// Directory of the pins.
    pub bpf_dir: Option<String>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortStatus {
    /// Name, such as `mlx5_0/1`.
    pub port: PortName,
    /// Whether the port is up and configured.
    pub active: bool,
    /// LID of the port.
    pub lid: Option<Lid>,
    /// LMC: how many low bits of the LID the port ignores.
    pub lmc: u8,
    /// LID of the subnet manager.
    pub sm_lid: Option<Lid>,
    /// Service level of packets to the subnet manager.
    pub sm_sl: Sl,
    /// GIDs of the port.
    pub gids: Vec<Gid>,
    /// The same with their indexes, and the interfaces whose addresses are answered with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gid_table: Vec<TableGid>,
    /// P_Keys of the port, in hexadecimal.
    pub pkeys: Vec<PKey>,
    /// IP addresses of the interfaces that have one of its GIDs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<PortAddress>,
    /// Whether its subnet administrator says that paths may differ by service.
    pub qos: bool,
    /// What it asks now.
    #[serde(flatten)]
    pub load: Load,
    /// What was sent to its subnet administrators since the start, and answered.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sa: Tally,
    /// Set while the subnet administrator does not answer, and only probes are sent to it.
    pub probing: Option<Probing>,
    /// Why the subnet administrator cannot be asked; absent if it can.
    pub blocked: Option<String>,
    /// The last event that the kernel reported for the port.
    pub last_event: Option<LastEvent>,
    /// Why the daemon does not receive the kernel's events of the port; absent if it does.
    pub deaf: Option<String>,
}

/// A GID in the table of an InfiniBand port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TableGid {
    pub index: GidIndex,
    pub gid: Gid,
    /// Names of the interfaces that have it as their own, such as `ib0`.
    pub interfaces: Vec<String>,
}

/// The GID of an IPoIB interface, and those that it could have.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct InterfaceGid {
    /// Name of the interface, such as `ib0`.
    pub interface: String,
    pub gid: Gid,
    /// Absent if it cannot be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortName>,
    /// By which routers between InfiniBand subnets find the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routable: Option<Gid>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gid_table: Vec<TableGid>,
    /// What peers are told about its addresses, if the daemon runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub told: BTreeMap<IpAddr, Gid>,
}

/// An IP address of an InfiniBand port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortAddress {
    pub ip: IpAddr,
    /// Name of its interface, such as `ib0`.
    pub interface: String,
    /// The GID in replies about it.
    pub gid: Gid,
}

/// A subnet administrator that does not answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Probing {
    /// Whether it answers at all.
    pub because: Silence,
    /// Milliseconds since the first question without an answer.
    pub for_ms: Millis,
}

ibarr_common::words! {
    /// Why a subnet administrator is only probed.
    Silence {
        /// It does not answer.
        Silent = "silent",
        /// It answers nothing but that it is busy.
        Busy = "busy",
    }
}

/// An event of a port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LastEvent {
    /// Name as in libibverbs, such as `client-reregister`.
    pub event: PortEvent,
    /// Milliseconds since the event.
    pub ago_ms: Millis,
}

/// Requests for paths, since the start, by whether a subnet administrator was asked.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathRequests {
    /// MADs sent to subnet administrators, including resends.
    pub sa_queries: u64,
    /// Requests for paths, of the kernel and of users, answered from the cache or by a question
    /// that was already in flight.
    pub avoided: u64,
    /// Requests for which the kernel was told to ask the subnet administrator itself, by reason. 1.0.0 also says
    /// `busy`.
    pub left_to_kernel: BTreeMap<String, u64>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct InterfaceStatus {
    /// Interface name, such as `ib0`.
    pub name: String,
    pub ifindex: IfIndex,
    /// The GID in replies about its addresses.
    pub gid: Option<Gid>,
    /// The program that answers queries on this interface, before or instead of the daemon: `tcx`,
    /// `clsact`, `xdp-native`, `xdp-generic`; absent if there is none.
    pub responder: Option<Hook>,
    /// Which queries the daemon answers here, and why; absent if there are none, or if no query
    /// shall be answered here.
    pub in_user_space: Option<String>,
    /// Addresses that are answered, each with its GID.
    pub addresses: BTreeMap<IpAddr, Gid>,
    /// Why no address is answered; absent if some are.
    pub not_served: Option<String>,
}

/// A peer that took long to answer.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SlowPeer {
    pub ip: IpAddr,
    /// Name of the interface that the request named; absent if it named none.
    pub interface: Option<String>,
    /// Milliseconds from the first query to its last answer.
    pub ms: Elapsed,
    /// Milliseconds since that answer.
    pub ago_ms: Millis,
}

/// Use of the control socket.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ControlStatus {
    /// Number of open connections.
    pub connections: usize,
    /// Connections refused because their user or all users had too many, or because the daemon had
    /// too few descriptors.
    pub refused: u64,
    /// State of the look-up of group `ibarr`, whose members may change the daemon.
    pub group: String,
}

/// Requests of all users together, without the kernel's.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct UsersStatus {
    pub what: shares::Kind,
    pub under_way: usize,
    /// Requests that wait because their user, or all users, have their share in flight.
    pub waiting: usize,
    /// Requests that waited in vain, since the start.
    pub refused: u64,
}

/// What happened in an interval. Rates are per second, and totals since the daemon's start.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Top {
    /// Version of the daemon.
    pub version: String,
    /// Host name of the node when the daemon started.
    #[serde(default)]
    pub node: Option<String>,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_s: Seconds,
    /// The interval; absent if there is only one look at this daemon, and so no rate.
    pub interval_ms: Option<Elapsed>,
    /// The worst state of a subsystem; absent while it is not known.
    pub health: Option<health::State>,
    /// What is wrong, such as `sa mlx5_0/1: sa-silent`.
    pub causes: Vec<String>,
    /// Requests for addresses and paths.
    pub requests: Vec<RequestRate>,
    pub answers: Vec<AnswerRate>,
    /// All InfiniBand ports and their subnet administrators.
    pub ports: Vec<PortRate>,
    /// The peers that took longest to answer in the last minute, the slowest first.
    pub slowest_peers: Vec<SlowPeer>,
    /// Counters of what went wrong that are not 0, the fastest first.
    pub errors: Vec<ErrorRate>,
}

/// Requests of one kind.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RequestRate {
    pub what: RequestKind,
    /// Requests.
    pub per_s: Option<f64>,
    /// Requests that ended without a GID or a path.
    pub failed_per_s: Option<f64>,
    /// The share of the ended requests that was answered from memory; absent if none ended, or if
    /// this kind does not tell.
    pub from_memory_percent: Option<f64>,
    pub total: u64,
}

ibarr_common::words! {
    RequestKind {
        /// The kernel's, for addresses.
        KernelAddresses = "kernel-addresses",
        /// The kernel's, for paths.
        KernelPaths = "kernel-paths",
        /// Those for addresses that the client got, which asks peers: what memory did not answer the kernel
        /// or ACM at once, and all that users ask.
        ClientAddresses = "client-addresses",
        /// For paths, of the kernel, users and clients of ACM.
        Paths = "paths",
    }
}

/// Answers to peers' queries.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AnswerRate {
    pub by: Answerer,
    /// Answers with a GID.
    pub per_s: Option<f64>,
    /// The share of all answers in the interval; absent if there was none.
    pub percent: Option<f64>,
    /// All answers. Those of programs go on from one daemon to the next.
    pub total: u64,
}

ibarr_common::words! {
    Answerer {
        /// A program in the kernel, by tc.
        Tc = "tc",
        /// A program in the kernel, by XDP.
        Xdp = "xdp",
        Daemon = "daemon",
    }
}

/// A port and its subnet administrator.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortRate {
    /// Name, such as `mlx5_0/1`.
    pub port: PortName,
    /// Whether the port is up and configured.
    pub active: bool,
    /// What it asks now.
    #[serde(flatten)]
    pub load: Load,
    /// MADs sent, with resends and probes.
    pub mads_per_s: Option<f64>,
    /// Answers with anything but that it is busy.
    pub answers_per_s: Option<f64>,
    /// The mean time from a MAD to its answer; absent if there was no answer.
    pub answer_ms: Option<f64>,
    /// Set while the subnet administrator does not answer.
    pub probing: Option<Probing>,
    /// Why it cannot be asked; absent if it can.
    pub blocked: Option<String>,
    /// All MADs.
    pub total: u64,
}

/// A counter of something that went wrong.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ErrorRate {
    /// Its name; `ibarr counters --describe` says what it counts.
    pub counter: String,
    /// How often it happened.
    pub per_s: Option<f64>,
    pub total: u64,
}
