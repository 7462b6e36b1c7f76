// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A netlink socket on which the kernel's RDMA core sends its requests.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::wire::ls::PortId;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname,
    recvmsg, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;

/// A socket in the group to which the kernel sends the local service's requests.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    port_id: PortId,
}

/// `1 << (RDMA_NL_GROUP_LS - 1)`.
const GROUP_LS: u32 = 1 << 2;

/// Room for several thousand requests.
const RECEIVE_BUFFER: usize = 16 << 20;

impl Socket {
    /// Joins the group.
    pub(crate) fn open() -> Result<Self> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkRDMA,
        )
        .context("no NETLINK_RDMA")?;
        setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER).context("SO_RCVBUFFORCE")?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUP_LS)).context("cannot join the group")?;
        let address = getsockname::<NetlinkAddr>(fd.as_raw_fd()).context("getsockname")?;
        Ok(Self { fd, port_id: PortId(address.pid()) })
    }

    /// Leaves the group, or joins it again.
    pub(crate) fn set_member(&self, is_member: bool) -> Result<()> {
        let groups = if is_member { GROUP_LS } else { 0 };
        let address = NetlinkAddr::new(self.port_id.0, groups);
        bind(self.fd.as_raw_fd(), &address).context("cannot leave or join the group")
    }

    /// The port id of this socket.
    pub(crate) fn port_id(&self) -> PortId {
        self.port_id
    }

    /// The next datagram of the kernel, if it comes `within` that time. Datagrams of other processes are
    /// skipped.
    pub(crate) fn receive(&self, within: Duration) -> Result<Option<Vec<u8>>> {
        loop {
            if !is_readable(self.fd.as_fd(), within)? {
                return Ok(None);
            }
            let mut buffer = [0; 1024];
            let mut slices = [IoSliceMut::new(&mut buffer)];
            let flags = MsgFlags::empty();
            let received = recvmsg::<NetlinkAddr>(self.fd.as_raw_fd(), &mut slices, None, flags);
            let received = match received {
                Ok(received) => received,
                Err(Errno::EAGAIN) => continue,
                Err(error) => return Err(error).context("cannot receive"),
            };
            ensure!(!received.flags.contains(MsgFlags::MSG_TRUNC), "a datagram over 1 KiB");
            let (length, sender) = (received.bytes, received.address);
            if sender.is_some_and(|sender| sender.pid() == 0) {
                return Ok(Some(buffer[..length].to_vec()));
            }
        }
    }

    /// Discards all datagrams that have come so far.
    pub(crate) fn drain(&self) -> Result<()> {
        while self.receive(Duration::ZERO)?.is_some() {}
        Ok(())
    }

    /// Sends to the kernel only.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        self.send_as(message, &NetlinkAddr::new(0, 0))
    }

    /// Sends to the socket with this port id, of any process.
    pub(crate) fn send_to(&self, PortId(number): PortId, message: &[u8]) -> io::Result<()> {
        self.send_as(message, &NetlinkAddr::new(number, 0))
    }

    /// Sends to all members of the group, and then to the kernel.
    pub(crate) fn send_to_group(&self, message: &[u8]) -> io::Result<()> {
        self.send_as(message, &NetlinkAddr::new(0, GROUP_LS))
    }

    fn send_as(&self, message: &[u8], to: &NetlinkAddr) -> io::Result<()> {
        sendto(self.fd.as_raw_fd(), message, to, MsgFlags::empty())?;
        Ok(())
    }

    /// The descriptor, for another process.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn is_readable(fd: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    match ppoll(&mut fds, Some(TimeSpec::from_duration(within)), None) {
        Ok(ready) => Ok(ready > 0),
        Err(error) => Err(error.into()),
    }
}
