// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Elements of the maps that answer queries by address.

use core::fmt;
use core::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{address, octets};
use crate::ib::Gid;
use crate::{IfIndex, Instant};

/// An IP address, with the interface if the address is link-local.
#[derive(Clone, Copy, Eq, FromBytes, Hash, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct GidKey {
    /// In the form of [`octets`].
    pub address: [u8; 16],
    /// The ifindex for an IPv6 link-local address, else 0.
    pub scope: u32,
}

impl GidKey {
    /// The key of `address` as seen on `interface`.
    pub const fn new(address: IpAddr, interface: IfIndex) -> Self {
        let scope = match address {
            IpAddr::V6(address) if address.is_unicast_link_local() => interface.get(),
            _ => 0,
        };
        Self { address: octets(address), scope }
    }

    /// The address part of the key.
    pub const fn ip(&self) -> IpAddr {
        address(self.address)
    }
}

impl fmt::Debug for GidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GidKey({}", self.ip())?;
        if let Some(scope) = IfIndex::new(self.scope) {
            write!(f, "%{scope}")?;
        }
        f.write_str(")")
    }
}

/// An address of this node, and the GID that peers are told for it, if any. Every address of this
/// node has an entry, because a query from such a source is never answered.
///
/// The kernel may free and refill an element of a hash without preallocation while a program reads
/// it (`kernel/bpf/hashtab.c`, `htab_elem_free` since Linux 6.1). A program may then see another
/// element, or a mixture of two. It therefore copies the value, and answers only if
/// [`GidEntry::is_of`] is true.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct GidEntry {
    /// Copy of the key.
    pub key: GidKey,
    /// The interface that has the address, or 0.
    pub ifindex: u32,
    /// The GID that peers are told, see [`Gid::octets`]; all zero if there is none.
    pub gid: [u8; 16],
    /// The number of an [`Origin`].
    pub origin: u32,
    /// Always 0.
    pub reserved: u32,
    /// Ties key and GID together, see [`GidEntry::is_of`].
    pub check: u64,
}

impl GidEntry {
    /// The entry for `key`, an address of `interface`.
    pub fn new(key: GidKey, gid: Option<Gid>, interface: Option<IfIndex>, origin: Origin) -> Self {
        let gid = gid.map_or([0; 16], Gid::octets);
        Self {
            key,
            ifindex: interface.map_or(0, IfIndex::get),
            gid,
            origin: origin.into(),
            reserved: 0,
            check: check(&key, &gid),
        }
    }

    /// Whether this is the complete entry of `key`.
    ///
    /// `check` is linear in the 64-bit words of key and GID, with odd factors. It therefore never
    /// fits two entries mixed at one word; it fits any other mixture with probability 2⁻⁶⁴.
    #[inline]
    pub fn is_of(&self, key: &GidKey) -> bool {
        self.key == *key && self.check == check(key, &self.gid)
    }

    /// Whether there is a GID to tell a peer.
    #[inline]
    pub fn has_gid(&self) -> bool {
        self.gid != [0; 16]
    }
}

#[inline]
fn check(key: &GidKey, gid: &[u8; 16]) -> u64 {
    let words = |octets: &[u8; 16]| -> [u64; 2] { zerocopy::transmute!(*octets) };
    let [key_0, key_1] = words(&key.address);
    let [gid_0, gid_1] = words(gid);
    // Odd, otherwise arbitrary: the first digits of the fraction of pi, made odd.
    1u64.wrapping_add(key_0.wrapping_mul(0x243f_6a88_85a3_08d3))
        .wrapping_add(key_1.wrapping_mul(0x1319_8a2e_0370_7345))
        .wrapping_add(u64::from(key.scope).wrapping_mul(0xa409_3822_299f_31d1))
        .wrapping_add(gid_0.wrapping_mul(0x082e_fa98_ec4e_6c89))
        .wrapping_add(gid_1.wrapping_mul(0x4528_21e6_38d0_1377))
}

