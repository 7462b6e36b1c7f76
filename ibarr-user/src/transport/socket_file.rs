// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A Unix socket that programs find by the name of its file, which others may remove or replace at any time. Only a
//! file that is known to be ours, by device and inode, is ever removed, or one that no process serves any more.

use std::fs::{self, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::retry::Repair;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use thiserror::Error;
use tokio::net::UnixListener as Accepting;
use tracing::warn;

/// How often to [look](SocketFile::look).
pub(crate) const LOOK: Duration = Duration::from_secs(2);

/// Pause after an error of accept(2), which other processes may cause (`EMFILE`).
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// Why a socket file is not there.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// Another program serves it, or has put it in the place of ours.
    #[error(
        "{0}: another program has a socket or file of this name: stop that program, or remove the file"
    )]
    Taken(PathBuf),
    /// A file that is not a socket has its name.
    #[error("{0}: a file that is not a socket has this name; remove it")]
    NoSocket(PathBuf),
    /// It is not made again yet.
    #[error("{0}: another program removes it again and again; it is made again after a while")]
    Paused(PathBuf),
    /// A system call failed.
    #[error("{0}: cannot be made; is the directory there and ours to write?")]
    Io(PathBuf, #[source] io::Error),
}

/// A socket that listens at a file. Dropping it removes the file, if it is ours.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// While it is open, no other file gets its inode number.
    listener: UnixListener,
    file: (u64, u64),
    repair: Repair,
}

impl SocketFile {
    /// Listens for all users. Replaces a socket that no process serves.
    ///
    /// # Errors
    /// If something else has the name, or the socket cannot be made.
    pub(crate) fn bind(path: &Path) -> Result<Self, Error> {
        let io_error = |error| Error::Io(path.to_owned(), error);
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(error)),
            Ok(file) if !file.file_type().is_socket() => return Err(Error::NoSocket(path.into())),
            Ok(_) if is_served(path).map_err(|errno| io_error(errno.into()))? => {
                return Err(Error::Taken(path.into()));
            }
            Ok(_) => fs::remove_file(path).map_err(io_error)?,
        }
        Self::make(path)
    }

    /// bind(2) replaces nothing.
    fn make(path: &Path) -> Result<Self, Error> {
        let make = || {
            let listener = UnixListener::bind(path)?;
            let file = identity(&fs::symlink_metadata(path)?);
            let this = Self { path: path.to_owned(), listener, file, repair: Repair::default() };
            this.listener.set_nonblocking(true)?;
            fs::set_permissions(path, Permissions::from_mode(0o666))?;
            Ok(this)
        };
        make().map_err(|error: io::Error| match error.kind() {
            ErrorKind::AddrInUse => Error::Taken(path.into()),
            _ => Error::Io(path.into(), error),
        })
    }

    /// Where clients are accepted. Must be called within a runtime.
    ///
    /// # Errors
    /// Errors of dup(2) and epoll_ctl(2).
    pub(crate) fn listen(&self) -> Result<Accepting, Error> {
        let listener = self.listener.try_clone().and_then(Accepting::from_std);
        listener.map_err(|error| Error::Io(self.path.clone(), error))
    }

    /// Whether no other program has removed or replaced the file.
    pub(crate) fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|there| identity(&there) == self.file)
    }

    /// Makes the file again if another program has removed it, and returns where clients are accepted from then on. May
    /// wait for the file system. Must be called within a runtime.
    ///
    /// # Errors
    /// If another file has its name, or it cannot be made yet.
    pub(crate) fn look(&mut self, now: Instant) -> Result<Option<Accepting>, Error> {
        if self.is_there() {
            return Ok(None);
        }
        match fs::symlink_metadata(&self.path) {
            Ok(_) => return Err(Error::Taken(self.path.clone())),
            Err(_) if self.repair.due(now) > now => return Err(Error::Paused(self.path.clone())),
            Err(_) => {}
        }
        let mut made = Self::make(&self.path)?;
        made.repair = self.repair;
        // If that fails, the new file goes with it, and the next look makes another.
        let accepting = made.listen()?;
        warn!("{}: another program has removed the socket; it is made again", self.path.display());
        *self = made;
        Ok(Some(accepting))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            // At worst a dead socket stays, which the next start replaces.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Device and inode.
pub(crate) fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Whether a process listens there, or it cannot be told. Waits for no process.
fn is_served(path: &Path) -> nix::Result<bool> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    Ok(connect(probe.as_raw_fd(), &UnixAddr::new(path)?) != Err(Errno::ECONNREFUSED))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;
    use crate::tests::ShortDir;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    #[test]
    fn served_sockets_and_other_files_are_never_replaced() {
        let dir = ShortDir::new();
        let path = |name| dir.path().join(name);
        let _stream = UnixListener::bind(path("stream")).unwrap();
        let _datagram = UnixDatagram::bind(path("datagram")).unwrap();
        // Its queue is full, and it accepts no connection.
        let full = UnixListener::bind(path("full")).unwrap();
        nix::sys::socket::listen(&full, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let _waiting = UnixStream::connect(path("full")).unwrap();
        fs::write(path("file"), "a letter").unwrap();
        for (name, said) in [
            ("stream", "another program has"),
            ("datagram", "another program has"),
            ("full", "another program has"),
            ("file", "not a socket"),
        ] {
            let before = identity(&fs::symlink_metadata(path(name)).unwrap());
            let refusal = SocketFile::bind(&path(name)).unwrap_err().to_string();
            assert!(refusal.contains(said), "{name}: {refusal}");
            assert_eq!(identity(&fs::symlink_metadata(path(name)).unwrap()), before, "{name}");
        }
        drop(UnixListener::bind(path("dead")).unwrap());
        let ours = SocketFile::bind(&path("dead")).unwrap();
        UnixStream::connect(path("dead")).unwrap();
        drop(ours);
        assert!(!path("dead").exists());
    }

    #[tokio::test]
    async fn removed_file_is_made_again_and_another_in_its_place_stays() {
        let dir = ShortDir::new();
        let path = dir.path().join("sock");
        let mut ours = SocketFile::bind(&path).unwrap();
        assert!(ours.look(NOW).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        assert!(ours.look(NOW).unwrap().is_some());
        UnixStream::connect(&path).unwrap();
        // Again, at once.
        fs::remove_file(&path).unwrap();
        assert!(matches!(ours.look(NOW), Err(Error::Paused(_))));
        assert!(ours.look(NOW + LOOK).unwrap().is_some());
        // Theirs are of every kind, and not all of them listen.
        fs::remove_file(&path).unwrap();
        let theirs = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(ours.look(NOW + LOOK * 10), Err(Error::Taken(_))));
        drop(theirs);
        assert!(matches!(ours.look(NOW + LOOK * 10), Err(Error::Taken(_))));
        drop(ours);
        assert!(path.exists());
    }
}
