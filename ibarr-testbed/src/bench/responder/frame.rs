// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Queries as frames on a wire, with checksums.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Version};

/// A query from `source` for `target`, in an Ethernet frame to `lo`.
pub(super) fn query(source: IpAddr, target: IpAddr) -> Result<Vec<u8>> {
    query_on_wire(source, target, PORT, [0; 6], [0; 6])
}

/// Like [`query`], to a port and between hardware addresses.
pub(super) fn query_on_wire(
    source: IpAddr,
    target: IpAddr,
    port: u16,
    to: [u8; 6],
    from: [u8; 6],
) -> Result<Vec<u8>> {
    let query =
        Query::new(Version::V1, MsgId(7), target).context("no node can have this address")?.emit();
    let payload = query.as_ref();
    let length = u16::try_from(8 + payload.len())?.to_be_bytes();
    let mut udp =
        [&SOURCE_PORT.to_be_bytes()[..], &port.to_be_bytes(), &length, &[0; 2], payload].concat();
    let (mut ip, addresses, ethertype) = match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let total = u16::try_from(20 + udp.len())?.to_be_bytes();
            let addresses = [source.octets(), target.octets()].concat();
            (
                [&[0x45, 0][..], &total, &ID, &[0x40, 0, HOPS, UDP, 0, 0], &addresses].concat(),
                addresses,
                [8, 0],
            )
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let addresses = [source.octets(), target.octets()].concat();
            (
                [&[0x60, 0, 0, 0][..], &length, &[UDP, HOPS], &addresses].concat(),
                addresses,
                [0x86, 0xdd],
            )
        }
        _ => bail!("{source} and {target} are of two families"),
    };
    let sum = checksum(&[&addresses, &[0, UDP], &length, &udp]);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    if source.is_ipv4() {
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    Ok([&to[..], &from, &ethertype, &ip, &udp].concat())
}

/// RFC 1071. Never 0, which in UDP means that there is no checksum.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let sum = words.fold(0u16, |sum, word| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes([word[0], word[1]]));
        sum + u16::from(carry)
    });
    if sum == 0xffff { 0xffff } else { !sum }
}

/// Large enough that the generator can subtract the number of a source.
const ID: [u8; 2] = [0x7f, 0xff];
const SOURCE_PORT: u16 = 40_000;
const HOPS: u8 = 64;
const UDP: u8 = 17;
