// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use core::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{address, octets};
use crate::ib::IpoibHwAddr;
use crate::{IfIndex, Instant};

/// What holds for all interfaces. All zero, as a new map is, means: answer nothing.
#[derive(
    Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq,
)]
#[repr(C)]
pub struct ResponderCfg {
    /// Programs answer and drop nothing from here on, see [`Instant::as_nanos`].
    ///
    /// A program that reads it while it is written may see a mixture of the old and the new end;
    /// but then the daemon is alive, which is all that the lease is to prove.
    pub lease_end: u64,
    /// [`Self::RESTRICT`].
    pub switches: u32,
    /// 0.
    pub reserved: u32,
}

impl ResponderCfg {
    /// Only sources that `allow` holds are answered. Without it, all are.
    pub const RESTRICT: u32 = 1;

    /// Whether the programs may act at `now`.
    #[inline]
    pub const fn is_leased(&self, now: Instant) -> bool {
        now.as_nanos() < self.lease_end
    }

    /// Whether `allow` must be asked.
    #[inline]
    pub const fn restricts(&self) -> bool {
        self.switches & Self::RESTRICT != 0
    }
}

/// An interface that programs may answer on.
///
/// A program that reads it while it is written may see words of the old and of the new one. What it
/// then answers, it would have answered just before or after, or on an interface whose hardware
/// address is about to change.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct Interface {
    /// [`Self::ANSWER_IPV4`] or [`Self::ROUTED_IPV4`], and likewise for IPv6.
    pub switches: u32,
    /// Its hardware address; 6 bytes on Ethernet, the rest 0. XDP on Ethernet answers nothing else.
    pub hwaddr: [u8; IpoibHwAddr::LEN],
}

impl Interface {
    /// None: what an array holds where there is no interface.
    pub const NONE: Self = Self { switches: 0, hwaddr: [0; _] };
    /// Every route back to those who ask over IPv4 leaves by this interface.
    pub const ANSWER_IPV4: u32 = 1;
    /// Every route back to those who ask over IPv6 leaves by this interface.
    pub const ANSWER_IPV6: u32 = 2;
    /// Of those who ask over IPv4, the sources that `routes` leads to are answered.
    pub const ROUTED_IPV4: u32 = 4;
    /// Of those who ask over IPv6, the sources that `routes` leads to are answered.
    pub const ROUTED_IPV6: u32 = 8;
}

/// Sources that are answered. An entry of the map is a prefix of it; its length in bits goes
/// before it as a `u32` (`struct bpf_lpm_trie_key`).
#[derive(Clone, Copy, Debug, Eq, FromBytes, Hash, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct AllowPrefix {
    /// See [`octets`].
    pub address: [u8; 16],
}

impl AllowPrefix {
    /// All bits, to look an address up.
    pub const BITS: u32 = 128;

    /// Bits and key of a prefix: `bits` counts those of the address's own family.
    pub const fn new(address: IpAddr, bits: u8) -> (u32, Self) {
        (mapped_bits(address, bits), Self { address: octets(address) })
    }
}

/// Value of a prefix of sources that are answered.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct Allow {
    /// 1.
    pub allowed: u32,
}

/// A next hop of an interface.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Hash, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct NeighbourKey {
    /// See [`octets`].
    pub address: [u8; 16],
    /// The interface.
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
/// As of a [`GidEntry`](super::GidEntry), an element may be freed and filled again while a program
/// reads it. So that copies the value, and sends there only if [`Neighbour::is_of`] says so.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct Neighbour {
    /// See [`IpoibHwAddr::octets`].
    pub hwaddr: [u8; IpoibHwAddr::LEN],
    /// Ties key and hardware address together, see [`Neighbour::is_of`].
    pub check: u32,
}

impl Neighbour {
    /// The neighbour `key`, at `hwaddr`.
    pub fn new(key: &NeighbourKey, hwaddr: IpoibHwAddr) -> Self {
        let hwaddr = hwaddr.octets();
        Self { hwaddr, check: check(key, &hwaddr) }
    }

