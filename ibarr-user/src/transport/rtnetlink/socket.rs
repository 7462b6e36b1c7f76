// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reads and writes messages of rtnetlink, and believes only the kernel's.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    MsgFlags, NetlinkAddr, SockProtocol, getsockname, recvmsg, send, setsockopt, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::{fd, netlink};

/// A non-blocking `NETLINK_ROUTE` socket of the network namespace of the opening thread.
///
/// neli's own sockets do not report the sender of a message.
pub(super) struct Socket {
    fd: AsyncFd<OwnedFd>,
    portid: u32,
    buffer: Box<[u8]>,
}

/// The outcome of a read.
#[derive(Debug)]
pub(super) enum Received<'a> {
    /// Messages of the kernel.
    Datagram(&'a [u8]),
    /// Messages of another process; any process may send them.
    Foreign,
    /// A datagram larger than the buffer; the rest is lost.
    Truncated,
    /// The socket had no room for some messages of the kernel.
    Overrun,
    /// The socket is empty.
    Drained,
}

impl Socket {
    /// The kernel fills at most 32 KiB at a time (`netlink_recvmsg`), and the message of one link
    /// is a few KiB.
    const BUFFER: usize = 64 * 1024;

    /// Joins the multicast groups with these `RTMGRP_*` bits.
    pub(super) fn open(groups: u32, receive_buffer: usize) -> io::Result<Self> {
        let fd = netlink::open(SockProtocol::NetlinkRoute, groups)?;
        // Above net.core.rmem_max this needs CAP_NET_ADMIN. A smaller buffer is enough to start
        // with, and lost messages bring a dump.
        if setsockopt(&fd, sockopt::RcvBufForce, &receive_buffer).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &receive_buffer)?;
        }
        let portid = getsockname::<NetlinkAddr>(fd.as_raw_fd())?.pid();
        let buffer = vec![0; Self::BUFFER].into();
        Ok(Self { fd: fd::watch(fd, Interest::READABLE)?, portid, buffer })
    }

    pub(super) fn set_strict(&self) -> nix::Result<()> {
        netlink::set_strict(self.fd.get_ref())
    }

    /// The kernel's id of this socket.
    pub(super) fn portid(&self) -> u32 {
        self.portid
    }

    /// Waits until a read would return something, even an error. Cancel safe.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await.map(|mut guard| guard.retain_ready())
    }

    /// Reads once, without waiting.
    pub(super) fn receive(&mut self) -> io::Result<Received<'_>> {
        let (fd, buffer) = (&self.fd, &mut self.buffer);
        let received = fd.try_io(Interest::READABLE, |fd| {
            let mut slices = [IoSliceMut::new(buffer)];
            let message =
                recvmsg::<NetlinkAddr>(fd.as_raw_fd(), &mut slices, None, MsgFlags::empty())?;
            // The kernel's address is 0.
            let from_kernel = message.address.is_some_and(|from| from.pid() == 0);
            Ok((message.bytes, from_kernel, message.flags))
        });
        match received {
            Ok((_, false, _)) => Ok(Received::Foreign),
            Ok((_, true, flags)) if flags.contains(MsgFlags::MSG_TRUNC) => Ok(Received::Truncated),
            Ok((len, true, _)) => {
                Ok(Received::Datagram(self.buffer.get(..len).unwrap_or_default()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Drained),
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                Ok(Received::Overrun)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends one request. The kernel has handled it when this returns, so it never blocks.
    pub(super) fn send(&self, request: &[u8]) -> io::Result<()> {
        send(self.fd.as_raw_fd(), request, MsgFlags::empty())?;
        Ok(())
    }
}
