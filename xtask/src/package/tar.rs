// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An archive of the same files as in the packages, for systems without dpkg.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::Content;
use crate::process;

/// Makes the archive in `target/package`.
pub(super) fn make(content: &Content<'_>) -> Result<PathBuf> {
    let name = format!("ibarr-{}-{}", content.version, content.architecture.rust());
    let directory = &content.directory;
    let parent = directory.join("tar");
    if parent.exists() {
        fs::remove_dir_all(&parent)?;
    }
    let root = parent.join(&name);
    content.install(&root)?;
    content.licences(&root)?;
    let archive = directory.join(format!("{name}.tar.xz"));
    let mut tar = Command::new("tar");
    // Several threads of xz would cut the archive into blocks.
    tar.env("XZ_OPT", "-T1").args(["--sort=name", "--format=gnu", "--numeric-owner"]);
    tar.args(["--owner=0", "--group=0"]).arg(format!("--mtime=@{}", content.epoch));
    tar.arg("--directory").arg(&parent).arg("-cJf").arg(&archive).arg(&name);
    process::output(&mut tar)?;
    Ok(archive)
}
