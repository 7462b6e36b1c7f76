// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `test`: the levels of proof, from the cheapest to the most expensive.

mod arm64;
mod contrib;
mod levels;
mod suite;

use std::cell::OnceCell;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use self::suite::Count;
use crate::artifacts::{self, Artifact};
use crate::privilege::Privilege;
use crate::workspace::{self, Workspace};

/// Run the tests: all levels, `fast` (without special rights), `vm` (in virtual machines), or the named levels
#[derive(clap::Args)]
#[command(after_help = levels::help())]
pub(crate) struct Args {
    /// `all`, `fast`, `vm`, or levels
    #[arg(default_value = "all")]
    levels: Vec<String>,
    /// Do not use sudo: levels that need root are not run
    #[arg(long)]
    no_sudo: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let chosen = levels::choose(&args.levels)?;
    let bench = Bench {
        workspace,
        privilege: Privilege::find(args.no_sudo)?,
        built: OnceCell::new(),
        house: OnceCell::new(),
    };
    let strict = workspace::is_ci();
    let mut reports = Vec::new();
    for level in chosen {
        eprintln!("\n== {}: {}", level.name, level.what);
        let start = Instant::now();
        let outcome = (level.run)(&bench);
        let report = Report { level, outcome, took: start.elapsed() };
        eprintln!("== {}", report.line());
        reports.push(report);
    }
    if reports.len() > 1 {
        eprintln!();
        for report in &reports {
            eprintln!("{}", report.line());
        }
    }
    conclude(&reports, strict)
}

/// A level of proof.
struct Level {
    name: &'static str,
    what: &'static str,
    /// Whether it is part of `test fast`.
    fast: bool,
    /// The time that it may take on two cores without a warm build. A longer run is reported, and is no
    /// failure.
    budget: Duration,
    run: fn(&Bench<'_>) -> Result<Outcome>,
}

/// The outcome of a level that did not fail.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Outcome {
    /// The level passed. Tests are counted if it has any.
    Passed(Count),
    /// The machine lacks something that the level needs.
    NotRun(String),
}

/// The parts that the levels share.
struct Bench<'a> {
    workspace: &'a Workspace,
    privilege: Privilege,
    built: OnceCell<Vec<Artifact>>,
    house: OnceCell<Vec<Artifact>>,
}

impl Bench<'_> {
    /// Every binary and test of the workspace, from one build. So dependencies have the same features for
    /// all levels, and none is compiled twice.
    fn built(&self) -> Result<&[Artifact]> {
        once(&self.built, &mut self.workspace.cargo(&EVERYTHING))
    }

    /// The same of the software InfiniBand.
    fn house(&self) -> Result<&[Artifact]> {
        once(&self.house, &mut self.workspace.house_cargo(&EVERYTHING))
    }
}

const EVERYTHING: [&str; 4] = ["build", "--locked", "--workspace", "--all-targets"];

/// What `command` builds, which runs once.
fn once<'a>(cell: &'a OnceCell<Vec<Artifact>>, command: &mut Command) -> Result<&'a [Artifact]> {
    if let Some(built) = cell.get() {
        return Ok(built);
    }
    let built = artifacts::from(command)?;
    Ok(cell.get_or_init(|| built))
}

struct Report {
    level: &'static Level,
    outcome: Result<Outcome>,
    took: Duration,
}

impl Report {
    fn line(&self) -> String {
        let Self { level, outcome, took } = self;
        let result = match outcome {
            Ok(Outcome::Passed(count)) if count.is_empty() => "passed".to_owned(),
            Ok(Outcome::Passed(count)) => count.to_string(),
            Ok(Outcome::NotRun(reason)) => format!("NOT RUN: {reason}"),
            Err(error) => format!("FAILED: {error:#}"),
        };
        let over = match level.budget {
            budget if *took > budget => format!(" (budget: {} s)", budget.as_secs()),
            _ => String::new(),
        };
        format!("{:<12} {:>4} s{over}  {result}", level.name, took.as_secs())
    }
}

/// Prints the last line, and fails if a level failed. With `strict`, a level that did not run counts as
/// failed.
fn conclude(reports: &[Report], strict: bool) -> Result<()> {
    let mut total = Count::default();
    let (mut failed, mut not_run) = (Vec::new(), Vec::new());
    for Report { level, outcome, .. } in reports {
        match outcome {
            Ok(Outcome::Passed(count)) => total += *count,
            Ok(Outcome::NotRun(_)) => not_run.push(level.name),
            Err(_) => failed.push(level.name),
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    if strict && !not_run.is_empty() {
        bail!("not run, which CI does not accept: {}", not_run.join(", "));
    }
    if !not_run.is_empty() {
        eprintln!("NOT RUN on this machine: {}", not_run.join(", "));
    }
    if total.is_empty() {
        println!("passed");
    } else {
        println!("{total}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::levels::LEVELS;
    use super::*;

    fn report(outcome: Result<Outcome>) -> Report {
        Report { level: &LEVELS[0], outcome, took: Duration::ZERO }
    }

    #[test]
    fn a_failed_level_fails_the_command() {
        let reports = [
            report(Ok(Outcome::Passed(Count { passed: 3, ignored: 0 }))),
            report(Err(anyhow!("one test failed"))),
        ];
        assert!(conclude(&reports, false).is_err());
        assert!(conclude(&reports[..1], true).is_ok());
    }

    #[test]
    fn level_that_did_not_run_fails_only_in_ci() {
        let reports = [report(Ok(Outcome::NotRun("no root".to_owned())))];
        assert!(conclude(&reports, true).is_err());
        assert!(conclude(&reports, false).is_ok());
        assert!(reports[0].line().contains("NOT RUN: no root"));
    }

    #[test]
    fn budgets_fit_into_ci() {
        let in_ci = levels::choose(&["all".to_owned()]).expect("a group");
        let all: Duration = in_ci.iter().map(|level| level.budget).sum();
        let fast = LEVELS.iter().filter(|level| level.fast).map(|level| level.budget);
        // CI ends what takes an hour.
        assert!(all <= Duration::from_mins(55), "{all:?}");
        assert!(fast.sum::<Duration>() <= Duration::from_secs(440));
    }
}
