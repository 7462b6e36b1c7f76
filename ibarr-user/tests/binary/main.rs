// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The binary from outside. Needs no privileges; what needs other nodes is in ibarr-testbed.

mod administrator;
mod kernel;
mod log;
mod paths;
mod run_dir;
mod scarce;
mod sockets;
mod support;
