// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `systems`: what ran on which system. Runs write their results to `target/systems.txt`; this command takes them
//! into `xtask/systems.txt`, and makes the tables of README.md and docs/systems.md from that.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::page::with_table;
use crate::process;
use crate::routers;
use crate::workspace::Workspace;

/// A system of which the table has a row.
struct System {
    name: &'static str,
    /// What else the table calls it.
    about: &'static str,
}

/// In the order of the table.
const SYSTEMS: &[System] = &[
    System { name: "Linux 5.10", about: "Debian 11's" },
    System { name: "Linux 6.1", about: "Debian 12's" },
    System { name: "Linux 6.12", about: "Debian 13's" },
    System { name: "Linux newest", about: "of Debian 13's backports" },
    System { name: "64-bit Arm", about: "emulated" },
    System { name: "Debian 11", about: "" },
    System { name: "Debian 12", about: "" },
    System { name: "Debian 13", about: "" },
    System { name: "Ubuntu 20.04", about: "" },
    System { name: "Ubuntu 22.04", about: "" },
    System { name: "Ubuntu 24.04", about: "" },
    System { name: "RHEL 8", about: "" },
    System { name: "RHEL 9", about: "" },
    System { name: "SLES 15", about: "SP5" },
];

/// The results of all runs, relative to the top of the checkout.
pub(crate) const RESULTS: &str = "xtask/systems.txt";
/// Those of this checkout's runs, relative to the target directory.
const OF_RUNS: &str = "systems.txt";

const HEAD: &str = "# What ran on which system; written by cargo xtask systems, which also makes the tables of README.md and docs/systems.md from it.
# system | how | what | passed | with | commit
";

/// What a result rests on.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum How {
    /// It ran on that kernel, or in a container with that system's files.
    Ran,
    /// Only its libraries' versions were compared with those of the system.
    Libraries,
}

impl How {
    const ALL: [Self; 2] = [Self::Ran, Self::Libraries];

    fn word(self) -> &'static str {
        match self {
            Self::Ran => "ran",
            Self::Libraries => "libraries",
        }
    }
}

/// The result of a run on a system.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Row {
    pub(crate) system: String,
    pub(crate) how: How,
    /// A scenario of `vm`, a level of `test`, or what was compared.
    pub(crate) what: String,
    pub(crate) passed: usize,
    pub(crate) of: usize,
    /// The versions that matter.
    pub(crate) with: String,
}

/// A row as a file has it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Kept {
    row: Row,
    commit: String,
}

/// Adds rows to those of this checkout's runs. Systems without a row in the table are left out.
pub(crate) fn record(workspace: &Workspace, rows: &[Row]) -> Result<()> {
    let lock = File::create(workspace.target().join("systems.lock"))?;
    lock.lock().context("target/systems.lock cannot be locked")?;
    let mut git = Command::new("git");
    git.current_dir(workspace.root()).args(["rev-parse", "--short=8", "HEAD"]);
    let commit = process::output(&mut git).unwrap_or_default().trim().to_owned();
    let kept = rows.iter().filter(|row| place(&row.system).is_some());
    let new = kept.map(|row| Kept { row: row.clone(), commit: commit.clone() });
    let file = workspace.target().join(OF_RUNS);
    let rows = merge(read(&file)?, new.collect());
    fs::write(&file, text(&rows)).with_context(|| file.display().to_string())
}

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let file = workspace.root().join(RESULTS);
    let rows = merge(read(&file)?, read(&workspace.target().join(OF_RUNS))?);
    fs::write(&file, text(&rows)).with_context(|| file.display().to_string())?;
    for Page { name, table } in PAGES {
        let page = workspace.root().join(name);
        let with_table = with_table(&fs::read_to_string(&page)?, &table(&rows));
        fs::write(&page, with_table.context(*name)?).context(*name)?;
    }
    routers::accept(workspace)?;
    print!("{}", all(&rows));
    Ok(())
}

/// A page with a table of the results.
pub(crate) struct Page {
    /// Relative to the top of the checkout.
    pub(crate) name: &'static str,
    table: fn(&[Kept]) -> String,
}

pub(crate) const PAGES: &[Page] =
    &[Page { name: "README.md", table: summary }, Page { name: "docs/systems.md", table: all }];

