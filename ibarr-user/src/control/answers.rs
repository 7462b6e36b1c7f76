// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Requests for addresses and paths, and the answers.

#![expect(missing_docs, reason = "the fields are named for what they hold")]

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ibarr_common::IfIndex;
use ibarr_common::ib::{FlowLabel, Gid, Lid, PKey, Sl};
use ibarr_proto::ip2gid::client::survey::Speaks;
use ibarr_proto::paths::{self, PortName};
use ibarr_proto::request;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::values::{Elapsed, Millis};

/// An address to resolve: `10.2.0.5`, or `fe80::1%4` with the index of the interface that its
/// queries leave by.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Target {
    pub ip: IpAddr,
    /// The interface; absent if routing selects it.
    pub scope: Option<IfIndex>,
}

impl From<IpAddr> for Target {
    fn from(ip: IpAddr) -> Self {
        Self { ip, scope: None }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip.fmt(f)?;
        self.scope.map_or(Ok(()), |scope| write!(f, "%{scope}"))
    }
}

ibarr_common::serde_as_text!(Target);

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ip, scope) = match text.split_once('%') {
            Some((ip, scope)) => (ip, Some(scope)),
            None => (text, None),
        };
        let index = |scope: &str| {
            let index = u32::from_str(scope).ok().and_then(IfIndex::new);
            index.ok_or_else(|| format!("{scope} is not the index of an interface"))
        };
        let ip = IpAddr::from_str(ip).map_err(|error| error.to_string())?;
        Ok(Self { ip, scope: scope.map(index).transpose()? })
    }
}

/// The outcome for one address.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Answer {
    /// The address asked for.
    pub ip: IpAddr,
    pub status: request::Status,
    /// The GID, if found.
    pub gid: Option<Gid>,
    /// Where the GID comes from, if found.
    pub source: Option<request::Source>,
    /// Milliseconds from request to answer, within the daemon.
    pub ms: Elapsed,
}

/// The outcome for one destination of `ibarr resolve`: an answer, and what the command adds to it.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Resolved {
    /// The answer of the daemon.
    #[serde(flatten)]
    pub answer: Answer,
    /// What the command line named, if that is not the address alone: a host, or an address with an
    /// interface.
    pub name: Option<String>,
    /// Other addresses of that host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_addresses: Vec<IpAddr>,
    /// The path to the GID (`--path`, `--verify`).
    pub path: Option<Box<PathAnswer>>,
    /// What contradicts the answer or the path (`--verify`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<Mismatch>,
}

impl From<Answer> for Resolved {
    fn from(answer: Answer) -> Self {
        let (other_addresses, mismatches) = (Vec::new(), Vec::new());
        Self { answer, name: None, other_addresses, path: None, mismatches }
    }
}

/// A contradiction to what the daemon answers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Mismatch {
    pub with: MismatchWith,
    /// What it says, for people.
    pub message: String,
}

ibarr_common::words! {
    /// What an answer is compared with.
    MismatchWith {
        /// The peer, asked past the cache.
        Peer = "peer",
        /// The subnet administrator, asked past the cache.
        Sa = "sa",
        /// The kernel's neighbour entry of the address.
        Neighbour = "neighbour",
        /// Another node of the fleet, which has the same GID.
        Node = "node",
        /// What the daemon remembers.
        Memory = "memory",
    }
}

/// A host name without an address.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct UnknownName {
    pub name: String,
    /// What the system's resolver says.
    pub message: String,
}

/// All answers of a command together.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Summary {
    /// How many answers of the daemon had which outcome, in all rounds.
    pub answers: BTreeMap<request::Status, u64>,
    /// How many host names have no address.
    #[serde(default)]
    pub unknown_names: u64,
    /// How many destinations have a mismatch.
    #[serde(default)]
    pub mismatches: u64,
    /// The times of the answers with a GID, within the daemon; absent if there is none.
    pub ms: Option<Times>,
    /// Milliseconds that the command took.
    pub total_ms: Elapsed,
}

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Times {
    pub min: Elapsed,
    /// Half of the times are at most this.
    pub median: Elapsed,
    /// 99 of 100 times are at most this.
    pub p99: Elapsed,
    pub max: Elapsed,
}

