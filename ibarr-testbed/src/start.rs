// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Starts programs in a known environment.

use std::env;
use std::ffi::OsStr;
use std::process::Command;

/// Variables that reach the programs.
const KEPT: [&str; 2] = ["PATH", "IBARR_TEST_MACHINE"];

/// A command for `program`, with nothing of this process's environment but `PATH` and the mark of a test: neither a lab
/// nor a test depends on what its caller has set.
pub fn program(program: impl AsRef<OsStr>) -> Command {
    let kept = KEPT.into_iter().filter_map(|name| Some((name, env::var_os(name)?)));
    let mut command = Command::new(program);
    command.env_clear().envs(kept);
    command
}
