// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The small map that spares most queries two look-ups of their source.

use super::GidKey;

/// The bit of a [`GidKey`] in [`OWN_BITS`](super::OWN_BITS). It is set if the GID cache has that
/// key or another key with the same bit, or if an IPv4 address with this bit leads
/// [elsewhere](super::Route::ELSEWHERE): it is the first or the last of a subnet.
///
/// The source of a query must not be an address of this node, and almost never is one. A look-up in
/// the GID cache would cost more than all the rest of an answer: its bucket table is large, and the
/// same source rarely asks twice, so that the CPU's caches do not help. The trie of routes costs as
/// much. If the bit is clear, neither look-up is needed.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct OwnBit(u32);

impl OwnBit {
    /// Number of bits. With 100,000 addresses, one source in 42 shares a bit with one of them, on
    /// average over subnets.
    pub const COUNT: u32 = 1 << 22;

    /// Addresses that differ only in this number of bits at their end have their bits side by side:
    /// peers are often neighbours, and a line of the CPU's cache holds the bits of 512. What this
    /// costs: of two such groups with the same line, all sources share bits, not a few of them.
    const HOST: u32 = 9;

    /// The bit of `key`.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "22 bits are left")]
    pub fn of(key: &GidKey) -> Self {
        let [high, low]: [u64; 2] = zerocopy::transmute!(key.address);
        let low = u64::from_be(low);
        let (subnet, host) = (low >> Self::HOST, low & ((1 << Self::HOST) - 1));
        // A product carries differences only to higher bits, so these are shifted down before the
        // next product. The words are not just added: in a sum, subnets that differ in one octet of
        // each word collide. The factors are odd, otherwise arbitrary: digits of e.
        let mixed = (high ^ u64::from(key.scope)).wrapping_mul(0xb7e1_5162_8aed_2a6b);
        let mixed = (mixed ^ mixed >> 32 ^ subnet).wrapping_mul(0xbf71_5880_9cf4_f3c7);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xa784_d904_5190_cfef);
        Self((mixed >> (u64::BITS - Self::COUNT.ilog2()) ^ host) as u32)
    }

    /// The index of its word in the map.
    #[inline]
    pub const fn word(self) -> u32 {
        self.0 / u64::BITS
    }

    /// The mask of the bit in that word.
    #[inline]
    pub const fn mask(self) -> u64 {
        1 << (self.0 % u64::BITS)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::vec;

    use super::*;
    use crate::IfIndex;

    const NUMBER: u32 = 100_000;

    /// Random bits would give 98,800, and 24 of 1,000 foreign sources would share one. Whole groups
    /// do, so that more of them may.
    #[test]
    fn consecutive_addresses_spread_over_the_bits() {
        let ipv4 = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a04_0001 + number));
        let ipv6 = |subnet: u128, number: u32| {
            IpAddr::from(Ipv6Addr::from_bits(0xfd << 120 | subnet << 64 | u128::from(number)))
        };
        let link_local =
            |number: u32| IpAddr::from(Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(number)));
        // Also one of each group of addresses that are side by side.
        let own: [&dyn Fn(u32) -> IpAddr; 6] = [
            &ipv4,
            &|number| ipv4(512 * number),
            &|number| ipv6(4, number),
            &|number| ipv6(4, 512 * number),
            &|number| ipv6(number.into(), 1),
            &link_local,
        ];
        for (index, own) in own.into_iter().enumerate() {
            let mut map = vec![0u64; (OwnBit::COUNT / u64::BITS) as usize];
            for bit in bits(own) {
                map[bit.word() as usize] |= bit.mask();
            }
            let set: u32 = map.iter().map(|word| word.count_ones()).sum();
            assert!(set > 97_000, "row {index}: {NUMBER} addresses have {set} bits");
            let others: [&dyn Fn(u32) -> IpAddr; 5] = [
                &|number| ipv4(number + (154 << 24)),
                &|number| ipv4(512 * number + (154 << 24)),
                &|number| ipv6(9, number),
                &|number| ipv6(9, 512 * number),
                &|number| ipv6(number.into(), number),
            ];
            for (other, source) in others.into_iter().enumerate() {
                let hits = bits(source).filter(|bit| map[bit.word() as usize] & bit.mask() != 0);
                let hits = hits.count();
                assert!(hits < 5_000, "row {index}: has the bits of {hits} sources of row {other}");
            }
        }
    }

    #[test]
    fn neighbours_have_their_bits_in_one_line_of_the_cache() {
        for first in ["10.4.2.0", "fd00::4:200", "fe80::4:200"] {
            let first: IpAddr = first.parse().unwrap();
            let octets = GidKey::new(first, IfIndex::MIN).address;
            let bits = (0..512u128).map(|host| {
                let address = (u128::from_be_bytes(octets) | host).to_be_bytes();
                OwnBit::of(&GidKey { address, scope: 0 }).0
            });
            let bits: std::collections::BTreeSet<_> = bits.collect();
            let line = bits.first().unwrap() / 512;
            assert!(bits.len() == 512 && bits.iter().all(|bit| bit / 512 == line), "{first}");
        }
    }

    fn bits(address: &dyn Fn(u32) -> IpAddr) -> impl Iterator<Item = OwnBit> {
        (0..NUMBER).map(|number| OwnBit::of(&GidKey::new(address(number), IfIndex::MIN)))
    }
}
