// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Hardware addresses of IPoIB, in which the GID of a port stands.

use core::fmt;
use core::str::FromStr;

use super::Gid;

/// The hardware address of an IPoIB interface (RFC 4391 §9.1.1): one byte of flags, 24 bits of QPN,
/// 16 bytes of GID; 20 bytes in all.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct IpoibHwAddr {
    flags: u8,
    qpn: Qpn,
    gid: Gid,
}

impl IpoibHwAddr {
    /// Length in bytes, `addr_len` of the network device.
    pub const LEN: usize = 20;

    /// `None` if `octets` are not 20 bytes or do not hold a port's GID, as on an interface that the
    /// subnet manager has not yet brought up.
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; Self::LEN] = octets.try_into().ok()?;
        let (&flags, rest) = octets.split_first()?;
        let (qpn, gid) = rest.split_first_chunk::<3>()?;
        Some(Self { flags, qpn: Qpn::from_octets(*qpn), gid: Gid::new(gid.try_into().ok()?)? })
    }

    /// The 20 bytes as in `IFLA_ADDRESS` and in ARP.
    pub fn octets(self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[0] = self.flags;
        octets[1..4].copy_from_slice(&self.qpn.octets());
        octets[4..].copy_from_slice(&self.gid.octets());
        octets
    }

    /// The same with another GID: what the kernel lets an interface be set to (`ipoib_set_mac`).
    #[must_use]
    pub const fn with_gid(self, gid: Gid) -> Self {
        Self { gid, ..self }
    }

    /// Whether the interface supports connected mode (RFC 4755 §3.1, the upper bit of the flags).
    pub const fn is_connected_mode_capable(self) -> bool {
        self.flags & 0x80 != 0
    }

    /// The queue pair that receives datagrams.
    pub const fn qpn(self) -> Qpn {
        self.qpn
    }

    /// The GID of the port.
    pub const fn gid(self) -> Gid {
        self.gid
    }
}

impl fmt::Display for IpoibHwAddr {
    /// The notation of `ip link`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let octets = self.octets();
        let (first, rest) = (octets[0], &octets[1..]);
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|octet| write!(f, ":{octet:02x}"))
    }
}

impl FromStr for IpoibHwAddr {
    type Err = ParseIpoibHwAddrError;

    fn from_str(text: &str) -> Result<Self, ParseIpoibHwAddrError> {
        let mut octets = [0; Self::LEN];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or(ParseIpoibHwAddrError)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| ParseIpoibHwAddrError)?;
        }
        Self::parse(&octets).filter(|_| parts.next().is_none()).ok_or(ParseIpoibHwAddrError)
    }
}

/// Error: a text is not an [`IpoibHwAddr`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ParseIpoibHwAddrError;

impl fmt::Display for ParseIpoibHwAddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an IPoIB address: 20 bytes in hexadecimal, with colons between them")
    }
}

impl core::error::Error for ParseIpoibHwAddrError {}

/// Queue pair number, 24 bits (IBA vol. 1 §3.2.1).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Qpn(u32);

impl Qpn {
    /// Subnet management (IBA vol. 1 §13.5.1). Packets to it travel on VL 15 in any port state.
    pub const SMI: Self = Self(0);
    /// General services: SA, performance and connection management.
    pub const GSI: Self = Self(1);
    /// The destination QPN of multicast packets.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

    /// `None` above 24 bits.
    pub const fn new(qpn: u32) -> Option<Self> {
        if qpn > 0x00ff_ffff {
            return None;
        }
        Some(Self(qpn))
    }

    /// The number, at most 24 bits.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// From the 3 bytes on the wire.
    pub const fn from_octets([high, middle, low]: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, high, middle, low]))
    }

    /// The 3 bytes on the wire.
    pub const fn octets(self) -> [u8; 3] {
        let [_, high, middle, low] = self.0.to_be_bytes();
        [high, middle, low]
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    /// From `ip link show ib0` on a Debian 12 guest.
    const IB0: [u8; 20] = [
        0x80, 0x00, 0x01, 0x40, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0x02, 0xc9, 0x03, 0x00, 0x00,
        0x02, 0x01,
    ];

    #[test]
    fn hardware_address_splits_into_its_fields() {
        let hwaddr = IpoibHwAddr::parse(&IB0).unwrap();
        assert!(hwaddr.is_connected_mode_capable());
        assert_eq!(Some(hwaddr.qpn()), Qpn::new(0x140));
        assert_eq!(hwaddr.gid().to_string(), "fe80::2:c903:0:201");
        assert_eq!(hwaddr.octets(), IB0);
        let text = "80:00:01:40:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:02:01";
        assert_eq!(hwaddr.to_string(), text);
        assert_eq!(text.parse(), Ok(hwaddr));
    }

    #[test]
    fn addresses_of_wrong_length_or_without_gid_are_refused() {
        assert_eq!(IpoibHwAddr::parse(&IB0[..19]), None);
        assert_eq!(IpoibHwAddr::parse(&[0x80; 6]), None);
        assert_eq!(IpoibHwAddr::parse(&[]), None);
        assert_eq!(IpoibHwAddr::parse(&[0; 20]), None);
        let text = "80:00:01:40:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:02:01";
        for text in ["", "none", &text[3..], &[text, ":00"].concat()] {
            assert_eq!(text.parse::<IpoibHwAddr>(), Err(ParseIpoibHwAddrError), "{text:?}");
        }
    }
}
