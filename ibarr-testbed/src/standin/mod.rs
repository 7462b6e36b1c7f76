// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A stand-in for the kernel's RDMA core, for machines without InfiniBand: it asks a real daemon,
//! and takes what it is told, by the kernel's own rules. [`Kernel`] is those rules, without I/O; a
//! [`StandIn`] lets it act in a node of a lab.

mod driver;
pub mod path_requests;
pub mod transcript;

pub use driver::{Said, StandIn};
pub use ibarr_sim::kernel::{
    Config, Event, Input, IpOutcome, Kernel, NoListener, PathOutcome, Reason, Transmit, Wake,
};
