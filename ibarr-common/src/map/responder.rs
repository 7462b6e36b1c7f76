// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Elements of the maps of interfaces, sources and ways back: on which and to which the programs answer.

use core::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{address, octets};
use crate::ib::IpoibHwAddr;
use crate::{IfIndex, Instant};

/// Settings for all interfaces. All zero, as in a new map, means: answer nothing.
#[derive(
    Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq,
)]
#[repr(C)]
pub struct ResponderCfg {
    /// The programs answer and drop nothing from this time on, see [`Instant::as_nanos`].
    ///
    /// A program that reads the field during a write may see a mixture of the old and the new time.
    /// The daemon is alive then, which is all that the lease has to prove.
    pub lease_end: u64,
    /// A set of bits: [`Self::RESTRICT`].
    pub switches: u32,
    /// The UDP port whose queries are answered.
    pub udp_port: u16,
    /// Always 0.
    pub reserved: u16,
}

impl ResponderCfg {
    /// Answer only sources in `allow`. Without this bit, every source is answered.
    pub const RESTRICT: u32 = 1;

    /// Whether the programs may answer at `now`.
    #[inline]
    pub const fn is_leased(&self, now: Instant) -> bool {
        now.as_nanos() < self.lease_end
    }

    /// Whether the source must be looked up in `allow`.
    #[inline]
    pub const fn restricts(&self) -> bool {
        self.switches & Self::RESTRICT != 0
    }
}

/// An interface on which the programs may answer.
///
/// A program that reads an element during a write may see words of the old and of the new one. Its
/// answer is then one that it would have given just before or after, or one on an interface whose
/// hardware address is about to change.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct Interface {
    /// A set of bits: [`Self::ANSWER_IPV4`] or [`Self::ROUTED_IPV4`], and likewise for IPv6.
    pub switches: u32,
    /// The hardware address; 6 bytes on Ethernet, the rest 0. XDP on Ethernet answers only frames
    /// to this address.
    pub hwaddr: [u8; IpoibHwAddr::LEN],
}

impl Interface {
    /// An array element without an interface.
    pub const NONE: Self = Self { switches: 0, hwaddr: [0; _] };
    /// Answer IPv4 sources: the route back to every one of them leaves by this interface.
    pub const ANSWER_IPV4: u32 = 1;
    /// Answer IPv6 sources: the route back to every one of them leaves by this interface.
    pub const ANSWER_IPV6: u32 = 2;
    /// Answer the IPv4 sources that `routes` has a route to.
    pub const ROUTED_IPV4: u32 = 4;
    /// Answer the IPv6 sources that `routes` has a route to.
    pub const ROUTED_IPV6: u32 = 8;
}

/// Sources that are answered. An entry of the map is a prefix of this key, preceded by its length
/// in bits as a `u32` (`struct bpf_lpm_trie_key`).
#[derive(Clone, Copy, Debug, Eq, FromBytes, Hash, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct AllowPrefix {
    /// In the form of [`octets`].
    pub address: [u8; 16],
}

impl AllowPrefix {
    /// The full length of the key, for a look-up.
    pub const BITS: u32 = 128;

    /// Length and key of a prefix; `bits` counts bits of the address's own family.
    pub const fn new(address: IpAddr, bits: u8) -> (u32, Self) {
        (mapped_bits(address, bits), Self { address: octets(address) })
    }
}

/// The value of a prefix of allowed sources.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct Allow {
    /// Always 1.
    pub allowed: u32,
}

/// A next hop on an interface.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Hash, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct NeighbourKey {
    /// In the form of [`octets`].
    pub address: [u8; 16],
    pub ifindex: u32,
}

impl NeighbourKey {
    /// The next hop `address` on `interface`.
    pub const fn new(address: IpAddr, interface: IfIndex) -> Self {
        Self { address: octets(address), ifindex: interface.get() }
    }
}

/// The hardware address of a neighbour.
///
/// The kernel may free and refill an element while a program reads it, as with a
/// [`GidEntry`](super::GidEntry). A program therefore copies the value, and sends to it only if
/// [`Neighbour::is_of`] is true.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct Neighbour {
    /// In the form of [`IpoibHwAddr::octets`].
    pub hwaddr: [u8; IpoibHwAddr::LEN],
    /// Ties key and hardware address together, see [`Neighbour::is_of`].
    pub check: u32,
}

