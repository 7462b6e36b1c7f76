// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The bytes of a frame: the header of Ethernet, and under XDP bounds, reading, writing.

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

impl Ethernet {
    #[inline]
    pub(crate) fn is_from_a_host(&self) -> bool {
        const GROUP: u8 = 1;
        self.source[0] & GROUP == 0
    }

    /// The header of a reply to the host that the frame came from. Any host may have sent it, whatever
    /// its source address.
    #[inline]
    pub(crate) fn back(&self) -> Self {
        Self { destination: self.source, source: self.destination, ..*self }
    }
}

/// The layout of a whole frame.
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
    /// Makes the frame longer, at the end that has room: in front (guaranteed with generic XDP,
    /// scarce with some drivers) or at the back (since Linux 5.8, if the buffer allows).
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

    /// A pointer to a `T` at the start of the frame, if the frame is long enough.
    #[inline]
    pub(crate) fn view<T>(&self) -> Option<*mut T> {
        let start = self.start();
        (start + size_of::<T>() <= self.end()).then_some(start as *mut T)
    }

    #[inline]
    pub(crate) fn start(&self) -> usize {
        // SAFETY: a field of the kernel's context, which outlives the program.
        let data = unsafe { &raw const (*self.ctx.ctx).data };
        // SAFETY: as above. Volatile, because the compiler would otherwise optimize away the
        // comparison with the end, which the verifier requires.
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

/// Keeps the compiler from splitting memory into more registers than there are.
#[inline]
pub(crate) fn opaque<T>(memory: &T) -> &T {
    core::hint::black_box(memory)
}

/// Writes whole words, because the program reads words: a CPU that reads a word which it has just
/// written in parts has to wait until all parts are in its cache.
///
/// # Safety
/// `from` holds a `T`, is even, and its bytes may be any.
///
/// The kernel's own stack also expects a frame at an even address (`include/linux/etherdevice.h`).
#[inline]
pub(crate) unsafe fn copy<T>(from: *const T, to: &mut MaybeUninit<Aligned<T>>) -> &Aligned<T> {
    const { assert!(size_of::<T>().is_multiple_of(2)) }
    let half = |index: usize| {
        // SAFETY: inside the `T`.
        let from = unsafe { from.cast::<u16>().add(index) };
        // SAFETY: as above, and even. Volatile, because the compiler would otherwise call a
        // function that copies single bytes.
        unsafe { from.read_volatile() }
    };
    let (words, halves) = (size_of::<T>() / 8, size_of::<T>() / 2);
    for index in 0..words {
        let word: u64 = zerocopy::transmute!([0, 1, 2, 3].map(|part| half(4 * index + part)));
        // SAFETY: inside the space for a `T`.
        let to = unsafe { to.as_mut_ptr().cast::<u64>().add(index) };
        // SAFETY: inside that space, which is aligned.
        unsafe { to.write(word) };
    }
    for index in 4 * words..halves {
        // SAFETY: inside the space for a `T`.
        let to = unsafe { to.as_mut_ptr().cast::<u16>().add(index) };
        // SAFETY: inside that space, which is aligned.
        unsafe { to.write(half(index)) };
    }
    // SAFETY: the loops above have written all of it.
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
