// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Netlink socket options that have no safe wrapper.

use std::os::fd::OwnedFd;

use nix::sys::socket::{setsockopt, sockopt};

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
