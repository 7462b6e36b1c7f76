// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs that change a frame for the responder's next program, or send and receive frames for it.

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use aya_ebpf::bindings::xdp_action::{XDP_ABORTED, XDP_DROP, XDP_TX};
use aya_ebpf::helpers::{bpf_skb_change_head, bpf_skb_vlan_push};
use aya_ebpf::macros::{classifier, map, xdp};
use aya_ebpf::maps::{Array, PerCpuArray};
use aya_ebpf::programs::{TcContext, XdpContext};

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

/// Length of a query over IPv4 in an Ethernet frame.
const QUERY_LEN: usize = 62;

#[map(name = "frame")]
static FRAME: Array<[u8; QUERY_LEN]> = Array::with_max_entries(1, 0);

#[map(name = "received")]
static RECEIVED: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Sends the query in `frame`. The kernel runs it for frames whose contents are those of replies to earlier ones
/// (`BPF_F_TEST_XDP_LIVE_FRAMES`).
#[xdp]
pub(crate) fn send_xdp(ctx: XdpContext) -> u32 {
    let (start, end) = (ctx.data(), ctx.data_end());
    let Some(frame) = FRAME.get_ptr(0) else { return XDP_ABORTED };
    if start + QUERY_LEN > end {
        return XDP_ABORTED;
    }
    // SAFETY: the packet has as many bytes, and a map's element stays where it is.
    unsafe { (start as *mut [u8; QUERY_LEN]).write_unaligned(*frame) };
    XDP_TX
}

/// Counts frames, and drops them.
#[xdp]
pub(crate) fn receive_xdp(_: XdpContext) -> u32 {
    if let Some(received) = RECEIVED.get_ptr_mut(0) {
        // SAFETY: an element of this processor, which no other program writes meanwhile.
        unsafe { *received += 1 };
    }
    XDP_DROP
}