impl Neighbour {
    /// The neighbour `key` with the hardware address `hwaddr`.
    pub fn new(key: &NeighbourKey, hwaddr: IpoibHwAddr) -> Self {
        let hwaddr = hwaddr.octets();
        Self { hwaddr, check: check(key, &hwaddr) }
    }

    /// Whether this is the complete neighbour `key`.
    ///
    /// `check` is linear in the 32-bit words of key and hardware address, with odd factors. It
    /// therefore never fits two elements mixed at one word, nor a key that differs in one word; it
    /// fits anything else with probability 2⁻³².
    #[inline]
    pub fn is_of(&self, key: &NeighbourKey) -> bool {
        self.check == check(key, &self.hwaddr)
    }
}

#[inline]
fn check(key: &NeighbourKey, hwaddr: &[u8; IpoibHwAddr::LEN]) -> u32 {
    let [ip_0, ip_1, ip_2, ip_3]: [u32; 4] = zerocopy::transmute!(key.address);
    let [hw_0, hw_1, hw_2, hw_3, hw_4]: [u32; 5] = zerocopy::transmute!(*hwaddr);
    // Odd, otherwise arbitrary: digits of the fraction of pi, made odd.
    1u32.wrapping_add(key.ifindex.wrapping_mul(0x243f_6a89))
        .wrapping_add(ip_0.wrapping_mul(0x85a3_08d3))
        .wrapping_add(ip_1.wrapping_mul(0x1319_8a2f))
        .wrapping_add(ip_2.wrapping_mul(0x0370_7345))
        .wrapping_add(ip_3.wrapping_mul(0xa409_3823))
        .wrapping_add(hw_0.wrapping_mul(0x299f_31d1))
        .wrapping_add(hw_1.wrapping_mul(0x082e_fa99))
        .wrapping_add(hw_2.wrapping_mul(0xec4e_6c89))
        .wrapping_add(hw_3.wrapping_mul(0x4528_21e7))
        .wrapping_add(hw_4.wrapping_mul(0x38d0_1377))
}

/// Destinations, and whether this interface leads to them. An entry of the map is a prefix of this
/// key, preceded by its length in bits as a `u32`.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Hash, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct RoutePrefix {
    /// The ifindex, which is part of every prefix.
    pub ifindex: u32,
    /// In the form of [`octets`].
    pub address: [u8; 16],
}

impl RoutePrefix {
    /// The full length of the key, for a look-up.
    pub const BITS: u32 = 32 + 128;

    /// Length and key of a prefix; `bits` counts bits of the address's own family.
    pub const fn new(interface: IfIndex, address: IpAddr, bits: u8) -> (u32, Self) {
        let key = Self { ifindex: interface.get(), address: octets(address) };
        (32 + mapped_bits(address, bits), key)
    }

    /// Address and length of the prefix, without its interface; `bits` is the full length of the
    /// key.
    pub const fn prefix(&self, bits: u32) -> (IpAddr, u32) {
        let address = address(self.address);
        let bits = bits.saturating_sub(32);
        (address, if address.is_ipv4() { bits.saturating_sub(96) } else { bits })
    }
}

/// The route of a prefix.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct Route {
    /// The gateway in the form of [`octets`]; `::` if the destination is a neighbour, all ones if
    /// this interface does not lead to it.
    pub next_hop: [u8; 16],
}

impl Route {
    /// The destination is a neighbour.
    pub const ON_LINK: Self = Self { next_hop: [0; 16] };

    /// This interface does not lead to the prefix, though it leads to a shorter prefix that
    /// contains it.
    pub const ELSEWHERE: Self = Self { next_hop: [0xff; 16] };

    /// The route through a gateway.
    pub const fn via(gateway: IpAddr) -> Self {
        Self { next_hop: octets(gateway) }
    }

    /// Whether this interface leads to the destination.
    #[inline]
    pub const fn is_here(&self) -> bool {
        u128::from_ne_bytes(self.next_hop) != u128::MAX
    }

    /// The gateway, if the route has one.
    pub const fn gateway(&self) -> Option<IpAddr> {
        let is_on_link = u128::from_be_bytes(self.next_hop) == 0;
        if is_on_link || !self.is_here() { None } else { Some(address(self.next_hop)) }
    }
}

/// The length of a prefix among the 128 bits of [`octets`].
const fn mapped_bits(address: IpAddr, bits: u8) -> u32 {
    match address {
        IpAddr::V4(_) => 96 + bits as u32,
        IpAddr::V6(_) => bits as u32,
    }
}

