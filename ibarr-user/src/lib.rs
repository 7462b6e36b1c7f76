// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The `ibarr` daemon and its command line.
//!
//! `cli → daemon → engine → transport → sys`: only the engine calls the cores of `ibarr-proto`,
//! transports move bytes between file descriptors and channels, and only `sys` makes system calls.

#![deny(unsafe_code)]

pub mod bpf;
mod causes;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod engine;
pub mod logging;
pub mod metrics;
pub mod preload;
pub mod process;
mod regular_file;
mod spelling;
pub mod sys;
#[cfg(test)]
mod tests;
pub mod transport;
