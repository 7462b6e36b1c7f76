// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The `ibarr` daemon and its command line.
//!
//! `cli → daemon → engine → transport → sys`: only the engine calls the cores of `ibarr-proto`,
//! transports move bytes between file descriptors and channels, and only `sys` makes system calls.

#![deny(unsafe_code)]

mod bpf;
mod causes;
pub mod cli;
mod config;
pub mod control;
mod daemon;
mod engine;
pub mod logging;
mod metrics;
pub mod preload;
pub mod process;
mod regular_file;
mod spelling;
pub mod sys;
#[cfg(test)]
mod tests;
pub mod transport;
mod units;
mod whole_file;