/// The source of an entry.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Origin {
    /// The address is configured on an IPoIB interface of this node.
    Local,
    /// The daemon's configuration lists the address.
    Static,
}

impl From<Origin> for u32 {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Local => 1,
            Origin::Static => 2,
        }
    }
}

impl Origin {
    /// `None` for a number that this version does not define.
    pub const fn new(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Local),
            2 => Some(Self::Static),
            _ => None,
        }
    }
}

/// An answer of a peer: a copy of the daemon's cache, for `bpftool` and for the next daemon. The
/// scope of its key is the interface that the query was sent on, or 0 if routing chose it.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
#[repr(C)]
pub struct LearnedGid {
    /// In the form of [`Gid::octets`].
    pub gid: [u8; 16],
    /// The source address of the reply, in the form of [`octets`].
    pub source: [u8; 16],
    /// In the form of [`Instant::as_nanos`].
    pub expires_at: u64,
}

impl LearnedGid {
    /// The GID learned from `source`.
    pub const fn new(gid: Gid, source: IpAddr, expires_at: Instant) -> Self {
        Self { gid: gid.octets(), source: octets(source), expires_at: expires_at.as_nanos() }
    }
}

const _: () = {
    assert!(size_of::<GidKey>() == 20);
    assert!(size_of::<GidEntry>() == 56);
    assert!(size_of::<LearnedGid>() == 40);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: &str, gid: &str) -> GidEntry {
        let key = GidKey::new(address.parse().unwrap(), IfIndex::new(7).unwrap());
        GidEntry::new(key, gid.parse().ok(), IfIndex::new(7), Origin::Local)
    }

    #[test]
    fn only_a_link_local_address_has_a_scope() {
        assert_eq!(entry("10.2.0.5", "fe80::1").key.scope, 0);
        assert_eq!(entry("fd00::5", "fe80::1").key.scope, 0);
        assert_eq!(entry("fe80::5", "fe80::1").key.scope, 7);
    }

    #[test]
    fn entry_matches_only_its_own_key() {
        let here = entry("10.2.0.5", "fe80::1");
        let other = entry("10.2.0.6", "fe80::1");
        assert!(here.is_of(&here.key) && here.has_gid());
        assert!(!here.is_of(&other.key));
    }

    #[test]
    fn entry_without_gid_is_valid() {
        let key = entry("10.2.0.5", "fe80::1").key;
        let entry = GidEntry::new(key, None, None, Origin::Local);
        assert!(entry.is_of(&key) && !entry.has_gid());
    }

    #[test]
    fn entries_mixed_at_any_word_answer_only_if_they_agree() {
        let entries = [
            entry("10.2.0.5", "fe80::2:c903:0:201"),
            entry("10.2.0.5", "fe80::2:c903:0:202"),
            entry("10.2.0.5", "fec0:0:1::2:c903:0:201"),
            entry("10.2.0.6", "fe80::2:c903:0:201"),
            entry("fe80::5", "fe80::2:c903:0:201"),
        ];
        for old in entries {
            for new in entries {
                let old_words: [u64; 7] = zerocopy::transmute!(old);
                let new_words: [u64; 7] = zerocopy::transmute!(new);
                for mask in 0u32..1 << old_words.len() {
                    let mut mixed = old_words;
                    for (index, word) in mixed.iter_mut().enumerate() {
                        if mask >> index & 1 == 1 {
                            *word = new_words[index];
                        }
                    }
                    let mixed: GidEntry = zerocopy::transmute!(mixed);
                    for key in [old.key, new.key] {
                        let is_one = [old, new]
                            .iter()
                            .any(|whole| whole.is_of(&key) && whole.gid == mixed.gid);
                        assert!(is_one || !mixed.is_of(&key), "{mixed:?} for {key:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn origins_survive_the_map() {
        for origin in [Origin::Local, Origin::Static] {
            assert_eq!(Origin::new(origin.into()), Some(origin));
        }
        assert_eq!(Origin::new(0), None);
    }
}
