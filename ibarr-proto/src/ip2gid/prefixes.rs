// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A set of addresses, given as prefixes; an empty list means every address.
///
/// The list is sorted and has no prefix inside another, so that a look-up is one binary search.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Prefixes(Vec<Prefix>);

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
        let after = self.0.partition_point(|prefix| prefix.first() <= address);
        let before = after.checked_sub(1).and_then(|index| self.0.get(index));
        before.is_some_and(|prefix| prefix.contains(address))
    }

    /// The prefixes in order, IPv4 first; none means every address.
    pub fn iter(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<Prefix> for Prefixes {
    fn from_iter<T: IntoIterator<Item = Prefix>>(prefixes: T) -> Self {
        let mut sorted: Vec<Prefix> = prefixes.into_iter().collect();
        // A prefix sorts before those inside it.
        sorted.sort_unstable();
        sorted.dedup_by(|later, kept| kept.contains(later.first()));
        Self(sorted)
    }
}

/// The addresses that begin with the same bits: `10.0.0.0/8`, `fd00:2::/64`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Prefix {
    // In this order, so that the derived order is by address, then shorter prefixes first.
    first: IpAddr,
    len: u8,
}

impl Prefix {
    /// The addresses whose first `len` bits are those of `first`.
    ///
    /// # Errors
    /// `len` is longer than the address, bits of `first` after it are set, or `first` is an
    /// IPv4-mapped IPv6 address.
    pub fn new(first: IpAddr, len: u8) -> Result<Self, ParsePrefixError> {
        if let IpAddr::V6(mapped) = first
            && let Some(plain) = mapped.to_ipv4_mapped()
        {
            return Err(ParsePrefixError::Mapped { plain, len: len.saturating_sub(96) });
        }
        let bits = width(first);
        if len > bits {
            return Err(ParsePrefixError::TooLong { first, len, bits });
        }
        let network = mask(first, len);
        if network != first {
            return Err(ParsePrefixError::HostBits { first, network, len });
        }
        Ok(Self { first, len })
    }

    /// The prefix of `len` bits, or of all bits if there are fewer, that contains `address`.
    pub fn around(address: IpAddr, len: u8) -> Self {
        let len = len.min(width(address));
        Self { first: mask(address, len), len }
    }

    /// The lowest address of the prefix.
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// Number of bits that its addresses have in common.
    #[expect(clippy::len_without_is_empty, reason = "a prefix is never empty")]
    pub fn len(self) -> u8 {
        self.len
    }

    /// Whether it contains only one address.
    pub fn is_host(self) -> bool {
        self.len == width(self.first)
    }

    /// Whether the prefixes have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// Whether `address` begins with the bits of the prefix.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && mask(address, self.len) == self.first
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.len)
    }
}

impl FromStr for Prefix {
    type Err = ParsePrefixError;

