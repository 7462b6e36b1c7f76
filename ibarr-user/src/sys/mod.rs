// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The system calls that need `unsafe`, or that several modules share: the clock, UDP sockets with packet
//! info, the socket to the RDMA core, umad devices, inherited descriptors, drivers, peer
//! credentials.

pub(crate) mod bpf;
pub mod clock;
pub mod descriptors;
pub(crate) mod ethtool;
pub(crate) mod fd;
pub(crate) mod inherited;
pub mod last_reply;
pub mod local_service;
pub mod mmsg;
pub(crate) mod netlink;
pub(crate) mod peer;
pub(crate) mod timer;
pub mod udp;
pub(crate) mod udp_errors;
pub mod udp_options;
pub mod umad;
pub(crate) mod verbs;
