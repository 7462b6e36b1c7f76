// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Stock OpenSM, its diagnostics and the daemon on the software fabric, without the kernel's InfiniBand.
//! Needs root and Debian's packages: `cargo xtask test opensm`.

#![forbid(unsafe_code)]

mod answers;
mod daemon;
mod fabric;
mod joined;
mod managers;
mod on_fabric;
mod rig;
mod size;

#[path = "../system/machine.rs"]
#[expect(dead_code, reason = "the system tests use the rest")]
mod machine;
