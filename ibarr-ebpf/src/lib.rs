// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The BPF programs of ibarr.
//!
//! * [`packet`], [`decide`]: the decision about a packet, without helpers and maps, so that it is
//!   also tested on the host;
//! * `src/bin/responder`: the programs, the maps, and all code that calls the kernel;
//! * `src/bin/logging`: the same programs, which also report each packet;
//! * [`OBJECT`], [`LOGGING_OBJECT`], [`BENCH_OBJECT`]: the programs as compiled by `cargo xtask ebpf`.

#![no_std]
#![forbid(unsafe_code)]

pub mod decide;
pub mod packet;

#[cfg(not(target_arch = "bpf"))]
pub use object::{BENCH_OBJECT, LOGGING_OBJECT, OBJECT};

#[cfg(not(target_arch = "bpf"))]
mod object {
    /// Aligned as an ELF reader requires.
    #[repr(C, align(8))]
    struct Aligned<T: ?Sized>(T);

    static RESPONDER: &Aligned<[u8]> = &Aligned(*include_bytes!("../prebuilt/responder.bpf.o"));
    static LOGGING: &Aligned<[u8]> = &Aligned(*include_bytes!("../prebuilt/logging.bpf.o"));
    static BENCH: &Aligned<[u8]> = &Aligned(*include_bytes!("../prebuilt/bench.bpf.o"));

    /// The responder: `ip2gid_tc`, `ip2gid_xdp`, `ip2gid_guard` and their maps, an ELF file
    /// without DWARF.
    pub static OBJECT: &[u8] = &RESPONDER.0;

    /// The same programs with `aya-log` in them: they report each packet that they count.
    pub static LOGGING_OBJECT: &[u8] = &LOGGING.0;

    /// Programs used to test and measure the responder; the daemon never loads them.
    pub static BENCH_OBJECT: &[u8] = &BENCH.0;
}
