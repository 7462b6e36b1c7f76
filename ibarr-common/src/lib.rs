// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! InfiniBand types and wire formats, shared by the ibarr daemon, its sans-IO cores and its BPF
//! programs.
//!
//! * [`ib`]: values of the InfiniBand specification, as types that hold only legal values;
//! * [`wire`]: every message format, as a *layout* type (`…Wire`, any bytes) and a *value* type
//!   (only legal messages);
//! * [`map`]: the BPF maps that the daemon and the BPF programs share;
//! * [`IfIndex`], [`Instant`]: the kernel's number of a network device, and the one clock;
//! * [`words!`](crate::words!): enums whose values are words, for people and in JSON.
//!
//! No allocation, no I/O, no clock, no panic: BPF programs in the kernel use the same code.

#![no_std]
#![forbid(unsafe_code)]

pub mod ib;
pub mod map;
pub mod wire;

mod ifindex;
mod instant;
mod words;

pub use ifindex::IfIndex;
pub use instant::Instant;
#[cfg(feature = "serde")]
#[doc(hidden)]
pub use {serde_core, words::Parse};
