// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab`: a software InfiniBand fabric behind Linux's own InfiniBand stack. See `ibfab --help`
//! for its commands, and ibtun/fabric/README.md for its use.

mod calls;
mod capture;
mod cli;
mod control;
mod decode;
mod device;
mod generate;
mod join;
mod remote;
mod run;
mod show;
mod simulator;
mod socket;
mod sys;
mod trace;
mod up;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ibfab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
