// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The program behind `cargo xtask sim`.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use ibarr_sim::{Bug, Plan, full_trace, run, run_all, sa_load};

/// Simulate networks of nodes with faults, or many nodes and one subnet administrator
#[derive(clap::Parser)]
struct Arguments {
    /// Number of networks
    #[arg(long, value_name = "N", default_value_t = 2000)]
    seeds: u64,
    /// Seed of the first network
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Simulate only the network of this seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print everything that happens in it
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Number of nodes: 4 to 200, or 10 to 1,000,000 with --sa-load, in subnets of at most 45,000
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,
    /// Duration of a network, 10 by default, or of steady use with --sa-load, 60
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Plant a bug, which the simulation must find
    #[arg(long, value_name = "NAME")]
    bug: Option<Bug>,
    /// Simulate a subnet and its administrator, and check the load against its bounds
    #[arg(long)]
    sa_load: bool,
}

fn main() -> ExitCode {
    let Arguments { seeds, first, seed, trace, nodes, minutes, bug, sa_load } = Arguments::parse();
    if sa_load {
        let plan = sa_load::Plan::new(nodes.unwrap_or(10_000).clamp(10, 1_000_000));
        let steady = minutes.map_or(plan.steady, Duration::from_mins);
        let plan = sa_load::Plan { seed: seed.unwrap_or_default(), steady, ..plan };
        let mut holds = true;
        for port_events in [sa_load::PortEvents::Received, sa_load::PortEvents::Absent] {
            let report =
                sa_load::run_all(sa_load::Plan { port_events, ..plan }, |subnet, event| {
                    eprintln!("{} nodes, seed {}: {event}", subnet.nodes, subnet.seed);
                });
            println!("{report}");
            holds &= report.exceeded().next().is_none();
        }
        return if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let minutes = minutes.unwrap_or(10);
    let mut plan = Plan { time: Duration::from_mins(minutes), ..Plan::default() };
    plan.nodes = nodes.unwrap_or(plan.nodes).clamp(4, 200);
    if let Some(seed) = seed {
        if trace {
            let mut stdout = io::stdout().lock();
            for line in full_trace(seed, plan, bug) {
                // The reader may have closed the pipe.
                if writeln!(stdout, "{line}").is_err() {
                    return ExitCode::SUCCESS;
                }
            }
        }
        return match run(seed, plan, bug) {
            Ok(report) => {
                println!("{}\nseed {seed}: hash {:016x}", report.counts, report.hash);
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        };
    }
    let runs = run_all(first..first + seeds, plan, bug);
    println!("{}", runs.counts);
    if let Some(failure) = runs.failure {
        let bug = bug.map(|bug| format!(" --bug {bug}")).unwrap_or_default();
        println!("{failure}\nreproduce: cargo xtask sim --seed {}{bug}", failure.seed);
        return ExitCode::FAILURE;
    }
    println!(
        "{} seeds of {} nodes and {minutes} minutes: every claim held, hash {:016x}",
        runs.seeds, plan.nodes, runs.hash
    );
    ExitCode::SUCCESS
}
