// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Addresses of the simulated network, and datagrams between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::Datagram;
use ibarr_proto::local_view::HwAddr;

#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) payload: Datagram,
}

/// 10.SUBNET.0.NODE and fd00::SUBNET:0:0:0:NODE.
pub(super) fn home(subnet: u8, node: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, subnet.into(), 0, 0, 0, node.into());
    [Ipv4Addr::new(10, subnet, 0, node).into(), v6.into()]
}

/// The `n`th moving address of a subnet.
pub(super) fn wanderer(subnet: u8, n: u8) -> IpAddr {
    Ipv4Addr::new(10, subnet, 1, n).into()
}

/// The `n`th address that no host has.
pub(super) fn missing_peer(subnet: u8, n: u8, v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, subnet.into(), 0, 0, 0xdead, n.into()).into()
    } else {
        Ipv4Addr::new(10, subnet, 2, n).into()
    }
}

pub(super) fn subnet_of(address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(address) => Some(address.octets()[1]),
        IpAddr::V6(address) => u8::try_from(address.segments()[3]).ok(),
    }
}

pub(super) fn gateway(subnet: u8, target: IpAddr) -> IpAddr {
    home(subnet, 254)[usize::from(target.is_ipv6())]
}

/// The GID of a port: prefix of its subnet, and number of the machine.
pub(super) fn gid(prefix: u16, guid: u32) -> Gid {
    let mut octets = [0xfe, 0xc0, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 0];
    octets[6..8].copy_from_slice(&prefix.to_be_bytes());
    octets[12..].copy_from_slice(&guid.to_be_bytes());
    Gid::new(octets).unwrap_or_else(|| unreachable!("it is neither zero nor multicast"))
}

pub(super) fn hwaddr(gid: Gid) -> HwAddr {
    let mut octets = [0; 20];
    octets[3] = 0x48;
    octets[4..].copy_from_slice(&gid.octets());
    HwAddr::new(&octets).unwrap_or_default()
}
