// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What can break on the fabric: cables, nodes, managers, links that lose packets.

use std::time::Duration;

use crate::topology::{NodeId, PortId};

/// A fault that begins or ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// A link loses, repeats or delays packets in both directions. [`LinkFault::NONE`] ends this.
    Link {
        /// One of its ends.
        port: PortId,
        /// The effects on packets.
        fault: LinkFault,
    },
    /// A cable is pulled (`down`) or plugged in again.
    Cable {
        /// One of its ends.
        port: PortId,
        /// Whether the cable is unplugged.
        down: bool,
    },
    /// A node is switched off (`down`) or on again; it then has no configuration.
    #[expect(missing_docs, reason = "its fields are named for what they hold")]
    Node {
        node: NodeId,
        /// Whether it is off.
        down: bool,
    },
    /// Subnet management and administration are blocked at a port (`cut`), or allowed again. Other
    /// packets pass.
    Manager {
        /// The port of the subnet manager's channel adapter.
        port: PortId,
        /// Whether it is blocked.
        cut: bool,
    },
}

/// The effects of a link on packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LinkFault {
    /// Lost packets per million.
    pub loss: u32,
    /// Packets per million that arrive twice.
    pub duplication: u32,
    /// Delay of each packet.
    pub delay: Duration,
    /// Largest random additional delay of a packet; packets overtake each other.
    pub jitter: Duration,
}

impl LinkFault {
    /// A link without faults.
    pub const NONE: Self =
        Self { loss: 0, duplication: 0, delay: Duration::ZERO, jitter: Duration::ZERO };
}
