// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The code of `ip2gid_xdp`: answers before the kernel makes a socket buffer (native), or just
//! after (generic, the only kind on IPoIB).
//!
//! On Ethernet the reply goes back to the hardware address that the query came from. An IPoIB frame
//! does not contain its sender's address: next hops come from the maps `routes` and `neighbours`.
//!
//! The kernel's own verdict on the checksum is not available here. A query from a local sender
//! whose checksum is not filled in is therefore passed on.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::xdp_action::{XDP_ABORTED, XDP_PASS, XDP_TX};
use aya_ebpf::programs::XdpContext;
use ibarr_common::IfIndex;
use ibarr_common::ib::IpoibHwAddr;
use ibarr_common::map::{Interface, Program, Reason, ResponderCfg};
use ibarr_ebpf::decide::{Ingress, Node, answer};
use ibarr_ebpf::packet::{Aligned, Ipv4Query, Ipv6Query, QueryPacket};
use zerocopy::network_endian::U16;

use crate::LINK_HEADER_LEN;
use crate::frame::{Ethernet, Frame, Whole, copy, copy_back, opaque};
use crate::log;
use crate::node::{Maps, next_hop};

/// A packet that is not answered goes unchanged to the kernel's stack (`XDP_PASS`).
#[inline]
pub(crate) fn respond(ctx: &XdpContext) -> u32 {
    if LINK_HEADER_LEN.load() as usize == size_of::<Ethernet>() {
        respond_as::<Ethernet>(ctx)
    } else {
        respond_as::<Ipoib>(ctx)
    }
}

/// Responds on links with the header `L`.
#[inline]
fn respond_as<L: Link>(ctx: &XdpContext) -> u32 {
    let frame = Frame { ctx };
    let len = frame.end() - frame.start();
    if len == size_of::<Whole<L, Ipv4Query>>() {
        frame.handle::<L, Ipv4Query>()
    } else if len == size_of::<Whole<L, Ipv6Query>>() {
        frame.handle::<L, Ipv6Query>()
    } else {
        XDP_PASS
    }
}

trait Link: Copy {
    fn ethertype(&self) -> U16;

    fn is_for_this_host(&self, interface: &Interface) -> bool;

    /// The link header of the reply to `source`.
    fn reply(&self, ifindex: IfIndex, source: [u8; 16]) -> Option<Self>;
}

impl Link for Ethernet {
    #[inline]
    fn ethertype(&self) -> U16 {
        self.ethertype
    }

    #[inline]
    fn is_for_this_host(&self, interface: &Interface) -> bool {
        interface.hwaddr.first_chunk() == Some(&self.destination) && self.is_from_a_host()
    }

    #[inline]
    fn reply(&self, _: IfIndex, _: [u8; 16]) -> Option<Self> {
        Some(self.back())
    }
}

/// The IPoIB header as the kernel presents it: `struct ipoib_pseudo_header`, which is zero in
/// received packets, and `struct ipoib_header` (RFC 4391 section 6).
#[derive(Clone, Copy)]
#[repr(C)]
struct Ipoib {
    destination: [u8; IpoibHwAddr::LEN],
    ethertype: U16,
    reserved: [u8; 2],
}

impl Link for Ipoib {
    #[inline]
    fn ethertype(&self) -> U16 {
        self.ethertype
    }

    /// The hardware has checked it; the frame does not contain its destination address.
    #[inline]
    fn is_for_this_host(&self, _: &Interface) -> bool {
        true
    }

    #[inline]
    fn reply(&self, ifindex: IfIndex, source: [u8; 16]) -> Option<Self> {
        let destination = next_hop(ifindex, source)?.hwaddr;
        Some(Self { destination, ethertype: self.ethertype, reserved: [0; 2] })
    }
}

impl Frame<'_> {
    /// Not inlined: the four instances together would exceed the stack.
    #[inline(never)]
    fn handle<L: Link, Q: QueryPacket>(&self) -> u32 {
        let Some(frame) = self.view::<Whole<L, Q>>() else { return XDP_PASS };
        // Copied separately, so that the words of the packet are aligned; they are not in the
        // frame.
        let (mut link, mut packet) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `view` has checked the bounds, and any bytes are a link header.
        let Aligned(link) = unsafe { copy(&raw const (*frame).link, &mut link) };
        // SAFETY: as above, or a packet.
        let Aligned(packet) = opaque(unsafe { copy(&raw const (*frame).packet, &mut packet) });
        let cfg = Maps.cfg();
        if link.ethertype() != Q::ETHERTYPE || !packet.is_to_port(cfg.udp_port) {
            return XDP_PASS;
        }
        match self.reply_to(&cfg, link, packet) {
            Ok(action) => {
                self.note(packet, Reason::Answered);
                action
            }
            Err(reason) => {
                self.note(packet, reason);
                XDP_PASS
            }
        }
    }

    #[inline]
    fn note<Q: QueryPacket>(&self, packet: &Q, reason: Reason) {
        Maps.count(Program::Xdp, reason);
        // SAFETY: a field of the kernel's context, which outlives the program.
        let ifindex = unsafe { (*self.ctx.ctx).ingress_ifindex };
        log::packet(Program::Xdp, ifindex, packet.source_octets(), packet.target_octets(), reason);
    }

    #[inline]
    fn reply_to<L: Link, Q: QueryPacket>(
        &self,
        cfg: &ResponderCfg,
        link: &L,
        query: &Q,
    ) -> Result<u32, Reason> {
        // SAFETY: a field of the kernel's context, which outlives the program.
        let ifindex = unsafe { (*self.ctx.ctx).ingress_ifindex };
        let ifindex = IfIndex::new(ifindex).ok_or(Reason::InterfaceOff)?;
        let packet = answer(&Maps, cfg, &At { link: *link, ifindex }, query)?;
        let link = link.reply(ifindex, query.source(ifindex).address).ok_or(Reason::NoRoute)?;
        self.grow(size_of::<Q::Reply>() - size_of::<Q>())?;
        let Some(frame) = self.view::<Whole<L, Q::Reply>>() else {
            // The frame has been changed, so that nothing else can use it.
            return Ok(XDP_ABORTED);
        };
        // SAFETY: `view` has checked the bounds.
        unsafe { copy_back(&Aligned(link), &raw mut (*frame).link) };
        // SAFETY: as above.
        unsafe { copy_back(opaque(&Aligned(packet)), &raw mut (*frame).packet) };
        Ok(XDP_TX)
    }
}

struct At<L> {
    link: L,
    ifindex: IfIndex,
}

impl<L: Link> Ingress for At<L> {
    #[inline]
    fn ifindex(&self) -> IfIndex {
        self.ifindex
    }

    #[inline]
    fn is_for_this_host(&self, interface: &Interface) -> bool {
        self.link.is_for_this_host(interface)
    }

    #[inline]
    fn is_checksum_partial(&self) -> bool {
        false
    }
}
