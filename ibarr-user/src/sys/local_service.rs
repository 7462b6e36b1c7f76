// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The socket to the kernel's RDMA core (`NETLINK_RDMA`, group `RDMA_NL_GROUP_LS`), or to a
//! stand-in: an AF_UNIX socket that carries the same messages, inherited from a parent process of
//! the same user.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use ibarr_common::wire::ls::PortId;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockProtocol, SockType, SockaddrLike, SockaddrStorage,
    bind, getsockname, getsockopt, recvmsg, send, sendto, setsockopt, sockopt,
};
use nix::sys::stat::fstat;
use nix::unistd::Uid;
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{fd, netlink};

/// A non-blocking socket on which the kernel's requests arrive.
#[derive(Debug)]
pub struct Socket {
    fd: AsyncFd<OwnedFd>,
    peer: Peer,
    port_id: PortId,
    inode: u64,
    inbound: Arc<Inbound>,
}

/// The part of a socket that other threads may read: its descriptor, and how many datagrams have
/// been read from it.
#[derive(Debug)]
struct Inbound {
    fd: OwnedFd,
    read: AtomicU64,
}

/// Tells, on any thread, whether something was sent to the socket since this value was made.
#[derive(Debug)]
pub struct Quiet {
    inbound: Weak<Inbound>,
    read: u64,
}

/// The other end of the socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Peer {
    /// The kernel, and every process that can open such a socket.
    Netlink,
    /// A process of the daemon's own user.
    StandIn,
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Received {
    Datagram {
        /// Its length in bytes; more than the buffer if it was truncated.
        len: usize,
        /// Whether the kernel (or its stand-in) sent it.
        from_kernel: bool,
    },
    /// The socket is empty.
    Drained,
    /// The socket had no room for some datagrams of the kernel, which are lost.
    Overrun,
    /// The stand-in has closed its end.
    Closed,
}

/// Why an inherited descriptor cannot be used.
#[derive(Debug, Error)]
pub enum AdoptError {
    /// getsockopt(2) refuses it.
    #[error("the inherited descriptor is no socket")]
    NoSocket(#[source] Errno),
    /// It is a socket of another kind.
    #[error(
        "the inherited socket is neither NETLINK_RDMA nor AF_UNIX SOCK_SEQPACKET; with systemd, \
         write ListenNetlink=rdma 4"
    )]
    Other,
    /// A process of another user could answer through it.
    #[error("the inherited AF_UNIX socket belongs to user {0}, not to ours")]
    Stranger(u32),
    /// A system call failed.
    #[error("the inherited socket cannot be used")]
    Io(#[from] io::Error),
}

impl Socket {
    /// Opens a socket in the network namespace of this thread, outside of the group.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` if the kernel has no RDMA.
    pub fn open() -> io::Result<Self> {
        Self::netlink(netlink::open(SockProtocol::NetlinkRDMA, 0)?)
    }

    /// Takes over an inherited socket.
    ///
    /// # Errors
    /// If it is of another kind, or belongs to another user.
    pub fn adopt(fd: OwnedFd) -> Result<Self, AdoptError> {
        let address: SockaddrStorage = getsockname(fd.as_raw_fd()).map_err(AdoptError::NoSocket)?;
        let kind = getsockopt(&fd, sockopt::SockType).map_err(AdoptError::NoSocket)?;
        let flags = fcntl(&fd, FcntlArg::F_GETFL).map_err(io::Error::from)?;
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        fcntl(&fd, FcntlArg::F_SETFL(flags)).map_err(io::Error::from)?;
        match (address.family(), kind) {
            (Some(AddressFamily::Netlink), _) if protocol(&fd) == Ok(libc::NETLINK_RDMA) => {
                Ok(Self::netlink(fd)?)
            }
            (Some(AddressFamily::Unix), SockType::SeqPacket) => {
                let peer = getsockopt(&fd, sockopt::PeerCredentials).map_err(io::Error::from)?;
                if peer.uid() != Uid::effective().as_raw() {
                    return Err(AdoptError::Stranger(peer.uid()));
                }
                Ok(Self::watch(fd, Peer::StandIn, PortId(std::process::id()))?)
            }
            _ => Err(AdoptError::Other),
        }
    }

    /// What is at the other end.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether the socket is in the kernel's group, so that it receives requests.
    ///
    /// # Errors
    /// Errors of getsockname(2).
    pub fn is_member(&self) -> io::Result<bool> {
        if self.peer == Peer::StandIn {
            return Ok(true);
        }
        let address: NetlinkAddr = getsockname(self.fd.get_ref().as_raw_fd())?;
        Ok(address.groups() & GROUP != 0)
    }

