// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `sim`: simulates nodes with stand-in kernels on a virtual clock, seed after seed, and many nodes with
//! one subnet administrator. It is built with optimisation, which takes seconds and saves minutes.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::workspace::Workspace;
use crate::{artifacts, process};

/// Simulate networks of nodes, one of them again (--seed N --trace), or a subnet of 10,000 (--sa-load)
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Passed to `ibarr-sim`; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    process::run(simulator(workspace)?.args(&args.arguments))
}

/// Runs the level `sim` of `test`.
pub(crate) fn prove(workspace: &Workspace) -> Result<()> {
    process::run(simulator(workspace)?.args(["--seeds", "300"]))?;
    process::run(simulator(workspace)?.args(["--sa-load", "--nodes", "500"]))
}

/// Runs further networks, for which CI has no time.
pub(crate) fn prove_more(workspace: &Workspace) -> Result<()> {
    process::run(simulator(workspace)?.args(["--first", "300", "--seeds", "1200"]))
}

fn simulator(workspace: &Workspace) -> Result<Command> {
    let arguments = ["build", "--locked", "--profile=sim", "--package=ibarr-sim"];
    let built = artifacts::build(workspace, &arguments)?;
    Ok(Command::new(artifacts::binary(&built, "ibarr-sim")?))
}
