// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Those of the documents of the control socket that are about paths and ports.

use serde::{Deserialize, Serialize};

/// Which path is asked for.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathRequest {
    /// Where it leads.
    pub dgid: String,
    /// Where it starts; the port's first GID if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sgid: Option<String>,
    /// By which port, like `mlx5_0/1`; the first that can be asked if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// In which partition; the port's first if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pkey: Option<u16>,
}

/// What became of a question for a path.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathAnswer {
    /// The port that asked.
    pub port: String,
    /// Where the path starts.
    pub sgid: String,
    /// Where it leads.
    pub dgid: String,
    /// What is known.
    pub status: PathStatus,
    /// Who said so: `sa`, `cache`, or `doubted`: remembered, but something has happened since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What the subnet administrator said instead of a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// The path, if found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<PathHops>,
    /// Milliseconds from request to answer, within the daemon.
    pub ms: f64,
}

/// Outcomes of asking for a path.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathStatus {
    /// There is one.
    Found,
    /// The subnet administrator knows none.
    NoRecord,
    /// It does not answer this.
    Refused,
    /// It did not answer in time.
    Silent,
    /// It had no time.
    Busy,
    /// There is no such port.
    UnknownPort,
    /// The port has no subnet administrator that can be asked.
    NoSa,
    /// Too much is being asked already.
    Overloaded,
}

impl PathStatus {
    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::NoRecord => "no-record",
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Busy => "busy",
            Self::UnknownPort => "unknown-port",
            Self::NoSa => "no-sa",
            Self::Overloaded => "overloaded",
        }
    }
}

/// What stands in a path record.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathHops {
    /// LID where it starts.
    pub slid: u16,
    /// LID where it leaves this subnet, or ends.
    pub dlid: u16,
    /// Above 1 it leaves the subnet.
    pub hop_limit: u8,
    /// For routers.
    pub flow_label: u32,
    /// For routers.
    pub tclass: u8,
    /// Service level.
    pub sl: u8,
    /// Bytes of the longest packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// Partition.
    pub pkey: String,
    /// Whether it leads back as well.
    pub reversible: bool,
}

/// One entry of the path cache.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CachedPath {
    /// The port.
    pub port: String,
    /// Where it starts.
    pub sgid: String,
    /// Where it leads.
    pub dgid: String,
    /// Partition asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pkey: Option<String>,
    /// Traffic class asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tclass: Option<u8>,
    /// The path; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<PathHops>,
    /// Whether something has happened since it was learned.
    pub doubted: bool,
    /// Milliseconds until it is forgotten.
    pub expires_in_ms: u64,
}

/// One InfiniBand port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortStatus {
    /// Its name, like `mlx5_0/1`.
    pub port: String,
    /// Whether it is up and configured.
    pub active: bool,
    /// Its LID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lid: Option<u16>,
    /// Bits of it that may be anything.
    pub lmc: u8,
    /// Where its subnet manager is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_lid: Option<u16>,
    /// How that is reached.
    pub sm_sl: u8,
    /// Its GIDs.
    pub gids: Vec<String>,
    /// Its partitions.
    pub pkeys: Vec<String>,
    /// Whether its subnet administrator says that paths may differ by service.
    pub qos: bool,
    /// Questions that wait for an answer now.
    pub questions: usize,
    /// MADs that the subnet administrator is to answer now.
    pub in_air: u32,
    /// How many it may be given at once, at the moment.
    pub window: u32,
    /// Set while it does not answer, and only probes are sent to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probing: Option<Probing>,
    /// Why it cannot be asked; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// The last event of it that the kernel told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event: Option<LastEvent>,
    /// Whether its subnet administrator tells of changes: `yes`, `not yet`, or why it does not. Absent
    /// if it is not to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub informed: Option<String>,
    /// Why the kernel's events of it are not heard; absent if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deaf: Option<String>,
}

/// A subnet administrator that does not answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Probing {
    /// `silent`, or `busy`: it says nothing else.
    pub because: String,
    /// Milliseconds since the first question that it did not answer.
    pub for_ms: u64,
}

/// An event of a port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LastEvent {
    /// As libibverbs names it: `client-reregister`.
    pub event: String,
    /// Milliseconds since.
    pub ago_ms: u64,
}
