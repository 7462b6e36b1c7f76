// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A directory held by its descriptor. All names below it are resolved from the descriptor, one
//! component at a time, and symbolic links are not followed. So nothing outside of it is reached if
//! another process moves or replaces it meanwhile.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::sys::statfs::{BPF_FS_MAGIC, fstatfs};
use nix::unistd::{UnlinkatFlags, unlinkat};

#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Directory,
    /// A regular file, which on a bpffs is a pin.
    Pin,
    Other,
}

/// Owner and mode of a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) uid: u32,
    pub(super) mode: u32,
}

impl Directory {
    /// Opens a directory by its path. Symbolic links are followed in this path only: the
    /// administrator wrote it, up to the last name.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { fd: open(path, flags, Mode::empty())?, path: path.to_owned() })
    }

    /// Opens a directory in this one for reading; a symbolic link is an error.
    pub(super) fn child(&self, name: &str) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        Ok(Self { fd, path: self.path.join(name) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A second descriptor for flock(2).
    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// A path to `name` in this directory, valid even if the directory is renamed.
    pub(super) fn path_by_descriptor(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()).into()
    }

    pub(super) fn is_bpffs(&self) -> io::Result<bool> {
        Ok(fstatfs(&self.fd)?.filesystem_type() == BPF_FS_MAGIC)
    }

    pub(super) fn access(&self) -> io::Result<Access> {
        let FileStat { st_uid: uid, st_mode: mode, .. } = fstat(&self.fd)?;
        Ok(Access { uid, mode: mode & 0o7777 })
    }

    /// The device number of its file system.
    pub(super) fn device(&self) -> io::Result<u64> {
        Ok(fstat(&self.fd)?.st_dev)
    }

    /// The entries, ordered by name. A name that is not UTF-8 is replaced by one that never matches
    /// ours.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut names = Vec::new();
        for entry in Dir::openat(&self.fd, ".", flags, Mode::empty())?.iter() {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// `None` if there is no entry with this name.
    pub(super) fn kind(&self, name: &str) -> io::Result<Option<Kind>> {
        let found = match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(None),
            found => found?,
        };
        let file_type = SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits());
        Ok(Some(match file_type {
            SFlag::S_IFDIR => Kind::Directory,
            SFlag::S_IFREG => Kind::Pin,
            _ => Kind::Other,
        }))
    }

    /// Device and inode of an entry, here or in a directory below; `.` is this directory.
    pub(super) fn identity(&self, name: &str) -> io::Result<Option<(u64, u64)>> {
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => Ok(None),
            found => Ok(found.map(|found| Some((found.st_dev, found.st_ino)))?),
        }
    }

    /// Makes a directory with mode 0700; `false` if the name exists already.
    pub(super) fn make(&self, name: &str) -> io::Result<bool> {
        match mkdirat(&self.fd, name, Mode::S_IRWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an entry that is not a directory. A missing entry is no error.
    pub(super) fn remove_pin(&self, name: &str) -> io::Result<()> {
        if_there(unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)).map(drop)
    }

    /// Removes an empty directory; `false` if it is not empty or does not exist.
    pub(super) fn remove_empty(&self, name: &str) -> io::Result<bool> {
        match if_there(unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir)) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
            removed => removed,
        }
    }
}

fn if_there(removed: nix::Result<()>) -> io::Result<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
