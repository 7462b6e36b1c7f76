// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A file that others read while it is replaced. It is written under another name beside its place and renamed when
//! it is whole, so that a reader finds the old content or the new one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process;

use crate::regular_file;

/// A file that is not in its place yet. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub(crate) struct WholeFile {
    place: PathBuf,
    beside: Beside,
    file: File,
}

impl WholeFile {
    /// Begins a file for `place`, named after it with `suffix`. Only one writer may use a suffix at a time: a file of
    /// that name was left by one that was killed, and is removed.
    ///
    /// # Errors
    /// Errors of the file system; `InvalidInput` if one of the names is taken by another kind of file.
    pub(crate) fn begin(place: &Path, suffix: &str, mode: u32) -> io::Result<Self> {
        is_free_or_regular(place)?;
        let mut beside = OsString::from(place);
        beside.push(suffix);
        let beside = PathBuf::from(beside);
        if is_free_or_regular(&beside)? {
            fs::remove_file(&beside)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        let this = Self { place: place.to_owned(), beside: Beside(beside), file };
        // Whatever the umask is.
        this.file.set_permissions(Permissions::from_mode(mode))?;
        Ok(this)
    }

    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// Puts the file into its place. A reader finds the old or the new content, even after a power failure.
    pub(crate) fn end(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.beside.0, &self.place)?;
        let parent = self.place.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Replaces `place` by a file that every user may read. Processes that do this at the same time do not meet.
///
/// # Errors
/// As for [`WholeFile::begin`], and those of write(2).
pub(crate) fn replace(place: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = WholeFile::begin(place, &format!(".{}.new", process::id()), 0o644)?;
    file.write_all(content)?;
    file.end()
}

/// The name of an unfinished file, removed when dropped, so that a failed write takes no disk
/// space. After the rename, no file has this name.
#[derive(Debug)]
struct Beside(PathBuf);

impl Drop for Beside {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// Whether the name is free or a regular file. Opening a file of another kind may block, replacing
/// it may do harm.
fn is_free_or_regular(path: &Path) -> io::Result<bool> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    let Some(kind) = regular_file::other_kind(&found) else { return Ok(true) };
    let message = format!(
        "{} is a {kind}, not a regular file; move it, or name another file",
        path.display()
    );
    Err(io::Error::new(ErrorKind::InvalidInput, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_of_a_replaced_file_never_finds_half_of_it() {
        const LEN: usize = 100_000;
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("file");
        replace(&place, &vec![0; LEN]).unwrap();
        // Two writers at the same time. The reading ends with the first of them.
        let writer = |byte: u8| {
            let place = place.clone();
            std::thread::spawn(move || {
                for _ in 0..50 {
                    // As two processes, each with a suffix of its own.
                    let mut file = WholeFile::begin(&place, &format!(".{byte}"), 0o644).unwrap();
                    file.write_all(&vec![byte; LEN]).unwrap();
                    file.end().unwrap();
                }
            })
        };
        let writers = [1, 2].map(writer);
        while !writers.iter().any(std::thread::JoinHandle::is_finished) {
            let read = fs::read(&place).unwrap();
            assert!(
                read.len() == LEN && read.iter().all(|byte| *byte == read[0]),
                "{}",
                read.len()
            );
        }
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o644);
    }
}
