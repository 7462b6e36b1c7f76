// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A network that makes the kernel ask without an HCA. The kernel asks if a route through a gateway
//! leaves by an interface of InfiniBand type (`ib_nl_fetch_ha` of drivers/infiniband/core/addr.c).

use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result};
use ibarr_common::IfIndex;

use super::peer::{self, Answered};
use super::responder::GID;
use crate::rtnetlink::{self, Rtnetlink};
use crate::sys::tun::{self, Tun};

/// Addresses behind the gateway.
pub(super) const FAR_V4: &str = "10.2.0.5";
pub(super) const FAR_V6: &str = "fd00:2::5";
/// An address in the interface's own subnet.
pub(super) const NEAR: &str = "10.1.0.7";

#[derive(Debug)]
pub(super) struct Network {
    _tun: Tun,
    pub(super) ifindex: IfIndex,
    /// Counts the answers of the peers behind the gateway.
    pub(super) answered: Answered,
}

impl Network {
    pub(super) fn up(rtnetlink: &Rtnetlink) -> Result<Self> {
        const NAME: &str = "ib0";
        rtnetlink.set_up(rtnetlink::ifindex("lo")?).context("lo")?;
        let tun = Tun::open(NAME, tun::INFINIBAND).context("no TUN device of InfiniBand type")?;
        let ifindex = rtnetlink::ifindex(NAME)?;
        // IPv6 must be silent, because every change of a neighbour makes the kernel ask again.
        for (setting, value) in [("router_solicitations", "0"), ("addr_gen_mode", "1")] {
            let file = format!("/proc/sys/net/ipv6/conf/{NAME}/{setting}");
            fs::write(&file, value).context(file)?;
        }
        rtnetlink.set_up(ifindex).context(NAME)?;
        let address = |text: &str| text.parse::<IpAddr>();
        rtnetlink.add_address(ifindex, address("10.1.0.1")?, 24)?;
        rtnetlink.add_address(ifindex, address("fd00:1::1")?, 64)?;
        rtnetlink.add_route(ifindex, (address("10.2.0.0")?, 16), address("10.1.0.254")?)?;
        rtnetlink.add_route(ifindex, (address("fd00:2::")?, 64), address("fd00:1::fe")?)?;
        let packets = tun.as_fd().try_clone_to_owned()?;
        let answered = peer::spawn(packets.into(), GID.parse()?)?;
        Ok(Self { _tun: tun, ifindex, answered })
    }
}
