// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The guest's side of `cargo xtask vm`: as its first process it sets up a virtual machine and
//! runs a command in it; that command is usually this program again, with a scenario's name.

#![deny(unsafe_code)]

mod hello;
mod init;
mod report;

use std::env;
use std::process::{self, ExitCode};

fn main() -> ExitCode {
    if process::id() == 1 {
        init::run();
    }
    let scenario = env::args().nth(1).unwrap_or_default();
    if scenario == "hello" {
        return hello::run();
    }
    eprintln!("ibarr-guest: no scenario is called {scenario:?}");
    ExitCode::from(64)
}
