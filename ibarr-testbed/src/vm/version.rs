// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The version of this kernel, by which recordings differ.

use anyhow::{Result, bail};
use nix::sys::utsname::uname;

/// Since this version `rdma_cm` asks for all paths to a GID, before only for that of GMPs.
pub(crate) const ALL_PATHS: (u32, u32) = (6, 1);

/// The last version of which it is known that requests are sent again, and callers wake, in the order in which they
/// asked. In 7.3 they do not.
pub(crate) const IN_ORDER: (u32, u32) = (6, 12);

/// Major and minor number.
pub(crate) fn linux() -> Result<(u32, u32)> {
    let name = uname()?;
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    let Some((Ok(major), Ok(minor))) = numbers.next().zip(numbers.next()) else {
        bail!("this is Linux {release}")
    };
    Ok((major, minor))
}
