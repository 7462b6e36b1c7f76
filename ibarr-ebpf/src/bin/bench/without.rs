// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The responder's XDP program with one part taken out: what is then saved is what the part costs.
//! Never attached: each is wrong in its own way.

use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use ibarr_common::IfIndex;
use ibarr_common::map::{
    AllowPrefix, GidEntry, GidKey, Interface, Origin, Program, Reason, ResponderCfg,
};
use ibarr_ebpf::decide::Node;

use crate::node::Maps;
use crate::xdp::{Ethernet, respond, respond_as};

/// All of it, to compare with.
#[xdp]
pub(crate) fn whole_xdp(ctx: XdpContext) -> u32 {
    respond(&ctx)
}

/// Does not look whether the lease is over.
#[xdp]
pub(crate) fn no_lease_xdp(ctx: XdpContext) -> u32 {
    respond_as::<Ethernet>(Without::<LEASE>, &ctx)
}

/// Does not look the interface up.
#[xdp]
pub(crate) fn no_interface_xdp(ctx: XdpContext) -> u32 {
    respond_as::<Ethernet>(Without::<INTERFACE>, &ctx)
}

/// Does not look whether the source is ours.
#[xdp]
pub(crate) fn no_source_xdp(ctx: XdpContext) -> u32 {
    respond_as::<Ethernet>(Without::<SOURCE>, &ctx)
}

/// Looks the source up in the GID cache each time, as if every bit of `own_bits` were set.
#[xdp]
pub(crate) fn no_own_bits_xdp(ctx: XdpContext) -> u32 {
    respond_as::<Ethernet>(Without::<OWN_BITS>, &ctx)
}

/// Reads the clock each time.
#[xdp]
pub(crate) fn no_tick_xdp(ctx: XdpContext) -> u32 {
    respond_as::<Ethernet>(Without::<TICK>, &ctx)
}

/// Looks the source up in `routes`, as where not all are led back by the interface.
#[xdp]
pub(crate) fn routed_xdp(ctx: XdpContext) -> u32 {
    respond_as::<Ethernet>(Without::<ALL_ROUTES>, &ctx)
}

/// Does not look the address up.
#[xdp]
pub(crate) fn no_entry_xdp(ctx: XdpContext) -> u32 {
    respond_as::<Ethernet>(Without::<ENTRY>, &ctx)
}

/// Does not count.
#[xdp]
pub(crate) fn no_count_xdp(ctx: XdpContext) -> u32 {
    respond_as::<Ethernet>(Without::<COUNT>, &ctx)
}

/// Asks no map and no clock.
#[xdp]
pub(crate) fn no_maps_xdp(ctx: XdpContext) -> u32 {
    respond_as::<Ethernet>(Without::<ALL>, &ctx)
}

/// [`Maps`] without the parts whose bits are set.
#[derive(Clone, Copy)]
struct Without<const PARTS: u32>;

const LEASE: u32 = 1;
const INTERFACE: u32 = 1 << 1;
const SOURCE: u32 = 1 << 2;
const ENTRY: u32 = 1 << 3;
const COUNT: u32 = 1 << 4;
const OWN_BITS: u32 = 1 << 5;
const TICK: u32 = 1 << 6;
/// That all routes leave by the interface.
const ALL_ROUTES: u32 = 1 << 7;
const ALL: u32 = LEASE | INTERFACE | SOURCE | ENTRY | COUNT;

impl<const PARTS: u32> Node for Without<PARTS> {
    #[inline]
    fn cfg(&self) -> ResponderCfg {
        if PARTS == ALL { ResponderCfg::default() } else { Maps.cfg() }
    }

    #[inline]
    fn is_leased(&self, cfg: &ResponderCfg) -> bool {
        if PARTS & LEASE != 0 {
            true
        } else if PARTS & TICK != 0 {
            Maps.reads_clock(cfg)
        } else {
            Maps.is_leased(cfg)
        }
    }

    #[inline]
    fn interface(&self, ifindex: IfIndex) -> Option<Interface> {
        if PARTS & INTERFACE != 0 {
            let switches = Interface::ANSWER_IPV4 | Interface::ANSWER_IPV6;
            // The hardware address of the bench's frames.
            Some(Interface { switches, hwaddr: [0; 20] })
        } else if PARTS & ALL_ROUTES != 0 {
            let switches = Interface::ROUTED_IPV4 | Interface::ROUTED_IPV6;
            Some(Interface { switches, ..Maps.interface(ifindex)? })
        } else {
            Maps.interface(ifindex)
        }
    }

    #[inline]
    fn allows(&self, address: &AllowPrefix) -> bool {
        Maps.allows(address)
    }

    #[inline]
    fn leads_to(&self, ifindex: IfIndex, address: &[u8; 16]) -> bool {
        Maps.leads_to(ifindex, address)
    }

    #[inline]
    fn is_ours(&self, key: &GidKey) -> bool {
        if PARTS & SOURCE != 0 {
            false
        } else if PARTS & OWN_BITS != 0 {
            Maps.has_entry(key)
        } else {
            Maps.is_ours(key)
        }
    }

    #[inline]
    fn entry(&self, key: &GidKey) -> Option<GidEntry> {
        if PARTS & ENTRY != 0 {
            let gid = ibarr_common::ib::Gid::new([0xfe; 16]);
            Some(GidEntry::new(*key, gid, None, Origin::Local))
        } else {
            Maps.entry(key)
        }
    }

    #[inline]
    fn count(&self, program: Program, reason: Reason) {
        if PARTS & COUNT == 0 {
            Maps.count(program, reason);
        }
    }
}
