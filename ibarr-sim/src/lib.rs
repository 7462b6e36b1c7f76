// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What is around a daemon, without I/O: the kernel's RDMA core.

#![forbid(unsafe_code)]

pub mod kernel;
mod netlink;
