// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Links and addresses in rtnetlink's terms.

use alloc::string::String;
use core::fmt;
use core::net::IpAddr;

use ibarr_common::IfIndex;
use ibarr_common::ib::{Gid, IpoibHwAddr, PKey};
use ipnet::Ipv4Net;

use super::LinkHeader;

/// A network device as in `RTM_NEWLINK`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Link {
    pub ifindex: IfIndex,
    /// The current name; a device can be renamed.
    pub name: InterfaceName,
    pub altnames: AltNames,
    /// `ifi_type`.
    pub link_type: LinkType,
    /// `IFLA_ADDRESS`.
    pub hwaddr: HwAddr,
    /// `IFF_UP`: the administrative state. It does not show whether there is a carrier.
    pub up: bool,
    /// Its role in a bond or team.
    pub bonding: Bonding,
    /// The VRF that it is in.
    pub vrf: Option<IfIndex>,
    /// The partition of an IPoIB interface, which is part of `IFLA_BROADCAST`.
    pub pkey: Option<PKey>,
}

impl Link {
    /// The GID in its hardware address; `None` unless it is an IPoIB interface with a GID.
    pub fn own_gid(&self) -> Option<Gid> {
        if self.link_type != LinkType::INFINIBAND {
            return None;
        }
        IpoibHwAddr::parse(self.hwaddr.as_bytes()).map(IpoibHwAddr::gid)
    }

    /// The header of its frames, if the programs support it.
    pub fn header(&self) -> Option<LinkHeader> {
        match self.link_type {
            LinkType::ETHERNET => Some(LinkHeader::Ethernet),
            LinkType::INFINIBAND => Some(LinkHeader::Ipoib),
            _ => None,
        }
    }
}

/// An IP address of an interface as in `RTM_NEWADDR`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InterfaceAddress {
    /// The identity of the entry.
    pub id: AddressId,
    /// Its state of duplicate address detection.
    pub dad: Dad,
}

impl InterfaceAddress {
    /// The arguments are those of [`AddressId::new`].
    pub fn new(
        ifindex: IfIndex,
        address: IpAddr,
        prefix_len: u8,
        peer: Option<IpAddr>,
        dad: Dad,
    ) -> Self {
        Self { id: AddressId::new(ifindex, address, prefix_len, peer), dad }
    }
}

/// The identity of an address entry of the kernel.
///
/// An interface can have an IPv4 address several times, with different prefixes or peers
/// (`__inet_insert_ifa` in net/ipv4/devinet.c compares all three), and has the address until the
/// last entry is deleted. IPv6 has an address once per interface; a change of its peer causes a new
/// `RTM_NEWADDR` and no `RTM_DELADDR` (`inet6_addr_modify` in net/ipv6/addrconf.c), so for IPv6 the
/// peer is not part of the identity.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct AddressId {
    pub(super) address: IpAddr,
    pub(super) ifindex: IfIndex,
    prefix_len: u8,
    peer: Option<IpAddr>,
}

#[expect(missing_docs, reason = "its items are named for what they are")]
impl AddressId {
    /// `address` is the local address (`IFA_LOCAL`, or `IFA_ADDRESS` if that is missing), `peer`
    /// the other end (`IFA_ADDRESS` if it differs).
    pub fn new(ifindex: IfIndex, address: IpAddr, prefix_len: u8, peer: Option<IpAddr>) -> Self {
        match address {
            IpAddr::V4(_) => Self { address, ifindex, prefix_len, peer },
            IpAddr::V6(_) => Self { address, ifindex, prefix_len: 0, peer: None },
        }
    }

    pub const fn ifindex(&self) -> IfIndex {
        self.ifindex
    }

    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The network of an IPv4 address that has its interface's link to itself.
    pub fn network(&self) -> Option<Ipv4Net> {
        match (self.address, self.peer) {
            (IpAddr::V4(address), None) => Ipv4Net::new(address, self.prefix_len).ok(),
            _ => None,
        }
    }

    /// The first ID with `address`, in the order of IDs.
    pub(super) const fn first_of(address: IpAddr) -> Self {
        Self { address, ifindex: IfIndex::MIN, prefix_len: 0, peer: None }
    }
}

