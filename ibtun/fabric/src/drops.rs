// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Counts the packets that the fabric drops, each with its reason.

use std::collections::BTreeMap;
use std::fmt;

use ibarr_common::wire::mad;

use crate::wire::packet;

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DropReason {
    /// The bytes are not a packet.
    Packet(packet::Error),
    /// It was sent to QP 0, and is not a subnet management packet.
    Smp(mad::Error),
    /// It was sent to QP 1 of a node without a host, and is not a management datagram.
    Mad(mad::Error),
    /// A host sent it from a LID that its port does not have.
    SourceLid,
    /// Subnet management on another virtual lane than 15, or another packet on lane 15.
    Lane,
    /// Its directed route leads past the last hop, or through a port that does not exist.
    Route,
    /// A directed route followed by a LID-routed part.
    MixedRoute,
    /// No port has its destination LID.
    DestinationLid,
    /// It has crossed more links than any route without a loop has.
    HopLimit,
    /// Its global route ends here, or leads nowhere.
    GlobalRoute,
    /// It reached a router without a global route header.
    NotGlobal,
    /// There is no link.
    LinkDown,
    /// The state of the port does not allow it.
    PortState,
    /// It is larger than the link's MTU.
    Mtu,
    /// The port is not in its partition.
    Partition,
    /// The M_Key is wrong.
    MKey,
    /// It is an answer without a request.
    Unsolicited,
    /// The subnet manager has not answered it, and newer requests took its place.
    Unanswered,
    /// There is no agent for its management class.
    NoAgent,
    /// The node's host has not joined, or has left.
    NoHost,
    /// The host does not read its packets.
    HostQueue,
    /// Too many packets are in flight.
    InFlight,
    /// A fault dropped it.
    Lost,
    /// A fault blocks the subnet manager.
    CutOff,
}

/// Number of dropped packets by reason.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Drops {
    counts: BTreeMap<DropReason, u64>,
}

impl Drops {
    pub(crate) fn count(&mut self, reason: DropReason) {
        *self.counts.entry(reason).or_default() += 1;
    }

    /// The number for one reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.counts.get(&reason).copied().unwrap_or_default()
    }

    /// The number for all reasons.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// All reasons with a number above 0.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        self.counts.iter().map(|(reason, count)| (*reason, *count))
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Packet(error) => return write!(f, "packet: {error}"),
            Self::Smp(error) => return write!(f, "subnet management packet: {error}"),
            Self::Mad(error) => return write!(f, "management datagram: {error}"),
            Self::SourceLid => "source LID of another port",
            Self::Lane => "wrong virtual lane",
            Self::Route => "directed route leads nowhere",
            Self::MixedRoute => "directed route with LID-routed part",
            Self::DestinationLid => "unknown destination LID",
            Self::HopLimit => "too many hops",
            Self::GlobalRoute => "global route leads nowhere",
            Self::NotGlobal => "no global route",
            Self::LinkDown => "no link",
            Self::PortState => "port not active",
            Self::Mtu => "larger than the MTU",
            Self::Partition => "not in the partition",
            Self::MKey => "wrong M_Key",
            Self::Unsolicited => "answer without request",
            Self::Unanswered => "subnet manager does not answer",
            Self::NoAgent => "no agent for its class",
            Self::NoHost => "no host",
            Self::HostQueue => "host does not read",
            Self::InFlight => "too many in flight",
            Self::Lost => "lost by a fault",
            Self::CutOff => "subnet manager cut off",
        };
        f.write_str(text)
    }
}
