// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The responder in the kernel, with the real daemon, on a veth pair.

mod alike;
mod beside;
pub(crate) mod learned;
mod lease;
mod life;
mod others;
mod pins;
mod report;
pub(crate) mod rig;
mod shown;
mod takeover;
mod vrf;
mod way_back;
mod xdp;