/// The state of duplicate address detection (RFC 4862 §5.4). An IPv4 address has always
/// [passed](Self::Passed).
///
/// Only an address that has passed counts as an address of this node. An optimistic one (RFC 4429)
/// does not count, although the kernel already sends from it: an optimistic node must not override
/// its neighbours' caches (§3.3), and a peer caches our answer for longer than detection takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Dad {
    /// Finished, or not needed.
    Passed,
    /// In progress: `IFA_F_TENTATIVE`.
    Tentative,
    /// In progress, but the kernel may use the address: `IFA_F_OPTIMISTIC`.
    Optimistic,
    /// Another node has the address: `IFA_F_DADFAILED`.
    Failed,
}

/// The role of a link in a bond or team.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bonding {
    /// Not part of one.
    None,
    /// The link is the bond or team.
    Master {
        /// `IFLA_BOND_ACTIVE_SLAVE`. Not reported for a team, nor for a bond whose slaves are all
        /// down.
        active_slave: Option<IfIndex>,
    },
    /// The link is a slave of a bond or team, which serves in its place.
    Slave {
        /// The bond or team.
        of: IfIndex,
    },
}

/// `ARPHRD_*` of include/uapi/linux/if_arp.h.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct LinkType(u16);

#[expect(missing_docs, reason = "its values are named for what they are")]
impl LinkType {
    pub const ETHERNET: Self = Self(1);
    pub const INFINIBAND: Self = Self(32);
    pub const LOOPBACK: Self = Self(772);

    /// Takes the value of `ifi_type`.
    pub const fn new(link_type: u16) -> Self {
        Self(link_type)
    }

    /// The value of `ifi_type`.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for LinkType {
    /// The name in the output of `ip link`, except for types that ibarr never serves.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ETHERNET => f.write_str("ether"),
            Self::INFINIBAND => f.write_str("infiniband"),
            Self::LOOPBACK => f.write_str("loopback"),
            Self(other) => write!(f, "type {other}"),
        }
    }
}

/// The name of a network device: 1 to 15 bytes without white space, `/` or `:`
/// (`dev_valid_name` in net/core/dev.c).
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct InterfaceName {
    // Padded with zeros: the derived order is that of the names.
    bytes: [u8; Self::MAX_LEN],
}

impl InterfaceName {
    /// `IFNAMSIZ` without the final NUL.
    pub const MAX_LEN: usize = 15;

    /// `None` if it is not a legal name in the kernel.
    pub fn new(name: &[u8]) -> Option<Self> {
        let legal = |&byte: &u8| {
            !matches!(byte, 0 | b'/' | b':') && !byte.is_ascii_whitespace() && byte != b'\x0b'
        };
        if name.is_empty() || name == b"." || name == b".." || !name.iter().all(legal) {
            return None;
        }
        let mut bytes = [0; Self::MAX_LEN];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { bytes })
    }

    /// The name without a NUL. The kernel does not require UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        let len = self.bytes.iter().position(|&byte| byte == 0).unwrap_or(Self::MAX_LEN);
        &self.bytes[..len]
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InterfaceName({self})")
    }
}

/// The other names of a network device (`IFLA_ALT_IFNAME`): the first of them, as far as they have
/// room. The kernel does not limit how many there are.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct AltNames {
    /// Each with a final NUL; the rest is zero.
    bytes: [u8; Self::ROOM],
}

impl AltNames {
    /// `ALTIFNAMSIZ` without the final NUL: the longest name.
    pub const MAX_LEN: usize = 127;
    /// For one of the longest, or ten of the usual ones.
    const ROOM: usize = Self::MAX_LEN + 1;

    /// Adds a name without a NUL, if there is room.
    pub fn add(&mut self, name: &[u8]) {
        let used: usize = self.iter().map(|name| name.len() + 1).sum();
        let room = &mut self.bytes[used..];
        if !name.is_empty() && !name.contains(&0) && name.len() < room.len() {
            room[..name.len()].copy_from_slice(name);
        }
    }

