// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The files of the configuration: one, and over it those of its directory.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::Error;
use super::reader::Source;

/// A longer file is refused, because it is no configuration.
const LONGEST: usize = 1 << 20;

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
/// A file or the directory cannot be read, or a file is longer than a megabyte.
pub fn gather(path: &Path, absent: Absent) -> Result<Vec<Source>, Error> {
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
pub fn read_from(from: impl Read, path: &Path) -> Result<Source, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut text = Vec::new();
    from.take(LONGEST as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() > LONGEST {
        return Err(Error::TooLong { path: path.to_owned() });
    }
    let text = String::from_utf8(text)
        .map_err(|error| failed(io::Error::new(ErrorKind::InvalidData, error)))?;
    Ok(Source { name: path.display().to_string(), text })
}

/// What to do about an error of a file.
pub(super) fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            "; give the daemon's user the right to read it (chmod a+r), and to enter its directory"
        }
        ErrorKind::NotFound => "; write it, or name another file",
        ErrorKind::InvalidData => "; write it in UTF-8",
        _ => "",
    }
}

fn read(path: &Path) -> Result<Source, Error> {
    let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    read_from(file, path)
}

fn drop_ins(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Read { path: directory.to_owned(), source };
    let entries = match directory.read_dir() {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
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
