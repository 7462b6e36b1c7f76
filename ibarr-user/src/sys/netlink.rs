// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Netlink sockets, and their option that has no safe wrapper.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, setsockopt, socket, sockopt,
};

/// A non-blocking socket that has joined the multicast groups with these bits.
///
/// # Errors
/// `EPROTONOSUPPORT` if the kernel does not have the protocol.
pub(crate) fn open(protocol: SockProtocol, groups: u32) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(fd)
}

/// Makes the kernel obey filters in the header of a dump request, such as the routing table
/// (`NETLINK_GET_STRICT_CHK`, Linux 4.20).
///
/// # Errors
/// If the kernel is older, or `fd` is not a netlink socket.
pub(crate) fn set_strict(fd: &OwnedFd) -> nix::Result<()> {
    #[derive(Clone, Copy)]
    struct StrictCheck;
    nix::setsockopt_impl!(
        StrictCheck,
        libc::SOL_NETLINK,
        libc::NETLINK_GET_STRICT_CHK,
        bool,
        sockopt::SetBool
    );
    setsockopt(fd, StrictCheck, &true)
}
