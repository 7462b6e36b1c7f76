// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! GIDs, and the subnet prefix and GUID that they consist of.

use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

use super::Lid;

/// The GID of a port: 128 bits, [`SubnetPrefix`] then [`Guid`], in network byte order
/// (IBA vol. 1 §4.1.1).
///
/// The reserved all-zero GID and multicast GIDs (first byte 0xff) do not name a port and cannot be
/// built. Text form is that of an IPv6 address, as in the specification.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Gid([u8; 16]);

impl Gid {
    /// `None` if the bytes are all zero or a multicast GID.
    pub const fn new(octets: [u8; 16]) -> Option<Self> {
        if u128::from_be_bytes(octets) == 0 || octets[0] == 0xff {
            return None;
        }
        Some(Self(octets))
    }

    /// The 16 bytes as on the wire.
    pub const fn octets(self) -> [u8; 16] {
        self.0
    }

    /// The upper 64 bits of the GID.
    pub const fn subnet_prefix(self) -> SubnetPrefix {
        SubnetPrefix((u128::from_be_bytes(self.0) >> 64) as u64)
    }

    /// The lower 64 bits of the GID.
    #[expect(clippy::cast_possible_truncation, reason = "the lower 64 bits are wanted")]
    pub const fn guid(self) -> Guid {
        Guid(u128::from_be_bytes(self.0) as u64)
    }

    /// The floating LID in this GID, if it carries one: a router forwards by it instead of by the
    /// GID. Such a GID is site-local, fec0:0000::/32; the next 16 bits are the floating LID, and
    /// the 16 bits after those are the subnet number (as UCX reads them, `gid_extract_flid` in
    /// src/uct/ib).
    pub const fn flid(self) -> Option<Lid> {
        let [0xfe, 0xc0, 0, 0, high, low, ..] = self.0 else { return None };
        match Lid::new(u16::from_be_bytes([high, low])) {
            Some(flid) if flid.is_unicast() => Some(flid),
            _ => None,
        }
    }

    /// The LID in the 16 low bits, if the other 48 bits of the GUID are 0: the form of the GIDs that subnet managers give
    /// for routers which make the LID of a packet from its destination's GID.
    pub const fn alias_lid(self) -> Option<Lid> {
        let [_, _, _, _, _, _, _, _, 0, 0, 0, 0, 0, 0, high, low] = self.0 else { return None };
        match Lid::new(u16::from_be_bytes([high, low])) {
            Some(lid) if lid.is_unicast() => Some(lid),
            _ => None,
        }
    }

    /// The subnet number in a GID that has a [`Self::flid`].
    pub const fn flid_subnet(self) -> Option<u16> {
        match self.flid() {
            Some(_) => Some(u16::from_be_bytes([self.0[6], self.0[7]])),
            None => None,
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Self, ParseGidError> {
        let address: Ipv6Addr = text.parse().map_err(|_| ParseGidError::NotAGid)?;
        Self::new(address.octets()).ok_or(ParseGidError::NotAPort)
    }
}

/// Why a text is not a [`Gid`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ParseGidError {
    /// Not 128 bits in IPv6 notation.
    NotAGid,
    /// The reserved GID or a multicast GID.
    NotAPort,
}

impl fmt::Display for ParseGidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAGid => "not a GID: write it like fe80::2:c903:0:201",
            Self::NotAPort => "the zero GID and multicast GIDs do not name a port",
        })
    }
}

impl core::error::Error for ParseGidError {}

/// The upper half of a GID, common to all ports of an InfiniBand subnet (IBA vol. 1 §4.1.1).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SubnetPrefix(u64);

impl SubnetPrefix {
    /// fe80::/64, the prefix of a subnet until its administrator configures another.
    pub const DEFAULT: Self = Self(0xfe80_0000_0000_0000);

    /// Takes the prefix as a number.
    pub const fn new(prefix: u64) -> Self {
        Self(prefix)
    }

    /// The prefix as a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SubnetPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

/// An EUI-64 that names a port or node (IBA vol. 1 §4.1).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Guid(u64);

impl Guid {
    /// Takes the GUID as a number.
    pub const fn new(guid: u64) -> Self {
        Self(guid)
    }

    /// The GUID as a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn gid_splits_into_subnet_prefix_and_guid() {
        let gid: Gid = "fe80::2:c903:0:201".parse().unwrap();
        assert_eq!(gid.subnet_prefix(), SubnetPrefix::DEFAULT);
        assert_eq!(gid.guid(), Guid::new(0x0002_c903_0000_0201));
        assert_eq!(gid.guid().to_string(), "0x0002c90300000201");
        assert_eq!(gid.to_string().parse(), Ok(gid));
    }

    #[test]
    fn only_site_local_gids_carry_a_flid() {
        let flid = |gid: &str| {
            let gid: Gid = gid.parse().unwrap();
            (gid.flid().map(Lid::get), gid.flid_subnet())
        };
        assert_eq!(flid("fec0:0:22:2::beef:1"), (Some(0x22), Some(2)));
        for gid in ["fe80::1", "fec0::1", "fec0:1:22:2::1", "2001:0:22:2::1", "fec0:0:c000:2::1"] {
            assert_eq!(flid(gid), (None, None), "{gid}");
        }
    }

    #[test]
    fn gids_that_name_no_port_are_refused() {
        assert_eq!("::".parse::<Gid>(), Err(ParseGidError::NotAPort));
        assert_eq!("ff12::1".parse::<Gid>(), Err(ParseGidError::NotAPort));
        assert_eq!("10.0.0.1".parse::<Gid>(), Err(ParseGidError::NotAGid));
    }
}
