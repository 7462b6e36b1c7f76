// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ibarr_fabric::remote::Address;

use crate::generate::{ExportArgs, Shape};
use crate::show::Command as Request;
use crate::{control, generate, join, run, up};

/// A software InfiniBand fabric: switches, routers and channel adapters without hardware.
#[derive(Debug, Parser)]
#[command(name = "ibfab", version)]
pub(crate) struct Cli {
    /// Path of the control socket of a running fabric
    #[arg(long, global = true, value_name = "FILE", default_value = "/run/ibfab.sock")]
    control: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make two HCAs with a subnet manager and IPoIB addresses, until `ibfab down`
    Up(UpArgs),
    /// End what `ibfab up` has begun, and leave nothing of it
    Down,
    /// Run a fabric; its channel adapters become devices of this machine
    Run(RunArgs),
    /// Write a topology of a regular shape
    #[command(subcommand)]
    Generate(Shape),
    /// Run the host of a channel adapter whose fabric runs elsewhere
    Join(JoinArgs),
    #[command(flatten)]
    Request(Request),
}

#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    /// Make only the first HCA, and let another machine have the second
    #[arg(long, value_name = "ADDRESS", requires = "key")]
    pub(crate) listen: Option<Address>,
    /// Make only the second HCA, of the fabric at this address: udp:ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS", requires = "key", conflicts_with = "listen")]
    pub(crate) join: Option<Address>,
    /// File with the key of both machines: 16 bytes or more, readable by its owner alone
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Topology file, in the format of ibnetdiscover and ibsim
    #[arg(value_name = "TOPOLOGY")]
    pub(crate) topology: PathBuf,
    /// Channel adapters that become devices of this machine [default: all, without --listen]
    #[arg(long = "device", value_name = "NODE", value_delimiter = ',')]
    pub(crate) devices: Vec<String>,
    /// Serve programs with libumad2sim preloaded, and make no devices [IBSIM_SOCKNAME: NAME]
    #[arg(long, value_name = "NAME", conflicts_with = "devices")]
    pub(crate) umad2sim: Option<String>,
    /// Let hosts join at udp:ADDRESS:PORT or unix:PATH. A host may be any channel adapter that is
    /// not a device of this machine; its links are down until it joins. Without --key, ADDRESS must
    /// be of this machine alone, and any program that can send there is trusted
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<Address>,
    /// Channel adapters whose hosts may join; the others are nodes without a host, which answer
    /// subnet managers, or those of --umad2sim [default: all that are not devices]
    #[arg(long = "host", value_name = "NODE", value_delimiter = ',', requires = "listen")]
    pub(crate) hosts: Vec<String>,
    /// File with the key of the hosts that may join: 16 bytes or more, readable by its owner alone
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub(crate) key: Option<PathBuf>,
    /// Write the packets that cross links to a file for Wireshark
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Device file of ibtun, which makes channel adapters
    #[arg(long, value_name = "FILE", default_value = "/dev/ibtun")]
    pub(crate) ibtun: PathBuf,
    /// Seed for choosing the packets that a fault hits
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Args, Debug)]
pub(crate) struct JoinArgs {
    /// Address of the fabric: udp:ADDRESS:PORT or unix:PATH
    #[arg(value_name = "ADDRESS")]
    pub(crate) fabric: Address,
    /// Topology file of the fabric
    #[arg(value_name = "TOPOLOGY")]
    pub(crate) topology: PathBuf,
    /// Name of the channel adapter
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Own address [default: any]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<Address>,
    /// File with the key of the fabric, readable by its owner alone
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Device file of ibtun, which makes channel adapters
    #[arg(long, value_name = "FILE", default_value = "/dev/ibtun")]
    pub(crate) ibtun: PathBuf,
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Up(args) => up::up(&args, &self.control),
            Command::Down => up::down(&self.control),
            Command::Run(args) => run::run(&args, &self.control),
            Command::Join(args) => join::run(&args),
            Command::Generate(shape) => generate::generate(&shape),
            Command::Request(Request::Export(ExportArgs { topology: Some(path) })) => {
                generate::convert(&path)
            }
            // Parsed here only to report mistakes; the fabric parses the words again.
            Command::Request(_) => {
                let words = request_words(std::env::args());
                control::ask(&self.control, &words, &mut std::io::stdout())
            }
        }
    }
}

/// The words of a command line without the program's name and the option `--control`.
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
    fn request_words_leave_out_the_control_socket() {
        for line in ["ibfab --control show fault link H1", "ibfab fault link H1 --control=x"] {
            let words = request_words(line.split(' ').map(str::to_owned));
            assert_eq!(words, ["fault", "link", "H1"]);
        }
    }
}
