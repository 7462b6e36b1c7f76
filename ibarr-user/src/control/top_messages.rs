// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The document of `ibarr top`: what happened between two looks at the daemon.

use ibarr_proto::health;
use ibarr_proto::paths::PortName;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::address_messages::SlowPeer;
use super::path_messages::Probing;
use super::values::{Elapsed, Seconds};

/// What happened in an interval. Rates are per second, and totals since the daemon's start.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Top {
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_s: Seconds,
    /// The interval; absent if there is only one look at this daemon, and so no rate.
    pub interval_ms: Option<Elapsed>,
    /// The worst state of a subsystem; absent until the daemon is ready.
    pub health: Option<health::State>,
    /// What is wrong, such as `sa mlx5_0/1: sa-silent`.
    pub causes: Vec<String>,
    /// Requests for addresses and paths.
    pub requests: Vec<RequestRate>,
    /// Answers to peers.
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
    /// The kind.
    pub what: RequestKind,
    /// Requests.
    pub per_s: Option<f64>,
    /// Requests that ended without a GID or a path.
    pub failed_per_s: Option<f64>,
    /// The share of the ended requests that was answered from memory; absent if none ended, or if
    /// this kind does not tell.
    pub from_memory_percent: Option<f64>,
    /// All requests.
    pub total: u64,
}

ibarr_common::words! {
    /// Kinds of requests.
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
    /// What answered.
    pub by: Answerer,
    /// Answers with a GID.
    pub per_s: Option<f64>,
    /// The share of all answers in the interval; absent if there was none.
    pub percent: Option<f64>,
    /// All answers. Those of programs go on from one daemon to the next.
    pub total: u64,
}

ibarr_common::words! {
    /// What answers peers.
    Answerer {
        /// A program in the kernel, by tc.
        Tc = "tc",
        /// A program in the kernel, by XDP.
        Xdp = "xdp",
        /// The daemon.
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
    /// Questions that wait for an answer now.
    pub questions: usize,
    /// MADs that the subnet administrator has not answered yet.
    pub in_air: u32,
    /// The current limit of such MADs.
    pub window: u32,
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
    /// All of them.
    pub total: u64,
}
