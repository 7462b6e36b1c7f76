// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The process at the other end of a Unix socket, as the kernel recorded it at connect(2). Nothing
//! here reads the user database.

#![expect(unsafe_code, reason = "SO_PEERGROUPS has no safe wrapper")]

use std::io;
use std::mem::size_of;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use ibarr_proto::shares::User;
use nix::libc;
use nix::sys::socket::{
    MsgFlags, SockProtocol, getpeername, getsockname, getsockopt, recv, send, sockopt,
};
use nix::unistd::Uid;

use super::{netlink, udp};

/// `linux/sock_diag.h`, `linux/netlink.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;

/// Credentials of a process that connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Peer {
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
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
        Ok(Self { uid: credentials.uid(), gid: credentials.gid() })
    }

    /// Whose share it uses.
    pub(crate) fn user(self) -> User {
        if self.is_root_or_us() { User::ROOT } else { User(self.uid.into()) }
    }

    /// Whether the peer runs as root or as the daemon's own user.
    pub(crate) fn is_root_or_us(self) -> bool {
        self.uid == 0 || self.uid == Uid::effective().as_raw()
    }
}

/// The user at the other end of a Unix socket, or of a TCP connection of this machine. May block the first time, while
/// the kernel loads the module that knows (`tcp_diag`); without it the user is [`User::UNKNOWN`].
pub(crate) fn user(socket: BorrowedFd<'_>) -> User {
    match Peer::of(socket) {
        Ok(peer) if u64::from(peer.uid) != User::UNKNOWN.0 => peer.user(),
        _ => {
            let uid = uid_of_tcp(socket).ok().flatten();
            uid.map_or(User::UNKNOWN, |uid| Peer { uid, gid: u32::MAX }.user())
        }
    }
}

/// Asks for the socket at the other end (sock_diag(7): one `inet_diag_req_v2`, answered by an `inet_diag_msg`).
/// `None` if no process has it any more: the kernel would call its user root.
fn uid_of_tcp(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let fd = socket.as_raw_fd();
    let [peer, here] = [getpeername(fd)?, getsockname(fd)?].map(|end| udp::socket_addr(&end));
    let (Some(peer), Some(here)) = (peer, here) else { return Ok(None) };
    let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut request = Vec::with_capacity(72);
    request.extend(72_u32.to_ne_bytes());
    for half in [SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0, 0, 0] {
        request.extend(half.to_ne_bytes());
    }
    request.extend([u8::try_from(family).unwrap_or(0), 6, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend([peer, here].iter().flat_map(|end| end.port().to_be_bytes()));
    for end in [peer, here] {
        let mut ip = [0; 16];
        match end.ip() {
            IpAddr::V4(v4) => ip[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => ip = v6.octets(),
        }
        request.extend(ip);
    }
    // Any interface, no cookie.
    request.extend([[0; 4], [0xff; 4], [0xff; 4]].concat());
    let diag = netlink::open(SockProtocol::NetlinkSockDiag, 0)?;
    send(diag.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut message = [0; 512];
    let len = recv(diag.as_raw_fd(), &mut message, MsgFlags::empty())?;
    let word = |at: usize| Some(u32::from_ne_bytes(*message.get(at..at + 4)?.first_chunk()?));
    let kind = SOCK_DIAG_BY_FAMILY.to_ne_bytes();
    // The user and the inode of the socket.
    let is_answer = len >= 88 && message.get(4..6) == Some(&kind[..]);
    Ok(word(80).filter(|_| is_answer && word(84) != Some(0)))
}

/// The supplementary groups of the process that connected (`SO_PEERGROUPS`, Linux 4.13); empty on
/// an older kernel.
///
/// # Errors
/// Errors of getsockopt(2).
pub(crate) fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
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
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use nix::unistd::{Gid, getegid, geteuid, getgroups};

    use super::*;
    use crate::tests::on_own_network;

    #[test]
    fn user_at_the_other_end_of_tcp_is_known_as_long_as_a_process_has_it() {
        if !on_own_network(|| ()) {
            return;
        }
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (here, _) = listener.accept().unwrap();
            let uid = geteuid().as_raw();
            assert_eq!(uid_of_tcp(here.as_fd()).unwrap(), Some(uid), "{ip}");
            drop(there);
            assert_eq!(user(here.as_fd()), User::UNKNOWN);
        }
    }

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
