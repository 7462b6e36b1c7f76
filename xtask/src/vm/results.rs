// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The result files of a guest, which writes them to a disk as a tar archive
//! (`ibtun/guest/src/init.rs`).

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process;

/// Size of the disk. The file is sparse.
const SIZE: u64 = 1 << 30;

/// Makes an empty disk.
pub(super) fn prepare(disk: &Path) -> Result<()> {
    let made = File::create(disk).and_then(|file| file.set_len(SIZE));
    made.with_context(|| format!("{} cannot be made", disk.display()))
}

/// Moves the files of the disk to `directory`, which is emptied first. Returns their names.
pub(super) fn unpack(disk: &Path, directory: &Path) -> Result<Vec<String>> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| directory.display().to_string());
        }
        _ => fs::create_dir_all(directory).with_context(|| directory.display().to_string())?,
    }
    // tar writes no file outside of the directory.
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--no-same-owner", "--file"])
        .arg(disk)
        .arg("--directory")
        .arg(directory);
    process::output(&mut tar)?;
    fs::remove_file(disk).with_context(|| disk.display().to_string())?;
    let name = |entry: std::io::Result<fs::DirEntry>| {
        Ok(entry?.file_name().to_string_lossy().into_owned())
    };
    fs::read_dir(directory)?.map(name).collect()
}
