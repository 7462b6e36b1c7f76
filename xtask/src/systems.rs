// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `systems`: what ran on which system. Runs write their results to `target/systems.txt`; this command takes them
//! into `xtask/systems.txt`, and makes the table in docs/systems.md from that.

use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;
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

const HEAD: &str = "# What ran on which system; written by cargo xtask systems, which also makes the table in docs/systems.md from it.
# system | how | what | passed | with | commit
";

const BEGIN: &str = "<!-- made by cargo xtask systems -->\n";
const END: &str = "<!-- end -->\n";

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
    let readme = workspace.root().join("docs/systems.md");
    let with_table = with_table(&fs::read_to_string(&readme)?, &rows)?;
    fs::write(&readme, with_table).context("docs/systems.md")?;
    print!("{}", table(&rows));
    Ok(())
}

/// What is wrong with the table of docs/systems.md.
pub(crate) fn check(readme: &str, results: &str) -> Option<String> {
    let made = parse(results).and_then(|rows| with_table(readme, &rows));
    match made {
        Ok(made) if made == readme => None,
        Ok(_) => {
            Some(format!("docs/systems.md: its table differs from {RESULTS}: cargo xtask systems"))
        }
        Err(error) => Some(format!("{RESULTS}: {error:#}")),
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

fn with_table(readme: &str, rows: &[Kept]) -> Result<String> {
    let parts = readme.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let Some((before, after)) = parts else { bail!("docs/systems.md has no place for the table") };
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", table(rows)))
}

fn table(rows: &[Kept]) -> String {
    let mut table = "| system | tried |\n|---|---|\n".to_owned();
    for System { name, about } in SYSTEMS {
        let of_system: Vec<_> =
            rows.iter().map(|kept| &kept.row).filter(|row| row.system == *name).collect();
        // A system on which something ran needs no comparison.
        let tried = How::ALL.into_iter().find_map(|how| {
            let rows: Vec<_> = of_system.iter().copied().filter(|row| row.how == how).collect();
            (!rows.is_empty()).then(|| cell(how, &rows))
        });
        let tried = tried.unwrap_or_else(|| "not tried".to_owned());
        let about = if about.is_empty() { String::new() } else { format!(", {about}") };
        table.extend(["| ", name, &about, " | ", &tried, " |\n"]);
    }
    table
}

/// What was tried in one way on a system.
fn cell(how: How, rows: &[&Row]) -> String {
    let mut with: Vec<&str> = rows.iter().map(|row| row.with.as_str()).collect();
    with.dedup();
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

    const RESULTS: &str = "# a note\n\
        Linux 5.10 | ran | bpf | 42 of 42 | 5.10.0-46-amd64 | 0a\n\
        Linux 5.10 | ran | run-b | 34 of 35 | 5.10.0-46-amd64 | 0b\n\
        Ubuntu 20.04 | libraries | programs | 2 of 2 | glibc 2.31 | 0a\n";

    fn readme(rows: &str) -> String {
        format!("a\n{BEGIN}{rows}{END}b\n")
    }

    #[test]
    fn each_system_has_a_line_that_says_how_it_was_tried() {
        let table = table(&parse(RESULTS).expect("results"));
        for line in [
            "| Linux 5.10, Debian 11's | ran here (5.10.0-46-amd64): `bpf` 42 of 42, `run-b` 34 of 35 |",
            "| Ubuntu 20.04 | by its libraries only: 2 of 2 programs by glibc 2.31 |",
            "| RHEL 9 | not tried |",
        ] {
            assert!(table.lines().any(|found| found == line), "{line}\n{table}");
        }
        assert_eq!(table.lines().count(), SYSTEMS.len() + 2);
    }

    #[test]
    fn table_that_differs_from_the_results_is_found() {
        let rows = parse(RESULTS).expect("results");
        let made = with_table(&readme(""), &rows).expect("a place");
        assert_eq!(check(&made, RESULTS), None);
        assert_eq!(with_table(&made, &rows).expect("a place"), made);
        assert!(check(&made, &RESULTS.replace("34 of", "35 of")).is_some());
        assert!(check("no place", RESULTS).is_some());
        assert!(check(&made, &RESULTS.replace("Ubuntu", "Minix")).is_some());
    }

    #[test]
    fn later_result_replaces_the_earlier_one_of_the_same() {
        let old = parse(RESULTS).expect("results");
        let new = "Linux 5.10 | ran | run-b | 35 of 35 | 5.10.0-47-amd64 | 0c\n";
        let rows = merge(old.clone(), parse(new).expect("results"));
        assert_eq!((rows.len(), &rows[0]), (old.len(), &old[0]));
        assert!(text(&rows).ends_with(
            "run-b | 35 of 35 | 5.10.0-47-amd64 | 0c\n\
             Ubuntu 20.04 | libraries | programs | 2 of 2 | glibc 2.31 | 0a\n"
        ));
        assert_eq!(parse(&text(&rows)).expect("results"), rows);
    }
}
