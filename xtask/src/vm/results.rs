// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The result files of a guest, which writes them to a disk one behind the other.
//!
//! ```text
//! length of the name   u32, little-endian; 0 ends the list
//! name                 no directory
//! length of the content u64, little-endian
//! content
//! ```
//!
//! `ibarr-testbed/src/vm/init.rs` writes this format.

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// Size of the disk. The file is sparse.
const SIZE: u64 = 1 << 30;
const NAME_MAX: u32 = 255;

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
    let file = File::open(disk).with_context(|| disk.display().to_string())?;
    let names = read(&mut BufReader::new(file), directory);
    let names = names.with_context(|| disk.display().to_string())?;
    fs::remove_file(disk).with_context(|| disk.display().to_string())?;
    Ok(names)
}

fn read(disk: &mut impl Read, directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    loop {
        let mut length = [0; 4];
        disk.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length == 0 {
            return Ok(names);
        }
        ensure!(length <= NAME_MAX, "a name of {length} bytes");
        let mut name = vec![0; usize::try_from(length)?];
        disk.read_exact(&mut name)?;
        let name = String::from_utf8(name).context("a name that is no text")?;
        if name.contains('/') || name == ".." || name == "." {
            bail!("{name:?} is no name of a file");
        }
        let mut length = [0; 8];
        disk.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        let mut to = File::create(directory.join(&name)).with_context(|| name.clone())?;
        let copied = std::io::copy(&mut disk.take(length), &mut to)?;
        ensure!(copied == length, "{name} is truncated");
        names.push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, content) in files {
            bytes.extend(u32::try_from(name.len()).expect("short").to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend((content.len() as u64).to_le_bytes());
            bytes.extend(*content);
        }
        bytes.extend([0; 512]);
        bytes
    }

    #[test]
    fn files_come_back_and_only_into_their_directory() {
        let dir = std::env::temp_dir().join(format!("xtask-results-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("temporary directory");
        let good = disk(&[("a.log", b"one"), ("empty", b"")]);
        assert_eq!(read(&mut &good[..], &dir).expect("whole"), ["a.log", "empty"]);
        assert_eq!(fs::read(dir.join("a.log")).expect("there"), b"one");
        for bad in [disk(&[("../a", b"")]), disk(&[("..", b"")]), good[..10].to_vec()] {
            assert!(read(&mut &bad[..], &dir).is_err(), "{bad:?}");
        }
        fs::remove_dir_all(dir).expect("temporary directory");
    }
}