impl Page {
    /// What is wrong with the table of this page, whose text is `text`.
    pub(crate) fn check(&self, text: &str, results: &str) -> Option<String> {
        let made = parse(results).map(|rows| with_table(text, &(self.table)(&rows)));
        let name = self.name;
        match made {
            Ok(Some(made)) if made == text => None,
            Ok(Some(_)) => {
                Some(format!("{name}: its table differs from {RESULTS}: cargo xtask systems"))
            }
            Ok(None) => Some(format!("{name} has no place for the table")),
            Err(error) => Some(format!("{RESULTS}: {error:#}")),
        }
    }
}

fn read(file: &Path) -> Result<Vec<Kept>> {
    match fs::read_to_string(file) {
        Ok(text) => parse(&text).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

fn parse(text: &str) -> Result<Vec<Kept>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| parse_line(line).with_context(|| format!("no result: {line:?}"))).collect()
}

fn parse_line(line: &str) -> Option<Kept> {
    let fields: Vec<_> = line.split(" | ").collect();
    let [system, how, what, result, with, commit] = fields[..] else { return None };
    place(system)?;
    let (passed, of) = result.split_once(" of ")?;
    let row = Row {
        system: system.to_owned(),
        how: How::ALL.into_iter().find(|known| known.word() == how)?,
        what: what.to_owned(),
        passed: passed.parse().ok()?,
        of: of.parse().ok()?,
        with: with.to_owned(),
    };
    Some(Kept { row, commit: commit.to_owned() })
}

fn place(system: &str) -> Option<usize> {
    SYSTEMS.iter().position(|known| known.name == system)
}

/// All rows in the order of the file. A later row replaces an earlier one of the same.
fn merge(old: Vec<Kept>, new: Vec<Kept>) -> Vec<Kept> {
    let key = |kept: &Kept| (place(&kept.row.system), kept.row.how, kept.row.what.clone());
    let replaced = |kept: &Kept| new.iter().any(|new| key(new) == key(kept));
    let mut rows: Vec<_> = old.into_iter().filter(|kept| !replaced(kept)).collect();
    rows.extend(new);
    rows.sort_by_key(key);
    rows
}

fn text(rows: &[Kept]) -> String {
    rows.iter()
        .fold(HEAD.to_owned(), |text, Kept { row, commit }| text + &format!("{row} | {commit}\n"))
}

/// How a system was tried, best first, and the results of that.
fn tried<'a>(system: &System, rows: &'a [Kept]) -> Option<(How, Vec<&'a Row>)> {
    How::ALL.into_iter().find_map(|how| {
        let of_system = rows.iter().map(|kept| &kept.row);
        let rows: Vec<_> =
            of_system.filter(|row| row.system == system.name && row.how == how).collect();
        (!rows.is_empty()).then_some((how, rows))
    })
}

/// The systems, by how they were tried.
fn summary(rows: &[Kept]) -> String {
    let mut table = "| | |\n|---|---|\n".to_owned();
    let how_tried = |system| match tried(system, rows) {
        None => "not tried",
        Some((How::Ran, _)) => "ran here",
        Some((How::Libraries, rows)) if rows.iter().all(|row| row.passed == row.of) => {
            "by libraries only"
        }
        Some((How::Libraries, _)) => "programs, without our units",
    };
    for how in ["ran here", "by libraries only", "programs, without our units", "not tried"] {
        let systems = SYSTEMS.iter().filter(|system| how_tried(system) == how);
        let names: Vec<_> = systems.map(|system| system.name).collect();
        if !names.is_empty() {
            table.extend(["| ", how, " | ", &names.join(", "), " |\n"]);
        }
    }
    table
}

fn all(rows: &[Kept]) -> String {
    let mut table = "| system | tried |\n|---|---|\n".to_owned();
    for system in SYSTEMS {
        let tried = tried(system, rows);
        let tried = tried.map_or_else(|| "not tried".to_owned(), |(how, rows)| cell(how, &rows));
        let System { name, about } = system;
        let about = if about.is_empty() { String::new() } else { format!(", {about}") };
        table.extend(["| ", name, &about, " | ", &tried, " |\n"]);
    }
    table
}

