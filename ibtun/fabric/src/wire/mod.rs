// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Formats that only a fabric reads and writes: packets, and the MADs of subnet management and of performance
//! management. They have the two levels of [`ibarr_common::wire`].

pub mod packet;
pub mod perf;
pub mod smp;
