// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets where clients of ACM connect: a Unix socket, and a TCP port of this machine alone.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};

use ibarr_common::Instant;
use ibarr_proto::retry::Repair;
use nix::sys::socket::{AddressFamily, SockaddrLike as _, SockaddrStorage, getsockname};
use tokio::net::TcpListener;

use crate::transport::socket_file::{self, SocketFile};

/// Where librdmacm looks, a link beside the socket.
pub const FOR_LIBRDMACM: &str = "ibacm.sock";

/// A socket where clients connect.
#[derive(Debug)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Listener {
    Unix(StdUnixListener),
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
        if address.family() != Some(AddressFamily::Unix) {
            return Self::tcp(fd.into());
        }
        let listener = StdUnixListener::from(fd);
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener))
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
}

/// The socket file of this process, with a link for librdmacm. Dropping it removes both, unless another program has
/// replaced the socket.
#[derive(Debug)]
pub struct SocketFiles {
    pub(crate) file: SocketFile,
    /// The link beside it.
    pub link: Link,
}

impl SocketFiles {
    /// Makes the socket, if no process serves it.
    ///
    /// # Errors
    /// Those of [`SocketFile::bind`].
    pub(crate) fn bind(path: &Path) -> Result<Self, socket_file::Error> {
        let link = Link::new(path.with_file_name(FOR_LIBRDMACM), path.to_owned());
        Ok(Self { file: SocketFile::bind(path)?, link })
    }
}

impl Drop for SocketFiles {
    fn drop(&mut self) {
        if self.file.is_there() {
            self.link.remove();
        }
    }
}

/// A link for librdmacm.
#[derive(Debug)]
pub struct Link {
    at: PathBuf,
    target: PathBuf,
    repair: Repair,
}

impl Link {
    pub(super) fn new(at: PathBuf, target: PathBuf) -> Self {
        Self { at, target, repair: Repair::default() }
    }

    /// Makes the link, unless it must wait because others remove it again and again; or removes it.
    ///
    /// # Errors
    /// The name of the link, and why it cannot be made.
    pub fn show(&mut self, now: Instant, is_shown: bool) -> io::Result<()> {
        if !is_shown {
            self.remove();
            self.repair = Repair::default();
        } else if !self.leads_there() && self.repair.due(now) <= now {
            let at = self.at.display();
            return symlink(&self.target, &self.at)
                .map_err(|error| io::Error::new(error.kind(), format!("the link {at}: {error}")));
        }
        Ok(())
    }

    /// Removes the link, if it leads to the target.
    pub(super) fn remove(&self) {
        if self.leads_there() {
            // At worst it stays, and leads to a socket or port file that may come again.
            drop(fs::remove_file(&self.at));
        }
    }

    /// An ibacm that has ended leaves a link with a relative target.
    fn leads_there(&self) -> bool {
        let dir = self.at.parent().unwrap_or(Path::new("/"));
        fs::read_link(&self.at).is_ok_and(|target| dir.join(target) == self.target)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tests::ShortDir;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    #[test]
    fn link_that_ibacm_left_is_used_and_any_other_named() {
        let dir = ShortDir::new();
        let [at, target] = ["ibacm.sock", "ibacm-unix.sock"].map(|name| dir.path().join(name));
        symlink("ibacm-unix.sock", &at).unwrap();
        let mut link = Link::new(at.clone(), target);
        link.show(NOW, true).unwrap();
        link.show(NOW, false).unwrap();
        assert!(at.symlink_metadata().is_err());
        symlink("other.sock", &at).unwrap();
        let refusal = link.show(NOW, true).unwrap_err().to_string();
        assert!(refusal.contains("/ibacm.sock: File exists"), "{refusal}");
        link.show(NOW, false).unwrap();
        assert_eq!(fs::read_link(&at).unwrap(), Path::new("other.sock"));
    }

    #[test]
    fn own_socket_is_removed_unless_another_program_has_replaced_it() {
        let dir = ShortDir::new();
        let [path, link] = ["acm.sock", FOR_LIBRDMACM].map(|name| dir.path().join(name));
        let there = || (path.exists(), link.symlink_metadata().is_ok());
        let mut made = SocketFiles::bind(&path).unwrap();
        made.link.show(NOW, true).unwrap();
        drop(made);
        assert_eq!(there(), (false, false));
        let mut made = SocketFiles::bind(&path).unwrap();
        made.link.show(NOW, true).unwrap();
        fs::remove_file(&path).unwrap();
        let _theirs = StdUnixListener::bind(&path).unwrap();
        assert!(made.file.look(NOW).is_err());
        drop(made);
        assert_eq!(there(), (true, true), "the link leads to theirs");
    }

    #[test]
    fn link_that_others_remove_again_and_again_is_made_after_pauses() {
        let dir = ShortDir::new();
        let [path, link] = ["acm.sock", FOR_LIBRDMACM].map(|name| dir.path().join(name));
        let mut made = SocketFiles::bind(&path).unwrap();
        let mut shown_after = |seconds| {
            drop(fs::remove_file(&link));
            made.link.show(NOW + Duration::from_secs(seconds), true).unwrap();
            link.exists()
        };
        assert_eq!([0, 1, 2, 4, 6].map(&mut shown_after), [true, false, true, false, true]);
    }
}
