// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Descriptors watched by the runtime.

#![expect(unsafe_code, reason = "tokio leaves the life of a watched descriptor to its caller")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `fd`, which must be non-blocking, with the runtime until the value is dropped. Events
/// outside of `interest` do not wake the runtime, except errors, which epoll always reports. A UDP
/// socket becomes writable again after each datagram that it sends, so a server with an interest in
/// that would be woken once more for each answer.
///
/// # Errors
/// Errors of epoll_ctl(2): `EPERM` for a descriptor that epoll does not support.
///
/// # Panics
/// Outside a runtime.
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `register_with_interest` requires that the descriptor stays open and the same while it is watched.
    // An `OwnedFd` keeps its descriptor open until it is dropped, its `as_raw_fd` never changes,
    // and the `AsyncFd` owns it and ends the watch before it drops it. Nothing here or below closes
    // it.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    Ok(watched?)
}
