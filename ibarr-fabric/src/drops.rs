// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::collections::BTreeMap;
use std::fmt;

use ibarr_common::wire::{mad, packet};

/// Why a packet went no further.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DropReason {
    /// It is no packet.
    Packet(packet::Error),
    /// It went to QP 0 and is no subnet management packet.
    Smp(mad::Error),
    /// It went to QP 1 of a node without a host and is no management datagram.
    Mad(mad::Error),
    /// A host sent it from a LID that its port does not have.
    SourceLid,
    /// Subnet management on another lane than 15, or something else on that.
    Lane,
    /// Its directed route leads past the last hop, or through a port that is not there.
    Route,
    /// A directed route with a LID-routed part behind it.
    MixedRoute,
    /// Nobody has its destination LID.
    DestinationLid,
    /// Its way is longer than any that does not go in circles.
    HopLimit,
    /// Its global route header ends here, or leads nowhere.
    GlobalRoute,
    /// It has no global route header, and came to a router.
    NotGlobal,
    /// There is no link.
    LinkDown,
    /// The port is not active.
    PortState,
    /// It is larger than the link's MTU.
    Mtu,
    /// The port is not of its partition.
    Partition,
    /// The M_Key is wrong.
    MKey,
    /// Nobody waits for this answer.
    Unsolicited,
    /// The subnet manager that it was for has not answered, and others wait.
    Unanswered,
    /// No agent for its class is here.
    NoAgent,
    /// The node's host has not come, or has gone.
    NoHost,
    /// The host does not take what arrives.
    HostQueue,
    /// Too many packets are on their way.
    InFlight,
    /// A fault took it.
    Lost,
    /// A fault keeps the subnet manager from everybody.
    CutOff,
}

/// How many packets went no further, by reason.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Drops {
    counts: BTreeMap<DropReason, u64>,
}

impl Drops {
    pub(crate) fn count(&mut self, reason: DropReason) {
        *self.counts.entry(reason).or_default() += 1;
    }

    /// Of one reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.counts.get(&reason).copied().unwrap_or_default()
    }

    /// Of all.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Reasons that there were packets for.
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
            Self::DestinationLid => "destination LID of nobody",
            Self::HopLimit => "goes in circles",
            Self::GlobalRoute => "global route leads nowhere",
            Self::NotGlobal => "no global route",
            Self::LinkDown => "no link",
            Self::PortState => "port not active",
            Self::Mtu => "larger than the MTU",
            Self::Partition => "not of the partition",
            Self::MKey => "wrong M_Key",
            Self::Unsolicited => "answer to nothing",
            Self::Unanswered => "subnet manager does not answer",
            Self::NoAgent => "no agent for its class",
            Self::NoHost => "host not there",
            Self::HostQueue => "host does not read",
            Self::InFlight => "too many on their way",
            Self::Lost => "lost by a fault",
            Self::CutOff => "subnet manager cut off",
        };
        f.write_str(text)
    }
}
