// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reports packets, with the time, the program, the interface, the source, the address that is asked
//! for, and the result. `bpf/log.rs` of the daemon reads it.

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::helpers::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::btf_map;
use ibarr_common::map::{Program, Reason};
use ibarr_ebpf::packet::Aligned;

/// How many packets were reported, with those for which the ring had no room: `aya-log` does not
/// count them.
#[btf_map(name = "logged")]
static LOGGED: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Whether [`packet`] does anything.
pub(crate) const IS_ON: bool = true;

#[inline]
pub(crate) fn packet(
    program: Program,
    ifindex: u32,
    source: [u8; 16],
    target: [u8; 16],
    reason: Reason,
) {
    let addresses = Aligned([source, target]);
    report(program as u32, ifindex, &addresses, reason as u32);
}

/// Not inlined: its stack is used only after that of the decision.
#[inline(never)]
fn report(program: u32, ifindex: u32, addresses: &Aligned<[[u8; 16]; 2]>, reason: u32) {
    if let Some(logged) = LOGGED.get_ptr_mut(0) {
        // SAFETY: the element of this CPU, which nothing else writes meanwhile.
        unsafe { *logged += 1 };
    }
    // SAFETY: the helper takes no arguments and has no effect.
    let at = unsafe { bpf_ktime_get_boot_ns() };
    let Aligned([source, target]) = *addresses;
    aya_log_ebpf::info!(
        (),
        target: "",
        "{} {} {} {:i} {:i} {}",
        at,
        program,
        ifindex,
        source,
        target,
        reason
    );
}
