// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Runs other programs, with errors that name them.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs `command` on our terminal.
///
/// # Errors
/// The command cannot be started, or fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{} cannot be run", name(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", name(command));
    }
    Ok(())
}

/// The standard output of `command`.
///
/// # Errors
/// As for [`run`], with the command's standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} cannot be run", name(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}\n{}", name(command), output.status, said.trim_end());
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("{} wrote something that is not UTF-8", name(command)))
}

/// The program and its first argument, for messages.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program()).to_string_lossy();
    match command.get_args().next() {
        Some(first) => format!("`{program} {}`", first.to_string_lossy()),
        None => format!("`{program}`"),
    }
}
