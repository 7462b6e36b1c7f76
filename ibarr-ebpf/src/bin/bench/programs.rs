// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use aya_ebpf::bindings::xdp_action::{XDP_PASS, XDP_TX};
use aya_ebpf::bindings::{TC_ACT_UNSPEC, xdp_md};
use aya_ebpf::helpers::{bpf_redirect, bpf_skb_change_head};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};

/// What any program costs.
#[classifier]
pub(crate) fn empty_tc(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// What any program costs. Also lets a veth peer receive what native XDP sends.
#[xdp]
pub(crate) fn empty_xdp(_: XdpContext) -> u32 {
    XDP_PASS
}

/// The least that a program can do to send IPv4/UDP back: swaps hardware addresses, IP addresses
/// and ports.
#[classifier]
pub(crate) fn bounce_tc(ctx: TcContext) -> i32 {
    if ctx.data() + size_of::<Frame>() > ctx.data_end() {
        return TC_ACT_UNSPEC;
    }
    let frame = ctx.data() as *mut Frame;
    // SAFETY: inside the packet, as just checked.
    let is_udp = unsafe { is_udp(frame) };
    if !is_udp {
        return TC_ACT_UNSPEC;
    }
    // SAFETY: as above.
    unsafe { swap(frame) };
    // SAFETY: a field of the kernel's context, which outlives the program.
    let ifindex = unsafe { (*ctx.skb.skb).ifindex };
    // SAFETY: the helper takes no memory of ours.
    unsafe { bpf_redirect(ifindex, 0) as i32 }
}

/// As `bounce_tc`.
#[xdp]
pub(crate) fn bounce_xdp(ctx: XdpContext) -> u32 {
    if ctx.data() + size_of::<Frame>() > ctx.data_end() {
        return XDP_PASS;
    }
    let frame = ctx.data() as *mut Frame;
    // SAFETY: inside the packet, as just checked.
    let is_udp = unsafe { is_udp(frame) };
    if !is_udp {
        return XDP_PASS;
    }
    // SAFETY: as above.
    unsafe { swap(frame) };
    XDP_TX
}

/// Gives an Ethernet frame the 24 bytes of link header of IPoIB, for the next program to see.
#[classifier]
pub(crate) fn widen_tc(ctx: TcContext) -> i32 {
    // SAFETY: the context is ours, and no pointer into the packet is held.
    unsafe { bpf_skb_change_head(ctx.skb.skb, 10, 0) };
    TC_ACT_UNSPEC
}

/// Ethernet, IPv4 and UDP.
#[repr(C)]
struct Frame {
    ethernet: [[u8; 6]; 2],
    ethertype: [u8; 2],
    ip: [u8; 9],
    protocol: u8,
    checksum: [u8; 2],
    addresses: [[u8; 4]; 2],
    ports: [[u8; 2]; 2],
}

/// # Safety
/// `frame` is in bounds.
#[inline]
unsafe fn is_udp(frame: *const Frame) -> bool {
    // SAFETY: in bounds, says the caller.
    let protocol = unsafe { (*frame).protocol };
    // SAFETY: in bounds, says the caller.
    let ethertype = unsafe { (*frame).ethertype };
    protocol == 17 && ethertype == [8, 0]
}

/// # Safety
/// `frame` is in bounds.
#[inline]
unsafe fn swap(frame: *mut Frame) {
    // SAFETY: in bounds, says the caller, and nobody else holds the packet.
    let frame = unsafe { &mut *frame };
    frame.ethernet.swap(0, 1);
    frame.addresses.swap(0, 1);
    frame.ports.swap(0, 1);
}

const _: () = assert!(size_of::<Frame>() == 38);
const _: () = assert!(size_of::<xdp_md>() == 24);
