// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The programs that cargo has built, and their paths.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::workspace::Workspace;

/// A program that cargo has built.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Artifact {
    /// The directory of its package.
    pub(crate) package: PathBuf,
    /// The name of its target: a binary, a library, or a file under `tests/`.
    pub(crate) target: String,
    /// Whether it has the tests of the target, and is not the target.
    pub(crate) is_test: bool,
    /// Whether it is built from a file under `tests/`.
    pub(crate) is_integration_test: bool,
    pub(crate) executable: PathBuf,
}

/// Runs `cargo` with `arguments`, a build command, and lists the programs that it built or found fresh.
pub(crate) fn build(workspace: &Workspace, arguments: &[&str]) -> Result<Vec<Artifact>> {
    from(&mut workspace.cargo(arguments))
}

/// Lists the programs that `command`, a build by cargo, built or found fresh.
pub(crate) fn from(command: &mut Command) -> Result<Vec<Artifact>> {
    command.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let mut child = command.spawn().context("cargo cannot be run")?;
    let stdout = child.stdout.take().context("cargo has a standard output")?;
    let mut artifacts = Vec::new();
    for line in BufReader::new(stdout).lines() {
        artifacts.extend(parse(&line?)?);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the build failed: {status}");
    }
    Ok(artifacts)
}

/// The binary called `name` among `artifacts`.
pub(crate) fn binary<'a>(artifacts: &'a [Artifact], name: &str) -> Result<&'a Path> {
    let found = artifacts.iter().find(|artifact| !artifact.is_test && artifact.target == name);
    Ok(&found.with_context(|| format!("this checkout builds no `{name}` yet"))?.executable)
}

/// Parses a line of cargo's messages. Most are not about a program.
fn parse(line: &str) -> Result<Option<Artifact>> {
    let message: Value = serde_json::from_str(line).context("cargo wrote no JSON")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let Some(executable) = text(&message["executable"]) else { return Ok(None) };
    let manifest = PathBuf::from(text(&message["manifest_path"]).unwrap_or_default());
    Ok(Some(Artifact {
        package: manifest.parent().unwrap_or(&manifest).to_owned(),
        target: text(&message["target"]["name"]).unwrap_or_default(),
        is_test: message["profile"]["test"] == true,
        is_integration_test: message["target"]["kind"][0] == "test",
        executable: executable.into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_from_libraries_and_binaries_from_tests() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml",
                "target":{{"name":"a"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        assert_eq!(parse(&line(false, "null")).expect("JSON"), None);
        let binary = parse(&line(false, r#""/t/a""#)).expect("JSON").expect("a program");
        assert_eq!((binary.package.as_path(), binary.is_test), (Path::new("/w/a"), false));
        let test = parse(&line(true, r#""/t/a-1""#)).expect("JSON").expect("a program");
        assert!(super::binary(std::slice::from_ref(&test), "a").is_err());
        assert_eq!(super::binary(&[test, binary], "a").expect("built"), Path::new("/t/a"));
    }
}
