// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Every command of the ibarr project. This file parses and dispatches; each command is a module.

#![forbid(unsafe_code)]

mod against;
mod artifacts;
mod checkpatch;
mod ebpf;
mod fuzz;
mod instructions;
mod package;
mod page;
mod pictures;
mod privilege;
mod process;
mod routers;
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
    /// Take the results of this checkout's runs into xtask, and make the tables of README.md, docs/systems.md and docs/routers.md
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use clap::error::ErrorKind;

    use super::*;

    /// What follows `begin` in the pages, up to a remark or to the end of the command.
    fn commands(begin: &str) -> Vec<(String, String)> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let files = ["docs", "docs/dev"].map(|name| fs::read_dir(root.join(name)).unwrap());
        let mut pages: Vec<_> = files.into_iter().flatten().map(|it| it.unwrap().path()).collect();
        pages.push(root.join("README.md"));
        pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
        let mut commands = Vec::new();
        for page in pages {
            let text = fs::read_to_string(&page).unwrap();
            for rest in text.split(begin).skip(1) {
                let command = rest.split(['`', '#', '\n']).next().unwrap_or_default();
                commands.push((page.display().to_string(), command.to_owned()));
            }
        }
        commands
    }

    #[test]
    fn commands_of_xtask_in_the_pages_are_understood() {
        let commands = commands("cargo xtask ");
        assert!(commands.len() > 30, "{commands:?}");
        for (page, command) in commands {
            // `[--nodes N]`, and `bench …`.
            let words =
                command.split(['[', ']', ' ']).filter(|word| !["", "…", "-->"].contains(word));
            let words = words.map(|word| if word == "N" { "1" } else { word });
            let error = Cli::try_parse_from(["xtask"].into_iter().chain(words)).err();
            let is_short = |error: &clap::Error| {
                error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            };
            assert!(error.as_ref().is_none_or(is_short), "{page}: {command}: {error:?}");
        }
    }

    #[test]
    fn tests_that_pages_name_exist() {
        let commands = commands("cargo test -p ");
        assert!(commands.len() > 2, "{commands:?}");
        for (page, command) in commands {
            let mut words = command.split(' ').take_while(|word| *word != "--");
            let (Some(package), Some("--test"), Some(file)) =
                (words.next(), words.next(), words.next())
            else {
                panic!("{page}: {command}");
            };
            let tests = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(package);
            let text = fs::read_to_string(tests.join("tests").join(file).with_extension("rs"));
            let text = text.unwrap_or_else(|error| panic!("{page}: {command}: {error}"));
            for filter in words {
                assert!(text.contains(&format!("fn {filter}")), "{page}: {command}");
            }
        }
    }
}
