// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The configuration: which interfaces and fixed GIDs it names.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use ibarr_common::ib::Gid;

use super::{AltNames, InterfaceName, Link, LinkType, neighbours};

/// The configuration.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Config {
    /// The interfaces that take part.
    pub interfaces: InterfaceFilter,
    /// GIDs of addresses, on any interface.
    pub static_gids: StaticGids,
    /// Served interfaces whose neighbours are followed.
    pub neighbours: neighbours::Selection,
}

/// The interfaces that take part (`interfaces` in the configuration). The default is every IPoIB
/// interface; otherwise the listed names and globs apply, to interfaces of any type.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct InterfaceFilter {
    patterns: Vec<Pattern>,
}

impl InterfaceFilter {
    /// An empty list is the default.
    ///
    /// # Errors
    /// A pattern that cannot match, or more than [`Self::MAX_PATTERNS`].
    pub fn new<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, ConfigError> {
        let patterns: Vec<_> = patterns
            .into_iter()
            .take(Self::MAX_PATTERNS + 1)
            .map(|pattern| Pattern::new(pattern.as_ref()))
            .collect::<Result<_, _>>()?;
        if patterns.len() > Self::MAX_PATTERNS {
            return Err(ConfigError::TooManyPatterns);
        }
        Ok(Self { patterns })
    }

    /// Maximum number of patterns: every event of a link is compared with each.
    pub const MAX_PATTERNS: usize = 256;

    /// Whether the interface takes part.
    pub fn selects(&self, link: &Link) -> bool {
        if self.patterns.is_empty() {
            return link.link_type == LinkType::INFINIBAND;
        }
        self.patterns.iter().any(|pattern| pattern.matches(&link.name, &link.altnames))
    }

    /// The configured names and globs.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.patterns.iter()
    }
}

/// A name of an interface, with `*` for any bytes and `?` for one byte.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pattern(Box<str>);

impl Pattern {
    fn new(pattern: &str) -> Result<Self, ConfigError> {
        let illegal = |char: char| char.is_ascii_whitespace() || matches!(char, '\0' | '/' | ':');
        if pattern.is_empty()
            || pattern.len() > AltNames::MAX_LEN
            || pattern.contains(illegal)
            || pattern == "."
            || pattern == ".."
        {
            return Err(ConfigError::Pattern { pattern: pattern.into() });
        }
        Ok(Self(pattern.into()))
    }

    /// Whether it matches one of an interface's names.
    pub fn matches(&self, name: &InterfaceName, altnames: &AltNames) -> bool {
        core::iter::once(name.as_bytes()).chain(altnames.iter()).any(|name| self.is_like(name))
    }

    fn is_like(&self, name: &[u8]) -> bool {
        let pattern = self.0.as_bytes();
        let (mut p, mut n) = (0, 0);
        // Where to continue if the bytes after the last star do not match: one byte further.
        let mut last_star = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    last_star = Some((p, n));
                    p += 1;
                }
                Some(&byte) if byte == b'?' || byte == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => {
                    let Some((star, at)) = last_star else { return false };
                    last_star = Some((star, at + 1));
                    p = star + 1;
                    n = at + 1;
                }
            }
        }
        pattern[p..].iter().all(|&byte| byte == b'*')
    }
}

impl FromStr for Pattern {
    type Err = ConfigError;

