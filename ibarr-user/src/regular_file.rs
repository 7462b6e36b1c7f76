// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The one way to read a file that others have written. It never hangs: another kind of file may block its reader,
//! have no end, or do something when it is opened, so it is refused by its kind. /dev/null is an empty file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::libc;

/// What a symbolic link in the place of the file means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    /// The file that it leads to.
    Followed,
    /// That the file is not ours.
    Refused,
}

/// Most bytes of a configuration file, and of a small file of the kernel.
pub(crate) const MOST: usize = 1 << 20;

/// Opens a regular file for reading.
///
/// # Errors
/// Those of open(2); `InvalidInput` if it is another kind of file.
pub(crate) fn open(path: &Path, link: Link) -> io::Result<File> {
    let (found, no_follow) = match link {
        Link::Followed => (fs::metadata(path)?, 0),
        Link::Refused => (fs::symlink_metadata(path)?, libc::O_NOFOLLOW),
    };
    check(&found)?;
    // It may be replaced meanwhile.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | no_follow;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file.
///
/// # Errors
/// Those of [`open`] and [`bounded`].
pub(crate) fn read(path: &Path, link: Link, most: usize) -> io::Result<Vec<u8>> {
    bounded(open(path, link)?, most)
}

/// Reads to the end.
///
/// # Errors
/// Those of `from`; `FileTooLarge` if it has more than `most` bytes.
pub(crate) fn bounded(from: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take((most as u64).saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it is longer than {most} bytes"),
        ));
    }
    Ok(bytes)
}

/// The text of a small file, such as one of sysfs, without the line's end.
pub(crate) fn text(path: &Path) -> Option<String> {
    let text = String::from_utf8(read(path, Link::Followed, MOST).ok()?).ok()?;
    Some(text.trim().to_owned())
}

fn check(found: &Metadata) -> io::Result<()> {
    // Operators name /dev/null for an empty file.
    let is_null = found.file_type().is_char_device() && found.rdev() == libc::makedev(1, 3);
    let Some(kind) = other_kind(found).filter(|_| !is_null) else { return Ok(()) };
    let message = format!("it is a {kind}, not a regular file; name one");
    Err(io::Error::new(ErrorKind::InvalidInput, message))
}

/// What it is, if it is no regular file.
pub(crate) fn other_kind(found: &Metadata) -> Option<&'static str> {
    Some(match found.file_type() {
        kind if kind.is_file() => return None,
        kind if kind.is_symlink() => "symbolic link",
        kind if kind.is_dir() => "directory",
        kind if kind.is_fifo() => "FIFO",
        kind if kind.is_socket() => "socket",
        _ => "device",
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use tempfile::TempDir;

    use super::*;
    use crate::tests::ShortDir;

    #[test]
    fn other_kinds_of_file_are_refused_by_name_without_being_opened() {
        let dir = ShortDir::new();
        let at = |name: &str| dir.path().join(name);
        mkfifo(&at("FIFO"), Mode::S_IRWXU).unwrap();
        fs::create_dir(at("directory")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        symlink("/dev/zero", at("device")).unwrap();
        for kind in ["FIFO", "directory", "socket", "device"] {
            let error = read(&at(kind), Link::Followed, 9).unwrap_err();
            assert_eq!(error.to_string(), format!("it is a {kind}, not a regular file; name one"));
            assert_eq!((text(&at(kind)), error.kind()), (None, ErrorKind::InvalidInput));
        }
    }

    #[test]
    fn file_is_read_up_to_the_bound_and_by_a_link_where_allowed() {
        let dir = TempDir::new().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, " nine\nbyt\n").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read(&link, Link::Followed, 10).unwrap(), b" nine\nbyt\n");
        assert_eq!(text(&link).as_deref(), Some("nine\nbyt"));
        assert_eq!(read(&file, Link::Refused, 9).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read(Path::new("/dev/null"), Link::Followed, 9).unwrap(), b"");
        let refused = read(&link, Link::Refused, 10).unwrap_err().to_string();
        assert_eq!(refused, "it is a symbolic link, not a regular file; name one");
    }
}
