// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Starts programs in a known environment.

use std::env;
use std::ffi::OsStr;
use std::process::Command;

/// Variables that reach the programs: where they and, in a guest, their libraries are, and the mark of a test.
const KEPT: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "IBARR_TEST_MACHINE"];

/// A command for `program`, with nothing else of this process's environment: neither a lab nor a test depends on what
/// its caller has set.
pub fn program(program: impl AsRef<OsStr>) -> Command {
    let kept = KEPT.into_iter().filter_map(|name| Some((name, env::var_os(name)?)));
    let mut command = Command::new(program);
    command.env_clear().envs(kept);
    command
}
