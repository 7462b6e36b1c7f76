// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The directories of the checkout.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::process;

/// The checkout that `cargo xtask` was typed in.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self> {
        // The variable at run time comes first: a shared target directory may have another checkout's build.
        let xtask = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = xtask.parent().context("xtask/ has a parent directory")?.to_owned();
        let metadata = metadata(&root, &["--no-deps"])?;
        let target = metadata["target_directory"]
            .as_str()
            .context("`cargo metadata` names no target directory")?
            .into();
        Ok(Self { root, target })
    }

    /// The top of the checkout.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// `cargo` with `arguments`, in the checkout.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        cargo(&self.root, arguments)
    }

    /// The workspace of the software InfiniBand.
    pub(crate) fn house(&self) -> PathBuf {
        self.root.join("ibtun")
    }

    /// `cargo` with `arguments`, in that workspace. Its target directory is the same.
    pub(crate) fn house_cargo(&self, arguments: &[&str]) -> Command {
        cargo(&self.house(), arguments)
    }
}

/// The output of `cargo metadata` for the workspace at `root`.
pub(crate) fn metadata(root: &Path, arguments: &[&str]) -> Result<Value> {
    let mut command = cargo(root, &["metadata", "--format-version=1", "--locked"]);
    let json = process::output(command.args(arguments))?;
    serde_json::from_str(&json).context("`cargo metadata` wrote no JSON")
}

/// `cargo` with `arguments`, in `root`.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments);
    if is_ci() {
        // It builds once, and what a second build needs takes a third of the disk.
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Whether this is continuous integration, which sets `CI`.
pub(crate) fn is_ci() -> bool {
    is_set(env::var("CI").ok().as_deref())
}

fn is_set(variable: Option<&str>) -> bool {
    variable.is_some_and(|value| !matches!(value, "" | "0" | "false"))
}

/// The default target of rustc.
pub(crate) fn host_triple() -> Result<String> {
    let version = process::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_is_told_by_its_variable() {
        assert!(is_set(Some("true")) && is_set(Some("1")));
        assert!(!is_set(None) && !is_set(Some("")) && !is_set(Some("false")));
    }
}
