// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What commands find without the daemon.

#![expect(missing_docs, reason = "the fields are named for what they hold")]

use std::net::IpAddr;

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_proto::ip2gid::Family;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::values::Millis;

/// One thing that a connection needs, and whether it is there.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Check {
    /// What was examined, such as `sa`. The names are part of the format.
    pub check: String,
    pub state: CheckState,
    pub found: String,
    /// What to do; absent if there is nothing to do.
    pub remedy: Option<String>,
}

ibarr_common::words! {
    /// Results of a check, from good to bad.
    CheckState {
        /// It cannot be examined, or has no meaning here.
        Skipped = "skipped",
        Ok = "ok",
        /// Connections work, but slower or not in all cases.
        Warn = "warn",
        /// Connections fail.
        Fail = "fail",
    }
}

impl Check {
    pub fn ok(check: &str, found: impl Into<String>) -> Self {
        Self { check: check.to_owned(), state: CheckState::Ok, found: found.into(), remedy: None }
    }

    /// It cannot be examined.
    pub fn skipped(check: &str, why: impl Into<String>) -> Self {
        Self { state: CheckState::Skipped, ..Self::ok(check, why) }
    }

    /// It works, but not well.
    pub fn warn(check: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { state: CheckState::Warn, remedy, ..Self::ok(check, found) }
    }

    /// It does not work.
    pub fn fail(check: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: CheckState::Fail, ..Self::warn(check, found, remedy) }
    }
}

/// The document of `ibarr import-ibacm`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Imported {
    /// The configuration, in TOML.
    pub config: String,
    /// Each line that says something, in the order of the files.
    pub lines: Vec<ImportedLine>,
}

/// What became of a line of ibacm's configuration.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImportedLine {
    /// The file that has it.
    pub file: String,
    /// Its number, from 1; absent if this is about the whole file.
    pub line: Option<u64>,
    pub text: String,
    pub became: Became,
    /// What that means, for people.
    pub what: String,
}

ibarr_common::words! {
    /// What becomes of a line of ibacm's configuration.
    Became {
        /// The new configuration says the same.
        Carried = "carried over",
        /// ibarr does that without being told.
        Default = "default",
        /// It is about something that ibarr does not have or need.
        Needless = "not needed",
        Lost = "different",
        /// ibacm has no such option.
        Unknown = "unknown",
        /// ibacm does not understand the line as it was meant.
        Malformed = "malformed",
    }
}

/// The document of `ibarr cache --kernel`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelMaps {
    /// Milliseconds until the programs stop answering, if the lease is not renewed.
    pub lease_ends_in_ms: Millis,
    /// Whether only the sources in `allow` are answered.
    pub restricted: bool,
    /// Interfaces on which programs may answer.
    pub interfaces: Vec<KernelInterface>,
    /// Addresses of this node.
    pub entries: Vec<KernelEntry>,
    /// Prefixes that interfaces lead to.
    pub routes: Vec<KernelRoute>,
    /// Next hops, for programs that need to know them.
    pub neighbours: Vec<KernelNeighbour>,
    /// Answers of peers, kept for the next daemon.
    pub learned: Vec<KernelLearned>,
}

/// An interface on which programs may answer.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelInterface {
    pub ifindex: IfIndex,
    /// Interface name, if it is in this network namespace.
    pub name: Option<String>,
    /// Whether queries over IPv4 are answered.
    pub ipv4: bool,
    /// Whether queries over IPv6 are answered.
    pub ipv6: bool,
    /// The families, `IPv4` or `IPv6`, in which only sources are answered that the interface leads
    /// to.
    pub only_routed: Vec<Family>,
}

/// An address of this node in the map `gid_cache`.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelEntry {
    /// IPv4 or IPv6 address.
    pub ip: IpAddr,
    /// Interface index that scopes a link-local address.
    pub scope: Option<IfIndex>,
    /// The GID in replies; absent if the address is not answered.
    pub gid: Option<Gid>,
    /// Index of the interface that has the address; 0 if none has it.
    pub ifindex: u32,
    /// Origin of the GID: `local` for an interface of this node, `static` for the configuration, or what is
    /// wrong with it.
    pub origin: String,
}

/// A prefix that an interface leads to; a longer prefix overrules a shorter one.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelRoute {
    /// Interface index; 0 if there is none.
    pub ifindex: u32,
    /// The prefix, such as `10.0.0.0/8`.
    pub to: IpNet,
    /// Address of the gateway; absent if there is none.
    pub via: Option<IpAddr>,
    /// Whether another interface leads to the prefix.
    pub elsewhere: bool,
}

/// A next hop of an interface.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelNeighbour {
    /// Interface index; 0 if there is none.
    pub ifindex: u32,
    /// IP address of the next hop.
    pub ip: IpAddr,
    /// Hardware address, in hexadecimal; `none` if it holds no GID.
    pub hwaddr: String,
}

/// An answer of a peer.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelLearned {
    /// The address asked for.
    pub ip: IpAddr,
    /// Index of the interface that the request named; absent if it named none.
    pub ifindex: Option<IfIndex>,
    /// GID of the address.
    pub gid: Gid,
    /// Milliseconds until the entry expires.
    pub expires_in_ms: Millis,
    /// Address of the peer that answered, if that is still known.
    pub from: Option<IpAddr>,
}
