// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An InfiniBand fabric without hardware: switches, routers, and what is firmware in a channel
//! adapter.
//!
//! [`Fabric`] is a state machine without I/O. Hosts hand it the packets that their channel adapters
//! send, and take what arrives there; a subnet manager among them brings it up, as it would
//! hardware. [`Topology`] says what it consists of, [`Fault`] what goes wrong. The binary `ibfab`
//! puts it behind Linux's own InfiniBand stack.

#![forbid(unsafe_code)]

pub mod ibsim;
pub mod ibtun;
pub mod pcap;
pub mod sa;
pub mod topology;

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
