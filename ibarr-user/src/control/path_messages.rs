// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of the control socket about paths and ports.

use std::net::IpAddr;

use ibarr_common::ib::{FlowLabel, Gid, Lid, PKey, Sl};
use ibarr_proto::paths::{self, PortEvent, PortName};
use ibarr_proto::sa::Tally;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::values::{Elapsed, Millis, is_default};

/// A P_Key whose form in JSON is a number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PKeyNumber(pub PKey);

ibarr_common::serde_as_number! {
    PKeyNumber, u16: |key| PKey::new(key).map(PKeyNumber), |PKeyNumber(key)| PKey::get(key);
}

/// The ends of a path.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathRequest {
    /// Destination GID.
    pub dgid: Gid,
    /// Source GID; absent: the port's first GID.
    pub sgid: Option<Gid>,
    /// Port, such as `mlx5_0/1`; absent: the first port that can ask.
    pub port: Option<PortName>,
    /// P_Key; absent: the port's first.
    pub pkey: Option<PKeyNumber>,
    /// Whether the subnet administrator is asked even if its answer is remembered.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fresh: bool,
}

/// The outcome of a request for a path.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathAnswer {
    /// The port that asked, such as `mlx5_0/1`.
    pub port: PortName,
    /// Why this port was chosen.
    pub chosen: Option<paths::Choice>,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
    /// The outcome.
    pub status: paths::Status,
    /// Origin of the outcome, if the subnet administrator said it.
    pub source: Option<paths::Source>,
    /// The subnet administrator's status, if it gave no path.
    pub refusal: Option<String>,
    /// The path, if found.
    pub hops: Option<PathHops>,
    /// Milliseconds from request to answer, within the daemon.
    pub ms: Elapsed,
}

/// The fields of a PathRecord.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathHops {
    /// Source LID.
    pub slid: Lid,
    /// Destination LID: the end of the path, or the router to another subnet.
    pub dlid: Lid,
    /// Above 1 if the path leaves the subnet.
    pub hop_limit: u8,
    /// Flow label for routers.
    pub flow_label: FlowLabel,
    /// Traffic class for routers.
    pub tclass: u8,
    /// Service level.
    pub sl: Sl,
    /// MTU in bytes.
    pub mtu: Option<u16>,
    /// The code of the MTU instead, if its meaning is not known here.
    pub mtu_code: Option<u8>,
    /// Rate in Gbit/s.
    pub gbit_s: Option<f64>,
    /// The code of the rate instead, if its meaning is not known here.
    pub rate_code: Option<u8>,
    /// P_Key in hexadecimal.
    pub pkey: PKey,
    /// Whether the path also leads back.
    pub reversible: bool,
}

/// An entry of the path cache.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CachedPath {
    /// Port, such as `mlx5_0/1`.
    pub port: PortName,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
    /// P_Key that the request named.
    pub pkey: Option<PKey>,
    /// Traffic class that the request named.
    pub tclass: Option<u8>,
    /// The path; absent if there is none.
    pub hops: Option<PathHops>,
    /// Whether the path may be stale.
    pub doubted: bool,
    /// Milliseconds until the entry expires.
    pub expires_in_ms: Millis,
}

/// An InfiniBand port.
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
    /// P_Keys of the port, in hexadecimal.
    pub pkeys: Vec<PKey>,
    /// IP addresses of the interfaces that have one of its GIDs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<PortAddress>,
    /// Whether its subnet administrator says that paths may differ by service.
    pub qos: bool,
    /// Questions that wait for an answer now.
    pub questions: usize,
    /// MADs that the subnet administrator has not answered yet.
    pub in_air: u32,
    /// The current limit of such MADs.
    pub window: u32,
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

/// An IP address of an InfiniBand port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortAddress {
    /// The address.
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
