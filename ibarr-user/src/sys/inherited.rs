// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Descriptors that the parent process opened for the daemon (sd_listen_fds(3)).

#![expect(unsafe_code, reason = "a number becomes the descriptor that it stands for")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// All inherited descriptors with their names (`FDNAME=`, `FileDescriptorName=`), once in the life
/// of the process. Call it before anything else opens a descriptor.
///
/// # Errors
/// If the variables are malformed, or name a descriptor that is not open.
pub fn take() -> io::Result<Vec<(String, OwnedFd)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let inherited = sd_notify::listen_fds_with_names()?;
    let owned = inherited.map(|(fd, name)| {
        // SAFETY: the descriptor is open, or `listen_fds_with_names` would have failed to set its
        // FD_CLOEXEC. Nothing else owns it: LISTEN_PID says that it was opened for this process
        // before it started, nothing else in the process looks for it, and this function gives each
        // one away only once.
        (name, unsafe { OwnedFd::from_raw_fd(fd) })
    });
    Ok(owned.collect())
}
