// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs that the responder is tested and measured beside. The daemon never loads them.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod less;
#[cfg(target_arch = "bpf")]
#[path = "../responder/node.rs"]
mod node;
#[cfg(target_arch = "bpf")]
mod traffic;
#[cfg(target_arch = "bpf")]
mod without;
#[cfg(target_arch = "bpf")]
#[path = "../responder/xdp.rs"]
mod xdp;

/// See the responder's.
#[cfg(target_arch = "bpf")]
#[unsafe(no_mangle)]
static LINK_HEADER_LEN: aya_ebpf::Global<u32> = aya_ebpf::Global::new(14);

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
