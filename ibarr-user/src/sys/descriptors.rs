// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How many descriptors the process may have.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, and returns it. Nothing here uses select(2), for whose sake
/// the soft one is low.
///
/// # Errors
/// Those of getrlimit(2) and setrlimit(2).
pub fn raise_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}
