// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of the control socket about paths and ports.

use serde::{Deserialize, Serialize};

/// The ends of a path.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathRequest {
    /// Destination GID.
    pub dgid: String,
    /// Source GID; absent: the port's first GID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sgid: Option<String>,
    /// Port, such as `mlx5_0/1`; absent: the first port that can ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// P_Key; absent: the port's first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pkey: Option<u16>,
}

/// The outcome of a request for a path.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathAnswer {
    /// The port that asked, such as `mlx5_0/1`.
    pub port: String,
    /// Source GID.
    pub sgid: String,
    /// Destination GID.
    pub dgid: String,
    /// The outcome.
    pub status: PathStatus,
    /// Origin of the path: `sa`, `cache`, or `doubted` (from the cache, and possibly stale).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The subnet administrator's status, if it gave no path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// The path, if found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<PathHops>,
    /// Milliseconds from request to answer, within the daemon.
    pub ms: f64,
}

/// Outcomes of a request for a path.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathStatus {
    /// There is a path.
    Found,
    /// The subnet administrator knows no path.
    NoRecord,
    /// The subnet administrator refuses the question.
    Refused,
    /// The subnet administrator did not answer in time.
    Silent,
    /// The subnet administrator said that it is busy.
    Busy,
    /// The daemon knows no such port.
    UnknownPort,
    /// The port has no subnet administrator that can be asked.
    NoSa,
    /// Too many requests are pending already.
    Overloaded,
}

impl PathStatus {
    /// The value in JSON.
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

/// The fields of a PathRecord.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathHops {
    /// Source LID.
    pub slid: u16,
    /// Destination LID: the end of the path, or the router to another subnet.
    pub dlid: u16,
    /// Above 1 if the path leaves the subnet.
    pub hop_limit: u8,
    /// Flow label for routers.
    pub flow_label: u32,
    /// Traffic class for routers.
    pub tclass: u8,
    /// Service level.
    pub sl: u8,
    /// MTU in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Rate in Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// P_Key in hexadecimal.
    pub pkey: String,
    /// Whether the path also leads back.
    pub reversible: bool,
}

/// An entry of the path cache.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CachedPath {
    /// Port, such as `mlx5_0/1`.
    pub port: String,
    /// Source GID.
    pub sgid: String,
    /// Destination GID.
    pub dgid: String,
    /// P_Key that the request named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pkey: Option<String>,
    /// Traffic class that the request named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tclass: Option<u8>,
    /// The path; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<PathHops>,
    /// Whether the path may be stale.
    pub doubted: bool,
    /// Milliseconds until the entry expires.
    pub expires_in_ms: u64,
}

/// An InfiniBand port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortStatus {
    /// Name, such as `mlx5_0/1`.
    pub port: String,
    /// Whether the port is up and configured.
    pub active: bool,
    /// LID of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lid: Option<u16>,
    /// LMC: how many low bits of the LID the port ignores.
    pub lmc: u8,
    /// LID of the subnet manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_lid: Option<u16>,
    /// Service level of packets to the subnet manager.
    pub sm_sl: u8,
    /// GIDs of the port.
    pub gids: Vec<String>,
    /// P_Keys of the port, in hexadecimal.
    pub pkeys: Vec<String>,
    /// Whether its subnet administrator says that paths may differ by service.
    pub qos: bool,
    /// Questions that wait for an answer now.
    pub questions: usize,
    /// MADs that the subnet administrator has not answered yet.
    pub in_air: u32,
    /// The current limit of such MADs.
    pub window: u32,
    /// Set while the subnet administrator does not answer, and only probes are sent to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probing: Option<Probing>,
    /// Why the subnet administrator cannot be asked; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// The last event that the kernel reported for the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event: Option<LastEvent>,
    /// Whether its subnet administrator reports changes: `yes`, `not yet`, or the reason why not.
    /// Absent if reports are off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub informed: Option<String>,
    /// Why the daemon does not receive the kernel's events of the port; absent if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deaf: Option<String>,
}

/// A subnet administrator that does not answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Probing {
    /// `silent`, or `busy` if it answers nothing else.
    pub because: String,
    /// Milliseconds since the first question without an answer.
    pub for_ms: u64,
}

/// An event of a port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LastEvent {
    /// Name as in libibverbs, such as `client-reregister`.
    pub event: String,
    /// Milliseconds since the event.
    pub ago_ms: u64,
}
