// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Kinds of InfiniBand routers, and what the subnets beside them are like.

use anyhow::Result;

use super::{Place, run};

/// How routers find a host, and what GIDs look like for that.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Scheme {
    /// There is no router.
    None,
    /// The 16 low bits of a GID are the LID.
    Alias,
    /// The prefix of a GID has a LID of the router in all other subnets.
    Flid,
}

impl Scheme {
    /// Of a subnet's GIDs.
    pub(crate) fn prefix(self, subnet: u16) -> u64 {
        let number = u64::from(subnet);
        match self {
            Self::None => 0xfe80 << 48,
            Self::Alias => 0xfec0 << 48 | number,
            Self::Flid => 0xfec0 << 48 | u64::from(flid(subnet)) << 16 | number,
        }
    }

    /// A router in a topology: its two ports have [`router_guids`] of its number, and these cables.
    pub(crate) fn router(self, name: &str, number: u16, near: &str, far: &str) -> String {
        let routing = if self == Self::Alias { "lid" } else { "guid" };
        let [one, two] = router_guids(number);
        format!(
            "routing={routing}\nrtguid=0x{:x}\nRt 2 \"{name}\"\n[1]({one:x}) {near}\n[2]({two:x}) {far}\n\n",
            one - 1
        )
    }
}

/// No other port has them.
pub(crate) fn flid(subnet: u16) -> u16 {
    0x50 + subnet
}

/// Of both ports of a router.
pub(crate) fn router_guids(router: u16) -> [u64; 2] {
    let node = 0x30_0000 + 0x10 * u64::from(router);
    [node + 1, node + 2]
}

/// The floating LIDs of routers. Each end of a row of subnets has that of the other end, at these ports.
pub(crate) fn router_lids(ports: [u64; 2], last: u16) -> Vec<(String, u16)> {
    let ends = [(ports[0], flid(last)), (ports[1], flid(1))];
    ends.map(|(guid, lid)| (format!("0x{guid:016x}"), lid)).to_vec()
}

/// Puts an interface on the alias of its port, which its manager is asked for.
pub(crate) fn take_alias(place: Place, name: &str) -> Result<()> {
    run(place, &["ibarr", "gid", name, "--set", "alias", "--ask-sa"]).map(drop)
}
