// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Whole networks, whose history the bytes decide.

use ibarr_sim::{Plan, run_script};

/// Every claim of the simulation holds for the small network that `script` decides.
///
/// # Panics
/// A claim does not hold for `script`.
pub fn world(script: &[u8]) {
    if let Err(failure) = run_script(script, Plan::SMALL, None) {
        panic!("{failure}");
    }
}
