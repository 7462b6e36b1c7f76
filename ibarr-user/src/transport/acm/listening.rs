// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets where clients of ACM connect: a Unix socket, and a TCP port of this machine alone.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, SockaddrLike as _, SockaddrStorage, getsockname};
use tokio::net::{TcpListener, UnixListener};

use crate::transport::socket_file::{Error, SocketFile};

/// Where librdmacm looks, a link beside the socket.
pub const FOR_LIBRDMACM: &str = "ibacm.sock";

/// A socket where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// A socket file.
    Unix(UnixListener),
    /// A port of 127.0.0.1 or ::1.
    Tcp(TcpListener),
}

impl Listener {
    /// Takes over an inherited socket. Must be called within a runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch it.
    pub fn inherited(fd: OwnedFd) -> io::Result<Self> {
        let address: SockaddrStorage = getsockname(fd.as_raw_fd())?;
        match address.family() {
            Some(AddressFamily::Unix) => Self::unix(fd.into()),
            _ => Self::tcp(fd.into()),
        }
    }

    /// Takes over a socket file. Must be called within a runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch it.
    pub fn unix(listener: StdUnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener).map(Self::Unix)
    }

    /// Listens at a port of 127.0.0.1. Connections of an earlier daemon to this port do not matter
    /// (`SO_REUSEADDR`). Must be called within a runtime.
    ///
    /// # Errors
    /// Errors of bind(2): `AddrInUse` if another process has the port.
    pub fn loopback(port: NonZeroU16) -> io::Result<Self> {
        Self::tcp(StdTcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port.get())))?)
    }

    fn tcp(listener: StdTcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self::Tcp)
    }

    /// The port, if it has one.
    pub fn port(&self) -> Option<NonZeroU16> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(listener) => NonZeroU16::new(listener.local_addr().ok()?.port()),
        }
    }

    /// Waits for a client. Its socket is non-blocking, and does not belong to the runtime.
    pub(super) async fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Unix(listener) => Ok(listener.accept().await?.0.into_std()?.into()),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // The end of a long reply does not wait until its start is acknowledged.
                stream.set_nodelay(true)?;
                Ok(stream.into_std()?.into())
            }
        }
    }
}

/// The socket file that this process has made. Dropping it removes the socket and the link, unless another program has
/// replaced the socket.
#[derive(Debug)]
pub struct Made {
    file: SocketFile,
    link: Link,
}

impl Made {
    /// Makes the socket, if no process serves it.
    ///
    /// # Errors
    /// If another process serves it, or it cannot be made.
    pub fn bind(path: &Path) -> io::Result<(Self, StdUnixListener)> {
        let file = SocketFile::bind(path).map_err(|error| match error {
            Error::Taken(_) => ErrorKind::AddrInUse.into(),
            Error::Io(_, error) => error,
            _ => io::Error::new(ErrorKind::AlreadyExists, "a file that is no socket"),
        })?;
        let listener = file.listener.try_clone()?;
        let link = Link { at: path.with_file_name(FOR_LIBRDMACM), target: path.to_owned() };
        Ok((Self { file, link }, listener))
    }

    /// Makes the link, or removes it.
    ///
    /// # Errors
    /// If another file has its name.
    pub fn show_to_librdmacm(&self, is_shown: bool) -> io::Result<()> {
        self.link.show(is_shown)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.file.is_there() {
            drop(self.show_to_librdmacm(false));
        }
    }
}

/// A link for librdmacm.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) at: PathBuf,
    pub(super) target: PathBuf,
}

impl Link {
    /// Makes the link, or removes it if it leads to the target. An ibacm that has ended leaves such a link, with a
    /// relative target.
    ///
    /// # Errors
    /// The name of the link, and why it cannot be made or removed.
    pub(super) fn show(&self, is_shown: bool) -> io::Result<()> {
        let dir = self.at.parent().unwrap_or(Path::new("/"));
        let leads_here = |target: PathBuf| dir.join(target) == self.target;
        let done = match (is_shown, fs::read_link(&self.at).is_ok_and(leads_here)) {
            (true, false) => symlink(&self.target, &self.at),
            (false, true) => fs::remove_file(&self.at),
            _ => Ok(()),
        };
        let at = self.at.display();
        done.map_err(|error| io::Error::new(error.kind(), format!("the link {at}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use nix::sys::socket::{Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};

    use super::*;
    use crate::tests::ShortDir;

    #[test]
    fn link_that_ibacm_left_is_used_and_any_other_named() {
        let dir = ShortDir::new();
        let [at, target] = ["ibacm.sock", "ibacm-unix.sock"].map(|name| dir.path().join(name));
        symlink("ibacm-unix.sock", &at).unwrap();
        let link = Link { at: at.clone(), target };
        link.show(true).unwrap();
        link.show(false).unwrap();
        assert!(at.symlink_metadata().is_err());
        symlink("other.sock", &at).unwrap();
        let refusal = link.show(true).unwrap_err().to_string();
        assert!(refusal.contains("/ibacm.sock: File exists"), "{refusal}");
        link.show(false).unwrap();
        assert_eq!(fs::read_link(&at).unwrap(), Path::new("other.sock"));
    }

    #[test]
    fn socket_whose_holder_is_stopped_with_a_full_queue_is_left_alone() {
        let dir = ShortDir::new();
        let path = dir.path().join("acm.sock");
        let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&fd, Backlog::new(0).unwrap()).unwrap();
        let _first = UnixStream::connect(&path).unwrap();
        let error = Made::bind(&path).unwrap_err();
        assert_eq!((error.kind(), path.exists()), (ErrorKind::AddrInUse, true));
        drop(fd);
        drop(Made::bind(&path).unwrap());
        assert!(!path.exists());
        // Of another type: connect(2) refuses it for that.
        let _datagrams = UnixDatagram::bind(&path).unwrap();
        assert!(Made::bind(&path).is_err() && path.exists());
    }

    #[test]
    fn own_socket_is_removed_unless_another_program_has_replaced_it() {
        let dir = ShortDir::new();
        let [path, link] = ["acm.sock", FOR_LIBRDMACM].map(|name| dir.path().join(name));
        let there = || (path.exists(), link.symlink_metadata().is_ok());
        let (made, _listener) = Made::bind(&path).unwrap();
        made.show_to_librdmacm(true).unwrap();
        drop(made);
        assert_eq!(there(), (false, false));
        let (made, _listener) = Made::bind(&path).unwrap();
        made.show_to_librdmacm(true).unwrap();
        fs::remove_file(&path).unwrap();
        let _theirs = StdUnixListener::bind(&path).unwrap();
        drop(made);
        assert_eq!(there(), (true, true), "the link leads to theirs");
    }
}
