// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs used to test and measure the responder. The daemon never loads them.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod less;
#[cfg(target_arch = "bpf")]
mod traffic;

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual BSD/GPL\0";

#[cfg(not(target_arch = "bpf"))]
fn main() {
    println!("BPF programs: compiled by `cargo xtask ebpf`, loaded by tests and benches");
}
