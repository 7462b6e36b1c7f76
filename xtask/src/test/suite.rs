// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Runs test programs that cargo has built, and counts their tests.

use std::ffi::OsStr;
use std::fmt;
use std::ops::AddAssign;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::artifacts::Artifact;
use crate::privilege::Privilege;
use crate::workspace::Workspace;

/// Number of tests of successful programs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Count {
    pub(super) passed: u32,
    pub(super) ignored: u32,
}

impl Count {
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.ignored += other.ignored;
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, 0 failed", self.passed)?;
        if self.ignored > 0 {
            write!(f, ", {} ignored", self.ignored)?;
        }
        Ok(())
    }
}

/// Runs `tests` one after another, each in its package's directory as cargo does, with `variables` in
/// their environment, but not those with one of `skipped` in their path. All failures are shown, and the first one
/// becomes the error.
pub(super) fn run<'a>(
    workspace: &Workspace,
    tests: impl Iterator<Item = &'a Artifact>,
    privilege: Privilege,
    variables: &[(&str, &OsStr)],
    skipped: &[&str],
) -> Result<Count> {
    let mut count = Count::default();
    let mut failed = Vec::new();
    for test in tests {
        let package = test.package.strip_prefix(workspace.root()).unwrap_or(&test.package);
        let name = format!("{} {}", package.display(), test.target);
        let manifest_dir = ("CARGO_MANIFEST_DIR", test.package.as_os_str());
        let variables = [variables, &[manifest_dir]].concat();
        let mut command = privilege.command(&test.executable, &variables);
        command.current_dir(&test.package);
        command.args(skipped.iter().flat_map(|tests| ["--skip", tests]));
        match run_command(&name, &mut command) {
            Ok(more) => count += more,
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    if count.passed == 0 {
        bail!("no test was run");
    }
    Ok(count)
}

/// Runs a test program, or a `cargo test`, and counts its tests. Its output is shown only if it fails.
pub(super) fn run_command(name: &str, command: &mut Command) -> Result<Count> {
    eprint!("   {name}: ");
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} cannot be run", command.get_program().display()))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let count = count(&stdout);
    match count {
        Some(count) if output.status.success() => {
            eprintln!("{count}");
            Ok(count)
        }
        _ => {
            eprintln!("FAILED");
            eprintln!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
            if output.status.success() {
                bail!("{name} gave no result");
            }
            bail!("{name}: {}{}", output.status, panics(&stdout))
        }
    }
}

/// Each panic of a test with the beginning of its message. It stands in the last lines of the whole run, which CI
/// shows when it cuts the middle out.
fn panics(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let mut panics = String::new();
    for (number, line) in lines.iter().enumerate() {
        if line.starts_with("thread '") && line.contains(" panicked at ") {
            let message = lines[number + 1..].iter().take(3);
            let message = message
                .take_while(|line| !line.starts_with("stack ") && !line.starts_with("note: "));
            panics.extend(["\n    ", line]);
            for part in message {
                panics.push(' ');
                panics.extend(part.trim().chars().take(300));
            }
        }
    }
    panics
}

/// The sum of libtest's `test result: ok. 3 passed; 0 failed; 1 ignored; …` lines; `None` if there
/// is none.
fn count(output: &str) -> Option<Count> {
    let mut sum = None;
    for line in output.lines() {
        let Some(result) = line.strip_prefix("test result: ") else { continue };
        let field = |word: &str| -> Option<u32> {
            let (number, _) = result.split_once(&format!(" {word}"))?;
            number.rsplit(' ').next()?.parse().ok()
        };
        let sum = sum.get_or_insert_with(Count::default);
        *sum += Count { passed: field("passed")?, ignored: field("ignored")? };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &str = "running 3 tests\n\
        test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished\n";

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn results_are_added_up() {
        let count = count(&format!("{OK}noise\n{OK}")).expect("two results");
        assert_eq!(count, Count { passed: 24, ignored: 2 });
    }

    #[test]
    fn output_without_a_result_is_not_zero_tests() {
        assert_eq!(count("running 3 tests\n"), None);
        assert!(run_command("silent", &mut shell("true")).is_err());
    }

    #[test]
    fn a_failing_program_fails_whatever_it_says() {
        let script = format!("printf '{OK}'; exit 101");
        assert!(run_command("failing", &mut shell(&script)).is_err());
        let script = "printf \"thread 'a::claim' (7) panicked at src/a.rs:1:2:\\nleft is not right\\n\"; exit 101";
        let error = run_command("failing", &mut shell(script)).expect_err("it fails").to_string();
        assert!(error.ends_with("src/a.rs:1:2: left is not right"), "{error}");
        let script = format!("printf '{OK}'");
        let count = run_command("passing", &mut shell(&script)).expect("succeeds");
        assert_eq!(count.passed, 12);
    }
}
