// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use super::GidKey;

/// The bit of a [`GidKey`] in [`OWN_BITS`](super::OWN_BITS), which is set if the GID cache has
/// that key or another one with the same bit.
///
/// Every query comes from a source that may not be an address of ours. Nearly none is, and to find
/// that out in the GID cache, whose table of buckets is large and hardly ever asked for the same
/// source twice, costs more than all the rest of an answer. If the bit is not set the cache need
/// not be asked.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct OwnBit(u32);

impl OwnBit {
    /// How many there are. Of 100,000 addresses, one source in eleven has the bit of another.
    pub const COUNT: u32 = 1 << 20;

    /// Of `key`.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "20 bits are left")]
    pub fn of(key: &GidKey) -> Self {
        let [high, low]: [u64; 2] = zerocopy::transmute!(key.address);
        // A product carries what differs upwards alone, so what has come up is brought down before
        // the next. The words are not just added: in a sum, subnets that differ in one octet of
        // each word fall on each other. Factors are odd, otherwise arbitrary: digits of e.
        let mixed = (high ^ u64::from(key.scope)).wrapping_mul(0xb7e1_5162_8aed_2a6b);
        let mixed = (mixed ^ mixed >> 32 ^ low).wrapping_mul(0xbf71_5880_9cf4_f3c7);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xa784_d904_5190_cfef);
        Self((mixed >> (u64::BITS - Self::COUNT.ilog2())) as u32)
    }

    /// Index of its word in the map.
    #[inline]
    pub const fn word(self) -> u32 {
        self.0 / u64::BITS
    }

    /// Its bit in that word.
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

    /// By chance it would be 95,000, and of others' sources 9 of 100.
    #[test]
    fn addresses_in_a_row_spread_over_the_bits_and_away_from_their_neighbours() {
        let ipv4 = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a04_0001 + number));
        let ipv6 = |subnet: u128, number: u32| {
            IpAddr::from(Ipv6Addr::from_bits(0xfd << 120 | subnet << 64 | u128::from(number)))
        };
        let link_local =
            |number: u32| IpAddr::from(Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(number)));
        let own: [&dyn Fn(u32) -> IpAddr; 4] =
            [&ipv4, &|number| ipv6(4, number), &|number| ipv6(number.into(), 1), &link_local];
        for (index, own) in own.into_iter().enumerate() {
            let mut map = vec![0u64; (OwnBit::COUNT / u64::BITS) as usize];
            for bit in bits(own) {
                map[bit.word() as usize] |= bit.mask();
            }
            let set: u32 = map.iter().map(|word| word.count_ones()).sum();
            assert!(set > 90_000, "row {index}: {NUMBER} addresses have {set} bits");
            let others: [&dyn Fn(u32) -> IpAddr; 3] =
                [&|number| ipv4(number + (54 << 16)), &|number| ipv6(9, number), &|number| {
                    ipv6(number.into(), number)
                }];
            for (other, source) in others.into_iter().enumerate() {
                let hits = bits(source).filter(|bit| map[bit.word() as usize] & bit.mask() != 0);
                let hits = hits.count();
                assert!(
                    hits < 11_000,
                    "row {index}: has the bits of {hits} sources of row {other}"
                );
            }
        }
    }

    fn bits(address: &dyn Fn(u32) -> IpAddr) -> impl Iterator<Item = OwnBit> {
        (0..NUMBER).map(|number| OwnBit::of(&GidKey::new(address(number), IfIndex::MIN)))
    }
}
