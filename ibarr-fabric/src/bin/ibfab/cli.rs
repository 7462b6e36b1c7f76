// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::run;

/// A software InfiniBand fabric: switches, routers and channel adapters without hardware.
#[derive(Debug, Parser)]
#[command(name = "ibfab", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a fabric; its channel adapters become devices of this machine
    Run(RunArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// What the fabric consists of, in the format of ibnetdiscover and ibsim
    #[arg(value_name = "TOPOLOGY")]
    pub(crate) topology: PathBuf,
    /// Channel adapters that become devices of this machine [default: all]
    #[arg(long = "device", value_name = "NODE", value_delimiter = ',')]
    pub(crate) devices: Vec<String>,
    /// Serve programs that libumad2sim is preloaded into, and no devices [IBSIM_SOCKNAME: NAME]
    #[arg(long, value_name = "NAME", conflicts_with = "devices")]
    pub(crate) umad2sim: Option<String>,
    /// Where channel adapters are made
    #[arg(long, value_name = "FILE", default_value = "/dev/ibtun")]
    pub(crate) ibtun: PathBuf,
    /// What decides which packets a fault hits
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) seed: u64,
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Run(args) => run::run(&args),
        }
    }
}
