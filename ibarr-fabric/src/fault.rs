// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::time::Duration;

use crate::topology::{NodeId, PortId};

/// What goes wrong from now on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// What a link does to packets, in both directions. [`LinkFault::NONE`] heals it.
    Link {
        /// One of its ends.
        port: PortId,
        /// What it does.
        fault: LinkFault,
    },
    /// A cable is pulled (`down`) or plugged in again.
    Cable {
        /// One of its ends.
        port: PortId,
        /// Whether it is out.
        down: bool,
    },
    /// A node is switched off (`down`) or on again, when it has forgotten what it was told.
    Node {
        /// Which.
        node: NodeId,
        /// Whether it is off.
        down: bool,
    },
    /// Subnet management and administration no longer pass a port (`cut`), or do again. All else
    /// does.
    Manager {
        /// The port of the subnet manager's channel adapter.
        port: PortId,
        /// Whether it is cut off.
        cut: bool,
    },
}

/// What a link does to packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LinkFault {
    /// Of a million packets, these are lost.
    pub loss: u32,
    /// Of a million packets, these come twice.
    pub duplication: u32,
    /// How long each is under way.
    pub delay: Duration,
    /// And up to so much longer, each by itself: they overtake each other.
    pub jitter: Duration,
}

impl LinkFault {
    /// A link without fault.
    pub const NONE: Self =
        Self { loss: 0, duplication: 0, delay: Duration::ZERO, jitter: Duration::ZERO };
}
