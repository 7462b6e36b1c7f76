// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs that do less than the responder: nothing, or send the packet back.

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use aya_ebpf::bindings::xdp_action::{XDP_PASS, XDP_TX};
use aya_ebpf::helpers::bpf_redirect;
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};

/// A filter of others, for tests.
#[classifier]
pub(crate) fn empty_tc(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// Lets a veth peer receive what native XDP sends.
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

const _: () = assert!(size_of::<Udp<Ipv4>>() == 38);
const _: () = assert!(size_of::<Udp<Ipv6>>() == 58);
