// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Every command of the ibarr project. This file parses and dispatches; each command is a module.

#![forbid(unsafe_code)]

mod against;
mod artifacts;
mod checkpatch;
mod ebpf;
mod fuzz;
mod package;
mod privilege;
mod process;
mod sim;
mod systems;
mod test;
mod testbed;
mod tidy;
mod tools;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Every command of the ibarr project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(testbed::RunArgs),
    Test(test::Args),
    Lab(testbed::LabArgs),
    Bench(testbed::BenchArgs),
    /// Make Prometheus scrape a lab of four nodes through a storm, and check alerts and dashboard
    Monitor,
    Sim(sim::Args),
    Ebpf(ebpf::Args),
    /// Take the results of this checkout's runs into xtask/systems.txt, and make the table of docs/systems.md of them
    Systems,
    Fuzz(fuzz::Args),
    Package(package::Args),
    Repository(package::repository::Args),
    /// Check the project's rules that the compiler does not know
    Tidy,
    /// Check the kernel module with the kernel's style checker
    Checkpatch,
    Tools(tools::Args),
    Vm(vm::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = Workspace::find().and_then(|workspace| match cli.command {
        Command::Run(args) => testbed::run(&workspace, &args),
        Command::Test(args) => test::run(&workspace, &args),
        Command::Lab(args) => testbed::lab(&workspace, &args),
        Command::Bench(args) => testbed::bench(&workspace, &args),
        Command::Monitor => testbed::monitor(&workspace),
        Command::Sim(args) => sim::run(&workspace, &args),
        Command::Ebpf(args) => ebpf::run(&workspace, &args),
        Command::Fuzz(args) => fuzz::run(&workspace, &args),
        Command::Package(args) => package::run(&workspace, &args),
        Command::Repository(args) => package::repository::run(&workspace, &args),
        Command::Systems => systems::run(&workspace),
        Command::Tidy => tidy::check(&workspace),
        Command::Checkpatch => checkpatch::check(&workspace),
        Command::Tools(args) => tools::run(&workspace, &args),
        Command::Vm(args) => vm::run(&workspace, &args),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
