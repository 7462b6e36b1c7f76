// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The program behind `cargo xtask sim`.

use std::env;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use ibarr_sim::{Bug, Plan, full_trace, run, run_all, sa_load};

const USAGE: &str = "usage: ibarr-sim [--seeds N] [--first N] [--seed N] [--trace] \
    [--nodes N] [--minutes N] [--bug NAME]\n       ibarr-sim --sa-load [--nodes N] [--seed N]";

fn main() -> ExitCode {
    if env::args().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    if let Some(plan) = arguments.sa_load {
        let mut holds = true;
        for hearing in [sa_load::Hearing::Heard, sa_load::Hearing::Deaf] {
            let report = sa_load::run(sa_load::Plan { hearing, ..plan });
            println!("{report}");
            holds &= report.exceeded().next().is_none();
        }
        return if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let Arguments { first, seeds, seed, trace, plan, bug, .. } = arguments;
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
    let minutes = plan.time.as_secs() / 60;
    println!(
        "{} seeds of {} nodes and {minutes} minutes: every claim held, hash {:016x}",
        runs.seeds, plan.nodes, runs.hash
    );
    ExitCode::SUCCESS
}

struct Arguments {
    first: u64,
    seeds: u64,
    seed: Option<u64>,
    trace: bool,
    plan: Plan,
    bug: Option<Bug>,
    sa_load: Option<sa_load::Plan>,
}

impl Arguments {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let plan = Plan::default();
        let (mut nodes, mut is_load) = (None, false);
        let mut this = Self {
            first: 0,
            seeds: 2000,
            seed: None,
            trace: false,
            plan,
            bug: None,
            sa_load: None,
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--trace" => {
                    this.trace = true;
                    continue;
                }
                "--sa-load" => {
                    is_load = true;
                    continue;
                }
                _ => {}
            }
            let value = arguments.next().ok_or(format!("{argument}: a value is missing"))?;
            let number = || value.parse::<u64>().map_err(|error| format!("{argument}: {error}"));
            match argument.as_str() {
                "--seeds" => this.seeds = number()?,
                "--first" => this.first = number()?,
                "--seed" => this.seed = Some(number()?),
                "--nodes" => nodes = usize::try_from(number()?).ok(),
                "--minutes" => this.plan.time = Duration::from_secs(60 * number()?),
                "--bug" => this.bug = Some(value.parse()?),
                _ => return Err(format!("{argument}: unknown option")),
            }
        }
        if is_load {
            let plan = sa_load::Plan::new(nodes.unwrap_or(10_000).clamp(10, 45_000));
            this.sa_load = Some(sa_load::Plan { seed: this.seed.unwrap_or_default(), ..plan });
        }
        this.plan.nodes = nodes.unwrap_or(plan.nodes).clamp(4, 200);
        Ok(this)
    }
}
