// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

use super::Lid;

/// The GID of a port: 128 bits, [`SubnetPrefix`] then [`Guid`], in network byte order
/// (IBA vol. 1 §4.1.1).
///
/// The reserved all-zero GID and multicast GIDs (first byte 0xff) do not name a port and cannot be
/// built. Written and read as an IPv6 address, as the specification does.
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

    /// The 16 bytes as they stand on the wire.
    pub const fn octets(self) -> [u8; 16] {
        self.0
    }

    /// The upper 64 bits.
    pub const fn subnet_prefix(self) -> SubnetPrefix {
        SubnetPrefix((u128::from_be_bytes(self.0) >> 64) as u64)
    }

    /// The lower 64 bits.
    #[expect(clippy::cast_possible_truncation, reason = "the lower 64 bits are wanted")]
    pub const fn guid(self) -> Guid {
        Guid(u128::from_be_bytes(self.0) as u64)
    }

    /// The floating LID that a router routes by instead of this GID, if it carries one: a site-local
    /// GID, fec0:0000::/32, whose next 16 bits name it and whose further 16 bits are the number of
    /// the subnet (as UCX reads them, `gid_extract_flid` in src/uct/ib).
    pub const fn flid(self) -> Option<Lid> {
        let [0xfe, 0xc0, 0, 0, high, low, ..] = self.0 else { return None };
        match Lid::new(u16::from_be_bytes([high, low])) {
            Some(flid) if flid.is_unicast() => Some(flid),
            _ => None,
        }
    }

    /// The number of the subnet, in a GID with a [`Self::flid`].
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
    /// fe80::/64, what a subnet has until its administrator gives it another.
    pub const DEFAULT: Self = Self(0xfe80_0000_0000_0000);

    /// From its number.
    pub const fn new(prefix: u64) -> Self {
        Self(prefix)
    }

    /// Its number.
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
    /// From its number.
    pub const fn new(guid: u64) -> Self {
        Self(guid)
    }

    /// Its number.
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
    fn halves_of_a_gid() {
        let gid: Gid = "fe80::2:c903:0:201".parse().unwrap();
        assert_eq!(gid.subnet_prefix(), SubnetPrefix::DEFAULT);
        assert_eq!(gid.guid(), Guid::new(0x0002_c903_0000_0201));
        assert_eq!(gid.guid().to_string(), "0x0002c90300000201");
        assert_eq!(gid.to_string().parse(), Ok(gid));
    }

    #[test]
    fn flid_is_read_from_a_site_local_gid_and_no_other() {
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
    fn what_does_not_name_a_port_is_refused() {
        assert_eq!("::".parse::<Gid>(), Err(ParseGidError::NotAPort));
        assert_eq!("ff12::1".parse::<Gid>(), Err(ParseGidError::NotAPort));
        assert_eq!("10.0.0.1".parse::<Gid>(), Err(ParseGidError::NotAGid));
    }
}
