// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The directory of the control socket, locked by one daemon at a time.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc;
use thiserror::Error;

use crate::transport::socket_file::{LOOK, identity};

/// The directory, locked until the value is dropped or the process ends.
///
/// The lock is on the directory itself, so it outlasts a cleaner that empties it. Any user who can read the directory
/// can lock it as well, so a file that only its owner can open is locked, too: it tells a daemon from such a user. The
/// file is also the lock of ibarr 1.0.0.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    directory: File,
    lock: File,
}

/// Why the directory cannot be used.
#[derive(Debug, Error)]
pub(crate) enum Error {
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

/// The lock file. A daemon never removes it: otherwise two could lock two files of one name.
const LOCK: &str = "lock";

/// A daemon whose directory was emptied has made its lock file again after this.
const MADE_AGAIN: Duration = LOOK.saturating_mul(2);

impl RunDir {
    /// Makes the directory if need be, and locks it.
    ///
    /// # Errors
    /// [`Error::Taken`] if another daemon has locked it.
    pub(crate) fn lock(path: &Path) -> Result<Self, Error> {
        let io_error = |error| Error::Io(path.to_owned(), error);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(path).map_err(io_error)?;
        let mut options = OpenOptions::new();
        let directory = options.read(true).custom_flags(libc::O_DIRECTORY).open(path);
        let (directory, begun) = (directory.map_err(io_error)?, Instant::now());
        loop {
            let is_taken = matches!(directory.try_lock(), Err(TryLockError::WouldBlock));
            let lock = lock_file(path)?;
            if !is_taken || begun.elapsed() > MADE_AGAIN {
                return Ok(Self { path: path.to_owned(), directory, lock });
            }
            drop(lock);
            sleep(MADE_AGAIN / 20);
        }
    }

    /// Path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the locked directory and file have their names.
    pub(crate) fn is_there(&self) -> bool {
        is_at(&self.directory, &self.path) && is_at(&self.lock, &self.path.join(LOCK))
    }

    /// Makes and locks again what is not there, and says whether the directory is another one now.
    ///
    /// # Errors
    /// As [`RunDir::lock`].
    pub(crate) fn restore(&mut self) -> Result<bool, Error> {
        let is_same = is_at(&self.directory, &self.path);
        if is_same {
            self.lock = lock_file(&self.path)?;
        } else {
            *self = Self::lock(&self.path)?;
        }
        Ok(!is_same)
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let found =
        fs::metadata(path).and_then(|there| Ok(identity(&there) == identity(&file.metadata()?)));
    found.unwrap_or(false)
}

fn lock_file(directory: &Path) -> Result<File, Error> {
    let path = directory.join(LOCK);
    let io_error = |error| Error::Io(path.clone(), error);
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path)
        .map_err(io_error)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::Taken { path: directory.to_owned(), owner: owner(&mut lock) });
        }
        Err(TryLockError::Error(error)) => return Err(io_error(error)),
    }
    // A daemon that root started must not lock out the one that the owner of the directory starts next.
    let owner = fs::metadata(directory).map_err(io_error)?.uid();
    if lock.metadata().map_err(io_error)?.uid() != owner {
        // Only root can; another user has opened the file, so it is no obstacle.
        drop(fchown(&lock, Some(owner), None));
    }
    // For people, and for the message above.
    lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(io_error)?;
    Ok(lock)
}

/// Empty if the other daemon has not written its pid yet.
fn owner(lock: &mut File) -> String {
    let mut text = String::new();
    let pid = lock.take(16).read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
    pid.map_or(String::new(), |pid: u32| format!(" (pid {pid})"))
}

#[cfg(test)]
mod tests {
    use std::thread;

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

    #[test]
    fn neither_an_emptied_directory_nor_that_of_an_older_daemon_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = RunDir::lock(dir.path()).unwrap();
        fs::remove_file(dir.path().join(LOCK)).unwrap();
        let refused = || matches!(RunDir::lock(dir.path()), Err(Error::Taken { .. }));
        thread::scope(|scope| {
            // It waits for the file to be made again.
            let second = scope.spawn(refused);
            assert!(!first.restore().unwrap());
            assert!(second.join().unwrap());
        });
        drop(first);
        // 1.0.0 locks the file alone.
        let older = File::options().write(true).open(dir.path().join(LOCK)).unwrap();
        older.try_lock().unwrap();
        assert!(refused());
    }

    #[test]
    fn directory_in_the_place_of_ours_is_locked_unless_another_daemon_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let (at, aside) = (dir.path().join("run"), dir.path().join("aside"));
        let mut first = RunDir::lock(&at).unwrap();
        assert!(first.is_there());
        fs::rename(&at, &aside).unwrap();
        assert!(!first.is_there());
        assert!(first.restore().unwrap() && first.is_there());
        fs::remove_dir_all(&at).unwrap();
        let second = RunDir::lock(&at).unwrap();
        assert!(matches!(first.restore(), Err(Error::Taken { .. })));
        drop(second);
        assert!(first.restore().unwrap() && first.is_there());
    }

    #[test]
    fn user_who_locks_the_directory_keeps_no_daemon_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = File::open(dir.path()).unwrap();
        theirs.lock().unwrap();
        let ours = RunDir::lock(dir.path()).unwrap();
        assert!(ours.is_there());
        assert!(matches!(RunDir::lock(dir.path()), Err(Error::Taken { .. })));
    }
}
