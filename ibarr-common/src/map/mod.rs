// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The BPF maps that the daemon and the BPF programs share: names, sizes, keys and values.
//!
//! | map | kind | key | value | read by programs |
//! |---|---|---|---|---|
//! | [`GID_CACHE`] | hash | [`GidKey`] | [`GidEntry`] | yes: what is answered |
//! | [`OWN_BITS`] | array | [`OwnBit::word`] | `u64` | yes: is the source one of [`GID_CACHE`]? |
//! | [`LEARNED_GIDS`] | hash | [`GidKey`] | [`LearnedGid`] | no: for people and warm restarts |
//! | [`INTERFACES`] | array | ifindex | [`Interface`] | yes |
//! | [`FAR_INTERFACES`] | hash | ifindex, `u32` | [`Interface`] | yes: those that [`INTERFACES`] has no room for |
//! | [`ALLOW`] | LPM trie | bits, `u32`; [`AllowPrefix`] | [`Allow`] | yes, with [`ResponderCfg::RESTRICT`] |
//! | [`NEIGHBOURS`] | hash | [`NeighbourKey`] | [`Neighbour`] | XDP on IPoIB |
//! | [`ROUTES`] | LPM trie | bits, `u32`; [`RoutePrefix`] | [`Route`] | XDP on IPoIB, and with [`Interface::ROUTED_IPV4`] |
//! | [`RESPONDER_CFG`] | array | 0 | [`ResponderCfg`] | yes |
//! | [`COUNTERS`] | per-CPU array | [`Program`] | [`Counters`] | written |
//!
//! Layouts are `repr(C)` in host byte order without padding; addresses are 16 octets in network
//! order, IPv4 as `::ffff:a.b.c.d`. Fields are named for `bpftool map dump pinned`, which prints
//! them. Whoever changes a layout, a key or the meaning of a field raises [`ABI_VERSION`].

mod counters;
mod gid;
mod own;
mod responder;

use core::net::{IpAddr, Ipv6Addr};

pub use counters::{Counters, Program, Reason};
pub use gid::{GidEntry, GidKey, LearnedGid, Origin};
pub use own::OwnBit;
pub use responder::{
    Allow, AllowPrefix, Interface, Neighbour, NeighbourKey, ResponderCfg, Route, RoutePrefix,
};

/// Version of everything in this module. Pins live in a directory named for it.
pub const ABI_VERSION: u32 = 4;

/// See [`GidEntry`].
pub const GID_CACHE: &str = "gid_cache";
/// See [`OwnBit`].
pub const OWN_BITS: &str = "own_bits";
/// See [`LearnedGid`].
pub const LEARNED_GIDS: &str = "learned_gids";
/// See [`Interface`]: those whose ifindex is less than [`max_entries::INTERFACES`], which are nearly
/// all. [`Interface::NONE`] is none.
pub const INTERFACES: &str = "interfaces";
/// See [`Interface`]: the others. They are looked up in a hash, which costs a query as much as its
/// address.
pub const FAR_INTERFACES: &str = "far_interfaces";
/// See [`Allow`].
pub const ALLOW: &str = "allow";
/// See [`Neighbour`].
pub const NEIGHBOURS: &str = "neighbours";
/// See [`Route`].
pub const ROUTES: &str = "routes";
/// See [`ResponderCfg`].
pub const RESPONDER_CFG: &str = "responder_cfg";
/// See [`Counters`].
pub const COUNTERS: &str = "counters";

/// Every map. The kernel cuts names at 15 bytes.
pub const NAMES: [&str; 10] = [
    GID_CACHE,
    OWN_BITS,
    LEARNED_GIDS,
    INTERFACES,
    FAR_INTERFACES,
    ALLOW,
    NEIGHBOURS,
    ROUTES,
    RESPONDER_CFG,
    COUNTERS,
];

/// How many entries each map holds at most.
pub mod max_entries {
    /// Of [`super::GID_CACHE`]. Entries take memory only when they are there.
    pub const GID_CACHE: usize = 1 << 17;
    /// Of [`super::OWN_BITS`].
    pub const OWN_BITS: usize = (super::OwnBit::COUNT / u64::BITS) as usize;
    /// Of [`super::LEARNED_GIDS`].
    pub const LEARNED_GIDS: usize = 1 << 16;
    /// Of [`super::INTERFACES`].
    pub const INTERFACES: usize = 1 << 8;
    /// Of [`super::FAR_INTERFACES`].
    pub const FAR_INTERFACES: usize = 1 << 10;
    /// Of [`super::ALLOW`].
    pub const ALLOW: usize = 1 << 12;
    /// Of [`super::NEIGHBOURS`].
    pub const NEIGHBOURS: usize = 1 << 16;
    /// Of [`super::ROUTES`].
    pub const ROUTES: usize = 1 << 14;
    /// Of [`super::RESPONDER_CFG`].
    pub const RESPONDER_CFG: usize = 1;
    /// Of [`super::COUNTERS`].
    pub const COUNTERS: usize = super::Program::ALL.len();
}

/// An address as the maps hold it.
pub const fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address that a map holds.
pub const fn address(octets: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_octets(octets)).to_canonical()
}

const _: () = {
    let mut index = 0;
    while index < NAMES.len() {
        assert!(NAMES[index].len() <= 15);
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_maps() {
        for text in ["10.2.0.5", "fd00:2::5", "fe80::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(address(octets(ip)), ip);
        }
        assert_eq!(octets("10.2.0.5".parse().unwrap())[10..], [0xff, 0xff, 10, 2, 0, 5]);
    }
}
