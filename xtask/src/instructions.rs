// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The gate of instructions: those of the packaged daemon for an answer from memory, against the figures that were
//! accepted. They hardly depend on the machine, so they are compared, and no time is.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use crate::against::{Figures, figures};
use crate::package;
use crate::privilege::Privilege;
use crate::process;
use crate::tools::Toolbox;
use crate::workspace::Workspace;

/// The accepted figures, relative to the top of the checkout.
const ACCEPTED: &str = "xtask/instructions.txt";

const HEAD: &str = "# Instructions of the packaged daemon for an answer from memory; written by cargo xtask bench --accept.
# `cargo xtask test instructions` fails if one grows by more than 5 %.
";

/// How far a figure may be from the accepted one.
const TOLERANCE: f64 = 0.05;

/// What is above its bound is counted so often, and the least stands: chance only adds instructions.
const COUNTS: u32 = 5;

/// How each figure compares with the accepted one.
struct Verdict {
    lines: Vec<String>,
    /// The figures that are too large.
    grown: usize,
    fallen: usize,
}

/// Fails if a figure has grown. Returns the number of figures.
pub(crate) fn check(
    workspace: &Workspace,
    testbed: &Path,
    privilege: Privilege,
    toolbox: &Toolbox,
) -> Result<u32> {
    let file = workspace.root().join(ACCEPTED);
    let accepted = parse(&fs::read_to_string(&file).context(ACCEPTED)?)?;
    let mut counted = count(workspace, testbed, privilege, toolbox)?;
    let mut verdict = compare(&accepted, &counted)?;
    for _ in 1..COUNTS {
        if verdict.grown > 0 {
            counted = least(counted, &count(workspace, testbed, privilege, toolbox)?);
            verdict = compare(&accepted, &counted)?;
        }
    }
    for line in &verdict.lines {
        eprintln!("   {line}");
    }
    let accept = "`cargo xtask bench --accept`";
    if verdict.grown > 0 {
        bail!(
            "{} answers cost more than {:.0} % above {ACCEPTED}: {}. Find the cause (docs/dev/bench.md), or say it in \
             the commit that has the new figures by {accept}",
            verdict.grown,
            TOLERANCE * 100.0,
            verdict.lines.join("; ")
        );
    }
    if verdict.fallen > 0 {
        eprintln!("   {} figures have fallen: keep that, by {accept}", verdict.fallen);
    }
    Ok(u32::try_from(counted.0.len())?)
}

/// Writes the figures of this tree as the accepted ones.
pub(crate) fn accept(
    workspace: &Workspace,
    testbed: &Path,
    privilege: Privilege,
    toolbox: &Toolbox,
) -> Result<()> {
    let mut counted = count(workspace, testbed, privilege, toolbox)?;
    for _ in 1..COUNTS {
        counted = least(counted, &count(workspace, testbed, privilege, toolbox)?);
    }
    let rows = counted.0.iter().map(|(name, value)| format!("{name} | {value:.0}\n"));
    fs::write(workspace.root().join(ACCEPTED), HEAD.to_owned() + &rows.collect::<String>())?;
    Ok(())
}

/// Counts by the test bed's steady loads. The daemon is that of the packages: the same commit and compiler give the same
/// bytes on each machine.
fn count(
    workspace: &Workspace,
    testbed: &Path,
    privilege: Privilege,
    toolbox: &Toolbox,
) -> Result<Figures> {
    let ibarr = package::program(workspace)?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("figures.json");
    let path = toolbox.path()?;
    let mut command = privilege.command(testbed, &[("PATH", path.as_os_str())]);
    command.args(["bench", "instructions", "--steady", "--ibarr"]).arg(ibarr);
    process::output(command.arg("--json").arg(&file))?;
    figures(&serde_json::from_slice(&fs::read(&file)?)?)
}

/// The smaller one of each figure.
fn least(first: Figures, second: &Figures) -> Figures {
    let of_second = |name: &str| second.0.iter().find(|row| row.0 == name).map(|row| row.1);
    let rows = first.0.into_iter().map(|(name, value)| {
        let other = of_second(&name).unwrap_or(value);
        (name, value.min(other))
    });
    Figures(rows.collect())
}

fn parse(text: &str) -> Result<Figures> {
    let rows = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.split_once(" | ").with_context(|| format!("{line:?}"))?;
        Ok((name.to_owned(), value.parse().with_context(|| format!("{line:?}"))?))
    });
    Ok(Figures(rows.collect::<Result<_>>().context(ACCEPTED)?))
}

fn compare(accepted: &Figures, counted: &Figures) -> Result<Verdict> {
    let names =
        |figures: &Figures| -> Vec<_> { figures.0.iter().map(|(name, _)| name.clone()).collect() };
    ensure!(
        names(accepted) == names(counted),
        "{ACCEPTED} has other figures than `bench instructions --steady`: write it anew, by \
         `cargo xtask bench --accept`"
    );
    let mut verdict = Verdict { lines: Vec::new(), grown: 0, fallen: 0 };
    for ((name, before), (_, now)) in accepted.0.iter().zip(&counted.0) {
        let ratio = now / before;
        verdict.grown += usize::from(ratio > 1.0 + TOLERANCE);
        verdict.fallen += usize::from(ratio < 1.0 - TOLERANCE);
        verdict.lines.push(format!("{name}: {now:.0}, {ratio:.3} of {before:.0}"));
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: [f64; 2]) -> Figures {
        let names = ["RESOLVE", "ACM"].map(str::to_owned);
        Figures(names.into_iter().zip(values).collect())
    }

    #[test]
    fn answer_that_costs_six_percent_more_is_a_breach() {
        let verdict = |values| {
            let verdict = compare(&of([4000.0, 3000.0]), &of(values)).expect("the same figures");
            (verdict.grown, verdict.fallen)
        };
        assert_eq!(verdict([4199.0, 2851.0]), (0, 0));
        assert_eq!(verdict([4240.0, 3000.0]), (1, 0));
        assert_eq!(verdict([4240.0, 2800.0]), (1, 1));
    }

    #[test]
    fn figure_that_vanishes_or_is_new_is_no_pass() {
        let all = of([4000.0, 3000.0]);
        let one = Figures(all.0[..1].to_vec());
        assert!(compare(&all, &one).is_err());
        assert!(compare(&one, &all).is_err());
    }

    #[test]
    fn least_of_two_counts_stands() {
        assert_eq!(least(of([4.0, 3.0]), &of([5.0, 2.0])), of([4.0, 2.0]));
    }

    #[test]
    fn accepted_figures_can_be_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt");
        let accepted = parse(&fs::read_to_string(path).expect("the file is there"));
        assert_eq!(accepted.expect("rows").0.len(), 5);
        assert!(parse("# remark\nRESOLVE 4000\n").is_err());
    }
}
