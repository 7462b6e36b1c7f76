// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The responder with `aya-log` in it, for the time of `ibarr trace --kernel`. Its files are those of
//! the responder beside it; `log.rs` alone differs.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
#[path = "../responder/frame.rs"]
mod frame;
#[cfg(target_arch = "bpf")]
#[path = "../responder/guard.rs"]
mod guard;
#[cfg(target_arch = "bpf")]
mod log;
#[cfg(target_arch = "bpf")]
#[path = "../responder/node.rs"]
mod node;
#[cfg(target_arch = "bpf")]
#[path = "../responder/programs.rs"]
mod programs;
#[cfg(target_arch = "bpf")]
#[path = "../responder/tc.rs"]
mod tc;
#[cfg(target_arch = "bpf")]
#[path = "../responder/xdp.rs"]
mod xdp;

/// Length of the link header in bytes: 14 on Ethernet, 24 on IPoIB. The loader sets it, and loads
/// one instance for each length.
#[cfg(target_arch = "bpf")]
#[unsafe(no_mangle)]
static LINK_HEADER_LEN: aya_ebpf::Global<u32> = aya_ebpf::Global::new(14);

/// Never called: the verifier would refuse a program that can panic.
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
    println!("BPF programs: compiled by `cargo xtask ebpf`, loaded by the ibarr daemon");
}