/// What was tried in one way on a system.
fn cell(how: How, rows: &[&Row]) -> String {
    let with: BTreeSet<&str> = rows.iter().map(|row| row.with.as_str()).collect();
    let with: Vec<_> = with.into_iter().collect();
    match how {
        How::Ran => {
            let passed = rows
                .iter()
                .map(|Row { what, passed, of, .. }| format!("`{what}` {passed} of {of}"));
            format!("ran here ({}): {}", with.join(", "), passed.collect::<Vec<_>>().join(", "))
        }
        How::Libraries => {
            let compared = rows.iter().map(|Row { what, passed, of, with, .. }| {
                format!("{passed} of {of} {what} by {with}")
            });
            format!("by its libraries only: {}", compared.collect::<Vec<_>>().join(", "))
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { system, how, what, passed, of, with } = self;
        write!(f, "{system} | {} | {what} | {passed} of {of} | {with}", how.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{BEGIN, END};

    const RESULTS: &str = "# a note\n\
        Linux 5.10 | ran | bpf | 42 of 42 | 5.10.0-46-amd64 | 0a\n\
        Linux 5.10 | ran | ls | 1 of 1 | 5.10.0-45-amd64 | 0a\n\
        Linux 5.10 | ran | run-b | 34 of 35 | 5.10.0-46-amd64 | 0b\n\
        Debian 13 | libraries | units | 7 of 7 | systemd 257 | 0a\n\
        Ubuntu 20.04 | libraries | programs | 2 of 2 | glibc 2.31 | 0a\n\
        Ubuntu 20.04 | libraries | units | 0 of 7 | systemd 245 | 0a\n";

    #[test]
    fn each_system_has_a_line_that_says_how_it_was_tried() {
        let rows = parse(RESULTS).expect("results");
        let table = all(&rows);
        for line in [
            "| Linux 5.10, Debian 11's | ran here (5.10.0-45-amd64, 5.10.0-46-amd64): `bpf` 42 of 42, `ls` 1 of 1, \
             `run-b` 34 of 35 |",
            "| Ubuntu 20.04 | by its libraries only: 2 of 2 programs by glibc 2.31, 0 of 7 units by systemd 245 |",
            "| RHEL 9 | not tried |",
        ] {
            assert!(table.lines().any(|found| found == line), "{line}\n{table}");
        }
        assert_eq!(table.lines().count(), SYSTEMS.len() + 2);
        let summary = summary(&rows);
        let lines: Vec<_> = summary.lines().skip(2).collect();
        assert_eq!(
            lines[..3],
            [
                "| ran here | Linux 5.10 |",
                "| by libraries only | Debian 13 |",
                "| programs, without our units | Ubuntu 20.04 |"
            ]
        );
        assert_eq!(lines.len(), 4, "{summary}");
        let untried = lines[3].strip_prefix("| not tried | ").expect("the other systems");
        assert_eq!(untried.split(", ").count(), SYSTEMS.len() - 3, "{untried}");
    }

    #[test]
    fn table_that_differs_from_the_results_is_found() {
        let rows = parse(RESULTS).expect("results");
        for page in PAGES {
            let table = (page.table)(&rows);
            let made = with_table(&format!("a\n{BEGIN}{END}b\n"), &table).expect("a place");
            assert_eq!(page.check(&made, RESULTS), None);
            assert_eq!(with_table(&made, &table).as_ref(), Some(&made));
            let other = RESULTS.replace("Linux 5.10 | ran | run-b", "Linux 6.1 | ran | run-b");
            assert!(page.check(&made, &other).is_some());
            assert!(page.check("no place", RESULTS).is_some());
            assert!(page.check(&made, &RESULTS.replace("Ubuntu", "Minix")).is_some());
        }
    }

    #[test]
    fn later_result_replaces_the_earlier_one_of_the_same() {
        let old = parse(RESULTS).expect("results");
        let new = "Linux 5.10 | ran | run-b | 35 of 35 | 5.10.0-47-amd64 | 0c\n";
        let rows = merge(old.clone(), parse(new).expect("results"));
        assert_eq!((rows.len(), &rows[0]), (old.len(), &old[0]));
        assert!(text(&rows).contains(
            "run-b | 35 of 35 | 5.10.0-47-amd64 | 0c\n\
             Debian 13 | libraries | units | 7 of 7 | systemd 257 | 0a\n"
        ));
        assert_eq!(parse(&text(&rows)).expect("results"), rows);
    }
}
