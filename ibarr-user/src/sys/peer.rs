// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The process at the other end of a Unix socket, as the kernel recorded it at connect(2). Nothing
//! here reads the user database.

#![expect(unsafe_code, reason = "SO_PEERGROUPS has no safe wrapper")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Uid;

/// Credentials of a process that connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl Peer {
    /// Reads the credentials of the peer (`SO_PEERCRED`).
    ///
    /// # Errors
    /// Errors of getsockopt(2).
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
        Ok(Self { uid: credentials.uid(), gid: credentials.gid() })
    }

    /// Whether the peer runs as root or as the daemon's own user.
    pub fn is_root_or_us(self) -> bool {
        self.uid == 0 || self.uid == Uid::effective().as_raw()
    }
}

/// The supplementary groups of the process that connected (`SO_PEERGROUPS`, Linux 4.13); empty on
/// an older kernel.
///
/// # Errors
/// Errors of getsockopt(2).
pub fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let bytes = groups.len() * size_of::<libc::gid_t>();
        let mut len = libc::socklen_t::try_from(bytes).unwrap_or(libc::socklen_t::MAX);
        let value = groups.as_mut_ptr().cast();
        // SAFETY: the kernel writes at most `len` bytes at `value`, which is a vector of that many
        // bytes, alive and not referred to elsewhere, and writes the length to `len`.
        let result = unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
            libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut len)
        };
        let needed = usize::try_from(len).unwrap_or(0) / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // The kernel returns how many there are: at most NGROUPS_MAX, 65,536.
            Some(libc::ERANGE) if needed > groups.len() => groups.resize(needed, 0),
            Some(libc::ENOPROTOOPT) => return Ok(Vec::new()),
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use nix::unistd::{Gid, getegid, geteuid, getgroups};

    use super::*;

    #[test]
    fn peer_in_this_process_has_its_user_and_groups() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(socket.as_fd()).unwrap();
        assert_eq!(peer, Peer { uid: geteuid().as_raw(), gid: getegid().as_raw() });
        assert!(peer.is_root_or_us());
        let mut expected: Vec<_> = getgroups().unwrap().into_iter().map(Gid::as_raw).collect();
        let mut groups = groups(socket.as_fd()).unwrap();
        expected.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, expected);
    }
}
