// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The BPF programs in this machine's kernel. Needs root.

#![forbid(unsafe_code)]

mod agree;
mod churn;
mod frame;
mod load;
mod net;
mod oracle;
mod programs;
mod rules;
mod wire;