    /// Accepts `ADDRESS/LENGTH`, or an address alone for a prefix of one address.
    fn from_str(text: &str) -> Result<Self, ParsePrefixError> {
        let not_a_prefix = || ParsePrefixError::NotAPrefix(text.into());
        let (address, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let first: IpAddr = address.parse().map_err(|_| not_a_prefix())?;
        let len = match len {
            None => width(first),
            // `u8::from_str` would accept a sign.
            Some(len) if len.bytes().all(|byte| byte.is_ascii_digit()) => {
                len.parse().map_err(|_| not_a_prefix())?
            }
            Some(_) => return Err(not_a_prefix()),
        };
        Self::new(first, len)
    }
}

/// Error: a text is not a [`Prefix`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParsePrefixError {
    /// Neither ADDRESS/LENGTH nor an address.
    #[error("`{0}` is not a prefix, write it like 10.0.0.0/8 or fd00:2::/64")]
    NotAPrefix(String),
    /// The length exceeds that of the address.
    #[error("{first}/{len}: an address of this kind has only {bits} bits, write {first}/{bits}")]
    TooLong {
        /// The given address.
        first: IpAddr,
        /// The given length.
        len: u8,
        /// Length of the address in bits.
        bits: u8,
    },
    /// Bits after the prefix are set, so that it is unclear whether a prefix or an address is
    /// meant.
    #[error(
        "{first}/{len} has bits set after the prefix, write {network}/{len}, or {first} for that address alone"
    )]
    HostBits {
        /// The given address.
        first: IpAddr,
        /// The same with the bits after the prefix cleared.
        network: IpAddr,
        /// The given length.
        len: u8,
    },
    /// IPv4 addresses are never IPv4-mapped here.
    #[error("an IPv4-mapped prefix matches nothing, write {plain}/{len}")]
    Mapped {
        /// The IPv4 address inside.
        plain: Ipv4Addr,
        /// Length of the IPv4 prefix.
        len: u8,
    },
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// `address` with only its first `len` bits.
fn mask(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = !u32::MAX.checked_shr(len.into()).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = !u128::MAX.checked_shr(len.into()).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

ibarr_common::serde_as_text!(Prefix);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefixes(texts: &[&str]) -> Prefixes {
        texts.iter().map(|text| text.parse::<Prefix>().unwrap()).collect()
    }

    #[test]
    fn empty_list_contains_every_address() {
        assert!(Prefixes::EVERYONE.contains("10.2.0.5".parse().unwrap()));
        assert!(Prefixes::EVERYONE.contains("fd00:2::5".parse().unwrap()));
    }

    #[test]
    fn prefix_contains_its_first_and_last_address() {
        let set = prefixes(&["10.0.0.0/8", "fd00:2::/64", "192.0.2.1"]);
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
        let set = prefixes(&["10.1.0.0/16", "::/0", "10.0.0.0/8", "10.0.0.0/8", "fd00::1"]);
        let kept: Vec<_> = set.iter().map(|prefix| prefix.to_string()).collect();
        assert_eq!(kept, ["10.0.0.0/8", "::/0"]);
    }

    #[test]
    fn errors_name_the_remedy() {
        let cases = [
            (
                "10.0.0.1/8",
                "10.0.0.1/8 has bits set after the prefix, write 10.0.0.0/8, or 10.0.0.1 for that address alone",
            ),
            (
                "10.0.0.0/33",
                "10.0.0.0/33: an address of this kind has only 32 bits, write 10.0.0.0/32",
            ),
            (
                "fd00::/129",
                "fd00::/129: an address of this kind has only 128 bits, write fd00::/128",
            ),
            ("::ffff:10.0.0.0/104", "an IPv4-mapped prefix matches nothing, write 10.0.0.0/8"),
            ("ten", "`ten` is not a prefix, write it like 10.0.0.0/8 or fd00:2::/64"),
            (
                "10.0.0.0/+8",
                "`10.0.0.0/+8` is not a prefix, write it like 10.0.0.0/8 or fd00:2::/64",
            ),
            ("10.0.0.0/", "`10.0.0.0/` is not a prefix, write it like 10.0.0.0/8 or fd00:2::/64"),
        ];
        for (text, message) in cases {
            assert_eq!(text.parse::<Prefix>().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn prefixes_overlap_only_if_nested() {
        let around = |text: &str, len| Prefix::around(text.parse().unwrap(), len);
        let net = around("10.1.2.3", 16);
        assert_eq!(net.to_string(), "10.1.0.0/16");
        let cases = [("10.1.9.9", 24), ("10.1.0.0", 16), ("10.9.9.9", 8), ("10.1.2.3", 99)];
        for (address, len) in cases {
            let other = around(address, len);
            assert!(net.overlaps(other) && other.overlaps(net), "{other}");
        }
        for (address, len) in [("10.2.0.1", 24), ("::ffff:10.1.2.3", 0), ("10.0.255.255", 32)] {
            let other = around(address, len);
            assert!(!net.overlaps(other) && !other.overlaps(net), "{other}");
        }
        assert!(around("fd00::1", 128).is_host() && !around("fd00::1", 127).is_host());
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
            let all: Vec<Prefix> = of
                .into_iter()
                .map(|(high, len, v6)| {
                    let len = len % 33;
                    Prefix::new(mask(address(high, 0, v6), len), len).unwrap()
                })
                .collect();
            let set: Prefixes = all.iter().copied().collect();
            for (high, low, v6) in addresses {
                let address = address(high, low, v6);
                let expected = all.is_empty() || all.iter().any(|prefix| prefix.contains(address));
                prop_assert_eq!(set.contains(address), expected);
            }
            for prefix in all {
                prop_assert_eq!(prefix.to_string().parse(), Ok(prefix));
            }
        }
    }
}
