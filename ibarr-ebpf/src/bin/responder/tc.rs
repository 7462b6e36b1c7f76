// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The code of `ip2gid_tc`: answers at tc ingress, on tcx or clsact.
//!
//! On Ethernet the reply goes back to the hardware address that the query came from, as under XDP.
//!
//! On IPoIB `bpf_redirect_neigh` routes the reply, finds its neighbour and writes its link header,
//! with the kernel's own tables. It expects the IP header after 14 bytes, whatever the length of the
//! link's header (`net/core/filter.c`, `__bpf_redirect_neigh`), so the reply is built there.

use core::mem::{MaybeUninit, offset_of};

use aya_ebpf::bindings::{__sk_buff, TC_ACT_UNSPEC};
use aya_ebpf::helpers::{
    bpf_redirect, bpf_redirect_neigh, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes,
};
use aya_ebpf::programs::TcContext;
use ibarr_common::IfIndex;
use ibarr_common::map::{Interface, Program, Reason, ResponderCfg};
use ibarr_ebpf::decide::{Ingress, Node as _, answer};
use ibarr_ebpf::packet::{Ipv4Query, Ipv6Query, QueryPacket};

use crate::LINK_HEADER_LEN;
use crate::frame::Ethernet;
use crate::log;
use crate::node::Maps;

/// A packet that is not answered goes unchanged to the next program (`TC_ACT_UNSPEC`).
#[inline]
pub(crate) fn respond(ctx: &TcContext) -> i32 {
    let frame = Frame { ctx };
    if frame.may_hold::<Ipv4Query>() {
        return frame.handle::<Ipv4Query>();
    }
    if frame.may_hold::<Ipv6Query>() {
        return frame.handle::<Ipv6Query>();
    }
    TC_ACT_UNSPEC
}

/// The offset at which `bpf_redirect_neigh` expects the IP header.
const REPLY_OFFSET: u32 = size_of::<Ethernet>() as u32;

/// A packet and the 14 bytes before it, which are the whole link header on Ethernet alone.
#[repr(C, align(8))]
struct Whole<P> {
    /// Aligns the packet for wide loads and stores.
    padding: [u8; 2],
    link: Ethernet,
    packet: P,
}

impl<P> Whole<P> {
    /// Number of bytes without the padding.
    const LEN: u32 = REPLY_OFFSET + size_of::<P>() as u32;
    const _ALIGNED: () = assert!(offset_of!(Self, packet) == 16);
}

#[inline]
fn is_ethernet() -> bool {
    LINK_HEADER_LEN.load() == REPLY_OFFSET
}

struct Frame<'a> {
    ctx: &'a TcContext,
}