    /// The names without a NUL.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split(|&byte| byte == 0).take_while(|name| !name.is_empty())
    }
}

impl Default for AltNames {
    fn default() -> Self {
        Self { bytes: [0; Self::ROOM] }
    }
}

impl fmt::Debug for AltNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

/// A hardware address: at most 32 bytes (`MAX_ADDR_LEN`), none on a tun device.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct HwAddr {
    len: u8,
    bytes: [u8; Self::MAX_LEN],
}

impl HwAddr {
    /// `MAX_ADDR_LEN` of include/linux/netdevice.h.
    pub const MAX_LEN: usize = 32;

    /// `None` if there are more bytes than any device has.
    pub fn new(octets: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX_LEN];
        bytes.get_mut(..octets.len())?.copy_from_slice(octets);
        Some(Self { len: u8::try_from(octets.len()).ok()?, bytes })
    }

    /// The bytes as in `IFLA_ADDRESS`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for HwAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HwAddr({:02x?})", self.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_legal_in_the_kernel_are_accepted() {
        for name in ["ib0", "ib0.8001", "a", "fifteen-letters", "…"] {
            assert_eq!(InterfaceName::new(name.as_bytes()).unwrap().to_string(), name);
        }
        let refused = [
            &b""[..],
            b".",
            b"..",
            b"a/b",
            b"a:b",
            b"a b",
            b"a\x0bb",
            b"a\0b",
            b"sixteen-letters!",
        ];
        for name in refused {
            assert_eq!(InterfaceName::new(name), None, "{name:?}");
        }
        // Not UTF-8, but a legal name.
        assert_eq!(InterfaceName::new(b"\xff").unwrap().as_bytes(), b"\xff");
    }

    #[test]
    fn other_names_are_kept_as_far_as_there_is_room() {
        let mut names = AltNames::default();
        let long = [b'x'; AltNames::MAX_LEN];
        for name in [&b"ib0"[..], b"", b"a\0b", &long, &long, b"rail-0"] {
            names.add(name);
        }
        let kept: Vec<_> = names.iter().collect();
        assert_eq!(kept, [&b"ib0"[..], b"rail-0"]);
        let mut names = AltNames::default();
        names.add(&long);
        assert_eq!(names.iter().collect::<Vec<_>>(), [&long[..]]);
    }

    #[test]
    fn only_infiniband_links_with_20_byte_addresses_have_a_gid() {
        let mut hwaddr = [0; 20];
        hwaddr[4..].copy_from_slice(&"fe80::2:c903:0:201".parse::<Gid>().unwrap().octets());
        let link = |link_type, octets: &[u8]| Link {
            ifindex: IfIndex::MIN,
            name: InterfaceName::new(b"ib0").unwrap(),
            link_type,
            hwaddr: HwAddr::new(octets).unwrap(),
            up: true,
            bonding: Bonding::None,
            altnames: AltNames::default(),
            vrf: None,
            pkey: None,
        };
        let gid = |link_type, octets: &[u8]| link(link_type, octets).own_gid();
        assert!(gid(LinkType::INFINIBAND, &hwaddr).is_some());
        assert_eq!(gid(LinkType::ETHERNET, &hwaddr), None);
        assert_eq!(gid(LinkType::INFINIBAND, &hwaddr[..6]), None);
        assert_eq!(gid(LinkType::INFINIBAND, &[]), None);
        assert_eq!(gid(LinkType::INFINIBAND, &[0; 20]), None);
        assert_eq!(HwAddr::new(&[0; 33]), None);
    }

    #[test]
    fn ipv6_address_has_one_id_whatever_its_prefix_and_peer() {
        let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        let peer = Some("10.0.0.2".parse().unwrap());
        let id =
            |address, prefix_len, peer| AddressId::new(IfIndex::MIN, address, prefix_len, peer);
        assert_eq!(id(v6, 64, None), id(v6, 128, Some("fd00::2".parse().unwrap())));
        assert_ne!(id(v4, 24, None), id(v4, 32, None));
        assert_ne!(id(v4, 32, peer), id(v4, 32, None));
        assert!(AddressId::first_of(v4) <= id(v4, 0, None));
    }
}
