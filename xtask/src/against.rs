// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench --against COMMIT`: loads the daemons of two trees in turn, and compares the figures of neighbouring runs.
//!
//! This tree's test bed measures both, so that a commit from before a bench can be compared. What the test bed measures
//! in its own process (look-ups, memory) is that of this tree in both.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::artifacts;
use crate::privilege::Privilege;
use crate::process;
use crate::tools::Toolbox;
use crate::workspace::{self, Workspace};

/// The benches that load a daemon.
const BENCHES: [&str; 6] = ["ip2gid", "resolve", "paths", "acm-rate", "addresses", "instructions"];

/// Runs of each daemon. The spread of three shows whether a difference is one.
const RUNS: usize = 3;

/// Name and value of each figure, in the order of the report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures(pub(crate) Vec<(String, f64)>);

/// A figure of this tree, and how it compares.
#[derive(Debug)]
pub(crate) struct Comparison {
    bench: String,
    name: String,
    /// The median of this tree's runs.
    value: f64,
    /// The median of the ratios of neighbouring runs.
    ratio: f64,
    least: f64,
    most: f64,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, ratio, least, most, .. } = self;
        write!(f, "  {name:<60}{value:>14.2}{ratio:>8.2}  ({least:.2} to {most:.2})")
    }
}

/// Compares this tree's `ibarr`, beside `testbed`, with that of `commit`, and prints each ratio.
pub(crate) fn run(
    workspace: &Workspace,
    commit: &str,
    arguments: &[OsString],
    testbed: &Path,
    toolbox: &Toolbox,
) -> Result<Vec<Comparison>> {
    let privilege = Privilege::find(false)?;
    let before = build(workspace, commit)?;
    let now = testbed.with_file_name("ibarr");
    let all = BENCHES.map(|bench| vec![bench.into()]);
    let benches = if arguments.is_empty() { all.to_vec() } else { vec![arguments.to_vec()] };
    let path = toolbox.path()?;
    let file = workspace.target().join("against").join("figures.json");
    let mut all = Vec::new();
    for bench in benches {
        let mut both = [Vec::new(), Vec::new()];
        for run in 1..=RUNS {
            for (daemon, runs) in [&before, &now].into_iter().zip(&mut both) {
                eprintln!("bench: run {run} of {RUNS} of {}", daemon.display());
                let mut command = privilege.command(testbed, &[("PATH", path.as_os_str())]);
                command.arg("bench").args(&bench).arg("--ibarr").arg(daemon);
                process::output(command.arg("--json").arg(&file))?;
                runs.push(figures(&serde_json::from_slice(&fs::read(&file)?)?)?);
            }
        }
        let name = bench.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        println!("{name}: this tree's figures, and their ratios to those of {commit}");
        let ratios: Vec<_> = ratios(&name, &both).collect();
        for ratio in &ratios {
            println!("{ratio}");
        }
        all.extend(ratios);
    }
    Ok(all)
}

/// Writes a document of the ratios to those of `commit`.
pub(crate) fn write(file: &Path, commit: &str, ratios: &[Comparison]) -> Result<()> {
    let figure = |figure: &Comparison| {
        let Comparison { bench, name, value, ratio, least, most } = figure;
        json!({"bench": bench, "name": name, "value": value, "ratio": ratio, "least": least, "most": most})
    };
    let ratios: Vec<_> = ratios.iter().map(figure).collect();
    let document = json!({ "against": commit, "runs": RUNS, "ratios": ratios });
    fs::write(file, format!("{document:#}\n")).with_context(|| file.display().to_string())
}

/// Builds `ibarr` of `commit` in a clone below the target directory, which stays for the next time.
fn build(workspace: &Workspace, commit: &str) -> Result<PathBuf> {
    let git = |directory: &Path, arguments: &[&str]| {
        process::output(Command::new("git").current_dir(directory).args(arguments))
    };
    let root = workspace.root();
    let id = git(root, &["rev-parse", "--verify", &format!("{commit}^{{commit}}")])?;
    let clone = workspace.target().join("against").join(id.trim());
    if !clone.join(".git").exists() {
        fs::create_dir_all(&clone)?;
        git(&clone, &["clone", "--quiet", "--shared", "--no-checkout", path(root)?, "."])?;
    }
    git(&clone, &["checkout", "--quiet", "--force", id.trim()])?;
    let target = clone.join("target");
    let arguments = ["build", "--locked", "--release", "--package", "ibarr-user", "--target-dir"];
    let built = artifacts::from(workspace::cargo(&clone, &arguments).arg(&target))?;
    artifacts::binary(&built, "ibarr").map(Path::to_owned)
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

pub(crate) fn figures(report: &Value) -> Result<Figures> {
    let figures = report["figures"].as_array().context("a report without figures")?;
    let figure = |figure: &Value| {
        let name = figure["name"].as_str().context("a figure without a name")?;
        Ok((name.to_owned(), figure["value"].as_f64().context("a figure without a value")?))
    };
    let figures = figures.iter().map(figure).collect::<Result<Vec<_>>>()?;
    ensure!(!figures.is_empty(), "a report without figures");
    Ok(Figures(figures))
}

/// Those of each figure that both trees have.
fn ratios<'a>(
    bench: &'a str,
    [before, now]: &'a [Vec<Figures>; 2],
) -> impl Iterator<Item = Comparison> + 'a {
    let names = now.first().into_iter().flat_map(|run| &run.0).map(|(name, _)| name);
    names.filter_map(move |name| {
        let of = |runs: &[Figures]| -> Vec<f64> {
            let values = runs.iter().map(|run| run.0.iter().find(|(other, _)| other == name));
            values.flatten().map(|(_, value)| *value).collect()
        };
        let (before, now) = (of(before), of(now));
        let ratios = sorted(now.iter().zip(&before).map(|(now, before)| now / before));
        let (bench, name) = (bench.to_owned(), name.clone());
        let (&least, &most) = (ratios.first()?, ratios.last()?);
        let (value, ratio) = (median(&sorted(now.into_iter()))?, median(&ratios)?);
        Some(Comparison { bench, name, value, ratio, least, most })
    })
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_neighbouring_runs_and_have_their_spread() {
        let run = |rate: f64| Figures(vec![("rate".to_owned(), rate)]);
        let both = [[10.0, 20.0, 40.0].map(run).to_vec(), [5.0, 20.0, 80.0].map(run).to_vec()];
        let [ratio] = &ratios("paths", &both).collect::<Vec<_>>()[..] else { panic!("one figure") };
        let line = ratio.to_string();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words, ["rate", "20.00", "1.00", "(0.50", "to", "2.00)"]);
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.path(), "814779e", std::slice::from_ref(ratio)).unwrap();
        let document: Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap();
        assert_eq!(document["against"], "814779e");
        let figures = json!({"bench": "paths", "name": "rate", "value": 20.0, "ratio": 1.0, "least": 0.5, "most": 2.0});
        assert_eq!(document["ratios"], json!([figures]));
        let unknown = [vec![Figures(vec![("other".to_owned(), 1.0)])], vec![run(5.0)]];
        assert_eq!(ratios("paths", &unknown).count(), 0, "the commit does not have the figure");
    }

    #[test]
    fn report_without_figures_is_refused() {
        let report = serde_json::json!({"figures": [{"name": "a", "value": 2.0}]});
        assert_eq!(figures(&report).unwrap(), Figures(vec![("a".to_owned(), 2.0)]));
        assert!(figures(&serde_json::json!({"figures": []})).is_err());
        assert!(figures(&serde_json::json!({})).is_err());
    }
}
