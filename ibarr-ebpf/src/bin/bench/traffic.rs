// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs that make frames for the responder, or receive its replies.

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use aya_ebpf::btf_maps::{Array, PerCpuArray};
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_skb_change_head, bpf_skb_vlan_push};
use aya_ebpf::macros::{btf_map, classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use ibarr_common::wire::ip2gid::PORT;
use ibarr_ebpf::packet::{Ipv4Query, Ipv6Query};
use zerocopy::network_endian::U16;

use crate::frame::{Ethernet, Frame, Whole};

/// Extends the header of an Ethernet frame to the 24 bytes of IPoIB's for the next program.
#[classifier]
pub(crate) fn widen_tc(ctx: TcContext) -> i32 {
    // SAFETY: the context is ours, and no pointer into the packet is held.
    unsafe { bpf_skb_change_head(ctx.skb.skb, 10, 0) };
    TC_ACT_UNSPEC
}

/// Puts a frame into VLAN 7. The tag is metadata, as with the driver of an adapter that strips
/// tags.
#[classifier]
pub(crate) fn tag_tc(ctx: TcContext) -> i32 {
    const TAG: u16 = 0x8100;
    // SAFETY: the context is ours, and no pointer into the packet is held.
    unsafe { bpf_skb_vlan_push(ctx.skb.skb, TAG.to_be(), 7) };
    TC_ACT_UNSPEC
}

/// The queries that `generate_xdp` sends, over IPv4 and over IPv6: complete frames with 0 in the
/// last two octets of the source.
#[btf_map(name = "templates")]
static TEMPLATES: Array<[u16; 48], 2> = Array::new();

/// The number of packets that `sink_xdp` has received.
#[btf_map(name = "sunk")]
static SUNK: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Runs on live frames of the right length, turns each into a query from one of 2¹⁴ sources, and
/// sends it.
#[xdp]
pub(crate) fn generate_xdp(ctx: XdpContext) -> u32 {
    let frame = Frame { ctx: &ctx };
    let len = frame.end() - frame.start();
    // SAFETY: the helper takes no arguments and has no effect on our memory.
    let number = unsafe { bpf_get_prandom_u32() } as u16 & 0x3fff;
    if len == size_of::<Whole<Ethernet, Ipv4Query>>() {
        generate::<Whole<Ethernet, Ipv4Query>, 3>(&frame, 0, [14 + 14, 14 + 20, 14 + 4], number)
    } else if len == size_of::<Whole<Ethernet, Ipv6Query>>() {
        generate::<Whole<Ethernet, Ipv6Query>, 2>(&frame, 1, [14 + 22, 14 + 40], number)
    } else {
        XDP_DROP
    }
}

/// Writes template `index`, with `number` in its first field. The other fields decrease by
/// `number`, so that every checksum stays right.
#[inline]
fn generate<T, const N: usize>(
    frame: &Frame<'_>,
    index: u32,
    fields: [usize; N],
    number: u16,
) -> u32 {
    let Some(template) = TEMPLATES.get(index) else { return XDP_DROP };
    let Some(to) = frame.view::<T>() else { return XDP_DROP };
    let to = to.cast::<u16>();
    for half in 0..size_of::<T>() / 2 {
        let mut value = template[half];
        if fields[0] == 2 * half {
            value = number.to_be();
        } else if fields[1..].contains(&(2 * half)) {
            value = (u16::from_be(value) - number).to_be();
        }
        // SAFETY: inside the frame, which `view` has checked, and even.
        let to = unsafe { to.add(half) };
        // SAFETY: as above.
        unsafe { to.write_volatile(value) };
    }
    XDP_TX
}

/// Counts and drops packets from or to the port of ip2gid or one of the next two ports.
#[xdp]
pub(crate) fn sink_xdp(ctx: XdpContext) -> u32 {
    let frame = Frame { ctx: &ctx };
    let Some(start) = frame.view::<[U16; 29]>() else { return XDP_PASS };
    // SAFETY: `view` has checked the bounds.
    let words = unsafe { &*start };
    let ports = match words[6].get() {
        0x0800 => [words[17], words[18]],
        0x86dd => [words[27], words[28]],
        _ => return XDP_PASS,
    };
    if !ports.iter().any(|port| (PORT..PORT + 3).contains(&port.get())) {
        return XDP_PASS;
    }
    if let Some(sunk) = SUNK.get_ptr_mut(0) {
        // SAFETY: the element of this CPU, which nothing else writes meanwhile.
        unsafe { *sunk += 1 };
    }
    XDP_DROP
}
