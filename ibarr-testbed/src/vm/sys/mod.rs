// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! System calls without a safe wrapper.

pub(crate) mod rdma_cm;
pub(crate) mod scheduler;
pub(crate) mod tun;
