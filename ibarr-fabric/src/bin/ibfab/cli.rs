// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::show::Command as Request;
use crate::{control, join, run};

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
    /// Be the host of a channel adapter whose fabric runs elsewhere
    Join(JoinArgs),
    #[command(flatten)]
    Request(Request),
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// What the fabric consists of, in the format of ibnetdiscover and ibsim
    #[arg(value_name = "TOPOLOGY")]
    pub(crate) topology: PathBuf,
    /// Channel adapters that become devices of this machine [default: all, without --listen]
    #[arg(long = "device", value_name = "NODE", value_delimiter = ',')]
    pub(crate) devices: Vec<String>,
    /// Serve programs that libumad2sim is preloaded into, and no devices [IBSIM_SOCKNAME: NAME]
    #[arg(long, value_name = "NAME", conflicts_with = "devices")]
    pub(crate) umad2sim: Option<String>,
    /// Let hosts join at udp:ADDRESS:PORT or unix:PATH. They may be all channel adapters that are
    /// not devices of this machine; their links are down until they come. Whoever can send there is
    /// believed
    #[arg(long, value_name = "ADDRESS", conflicts_with = "umad2sim")]
    pub(crate) listen: Option<String>,
    /// Write what crosses links to a file for Wireshark
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Where channel adapters are made
    #[arg(long, value_name = "FILE", default_value = "/dev/ibtun")]
    pub(crate) ibtun: PathBuf,
    /// What decides which packets a fault hits
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Args, Debug)]
pub(crate) struct JoinArgs {
    /// Where the fabric listens: udp:ADDRESS:PORT or unix:PATH
    #[arg(value_name = "ADDRESS")]
    pub(crate) fabric: String,
    /// The topology of the fabric
    #[arg(value_name = "TOPOLOGY")]
    pub(crate) topology: PathBuf,
    /// The channel adapter to be
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Our own address [default: any]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<String>,
    /// Where channel adapters are made
    #[arg(long, value_name = "FILE", default_value = "/dev/ibtun")]
    pub(crate) ibtun: PathBuf,
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Run(args) => run::run(&args, &self.control),
            Command::Join(args) => join::run(&args),
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
