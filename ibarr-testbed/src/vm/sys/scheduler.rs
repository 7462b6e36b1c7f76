// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Real-time priority of a thread (sched(7)).

use std::io;

use nix::libc;

/// From now on this thread runs before all threads without real-time priority, the kernel's own among
/// them, and before real-time threads with a lower `rank` (1 to 99). When it wakes, it preempts the
/// thread on its processor, if the kernel is preemptible there.
pub(crate) fn go_first(rank: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: rank };
    // SAFETY: the kernel reads `parameters`, which outlives the call, and writes nothing.
    let status = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
