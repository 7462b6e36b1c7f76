// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reports packets, with the time, the program, the interface, the source, the address that is asked
//! for, and the result. `bpf/packets.rs` of the daemon reads it.

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::helpers::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::btf_map;
use ibarr_common::map::{Program, Reason};

/// How many packets were reported, with those for which the ring had no room: `aya-log` does not
/// count them.
#[btf_map(name = "logged")]
static LOGGED: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Whether [`packet`] does anything.
pub(crate) const IS_ON: bool = true;

/// A packet that is yet to be reported.
#[repr(C)]
struct Noted {
    is_set: u32,
    ifindex: u32,
    reason: u32,
    reserved: u32,
    addresses: [[u8; 16]; 2],
}

/// By program. The decision needs nearly all of the stack, so the report is made after it.
#[btf_map(name = "noted")]
static NOTED: PerCpuArray<Noted, { Program::ALL.len() }> = PerCpuArray::new();

/// Notes the packet for [`report`].
#[inline]
pub(crate) fn packet(
    program: Program,
    ifindex: u32,
    source: [u8; 16],
    target: [u8; 16],
    reason: Reason,
) {
    if let Some(noted) = NOTED.get_ptr_mut(program.index()) {
        let reason = reason as u32;
        let addresses = [source, target];
        // SAFETY: the element of this CPU, which nothing else writes meanwhile.
        unsafe { noted.write(Noted { is_set: 1, ifindex, reason, reserved: 0, addresses }) };
    }
}

/// Reports the packet that the program has noted, if any. Called last.
#[inline(never)]
pub(crate) fn report(program: Program) {
    let Some(noted) = NOTED.get_ptr_mut(program.index()) else { return };
    // SAFETY: as above.
    let noted = unsafe { &mut *noted };
    if noted.is_set == 0 {
        return;
    }
    noted.is_set = 0;
    // SAFETY: the helper takes no arguments and has no effect.
    let at = unsafe { bpf_ktime_get_boot_ns() };
    let [source, target] = noted.addresses;
    aya_log_ebpf::info!(
        (),
        target: "",
        "{} {} {} {:i} {:i} {}",
        at,
        program.index(),
        noted.ifindex,
        source,
        target,
        noted.reason
    );
    // After it is in the ring: the reader takes a report that is counted and not there for lost.
    if let Some(logged) = LOGGED.get_ptr_mut(0) {
        // SAFETY: as above.
        unsafe { *logged += 1 };
    }
}
