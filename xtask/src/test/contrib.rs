// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The files of `contrib`: which test each has, and checkers that are programs in Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process;
use crate::workspace::Workspace;

/// From PyPI: the schemas of Kubernetes with their checker, and one of YAML.
const CHECKERS: [&str; 2] = ["kubernetes-validate==1.37.0", "yamllint==1.38.0"];

/// The directory of the checkers' programs, which are installed if needed.
///
/// # Errors
/// The error says what the machine lacks.
pub(super) fn checkers(workspace: &Workspace) -> Result<PathBuf> {
    let directory = workspace.target().join("tools").join("contrib-checkers");
    let bin = directory.join("bin");
    // Written last.
    let stamp = directory.join("packages.txt");
    if fs::read_to_string(&stamp).is_ok_and(|packages| packages == CHECKERS.join(" ")) {
        return Ok(bin);
    }
    eprintln!("tools: fetching {} from PyPI", CHECKERS.join(" and "));
    process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))
        .context("tools: python3 with venv is needed")?;
    process::run(Command::new(bin.join("pip")).args(["install", "--quiet"]).args(CHECKERS))?;
    fs::write(&stamp, CHECKERS.join(" "))?;
    Ok(bin)
}

/// Checks each YAML file, and what goes to Kubernetes against its schema.
pub(super) fn check(workspace: &Workspace, checkers: &Path) -> Result<()> {
    let contrib = workspace.root().join("contrib");
    let mut yaml = Command::new(checkers.join("yamllint"));
    yaml.arg("--strict").arg("--config-file").arg(contrib.join(".yamllint"));
    process::run(yaml.arg(&contrib))?;
    let mut kubernetes = Command::new(checkers.join("kubernetes-validate"));
    process::run(kubernetes.arg("--strict").arg(contrib.join("k8s/daemonset.yaml")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file or directory of `contrib`, and the source that runs it.
    const PROOFS: [(&str, &str); 8] = [
        (".yamllint", "xtask/src/test/contrib.rs"),
        ("ansible/", "ibarr-testbed/tests/install/ansible.rs"),
        ("container/", "ibarr-testbed/tests/install/podman.rs"),
        ("grafana/", "ibarr-testbed/src/monitor/mod.rs"),
        ("k8s/", "ibarr-testbed/tests/install/container.rs"),
        ("prometheus/", "ibarr-testbed/src/monitor/mod.rs"),
        ("slurm/", "ibarr-user/tests/binary/prolog.rs"),
        ("systemd/root.conf", "ibarr-testbed/tests/install/service.rs"),
    ];

    #[test]
    fn each_file_of_contrib_is_run_by_a_test() {
        let root = Workspace::find().expect("a workspace").root().to_owned();
        let mut files = Vec::new();
        list(&root.join("contrib"), &mut files);
        for file in files {
            let file =
                file.strip_prefix(root.join("contrib")).expect("in it").display().to_string();
            let proof = PROOFS.iter().find(|(of, _)| file.starts_with(of));
            let (of, proof) = proof.unwrap_or_else(|| panic!("contrib/{file}: no test runs it"));
            let source = fs::read_to_string(root.join(proof)).expect(proof);
            let name = of.trim_end_matches('/');
            assert!(source.contains(name), "contrib/{file}: {proof} does not name it");
        }
    }

    fn list(directory: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { list(&path, files) } else { files.push(path) }
        }
    }
}
