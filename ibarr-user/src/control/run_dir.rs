// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The directory of the control socket, locked by one daemon at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::libc;
use thiserror::Error;

/// The directory, locked until the value is dropped or the process ends.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

/// Why the directory cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// Another daemon has locked it.
    #[error("{path}: another ibarr{owner} runs here; stop it, or give this one its own --run-dir")]
    Taken {
        /// Path of the directory.
        path: PathBuf,
        /// ` (pid 123)`, or empty if the process is not known.
        owner: String,
    },
    /// The directory or the lock file cannot be made.
    #[error("{0}: cannot be made or locked; is the directory there and ours to write?")]
    Io(PathBuf, #[source] io::Error),
}

/// The lock file. It is never removed: otherwise two daemons could lock two files of one name.
const LOCK: &str = "lock";

impl RunDir {
    /// Makes the directory if need be, and locks a file in it. `flock(2)` needs no more than a
    /// descriptor, and other users can open the directory, but not the file.
    ///
    /// # Errors
    /// [`Error::Taken`] if another daemon has locked it.
    pub fn lock(path: &Path) -> Result<Self, Error> {
        let io_error = |path: &Path| {
            let path = path.to_owned();
            |error| Error::Io(path, error)
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(path).map_err(io_error(path))?;
        let file = path.join(LOCK);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&file)
            .map_err(io_error(&file))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let path = path.to_owned();
                return Err(Error::Taken { path, owner: owner(&mut lock) });
            }
            Err(fs::TryLockError::Error(error)) => return Err(io_error(&file)(error)),
        }
        // A daemon that root started must not lock out the one that the owner of the directory starts next.
        let owner = fs::metadata(path).map_err(io_error(path))?.uid();
        if lock.metadata().map_err(io_error(&file))?.uid() != owner {
            // Only root can; another user has opened the file, so it is no obstacle.
            drop(fchown(&lock, Some(owner), None));
        }
        // For people, and for the message above.
        let note = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        note.map_err(io_error(&file))?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Empty if the other daemon has not written its pid yet.
fn owner(lock: &mut File) -> String {
    let mut text = String::new();
    let pid = lock.take(16).read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
    pid.map_or(String::new(), |pid: u32| format!(" (pid {pid})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_belongs_to_one_daemon_until_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("run");
        let first = RunDir::lock(&dir).unwrap();
        let pid = std::process::id();
        let refusal = RunDir::lock(&dir).unwrap_err().to_string();
        assert!(refusal.contains(&format!("another ibarr (pid {pid}) runs here")), "{refusal}");
        drop(first);
        drop(RunDir::lock(&dir).unwrap());
    }
}
