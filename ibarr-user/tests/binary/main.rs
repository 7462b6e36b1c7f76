// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests of the binary from outside, without privileges; tests that need other nodes are in
//! ibarr-testbed.

mod acm;
mod acm_hostile;
mod acm_restart;
mod acm_tcp;
mod administrator;
mod doctor;
mod documented;
mod fleet;
mod health;
mod kernel;
mod log;
mod metrics;
mod paths;
mod peers;
mod preload;
mod prolog;
mod resolve;
mod run_dir;
mod scarce;
mod sockets;
mod support;
mod top;
mod trace;
