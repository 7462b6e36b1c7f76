// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An InfiniBand fabric without hardware: switches, routers, and the firmware of channel adapters.
//!
//! [`Fabric`] is a state machine without I/O. Hosts pass it the packets that their channel adapters
//! send, and take the packets that arrive there. One of them runs a subnet manager, which
//! configures the fabric as it would configure hardware. [`Topology`] lists nodes and cables,
//! [`Fault`] the faults. The binary `ibfab` connects a fabric to Linux's own InfiniBand stack.

#![forbid(unsafe_code)]

pub mod ibsim;
pub mod ibtun;
pub mod pcap;
pub mod remote;
pub mod topology;
pub mod wire;

mod drops;
mod fabric;
mod fault;
mod node;
mod pma;
mod sma;

pub use drops::{DropReason, Drops};
pub use fabric::{Crossing, Event, Fabric, Input, MAX_IN_FLIGHT, MAX_QUEUED, PortConfig};
pub use fault::{Fault, LinkFault};
pub use node::Counters;
pub use topology::Topology;
