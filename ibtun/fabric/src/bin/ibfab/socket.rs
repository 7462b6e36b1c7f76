// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The datagram socket of either end of a joined host, and the key that both share.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use ibarr_fabric::remote::{Address, Key, MAX_DATAGRAM, Refusal, Refusals};
use nix::sys::socket::{setsockopt, sockopt};

/// Room of a socket for datagrams in each direction, in bytes. A connection may have 64 packets on their
/// way, and the kernel counts up to 16 KiB for each.
const ROOM: usize = 16 << 20;

/// Longest key file, in bytes.
const MAX_KEY_LEN: u64 = 4096;

#[derive(Debug)]
pub(crate) enum Socket {
    Udp(UdpSocket),
    /// The socket file of this side is removed at the end.
    Unix(UnixDatagram, PathBuf),
}

impl Socket {
    /// Binds an address. Without a key, other machines must not reach it.
    pub(crate) fn bind(address: &Address, key: Option<&Key>) -> anyhow::Result<Self> {
        check_local(address, key)?;
        let socket = match address {
            Address::Udp(address) => Self::Udp(UdpSocket::bind(address)?),
            Address::Unix(path) => {
                // A dead process has left the file.
                if UnixDatagram::unbound()?.connect(path).is_err() && path.exists() {
                    std::fs::remove_file(path)?;
                }
                Self::Unix(UnixDatagram::bind(path)?, path.clone())
            }
        };
        match &socket {
            Self::Udp(socket) => socket.set_nonblocking(true)?,
            Self::Unix(socket, _) => socket.set_nonblocking(true)?,
        }
        // Beyond net.core.rmem_max and wmem_max only with CAP_NET_ADMIN.
        let fd = socket.as_fd();
        setsockopt(&fd, sockopt::RcvBufForce, &ROOM)
            .or_else(|_| setsockopt(&fd, sockopt::RcvBuf, &ROOM))?;
        setsockopt(&fd, sockopt::SndBufForce, &ROOM)
            .or_else(|_| setsockopt(&fd, sockopt::SndBuf, &ROOM))?;
        Ok(socket)
    }

    /// `None` if there is no datagram at present. A longer one than there can be is cut.
    pub(crate) fn receive<'a>(
        &self,
        buffer: &'a mut [u8; MAX_DATAGRAM + 1],
    ) -> Option<(&'a [u8], Address)> {
        loop {
            let received = match self {
                Self::Udp(socket) => {
                    socket.recv_from(buffer).map(|(len, from)| (len, Some(Address::Udp(from))))
                }
                Self::Unix(socket, _) => socket.recv_from(buffer).map(|(len, from)| {
                    (len, from.as_pathname().map(|path| Address::Unix(path.to_owned())))
                }),
            };
            match received {
                Ok((len, Some(from))) => return Some((buffer.get(..len)?, from)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // A sender without address cannot be answered; or the peer of an earlier datagram
                // is gone.
                Ok((_, None)) | Err(_) => {}
            }
        }
    }

    /// A datagram without room is lost.
    pub(crate) fn send(&self, bytes: &[u8], to: &Address) {
        let _ = match (self, to) {
            (Self::Udp(socket), Address::Udp(to)) => socket.send_to(bytes, to),
            (Self::Unix(socket, _), Address::Unix(to)) => socket.send_to(bytes, to),
            _ => Ok(0),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Udp(socket) => socket.as_fd(),
            Self::Unix(socket, _) => socket.as_fd(),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Without a key, only programs of this machine may be at the other end.
pub(crate) fn check_local(address: &Address, key: Option<&Key>) -> anyhow::Result<()> {
    if key.is_none() && !address.is_local() {
        bail!(
            "{address} is not of this machine alone: give both ends the same --key FILE, or use \
             127.0.0.1, [::1] or unix:PATH"
        );
    }
    Ok(())
}

/// Reads a key from a file that only its owner may read.
pub(crate) fn read_key(path: &Path) -> anyhow::Result<Key> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let mode = file.metadata().with_context(|| format!("cannot look at {name}"))?.mode();
    if mode & 0o077 != 0 {
        bail!("{name}: others may use it (mode {:03o}): chmod 600 {name}", mode & 0o777);
    }
    let mut bytes = Vec::new();
    let read = file.take(MAX_KEY_LEN + 1).read_to_end(&mut bytes);
    let read = read.with_context(|| format!("cannot read {name}"))?;
    if u64::try_from(read)? > MAX_KEY_LEN {
        bail!(
            "{name} is longer than {MAX_KEY_LEN} bytes: write one with `openssl rand -out {name} 32`"
        );
    }
    Key::new(&bytes).with_context(|| {
        format!("{name} is too short: write one with `openssl rand -out {name} 32`")
    })
}

/// A secret that the sessions of this run begin with.
pub(crate) fn seed() -> anyhow::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).context("the kernel gives no random numbers")?;
    Ok(seed)
}

/// Counts a refused datagram, and logs the first for each reason.
pub(crate) fn refuse(refusals: &mut Refusals, refusal: Refusal, from: &Address) {
    if refusals.count(refusal) {
        eprintln!("ibfab: refused a datagram of {from}, and more like it: {refusal}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn key_that_others_can_read_or_of_wrong_length_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for (mode, len, expected) in [
            (0o600, 16, None),
            (0o400, 4096, None),
            (0o640, 16, Some("others may use it (mode 640): chmod 600 ")),
            (0o604, 16, Some("others may use it (mode 604): chmod 600 ")),
            (0o620, 16, Some("others may use it (mode 620): chmod 600 ")),
            (0o600, 15, Some("is too short: write one with `openssl rand -out ")),
            (0o600, 0, Some("is too short")),
            (0o600, 4097, Some("is longer than 4096 bytes")),
        ] {
            fs::write(&path, vec![7; len]).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let said = read_key(&path).err().map(|error| format!("{error:#}"));
            assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(expected.unwrap_or_default()));
            fs::remove_file(&path).unwrap();
        }
        assert!(format!("{:#}", read_key(&path).unwrap_err()).starts_with("cannot open "));
    }

    #[test]
    fn address_of_other_machines_needs_a_key() {
        let address: Address = "udp:0.0.0.0:0".parse().unwrap();
        let said = Socket::bind(&address, None).unwrap_err().to_string();
        assert!(said.contains("give both ends the same --key FILE, or use 127.0.0.1"), "{said}");
        let key = Key::new(&[7; 16]).unwrap();
        assert!(Socket::bind(&address, Some(&key)).is_ok());
        assert!(Socket::bind(&"udp:127.0.0.1:0".parse().unwrap(), None).is_ok());
    }
}