    /// Whether this is the neighbour `key`, and whole.
    ///
    /// `check` is linear in the 32-bit words of key and hardware address with odd factors. Of two
    /// elements mixed at one word, or of a key that differs in one, it is therefore never right; of
    /// anything else, with a chance of 2⁻³².
    #[inline]
    pub fn is_of(&self, key: &NeighbourKey) -> bool {
        self.check == check(key, &self.hwaddr)
    }
}

#[inline]
fn check(key: &NeighbourKey, hwaddr: &[u8; IpoibHwAddr::LEN]) -> u32 {
    let [ip_0, ip_1, ip_2, ip_3]: [u32; 4] = zerocopy::transmute!(key.address);
    let [hw_0, hw_1, hw_2, hw_3, hw_4]: [u32; 5] = zerocopy::transmute!(*hwaddr);
    // Odd, otherwise arbitrary: digits of pi's fraction, made odd.
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

/// Destinations, and whether they are reached through an interface. An entry of the map is a prefix of it; its length
/// in bits goes before it as a `u32`.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Hash, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct RoutePrefix {
    /// The interface; part of every prefix.
    pub ifindex: u32,
    /// See [`octets`].
    pub address: [u8; 16],
}

impl RoutePrefix {
    /// All bits, to look an address up.
    pub const BITS: u32 = 32 + 128;

    /// Bits and key of a prefix: `bits` counts those of the address's own family.
    pub const fn new(interface: IfIndex, address: IpAddr, bits: u8) -> (u32, Self) {
        let key = Self { ifindex: interface.get(), address: octets(address) };
        (32 + mapped_bits(address, bits), key)
    }

    /// The prefix without its interface, given all of its bits.
    pub const fn prefix(&self, bits: u32) -> (IpAddr, u32) {
        let address = address(self.address);
        let bits = bits.saturating_sub(32);
        (address, if address.is_ipv4() { bits.saturating_sub(96) } else { bits })
    }
}

/// How a prefix is reached.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct Route {
    /// The gateway, see [`octets`]; `::` if the destination is a neighbour itself, all ones if it
    /// is not reached through this interface.
    pub next_hop: [u8; 16],
}

impl Route {
    /// The destination is a neighbour itself.
    pub const ON_LINK: Self = Self { next_hop: [0; 16] };

    /// It is not reached through this interface, though a shorter prefix around it is.
    pub const ELSEWHERE: Self = Self { next_hop: [0xff; 16] };

    /// Through a gateway.
    pub const fn via(gateway: IpAddr) -> Self {
        Self { next_hop: octets(gateway) }
    }

    /// Whether the destination is reached through this interface.
    #[inline]
    pub const fn is_here(&self) -> bool {
        u128::from_ne_bytes(self.next_hop) != u128::MAX
    }

    /// The gateway, if there is one.
    pub const fn gateway(&self) -> Option<IpAddr> {
        let is_on_link = u128::from_be_bytes(self.next_hop) == 0;
        if is_on_link || !self.is_here() { None } else { Some(address(self.next_hop)) }
    }
}

/// Bits of a prefix among the 128 of [`octets`].
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
    fn a_new_map_answers_nothing() {
        assert!(!ResponderCfg::default().is_leased(Instant::BOOT));
    }

    #[test]
    fn neighbours_mixed_at_any_word_are_those_of_a_key_only_if_they_agree() {
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
    fn lease_ends_at_its_end() {
        let cfg = ResponderCfg { lease_end: 10, ..ResponderCfg::default() };
        assert!(cfg.is_leased(Instant::from_nanos(9)));
        assert!(!cfg.is_leased(Instant::from_nanos(10)));
    }

    #[test]
    fn prefix_of_either_family_counts_bits_of_the_mapped_address() {
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
