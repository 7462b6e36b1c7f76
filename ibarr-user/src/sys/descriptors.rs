// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The limit of open descriptors (`RLIMIT_NOFILE`).

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit, and returns it. The soft limit is low only for programs
/// that use select(2); the daemon does not.
///
/// # Errors
/// Errors of getrlimit(2) and setrlimit(2).
pub fn raise_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}
