// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of the control socket about paths and ports.

use ibarr_common::ib::{FlowLabel, Gid, Lid, PKey, Sl};
use ibarr_proto::paths::{self, PortName};
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