const _: () = {
    assert!(size_of::<ResponderCfg>() == 16);
    assert!(size_of::<Interface>() == 24);
    assert!(size_of::<AllowPrefix>() == 16);
    assert!(size_of::<Allow>() == 4);
    assert!(size_of::<NeighbourKey>() == 20);
    assert!(size_of::<Neighbour>() == 24);
    assert!(size_of::<RoutePrefix>() == 20);
    assert!(size_of::<Route>() == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_map_answers_nothing() {
        assert!(!ResponderCfg::default().is_leased(Instant::BOOT));
    }

    #[test]
    fn neighbours_mixed_at_any_word_match_only_if_they_agree() {
        let key = |address: &str, ifindex| {
            NeighbourKey::new(address.parse().unwrap(), IfIndex::new(ifindex).unwrap())
        };
        let keys = [
            key("10.2.0.5", 7),
            key("10.2.0.6", 7),
            key("10.2.0.5", 8),
            key("fe80::2:c903:0:201", 7),
        ];
        let hwaddr = |qpn: u8, prefix: u8, guid: u8| {
            let mut octets = [0; IpoibHwAddr::LEN];
            (octets[3], octets[4], octets[5]) = (qpn, 0xfe, prefix);
            (octets[12], octets[19]) = (2, guid);
            IpoibHwAddr::parse(&octets).unwrap()
        };
        let hwaddrs =
            [hwaddr(1, 0x80, 5), hwaddr(2, 0x80, 5), hwaddr(1, 0x80, 6), hwaddr(9, 0xc0, 9)];
        let all = || keys.iter().flat_map(|key| hwaddrs.map(|at| (key, Neighbour::new(key, at))));
        for (of, old) in all() {
            for (of_new, new) in all() {
                let (old_words, new_words): ([u32; 6], [u32; 6]) =
                    (zerocopy::transmute!(old), zerocopy::transmute!(new));
                for mask in 0u32..1 << old_words.len() {
                    let mut mixed = old_words;
                    for (index, word) in mixed.iter_mut().enumerate() {
                        if mask >> index & 1 == 1 {
                            *word = new_words[index];
                        }
                    }
                    let mixed: Neighbour = zerocopy::transmute!(mixed);
                    for key in keys {
                        let is_one = [(of, old), (of_new, new)]
                            .iter()
                            .any(|(of, whole)| **of == key && whole.hwaddr == mixed.hwaddr);
                        assert!(is_one || !mixed.is_of(&key), "{mixed:?} for {key:?}");
                    }
                }
            }
        }
        assert!(!Neighbour { hwaddr: [0; _], check: 0 }.is_of(&keys[0]));
    }

    #[test]
    fn programs_stop_at_the_end_of_the_lease() {
        let cfg = ResponderCfg { lease_end: 10, ..ResponderCfg::default() };
        assert!(cfg.is_leased(Instant::from_nanos(9)));
        assert!(!cfg.is_leased(Instant::from_nanos(10)));
    }

    #[test]
    fn prefix_of_either_family_has_the_length_of_its_mapped_form() {
        let ib0 = IfIndex::new(3).unwrap();
        assert_eq!(AllowPrefix::new("10.0.0.0".parse().unwrap(), 8).0, 104);
        assert_eq!(AllowPrefix::new("fd00::".parse().unwrap(), 8).0, 8);
        assert_eq!(RoutePrefix::new(ib0, "10.0.0.0".parse().unwrap(), 32).0, RoutePrefix::BITS);
        assert_eq!(RoutePrefix::new(ib0, "::".parse().unwrap(), 0).0, 32);
        for (text, bits) in [("10.0.0.0", 8), ("0.0.0.0", 0), ("fd00::", 8), ("::", 0)] {
            let address = text.parse().unwrap();
            let (all, key) = RoutePrefix::new(ib0, address, bits);
            assert_eq!(key.prefix(all), (address, u32::from(bits)));
        }
    }

    #[test]
    fn route_without_a_gateway_is_on_link() {
        assert_eq!(Route::ON_LINK.gateway(), None);
        let gateway = "10.2.0.254".parse().unwrap();
        assert_eq!(Route::via(gateway).gateway(), Some(gateway));
        assert!(Route::ON_LINK.is_here() && Route::via(gateway).is_here());
        assert!(!Route::ELSEWHERE.is_here() && Route::ELSEWHERE.gateway().is_none());
    }
}