    /// Joins the group: the kernel sends its requests here from now on.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN, before Linux 6.12.
    pub fn join(&self) -> io::Result<()> {
        if self.peer == Peer::StandIn { Ok(()) } else { self.bind(GROUP) }
    }

    /// Leaves the group. This also ends membership of copies of the socket in other processes, such
    /// as the one that systemd keeps. It needs no privilege.
    ///
    /// # Errors
    /// Errors of bind(2).
    pub fn leave(&self) -> io::Result<()> {
        if self.peer == Peer::StandIn { Ok(()) } else { self.bind(0) }
    }

    /// A copy of the descriptor, for another process.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.inbound.fd.try_clone()
    }

    /// The netlink port id of this socket.
    pub fn port_id(&self) -> PortId {
        self.port_id
    }

    /// The inode of the socket, unique on the machine.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Starts to watch whether something is sent. Call it when the socket is empty.
    pub fn quiet(&self) -> Quiet {
        let read = self.inbound.read.load(Ordering::Relaxed);
        Quiet { inbound: Arc::downgrade(&self.inbound), read }
    }

    /// Ready when a read would return something, even an error. Wakes the last caller alone.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.fd.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                ready.retain_ready();
                Poll::Ready(())
            }
            // An error only if the runtime is being shut down.
            _ => Poll::Pending,
        }
    }

    /// Ready when there is room for a message. Wakes the last caller alone.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.fd.poll_write_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                ready.retain_ready();
                Poll::Ready(())
            }
            _ => Poll::Pending,
        }
    }

    /// Reads one datagram, without waiting.
    ///
    /// # Errors
    /// Errors of recvmsg(2), except the ones that [`Received`] names.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut slices = [IoSliceMut::new(buffer)];
        let received = self.fd.try_io(Interest::READABLE, |fd| {
            // With MSG_TRUNC the kernel returns the length of the datagram, not of the part that
            // fitted.
            let message =
                recvmsg::<SockaddrStorage>(fd.as_raw_fd(), &mut slices, None, MsgFlags::MSG_TRUNC)?;
            self.inbound.read.fetch_add(1, Ordering::Relaxed);
            Ok((message.bytes, message.address))
        });
        match (received, self.peer) {
            (Ok((0, _)), Peer::StandIn) => Ok(Received::Closed),
            (Ok((len, _)), Peer::StandIn) => Ok(Received::Datagram { len, from_kernel: true }),
            (Ok((len, from)), Peer::Netlink) => {
                // The kernel's address is 0.
                let from = from.as_ref().and_then(SockaddrStorage::as_netlink_addr);
                let from_kernel = from.is_some_and(|from| from.pid() == 0);
                Ok(Received::Datagram { len, from_kernel })
            }
            // An error of the runtime itself has no errno.
            (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Drained),
            (Err(error), peer) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOBUFS) => Ok(Received::Overrun),
                Some(Errno::ECONNRESET) if peer == Peer::StandIn => Ok(Received::Closed),
                _ => Err(error),
            },
        }
    }

    /// Sends one message now, or not at all: `WouldBlock` if there is no room. The kernel has
    /// processed the message when this returns.
    ///
    /// # Errors
    /// Errors of sendto(2).
    pub fn try_send(&self, message: &[u8]) -> io::Result<()> {
        // The runtime does not know yet that a new socket is writable.
        match self.send_now(self.fd.get_ref(), message) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // But the runtime has to learn that this one is not.
                self.fd.try_io(Interest::WRITABLE, |fd| self.send_now(fd, message))
            }
            sent => sent,
        }
    }

    fn send_now(&self, fd: &OwnedFd, message: &[u8]) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        match self.peer {
            // To the kernel alone: a message to the group would reach all its members.
            Peer::Netlink => sendto(fd, message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?,
            Peer::StandIn => send(fd, message, MsgFlags::MSG_NOSIGNAL)?,
        };
        Ok(())
    }

    fn netlink(fd: OwnedFd) -> io::Result<Self> {
        // Without CAP_NET_ADMIN, the size is limited by net.core.rmem_max.
        if setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        let address = |fd: &OwnedFd| getsockname::<NetlinkAddr>(fd.as_raw_fd());
        if address(&fd)?.pid() == 0 {
            // The kernel chooses the port id.
            bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        }
        let port_id = PortId(address(&fd)?.pid());
        Self::watch(fd, Peer::Netlink, port_id)
    }

    fn bind(&self, groups: u32) -> io::Result<()> {
        let address = NetlinkAddr::new(self.port_id.0, groups);
        Ok(bind(self.fd.get_ref().as_raw_fd(), &address)?)
    }

    fn watch(fd: OwnedFd, peer: Peer, port_id: PortId) -> io::Result<Self> {
        let inode = fstat(&fd)?.st_ino;
        let inbound = Arc::new(Inbound { fd: fd.try_clone()?, read: AtomicU64::new(0) });
        Ok(Self {
            fd: fd::watch(fd, Interest::READABLE | Interest::WRITABLE)?,
            peer,
            port_id,
            inode,
            inbound,
        })
    }
}

