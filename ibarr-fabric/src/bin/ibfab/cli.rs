// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::show::Command as Request;
use crate::{control, run};

/// A software InfiniBand fabric: switches, routers and channel adapters without hardware.
#[derive(Debug, Parser)]
#[command(name = "ibfab", version)]
pub(crate) struct Cli {
    /// Where a running fabric is asked and told
    #[arg(long, global = true, value_name = "FILE", default_value = "/run/ibfab.sock")]
    control: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a fabric; its channel adapters become devices of this machine
    Run(RunArgs),
    #[command(flatten)]
    Request(Request),
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
            Command::Run(args) => run::run(&args, &self.control),
            // It was parsed to tell mistakes here; the words are what counts.
            Command::Request(_) => {
                print!("{}", control::ask(&self.control, &request_words(std::env::args()))?);
                Ok(())
            }
        }
    }
}

/// The words of a command line but our name and where the fabric is.
fn request_words(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut words = words.skip(1);
    let mut request = Vec::new();
    while let Some(word) = words.next() {
        if word == "--control" {
            words.next();
        } else if !word.starts_with("--control=") {
            request.push(word);
        }
    }
    request
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn words_of_a_request_say_nothing_of_where_the_fabric_is() {
        for line in ["ibfab --control show fault link H1", "ibfab fault link H1 --control=x"] {
            let words = request_words(line.split(' ').map(str::to_owned));
            assert_eq!(words, ["fault", "link", "H1"]);
        }
    }
}
