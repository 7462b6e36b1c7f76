// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The budget. Each crate has a row with the most lines of code, of tests and of comments that it may have,
//! and each number of `counts` a row with the most that it may be. A row is lowered with the code, and raised
//! only by a commit that does nothing else and says why.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{File, counts};
use crate::process;

/// The rows, relative to the top of the checkout.
const BUDGET: &str = "xtask/budget.txt";

/// How far a number may stay below its row before the row has to be lowered; a small one, this part of it.
const SLACK: usize = 100;
const SMALL: usize = 5;

/// Lines of a crate: without tests, in tests, and comments in both. Empty lines do not count.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Lines {
    code: usize,
    tests: usize,
    comments: usize,
}

impl Lines {
    fn named(self) -> [(&'static str, usize); 3] {
        [
            ("lines of code", self.code),
            ("lines of tests", self.tests),
            ("lines of comments", self.comments),
        ]
    }
}

/// Compares what is there with the rows.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let Some(budget) = files.iter().find(|file| file.path == BUDGET) else {
        return vec![format!("{BUDGET} is missing")];
    };
    let crates = count(files);
    let crates = crates.iter().map(|(name, lines)| (*name, lines.named().to_vec()));
    let counts = counts::all(files).filter(|(.., count)| *count > 0);
    let counts = counts.map(|(name, what, count)| (name, vec![(what, count)]));
    let there: BTreeMap<_, _> = crates.chain(counts).collect();
    let rows = rows(&budget.text);
    let mut problems = Vec::new();
    for (name, numbers) in &there {
        let Some(row) = rows.get(name).filter(|row| row.len() == numbers.len()) else {
            problems.push(format!("{BUDGET}: no row for {name}"));
            continue;
        };
        for ((what, number), most) in numbers.iter().zip(row) {
            if number > most {
                problems.push(format!(
                    "{name}: {number} {what}, and {BUDGET} allows {most}: remove some, or raise it by a commit \
                     of its own that says why"
                ));
            } else if most - number > SLACK.min(most / SMALL) {
                problems.push(format!("{BUDGET}: {name} has {number} {what}: lower {most}"));
            }
        }
    }
    for name in rows.keys().filter(|name| !there.contains_key(*name)) {
        problems.push(format!("{BUDGET}: {name} is not counted"));
    }
    problems
}

/// Checks that the last commit which raised a row changed nothing else.
pub(super) fn check_commit(root: &Path) -> Result<Vec<String>> {
    let git =
        |arguments: &[&str]| process::output(Command::new("git").current_dir(root).args(arguments));
    let commit = git(&["log", "-1", "--format=%h", "--", BUDGET])?;
    let commit = commit.trim();
    if commit.is_empty() {
        return Ok(Vec::new());
    }
    let changed = git(&["show", "--format=", "--name-only", commit])?;
    let diff = git(&["show", "--format=", "--unified=0", commit, "--", BUDGET])?;
    Ok(raised_beside(commit, &changed, &diff).into_iter().collect())
}

/// What is wrong with a commit that changed the files in `changed`, and the budget by `diff`.
fn raised_beside(commit: &str, changed: &str, diff: &str) -> Option<String> {
    let side = |sign: char| {
        let lines = diff.lines().filter_map(|line| line.strip_prefix(sign));
        lines.collect::<Vec<_>>().join("\n")
    };
    let (before, after) = (side('-'), side('+'));
    let (before, after) = (rows(&before), rows(&after));
    let raised = after.iter().find(|(name, row)| {
        before.get(*name).is_some_and(|old| old.iter().zip(row.iter()).any(|(old, new)| new > old))
    });
    let is_alone = changed.lines().all(|path| path == BUDGET);
    let (name, _) = raised.filter(|_| !is_alone)?;
    Some(format!(
        "{BUDGET}: {commit} raised {name} and changed other files: that needs a commit of its own"
    ))
}

fn rows(text: &str) -> BTreeMap<&str, Vec<usize>> {
    let row = |line| {
        let mut words = str::split_whitespace(line);
        let name = words.next()?;
        Some((name, words.map(|word| word.parse().ok()).collect::<Option<_>>()?))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(row).collect()
}

/// The crates of the software InfiniBand lie in it.
const HOUSE: &str = "ibtun/";

/// The lines of each folder at the top that has sources, and of each in the house.
fn count(files: &[File]) -> BTreeMap<&str, Lines> {
    let mut rows = BTreeMap::new();
    for file in files.iter().filter(|file| file.has_extension(&["rs", "c", "h"])) {
        let inside = if file.path.starts_with(HOUSE) { HOUSE.len() } else { 0 };
        let Some(end) = file.path[inside..].find('/') else { continue };
        let name = &file.path[..inside + end];
        let row: &mut Lines = rows.entry(name).or_default();
        let mut in_tests = file.is_test() || file.path.split('/').any(|part| part == "benches");
        for line in file.text.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
            in_tests |= line == "mod tests {";
            let is_comment = ["//", "/*", "* ", "*/"].iter().any(|mark| line.starts_with(mark));
            match (is_comment, in_tests) {
                (true, _) => row.comments += 1,
                (false, true) => row.tests += 1,
                (false, false) => row.code += 1,
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn tree(budget: &str) -> [File; 3] {
        let source =
            "//! Text.\n\nfn f() {}\n\n#[cfg(test)]\nmod tests {\n    // Why.\n    fn g() {}\n}\n";
        [file(BUDGET, budget), file("a/src/b.rs", source), file("a/tests/c.rs", "fn h() {}\n")]
    }

    #[test]
    fn code_tests_and_comments_are_counted_apart() {
        let lines = Lines { code: 2, tests: 4, comments: 2 };
        assert_eq!(count(&tree("")), [("a", lines)].into());
        assert!(check(&tree("# crate product tests comments\na 2 4 2\n")).is_empty());
        let house = ["ibtun/a/b.rs", "ibtun/c/d.rs", "ibtun/e.rs"].map(|path| file(path, ""));
        assert!(count(&house).into_keys().eq(["ibtun/a", "ibtun/c"]));
    }

    #[test]
    fn crate_above_or_far_below_its_row_is_found() {
        assert_eq!(check(&tree("a 1 4 2")).len(), 1);
        assert_eq!(check(&tree("a 2 3 1")).len(), 2);
        assert_eq!(check(&tree("a 103 4 2")).len(), 1);
        assert_eq!(check(&tree("b 1 1 1")).len(), 2);
        assert_eq!(check(&tree("a 2 4 2")[1..]).len(), 1);
    }

    #[test]
    fn row_that_is_raised_beside_other_changes_is_found() {
        let diff =
            |before, after| format!("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a {before}\n+a {after}\n");
        let beside = format!("{BUDGET}\na/src/b.rs\n");
        assert!(raised_beside("1", &beside, &diff("1 1 1", "1 1 2")).is_some());
        assert!(raised_beside("1", &beside, &diff("1 1 2", "1 1 1")).is_none());
        assert!(raised_beside("1", &format!("{BUDGET}\n"), &diff("1 1 1", "2 1 1")).is_none());
    }
}
