// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A stand-in for the kernel's RDMA core, for machines without InfiniBand: it asks a real daemon, and
//! handles its answers by the kernel's rules. [`Kernel`] has those rules, without I/O; [`StandIn`] runs it
//! in a node of a lab.

mod driver;
pub mod path_requests;
pub mod transcript;

pub use driver::{Said, StandIn};
pub use ibarr_sim::kernel::{
    Config, Event, Input, IpOutcome, Kernel, NoListener, PathOutcome, Reason, Transmit, Wake,
};