impl Frame<'_> {
    /// Nearly all other traffic ends here.
    #[inline]
    fn may_hold<Q: QueryPacket>(&self) -> bool {
        let skb = self.skb();
        skb.protocol == u32::from(Q::ETHERTYPE.to_be())
            && skb.len == LINK_HEADER_LEN.load() + size_of::<Q>() as u32
    }

    /// Not inlined: the two instances together would exceed the stack.
    #[inline(never)]
    fn handle<Q: QueryPacket>(&self) -> i32 {
        let mut whole = MaybeUninit::<Whole<Q>>::uninit();
        // SAFETY: inside the space for the frame.
        let to = unsafe { &raw mut (*whole.as_mut_ptr()).link };
        // SAFETY: the helper writes all bytes behind the padding.
        let result = unsafe {
            bpf_skb_load_bytes(
                self.ctx.skb.skb.cast(),
                LINK_HEADER_LEN.load() - REPLY_OFFSET,
                to.cast(),
                Whole::<Q>::LEN,
            )
        };
        if result != 0 {
            return TC_ACT_UNSPEC;
        }
        // SAFETY: the helper has written it, and any bytes are a link header.
        let link = unsafe { &*to };
        // SAFETY: inside the space for the frame.
        let packet = unsafe { &raw const (*whole.as_ptr()).packet };
        // SAFETY: the helper has written it, and any bytes are a packet. It is read in place: the
        // compiler would split a copy into more registers than there are.
        let packet = unsafe { &*packet };
        let cfg = Maps.cfg();
        if !packet.is_to_port(cfg.udp_port) {
            return TC_ACT_UNSPEC;
        }
        match self.reply_to(&cfg, link, packet) {
            Ok(action) => {
                self.note(packet, Reason::Answered);
                action
            }
            Err(reason) => {
                self.note(packet, reason);
                TC_ACT_UNSPEC
            }
        }
    }

    #[inline]
    fn note<Q: QueryPacket>(&self, packet: &Q, reason: Reason) {
        Maps.count(Program::Tc, reason);
        let ifindex = self.skb().ifindex;
        log::packet(Program::Tc, ifindex, packet.source_octets(), packet.target_octets(), reason);
    }

    #[inline]
    fn reply_to<Q: QueryPacket>(
        &self,
        cfg: &ResponderCfg,
        link: &Ethernet,
        packet: &Q,
    ) -> Result<i32, Reason> {
        if self.skb().vlan_present != 0 {
            return Err(Reason::Vlan);
        }
        let ifindex = IfIndex::new(self.skb().ifindex).ok_or(Reason::InterfaceOff)?;
        let at = At { frame: self, link, ifindex, checksum: Q::CHECKSUM_OFFSET };
        let packet = answer(&Maps, cfg, &at, packet)?;
        let reply = Whole { padding: [0; 2], link: link.back(), packet };
        let len = Whole::<Q::Reply>::LEN;
        if len != self.skb().len {
            // SAFETY: the context is ours, and no pointer into the packet is held.
            let result = unsafe { bpf_skb_change_tail(self.ctx.skb.skb, len, 0) };
            if result != 0 {
                return Err(Reason::NoRoom);
            }
        }
        let from = &raw const reply.link;
        // SAFETY: the helper reads the reply without its padding.
        let result =
            unsafe { bpf_skb_store_bytes(self.ctx.skb.skb.cast(), 0, from.cast(), len, 0) };
        if result != 0 {
            return Err(Reason::NoRoom);
        }
        if is_ethernet() {
            // SAFETY: the helper takes no memory of ours.
            return Ok(unsafe { bpf_redirect(ifindex.get(), 0) } as i32);
        }
        // SAFETY: without parameters, the helper takes no memory of ours.
        Ok(unsafe { bpf_redirect_neigh(ifindex.get(), core::ptr::null_mut(), 0, 0) } as i32)
    }

    #[inline]
    fn skb(&self) -> &__sk_buff {
        // SAFETY: the kernel's context outlives the program. The verifier rewrites reads of its
        // fields; nothing writes to it while the reference is held.
        unsafe { &*self.ctx.skb.skb }
    }
}

struct At<'a> {
    frame: &'a Frame<'a>,
    link: &'a Ethernet,
    ifindex: IfIndex,
    /// Offset of the UDP checksum from the IP header.
    checksum: usize,
}

impl Ingress for At<'_> {
    #[inline]
    fn ifindex(&self) -> IfIndex {
        self.ifindex
    }

    #[inline]
    fn is_for_this_host(&self, _: &Interface) -> bool {
        const PACKET_HOST: u32 = 0;
        self.frame.skb().pkt_type == PACKET_HOST && (!is_ethernet() || self.link.is_from_a_host())
    }

    /// `inet_proto_csum_replace4` does not change a partial checksum, unless the caller says that
    /// the pseudo-header has changed. This function therefore says that a payload word has changed,
    /// and looks whether the helper changed the checksum.
    #[inline]
    fn is_checksum_partial(&self) -> bool {
        let ctx = self.frame.ctx;
        if !is_ethernet() {
            // The kernel would write the checksum where it was in the query.
            return false;
        }
        let offset = REPLY_OFFSET as usize + self.checksum;
        let Ok(before) = ctx.load::<[u8; 2]>(offset) else { return false };
        if ctx.l4_csum_replace(offset, 0, 1, 2).is_err() {
            return false;
        }
        let Ok(after) = ctx.load::<[u8; 2]>(offset) else { return false };
        if after != before {
            // The packet is passed on unchanged. The helper above has made it writable.
            let _ = ctx.store(offset, &before, 0);
        }
        after == before
    }
}
