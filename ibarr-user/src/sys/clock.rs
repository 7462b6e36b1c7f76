// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The only clock of the daemon.

use ibarr_common::Instant;
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

/// The time now, on the clock that cores, maps and lease share.
///
/// # Panics
/// Never on Linux 2.6.39 or later, which has `CLOCK_BOOTTIME`.
pub fn now() -> Instant {
    let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME exists");
    Instant::from_nanos(since_boot.num_nanoseconds().unsigned_abs())
}
