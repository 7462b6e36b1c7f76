// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which thread goes first (sched(7)).

use std::io;

use nix::libc;

/// From now on this thread goes before all that are not of its kind, the kernel's own among them, and
/// before those of its kind with a lower `rank` (1 to 99): when it wakes, what runs on its processor
/// stops, if the kernel is preemptible there.
pub(crate) fn go_first(rank: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: rank };
    // SAFETY: the kernel reads `parameters`, which outlives the call, and writes nothing.
    let status = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
