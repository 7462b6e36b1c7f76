// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The files of the configuration: one, and over it those of its directory.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::Error;
use super::reader::Source;
use crate::regular_file::{self, Link, MOST};

/// Whether the configuration file may be absent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Absent {
    /// The defaults apply.
    Allowed,
    /// Absence is an error.
    Refused,
}

/// Reads `path`, then the files `*.toml` of the directory beside it that has its name with `.d` instead of
/// `.toml`, in the order of their names. The result is empty if there is none.
///
/// # Errors
/// A file or the directory cannot be read, is of another kind, or longer than a megabyte.
pub(crate) fn gather(path: &Path, absent: Absent) -> Result<Vec<Source>, Error> {
    let mut sources = Vec::new();
    match read(path) {
        Ok(source) => sources.push(source),
        Err(Error::Read { source, .. })
            if absent == Absent::Allowed && source.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    for path in drop_ins(&path.with_extension("d"))? {
        sources.push(read(&path)?);
    }
    Ok(sources)
}

/// Reads a configuration file from `from`.
///
/// # Errors
/// It cannot be read, or is longer than a megabyte.
pub(crate) fn read_from(from: impl Read, path: &Path) -> Result<Source, Error> {
    let text = regular_file::bounded(from, MOST).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    });
    match text {
        Ok(text) => Ok(Source { name: path.display().to_string(), text }),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// What to do about an error of a file.
pub(super) fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            "; give the daemon's user the right to read it (chmod a+r), and to enter its directory"
        }
        ErrorKind::NotFound => "; write it, or name another file",
        ErrorKind::InvalidData => "; write it in UTF-8",
        ErrorKind::FileTooLarge => "; is it the right file?",
        _ => "",
    }
}

fn read(path: &Path) -> Result<Source, Error> {
    match regular_file::open(path, Link::Followed) {
        Ok(file) => read_from(file, path),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

fn drop_ins(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Read { path: directory.to_owned(), source };
    let entries = match directory.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|extension| extension == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
