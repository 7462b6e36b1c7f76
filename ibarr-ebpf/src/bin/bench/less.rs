// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs that do less than the responder, in steps: nothing; send the packet back; send back a
//! packet of the length of a reply.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::xdp_action::{XDP_PASS, XDP_TX};
use aya_ebpf::bindings::{TC_ACT_UNSPEC, xdp_md};
use aya_ebpf::helpers::{
    bpf_redirect, bpf_redirect_neigh, bpf_skb_change_tail, bpf_skb_load_bytes,
};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use ibarr_ebpf::packet::{Aligned, Ipv4Query, Ipv6Query, QueryPacket};

use crate::frame::{Ethernet, Frame, Whole, copy, copy_back, opaque};

/// Measures the cost of an empty program.
#[classifier]
pub(crate) fn empty_tc(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// Measures the cost of an empty program. It also lets a veth peer receive what native XDP sends.
#[xdp]
pub(crate) fn empty_xdp(_: XdpContext) -> u32 {
    XDP_PASS
}

/// Does the minimum to send a UDP datagram back: swaps hardware addresses, IP addresses and ports.
#[classifier]
pub(crate) fn bounce_tc(ctx: TcContext) -> i32 {
    if !bounce(ctx.data(), ctx.data_end()) {
        return TC_ACT_UNSPEC;
    }
    // SAFETY: a field of the kernel's context, which outlives the program.
    let ifindex = unsafe { (*ctx.skb.skb).ifindex };
    // SAFETY: the helper takes no memory of ours.
    unsafe { bpf_redirect(ifindex, 0) as i32 }
}

/// The XDP variant of `bounce_tc`.
#[xdp]
pub(crate) fn bounce_xdp(ctx: XdpContext) -> u32 {
    if bounce(ctx.data(), ctx.data_end()) { XDP_TX } else { XDP_PASS }
}

/// Sends back a packet of the length of the reply to a query of this length, with meaningless
/// content. It does everything that the responder does to a packet, but decides nothing.
#[classifier]
pub(crate) fn rewrite_tc(ctx: TcContext) -> i32 {
    const LINK: u32 = size_of::<Ethernet>() as u32;
    const IPV4: u32 = LINK + size_of::<Ipv4Query>() as u32;
    const IPV6: u32 = LINK + size_of::<Ipv6Query>() as u32;
    match ctx.len() {
        IPV4 => rewrite_skb::<Ipv4Query>(&ctx),
        IPV6 => rewrite_skb::<Ipv6Query>(&ctx),
        _ => TC_ACT_UNSPEC,
    }
}

/// The XDP variant of `rewrite_tc`.
#[xdp]
pub(crate) fn rewrite_xdp(ctx: XdpContext) -> u32 {
    let frame = Frame { ctx: &ctx };
    let len = frame.end() - frame.start();
    if len == size_of::<Whole<Ethernet, Ipv4Query>>() {
        rewrite_frame::<Ipv4Query>(&frame)
    } else if len == size_of::<Whole<Ethernet, Ipv6Query>>() {
        rewrite_frame::<Ipv6Query>(&frame)
    } else {
        XDP_PASS
    }
}

/// Ethernet, IP and UDP.
#[repr(C)]
struct Udp<Ip> {
    ethernet: [[u8; 6]; 2],
    ethertype: [u8; 2],
    ip: Ip,
    ports: [[u8; 2]; 2],
}

#[repr(C)]
struct Ipv4 {
    before: [u8; 9],
    protocol: u8,
    checksum: [u8; 2],
    addresses: [[u8; 4]; 2],
}

#[repr(C)]
struct Ipv6 {
    before: [u8; 6],
    protocol: u8,
    hop_limit: u8,
    addresses: [[u8; 16]; 2],
}

#[inline]
fn bounce(start: usize, end: usize) -> bool {
    if start + size_of::<Udp<Ipv4>>() > end {
        return false;
    }
    let frame = start as *mut Udp<Ipv4>;
    // SAFETY: in bounds, and nothing else accesses the packet.
    let frame = unsafe { &mut *frame };
    if frame.ethertype == [8, 0] && frame.ip.protocol == UDP {
        frame.ethernet.swap(0, 1);
        frame.ip.addresses.swap(0, 1);
        frame.ports.swap(0, 1);
        return true;
    }
    if start + size_of::<Udp<Ipv6>>() > end {
        return false;
    }
    let frame = start as *mut Udp<Ipv6>;
    // SAFETY: as above.
    let frame = unsafe { &mut *frame };
    if frame.ethertype == [0x86, 0xdd] && frame.ip.protocol == UDP {
        frame.ethernet.swap(0, 1);
        frame.ip.addresses.swap(0, 1);
        frame.ports.swap(0, 1);
        return true;
    }
    false
}

const UDP: u8 = 17;

#[inline]
fn rewrite_skb<Q: QueryPacket>(ctx: &TcContext) -> i32 {
    const { assert!(size_of::<Q>() <= size_of::<Q::Reply>()) }
    let mut reply = Aligned(MaybeUninit::<Q::Reply>::zeroed());
    let skb = ctx.skb.skb;
    let link = size_of::<Ethernet>() as u32;
    let (from, to) = (size_of::<Q>() as u32, size_of::<Q::Reply>() as u32);
    // SAFETY: the reply has room for a query.
    if unsafe { bpf_skb_load_bytes(skb.cast(), link, reply.0.as_mut_ptr().cast(), from) } != 0 {
        return TC_ACT_UNSPEC;
    }
    // SAFETY: the context is ours, and no pointer into the packet is held.
    if from != to && unsafe { bpf_skb_change_tail(skb, link + to, 0) } != 0 {
        return TC_ACT_UNSPEC;
    }
    // SAFETY: zeroed and then partly written: any bytes are a reply.
    let reply = unsafe { reply.0.assume_init_ref() };
    if ctx.store(link as usize, reply, 0).is_err() {
        return TC_ACT_UNSPEC;
    }
    // SAFETY: a field of the kernel's context, which outlives the program.
    let ifindex = unsafe { (*skb).ifindex };
    // SAFETY: without parameters, the helper takes no memory of ours.
    unsafe { bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0) as i32 }
}

#[inline]
fn rewrite_frame<Q: QueryPacket>(frame: &Frame<'_>) -> u32 {
    let mut reply = MaybeUninit::<Aligned<Whole<Ethernet, Q::Reply>>>::zeroed();
    let Some(query) = frame.view::<Whole<Ethernet, Q>>() else { return XDP_PASS };
    // SAFETY: a reply is at least as long as a query, and as aligned.
    let room = unsafe { &mut *reply.as_mut_ptr().cast::<MaybeUninit<_>>() };
    // SAFETY: `view` has checked the bounds, and any bytes are a frame.
    unsafe { copy(query, room) };
    if frame.grow(size_of::<Q::Reply>() - size_of::<Q>()).is_err() {
        return XDP_PASS;
    }
    let Some(frame) = frame.view::<Whole<Ethernet, Q::Reply>>() else { return XDP_PASS };
    // SAFETY: zeroed and then partly written: any bytes are a reply.
    let reply = unsafe { reply.assume_init_ref() };
    // SAFETY: `view` has checked the bounds.
    unsafe { copy_back(opaque(reply), frame) };
    XDP_TX
}

const _: () = assert!(size_of::<Udp<Ipv4>>() == 38);
const _: () = assert!(size_of::<Udp<Ipv6>>() == 58);
const _: () = assert!(size_of::<xdp_md>() == 24);
