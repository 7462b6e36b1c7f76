// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The bytes of a frame under XDP: where they are, how they are read and written.

use core::mem::MaybeUninit;
use core::ptr;

use aya_ebpf::helpers::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail};
use aya_ebpf::programs::XdpContext;
use ibarr_common::map::Reason;
use ibarr_ebpf::packet::Aligned;
use zerocopy::network_endian::U16;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ethernet {
    pub(crate) destination: [u8; 6],
    pub(crate) source: [u8; 6],
    pub(crate) ethertype: U16,
}

/// A whole frame.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Whole<L, P> {
    pub(crate) link: L,
    pub(crate) packet: P,
}

pub(crate) struct Frame<'a> {
    pub(crate) ctx: &'a XdpContext,
}

impl Frame<'_> {
    /// Makes the frame longer, at the end that has room: before it (guaranteed where XDP is
    /// generic, scarce with some drivers), or behind it (since Linux 5.8, where the buffer allows).
    #[inline]
    pub(crate) fn grow(&self, by: usize) -> Result<(), Reason> {
        if by == 0 {
            return Ok(());
        }
        let by = by as i32;
        // SAFETY: the context is ours, and no pointer into the packet is held.
        if unsafe { bpf_xdp_adjust_head(self.ctx.ctx, -by) } == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        if unsafe { bpf_xdp_adjust_tail(self.ctx.ctx, by) } == 0 {
            return Ok(());
        }
        Err(Reason::NoRoom)
    }

    /// Where a `T` at the start of the frame is, if the frame holds one.
    #[inline]
    pub(crate) fn view<T>(&self) -> Option<*mut T> {
        let start = self.start();
        (start + size_of::<T>() <= self.end()).then_some(start as *mut T)
    }

    #[inline]
    pub(crate) fn start(&self) -> usize {
        // SAFETY: a field of the kernel's context, which outlives the program.
        let data = unsafe { &raw const (*self.ctx.ctx).data };
        // SAFETY: as above. Volatile, or the compiler would see through the comparison with the
        // end that the verifier wants to see.
        unsafe { data.read_volatile() as usize }
    }

    #[inline]
    pub(crate) fn end(&self) -> usize {
        // SAFETY: as for the start.
        let end = unsafe { &raw const (*self.ctx.ctx).data_end };
        // SAFETY: as for the start.
        unsafe { end.read_volatile() as usize }
    }
}

/// Keeps the compiler from tearing memory into more registers than there are.
#[inline]
pub(crate) fn opaque<T>(memory: &T) -> &T {
    core::hint::black_box(memory)
}

/// Writes whole words, for whoever reads words: a CPU that reads what it has just written in parts
/// has to wait until they are in its cache.
///
/// # Safety
/// `from` holds a `T`, is even, and its bytes may be any.
///
/// An even address is what the kernel's own stack asks of a frame (`include/linux/etherdevice.h`).
#[inline]
pub(crate) unsafe fn copy<T>(from: *const T, to: &mut MaybeUninit<Aligned<T>>) -> &Aligned<T> {
    const { assert!(size_of::<T>().is_multiple_of(2)) }
    let half = |index: usize| {
        // SAFETY: inside the `T`.
        let from = unsafe { from.cast::<u16>().add(index) };
        // SAFETY: as above, and even. Volatile, or the compiler would call a function that copies
        // byte by byte.
        unsafe { from.read_volatile() }
    };
    let (words, halves) = (size_of::<T>() / 8, size_of::<T>() / 2);
    for index in 0..words {
        let word: u64 = zerocopy::transmute!([0, 1, 2, 3].map(|part| half(4 * index + part)));
        // SAFETY: inside the room for a `T`.
        let to = unsafe { to.as_mut_ptr().cast::<u64>().add(index) };
        // SAFETY: inside that room, which is aligned.
        unsafe { to.write(word) };
    }
    for index in 4 * words..halves {
        // SAFETY: inside the room for a `T`.
        let to = unsafe { to.as_mut_ptr().cast::<u16>().add(index) };
        // SAFETY: inside that room, which is aligned.
        unsafe { to.write(half(index)) };
    }
    // SAFETY: all of it has just been written.
    unsafe { to.assume_init_ref() }
}

/// # Safety
/// `to` has room for a `T` and is even.
#[inline]
pub(crate) unsafe fn copy_back<T>(from: &Aligned<T>, to: *mut T) {
    const { assert!(size_of::<T>().is_multiple_of(2)) }
    let from = (&raw const from.0).cast::<u16>();
    // SAFETY: both hold a `T`, one of them on our stack, and both are even.
    unsafe { ptr::copy_nonoverlapping(from, to.cast(), size_of::<T>() / 2) };
}
