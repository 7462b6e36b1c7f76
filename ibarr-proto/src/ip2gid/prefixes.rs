// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Whether an address is in a list of prefixes.

use alloc::vec::Vec;
use core::net::IpAddr;

use ipnet::IpNet;

/// A set of addresses, given as prefixes; an empty list means every address.
///
/// The list is sorted and has no prefix inside another, so that a look-up is one binary search.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Prefixes(Vec<IpNet>);

impl Prefixes {
    /// Every address.
    pub const EVERYONE: Self = Self(Vec::new());

    /// Whether `address` is in the set.
    pub fn contains(&self, address: IpAddr) -> bool {
        if self.0.is_empty() {
            return true;
        }
        // Without nesting, prefixes are disjoint: only the last one that starts at or before the
        // address can contain it.
        let after = self.0.partition_point(|prefix| prefix.addr() <= address);
        let before = after.checked_sub(1).and_then(|index| self.0.get(index));
        before.is_some_and(|prefix| prefix.contains(&address))
    }

    /// The prefixes in order, IPv4 first; none means every address.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<IpNet> for Prefixes {
    fn from_iter<T: IntoIterator<Item = IpNet>>(prefixes: T) -> Self {
        let mut sorted: Vec<IpNet> = prefixes.into_iter().map(|prefix| prefix.trunc()).collect();
        // A prefix sorts before those inside it.
        sorted.sort_unstable();
        sorted.dedup_by(|later, kept| kept.contains(&*later));
        Self(sorted)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn prefixes(texts: &[&str]) -> Prefixes {
        texts.iter().map(|text| text.parse::<IpNet>().unwrap()).collect()
    }

    #[test]
    fn empty_list_contains_every_address() {
        assert!(Prefixes::EVERYONE.contains("10.2.0.5".parse().unwrap()));
        assert!(Prefixes::EVERYONE.contains("fd00:2::5".parse().unwrap()));
    }

    #[test]
    fn prefix_contains_its_first_and_last_address() {
        let set = prefixes(&["10.0.0.0/8", "fd00:2::/64", "192.0.2.1/32"]);
        let cases = [
            ("9.255.255.255", false),
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("192.0.2.0", false),
            ("192.0.2.1", true),
            ("192.0.2.2", false),
            ("fd00:2::", true),
            ("fd00:2::ffff:ffff:ffff:ffff", true),
            ("fd00:2:0:1::", false),
            ("::ffff:10.0.0.1", false),
        ];
        for (address, inside) in cases {
            assert_eq!(set.contains(address.parse().unwrap()), inside, "{address}");
        }
        assert!(prefixes(&["0.0.0.0/0"]).contains("1.2.3.4".parse().unwrap()));
        assert!(!prefixes(&["0.0.0.0/0"]).contains("::1".parse().unwrap()));
        assert!(prefixes(&["::/0"]).contains("ffff::1".parse().unwrap()));
    }

    #[test]
    fn nested_prefixes_are_removed() {
        let set = prefixes(&["10.1.0.0/16", "::/0", "10.0.0.0/8", "10.0.0.0/8", "fd00::1/128"]);
        let kept: Vec<_> = set.iter().map(|prefix| prefix.to_string()).collect();
        assert_eq!(kept, ["10.0.0.0/8", "::/0"]);
    }

    proptest! {
        #[test]
        fn set_contains_exactly_the_addresses_of_its_prefixes(
            of: Vec<(u8, u8, bool)>,
            addresses: Vec<(u8, u8, bool)>,
        ) {
            // Only a few bits differ, so that prefixes nest.
            let address = |high: u8, low: u8, v6: bool| -> IpAddr {
                if v6 {
                    Ipv6Addr::new(u16::from(high) << 8, 0, 0, 0, 0, 0, 0, low.into()).into()
                } else {
                    Ipv4Addr::new(high, 0, 0, low).into()
                }
            };
            let prefix = |(high, len, v6)| IpNet::new_assert(address(high, 0, v6), len % 33);
            let all: Vec<IpNet> = of.into_iter().map(prefix).collect();
            let set: Prefixes = all.iter().copied().collect();
            for (high, low, v6) in addresses {
                let address = address(high, low, v6);
                let expected = all.is_empty() || all.iter().any(|prefix| prefix.contains(&address));
                prop_assert_eq!(set.contains(address), expected);
            }
        }
    }
}