/// The document of `ibarr ping`.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Pinged {
    pub ip: IpAddr,
    /// What the command line named, if that is not the address alone.
    pub name: Option<String>,
    /// Other addresses of that host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_addresses: Vec<IpAddr>,
    /// The last GID that was answered.
    pub gid: Option<Gid>,
    /// How many rounds there were.
    pub asked: u64,
    /// How many rounds had an answer with a GID.
    pub answered: u64,
    /// The share of the other rounds, in percent.
    pub lost_percent: f64,
    /// How many rounds had which outcome.
    pub answers: BTreeMap<request::Status, u64>,
    /// Round-trip times of the answered rounds, within the daemon; absent if there is none.
    pub ms: Option<Times>,
    /// What contradicts the last GID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<Mismatch>,
}

/// The document of `ibarr fleet`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Fleet {
    /// One for each address, in the order of the command line.
    pub nodes: Vec<FleetNode>,
    /// The host names without an address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_names: Vec<UnknownName>,
    pub summary: FleetSummary,
}

/// What was found about a node of a fleet.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FleetNode {
    pub ip: IpAddr,
    /// What the command line named, if that is not the address alone.
    pub name: Option<String>,
    pub status: request::Status,
    /// The GID that it says.
    pub gid: Option<Gid>,
    /// What it understands, if found.
    pub speaks: Option<Speaks>,
    /// How many queries it was sent.
    pub queries: u32,
    /// The round trips of its replies.
    pub ms: Option<Times>,
    /// What contradicts the GID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<Mismatch>,
}

/// All nodes of a fleet together.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FleetSummary {
    pub nodes: u64,
    /// How many have answered with a GID that nothing contradicts.
    pub well: u64,
    pub answers: BTreeMap<request::Status, u64>,
    /// How many of those that were found understand what.
    pub speaks: BTreeMap<Speaks, u64>,
    /// How many nodes have a mismatch.
    pub mismatches: u64,
    pub unknown_names: u64,
    /// The round trips of all replies; absent if there is none.
    pub ms: Option<Times>,
    /// Milliseconds that the command took.
    pub total_ms: Elapsed,
}

/// One entry of the client cache.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CacheEntry {
    /// IPv4 or IPv6 address of the peer.
    pub ip: IpAddr,
    /// Name of the interface that the request named; absent if it named none.
    pub interface: Option<String>,
    /// GID of the address; absent in a negative entry.
    pub gid: Option<Gid>,
    /// Milliseconds until the entry expires.
    pub expires_in_ms: Millis,
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
    pub sgid: Gid,
    pub dgid: Gid,
    pub status: paths::Status,
    /// Origin of the outcome, if the subnet administrator said it.
    pub source: Option<paths::Source>,
    /// The subnet administrator's status, if it gave no path.
    pub refusal: Option<String>,
    /// The path, if found.
    pub hops: Option<PathHops>,
    /// The other paths to the destination, which are given in turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<PathHops>,
    /// Milliseconds from request to answer, within the daemon.
    pub ms: Elapsed,
}

impl PathAnswer {
    /// All paths to the destination, by LID.
    pub fn paths(&self) -> Vec<&PathHops> {
        let mut paths: Vec<_> = self.hops.iter().chain(&self.others).collect();
        paths.sort_unstable_by_key(|path| path.dlid);
        paths
    }
}

/// The fields of a PathRecord.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathHops {
    pub slid: Lid,
    /// Destination LID: the end of the path, or the router to another subnet.
    pub dlid: Lid,
    /// Above 1 if the path leaves the subnet.
    pub hop_limit: u8,
    /// Flow label for routers.
    pub flow_label: FlowLabel,
    /// Traffic class for routers.
    pub tclass: u8,
    pub sl: Sl,
    /// MTU in bytes.
    pub mtu: Option<u16>,
    /// The code of the MTU instead, if its meaning is not known here.
    pub mtu_code: Option<u8>,
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
    pub sgid: Gid,
    pub dgid: Gid,
    /// P_Key that the request named.
    pub pkey: Option<PKey>,
    /// Traffic class that the request named.
    pub tclass: Option<u8>,
    /// The path; absent if there is none.
    pub hops: Option<PathHops>,
    /// The paths that are given in turn with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<PathHops>,
    /// Whether the path may be stale.
    pub doubted: bool,
    /// Milliseconds until the entry expires.
    pub expires_in_ms: Millis,
}
