// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Where the daemon meets the kernel: the clock, UDP sockets with packet info, the socket to the
//! RDMA core, devices for MADs, inherited descriptors, drivers, peer credentials. System calls are
//! made here and nowhere above.

pub mod bpf;
pub mod clock;
pub mod descriptors;
pub mod ethtool;
pub mod fd;
pub mod inherited;
pub mod local_service;
pub mod mmsg;
pub mod netlink;
pub mod peer;
pub mod timer;
pub mod udp;
pub mod udp_errors;
pub mod udp_options;
pub mod umad;
pub mod verbs;