impl Quiet {
    /// Whether something has been sent since this value was made.
    pub fn is_over(&self) -> bool {
        // Nothing more is read from a socket that is closed.
        let Some(inbound) = self.inbound.upgrade() else { return false };
        let mut fds = [PollFd::new(inbound.fd.as_fd(), PollFlags::POLLIN)];
        inbound.read.load(Ordering::Relaxed) != self.read
            || poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

/// The netlink protocol of the socket.
fn protocol(fd: &OwnedFd) -> nix::Result<i32> {
    #[derive(Clone, Copy)]
    struct Protocol;
    nix::getsockopt_impl!(
        Protocol,
        libc::SOL_SOCKET,
        libc::SO_PROTOCOL,
        i32,
        sockopt::GetStruct<i32>
    );
    getsockopt(fd, Protocol)
}

/// `RDMA_NL_GROUP_LS` is group 3.
const GROUP: u32 = 1 << 2;

/// Room for some 20,000 requests: each takes about 800 bytes with the kernel's overhead.
pub const RECEIVE_BUFFER: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use nix::sys::socket::{SockFlag, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn inherited_stand_in_keeps_datagram_bounds() {
        let (kernel, ours) = pair();
        let socket = Socket::adopt(ours).unwrap();
        assert_eq!(socket.peer(), Peer::StandIn);
        for message in [&b"ask"[..], &[7; 100]] {
            send(kernel.as_raw_fd(), message, MsgFlags::empty()).unwrap();
        }
        poll_fn(|context| socket.poll_readable(context)).await;
        let mut buffer = [0; 32];
        let datagram = |len| Received::Datagram { len, from_kernel: true };
        assert_eq!(socket.try_recv(&mut buffer).unwrap(), datagram(3));
        // A truncated datagram reports its full length.
        assert_eq!(socket.try_recv(&mut buffer).unwrap(), datagram(100));
        // First the kernel says that it is empty; then the runtime says so without asking the
        // kernel.
        assert_eq!(socket.try_recv(&mut buffer).unwrap(), Received::Drained);
        assert_eq!(socket.try_recv(&mut buffer).unwrap(), Received::Drained);
        drop(kernel);
        poll_fn(|context| socket.poll_readable(context)).await;
        assert_eq!(socket.try_recv(&mut buffer).unwrap(), Received::Closed);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn quiet_ends_with_a_datagram_and_stays_ended() {
        let (kernel, ours) = pair();
        let socket = Socket::adopt(ours).unwrap();
        let quiet = socket.quiet();
        assert!(!quiet.is_over());
        send(kernel.as_raw_fd(), b"ask", MsgFlags::empty()).unwrap();
        assert!(quiet.is_over());
        poll_fn(|context| socket.poll_readable(context)).await;
        let mut buffer = [0; 32];
        assert!(matches!(socket.try_recv(&mut buffer).unwrap(), Received::Datagram { .. }));
        assert!(quiet.is_over());
        // A read of the empty socket changes nothing.
        let quiet = socket.quiet();
        assert_eq!(socket.try_recv(&mut buffer).unwrap(), Received::Drained);
        assert!(!quiet.is_over());
        send(kernel.as_raw_fd(), b"ask", MsgFlags::empty()).unwrap();
        drop(socket);
        assert!(!quiet.is_over(), "a closed socket is never read");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn full_socket_becomes_writable_when_there_is_room() {
        let (kernel, ours) = pair();
        let socket = Socket::adopt(ours).unwrap();
        let mut sent = 0;
        let error = loop {
            match socket.try_send(b"answer") {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        for _ in 0..sent {
            nix::sys::socket::recv(kernel.as_raw_fd(), &mut [0; 32], MsgFlags::empty()).unwrap();
        }
        poll_fn(|context| socket.poll_writable(context)).await;
        socket.try_send(b"answer").unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn socket_of_another_user_is_not_adopted() {
        let (stream, _) = UnixStream::pair().unwrap();
        let (datagram, _) = UnixDatagram::pair().unwrap();
        let rtnetlink = netlink::open(SockProtocol::NetlinkRoute, 0);
        for fd in [stream.into(), datagram.into(), rtnetlink.unwrap()] {
            assert!(matches!(Socket::adopt(fd), Err(AdoptError::Other)));
        }
        let (pipe, _) = nix::unistd::pipe().unwrap();
        assert!(matches!(Socket::adopt(pipe), Err(AdoptError::NoSocket(Errno::ENOTSOCK))));
    }
}
