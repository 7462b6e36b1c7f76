// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The BPF maps that the daemon and the BPF programs share: names, sizes, keys and values.
//!
//! | map | kind | key | value | read by programs |
//! |---|---|---|---|---|
//! | [`GID_CACHE`] | hash | [`GidKey`] | [`GidEntry`] | yes: what is answered |
//! | [`OWN_BITS`] | array | [`OwnBit::word`] | `u64` | yes: may the source be one of [`GID_CACHE`], or the edge of a subnet? |
//! | [`LEARNED_GIDS`] | hash | [`GidKey`] | [`LearnedGid`] | no: for people and warm restarts |
//! | [`INTERFACES`] | array | ifindex | [`Interface`] | yes |
//! | [`FAR_INTERFACES`] | hash | ifindex, `u32` | [`Interface`] | yes: those that [`INTERFACES`] has no room for |
//! | [`ALLOW`] | LPM trie | bits, `u32`; [`AllowPrefix`] | [`Allow`] | yes, with [`ResponderCfg::RESTRICT`] |
//! | [`NEIGHBOURS`] | hash | [`NeighbourKey`] | [`Neighbour`] | XDP on IPoIB |
//! | [`ROUTES`] | LPM trie | bits, `u32`; [`RoutePrefix`] | [`Route`] | XDP on IPoIB; with [`Interface::ROUTED_IPV4`]; for sources with an [`OwnBit`] |
//! | [`RESPONDER_CFG`] | array | 0 | [`ResponderCfg`] | yes |
//! | [`COUNTERS`] | per-CPU array | [`Program`] | [`Counters`] | written |
//!
//! Layouts are `repr(C)` in host byte order without padding; addresses are 16 octets in network
//! order, IPv4 as `::ffff:a.b.c.d`. `bpftool map dump pinned` prints the field names. A change of a
//! layout, of a key or of a field's meaning requires a new [`ABI_VERSION`].

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

/// Version of everything in this module. The directory of pins has it in its name.
pub const ABI_VERSION: u32 = 6;

/// Hash of [`GidEntry`].
pub const GID_CACHE: &str = "gid_cache";
/// Array of words of [`OwnBit`]s.
pub const OWN_BITS: &str = "own_bits";
/// Hash of [`LearnedGid`].
pub const LEARNED_GIDS: &str = "learned_gids";
/// Array of [`Interface`], for each ifindex below [`max_entries::INTERFACES`], which are nearly
/// all. An unused element is [`Interface::NONE`].
pub const INTERFACES: &str = "interfaces";
/// Hash of [`Interface`], for all other ifindexes. A look-up here costs a query as much as the
/// look-up of its address.
pub const FAR_INTERFACES: &str = "far_interfaces";
/// Trie of [`AllowPrefix`].
pub const ALLOW: &str = "allow";
/// Hash of [`Neighbour`].
pub const NEIGHBOURS: &str = "neighbours";
/// Trie of [`RoutePrefix`].
pub const ROUTES: &str = "routes";
/// Array of one [`ResponderCfg`].
pub const RESPONDER_CFG: &str = "responder_cfg";
/// Per-CPU array of [`Counters`].
pub const COUNTERS: &str = "counters";

/// Every map. The kernel truncates names to 15 bytes.
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

/// The maximum number of entries of each map.
#[expect(missing_docs, reason = "its constants are named for what they bound")]
pub mod max_entries {
    /// Of [`super::GID_CACHE`]. An entry takes memory only while it exists.
    pub const GID_CACHE: usize = 1 << 17;
    pub const OWN_BITS: usize = (super::OwnBit::COUNT / u64::BITS) as usize;
    pub const LEARNED_GIDS: usize = 1 << 16;
    pub const INTERFACES: usize = 1 << 8;
    pub const FAR_INTERFACES: usize = 1 << 10;
    pub const ALLOW: usize = 1 << 12;
    pub const NEIGHBOURS: usize = 1 << 16;
    pub const ROUTES: usize = 1 << 14;
    pub const RESPONDER_CFG: usize = 1;
    pub const COUNTERS: usize = super::Program::ALL.len();
}

/// The form of an address in the maps: 16 octets, IPv4 as `::ffff:a.b.c.d`.
pub const fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address of a key or value, see [`octets()`].
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
