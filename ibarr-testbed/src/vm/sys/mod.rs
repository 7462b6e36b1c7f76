// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! System calls that nothing safe wraps.

pub(crate) mod ibtun;
pub(crate) mod rdma_cm;
pub(crate) mod scheduler;
pub(crate) mod tun;
