// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs that change a frame for the responder's next program.

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use aya_ebpf::helpers::{bpf_skb_change_head, bpf_skb_vlan_push};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;

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
