// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What is asked of netlink sockets and has no safe wrapper.

use std::os::fd::OwnedFd;

use nix::sys::socket::{setsockopt, sockopt};

/// Has the kernel heed what the header of a dump request says, as the table of routes
/// (`NETLINK_GET_STRICT_CHK`, Linux 4.20).
///
/// # Errors
/// The kernel is older, or it is no netlink socket.
pub fn set_strict(fd: &OwnedFd) -> nix::Result<()> {
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