    fn from_str(pattern: &str) -> Result<Self, ConfigError> {
        Self::new(pattern)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A GID that the configuration gives to an address (`[[static-gid]]`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct StaticGid {
    pub ip: IpAddr,
    pub gid: Gid,
}

/// At most one [`StaticGid`] for each address.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StaticGids(BTreeMap<IpAddr, Gid>);

impl StaticGids {
    /// # Errors
    /// The first address that no interface can have, that peers never ask for, or that occurs
    /// twice.
    pub fn new(entries: impl IntoIterator<Item = StaticGid>) -> Result<Self, ConfigError> {
        let mut gids = BTreeMap::new();
        for StaticGid { ip, gid } in entries {
            let illegal = match ip {
                IpAddr::V4(v4) => v4.is_broadcast(),
                IpAddr::V6(v6) => v6.to_ipv4_mapped().is_some(),
            };
            if illegal || ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
                return Err(ConfigError::StaticAddress { ip });
            }
            if gids.insert(ip, gid).is_some() {
                return Err(ConfigError::StaticTwice { ip });
            }
        }
        Ok(Self(gids))
    }

    /// The addresses that have one.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.keys().copied()
    }

    /// The static GID of `address`.
    pub fn lookup(&self, address: IpAddr) -> Option<Gid> {
        self.0.get(&address).copied()
    }
}

/// Error: an illegal configuration of the local view.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum ConfigError {
    /// No interface can have this name.
    #[error(
        "interface {pattern:?}: write 1 to 127 characters without white space, / or :, where * \
         stands for any number of them and ? for one"
    )]
    Pattern { pattern: String },
    #[error("more than {} interfaces listed: use a glob", InterfaceFilter::MAX_PATTERNS)]
    TooManyPatterns,
    /// No peer can ask for this address.
    #[error("static GID for {ip}: write a unicast address that an interface of this machine has")]
    StaticAddress { ip: IpAddr },
    /// An address has two GIDs.
    #[error("static GID for {ip}: given twice, remove one")]
    StaticTwice { ip: IpAddr },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn glob_matches_the_whole_name() {
        let cases = [
            ("ib0", "ib0", true),
            ("ib0", "ib01", false),
            ("ib0", "xib0", false),
            ("ib*", "ib", true),
            ("ib*", "ib0.8001", true),
            ("ib?", "ib", false),
            ("ib?", "ib0", true),
            ("*", "anything", true),
            ("*.8001", "ib0.8001", true),
            ("*.8001", "ib0.8001.8001", true),
            ("*a*b", "aXbYb", true),
            ("*a*b", "aXbYbc", false),
            ("**", "x", true),
            ("?*?", "x", false),
        ];
        for (pattern, name, expected) in cases {
            let got = Pattern::new(pattern).unwrap().is_like(name.as_bytes());
            assert_eq!(got, expected, "{pattern} {name}");
        }
    }

    #[test]
    fn pattern_that_cannot_match_is_refused() {
        for pattern in ["", ".", "..", "a b", "a/b", "eth0:1", &"x".repeat(128)] {
            let refused = InterfaceFilter::new([pattern]);
            assert_eq!(refused, Err(ConfigError::Pattern { pattern: pattern.into() }));
        }
        assert_eq!(InterfaceFilter::new(["x"; 257]), Err(ConfigError::TooManyPatterns));
        assert!(InterfaceFilter::new(["*".repeat(127)]).is_ok());
    }

    #[test]
    fn static_gids_are_refused_for_impossible_addresses() {
        let gid = "fe80::1".parse().unwrap();
        let refused = ["0.0.0.0", "127.0.0.1", "255.255.255.255", "224.0.0.1", "::", "::1"];
        for ip in refused.into_iter().chain(["ff02::1", "::ffff:10.0.0.1"]) {
            let ip = ip.parse().unwrap();
            let refused = StaticGids::new([StaticGid { ip, gid }]);
            assert_eq!(refused, Err(ConfigError::StaticAddress { ip }));
        }
        let ip = "10.0.0.1".parse().unwrap();
        let entry = StaticGid { ip, gid };
        assert_eq!(StaticGids::new([entry, entry]), Err(ConfigError::StaticTwice { ip }));
        assert_eq!(StaticGids::new([entry]).unwrap().lookup(ip), Some(gid));
    }

    fn matches_naively(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|n| matches_naively(rest, &name[n..])),
            Some((&byte, rest)) => name.split_first().is_some_and(|(&first, name)| {
                (byte == b'?' || byte == first) && matches_naively(rest, name)
            }),
        }
    }

    proptest! {
        #[test]
        fn globs_match_like_the_naive_search(pattern in "[ab*?]{1,8}", name in "[ab]{1,8}") {
            let got = Pattern::new(&pattern).unwrap().is_like(name.as_bytes());
            prop_assert_eq!(got, matches_naively(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
