// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! One, two or three InfiniBand subnets in a row, and the IP subnets of their hosts.
//!
//! ```text
//!   S1              S2              S3
//!   A --- X1 --------- X2 --------- B      A  ib0, first guest; B  ib0, ib1, the other one
//!   R  ib1          M               R ib2  R  netns r, routes IP; M  OpenSM of the subnet in the middle
//! ```

use std::fmt;

use anyhow::{Result, ensure};
use ibarr_common::ib::{Gid, IpoibHwAddr};

use super::super::moving::Moving;
use super::super::{A_PORT, B_PORT, B_SECOND, FIRST, KEY, R, other};
use crate::rig::{
    self, Ibarr, Manager, Place, Process, Scheme, eventually, ip, put, router_guids, router_lids,
    spawn, take_alias,
};

/// The addresses of A and B.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ip {
    /// In one IP subnet, which is an InfiniBand subnet.
    One,
    /// In an IP subnet each, and R routes between them.
    Two,
    /// In one IP subnet, with routes to the other host by R.
    OneRouted,
}

/// What stands at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) scheme: Scheme,
    pub(super) subnets: u16,
    pub(super) ip: Ip,
    /// Another router beside the one between two subnets. With floating LIDs each subnet has that of the other one at
    /// another router.
    pub(super) spare: bool,
}

/// The router that may take over.
pub(super) const SPARE: &str = "Y";

const TOPOLOGY: &str = "/run/topology";

/// The port of M, as sysfs writes it.
const M_PORT: &str = "ibtun2/ports/1";

const NEAR: &str = "10.1.0.1";

impl Layout {
    pub(super) fn far(self) -> &'static str {
        if self.ip == Ip::Two { "10.2.0.1" } else { "10.1.0.3" }
    }

    pub(super) fn moving(self) -> Moving {
        let (address, learns) = match self.ip {
            Ip::One => ("10.1.0.50", (Place::Here, "ib0")),
            Ip::Two => ("10.2.0.50", (R, "ib2")),
            Ip::OneRouted => ("10.1.0.50", (R, "ib2")),
        };
        Moving { address, learns, is_on_alias: self.scheme == Scheme::Alias }
    }

    fn topology(self) -> String {
        let last = self.subnets;
        let switch = |subnet: u16| {
            // Each neighbour has the same place at all switches.
            let cables = [
                (subnet == 1, "[1] \"A\"[1]\n[4] \"R\"[1]".to_owned()),
                (subnet == last, "[2] \"B\"[1]\n[3] \"B\"[2]\n[5] \"R\"[2]".to_owned()),
                (1 < subnet && subnet < last, "[8] \"M\"[1]".to_owned()),
                (subnet > 1, format!("[6] \"X{}\"[2]", subnet - 1)),
                (subnet < last, format!("[7] \"X{subnet}\"[1]")),
                (self.spare, format!("[8] \"{SPARE}\"[{subnet}]")),
            ];
            let cables = cables.into_iter().filter(|(is_here, _)| *is_here);
            let cables: Vec<_> = cables.map(|(_, cable)| cable).collect();
            format!("Switch 8 \"S{subnet}\"\n{}\n\n", cables.join("\n"))
        };
        let between = |subnet: u16| {
            let far = format!("\"S{}\"[6]", subnet + 1);
            self.scheme.router(&format!("X{subnet}"), subnet, &format!("\"S{subnet}\"[7]"), &far)
        };
        let hosts = "Ca 1 \"A\"\n\nCa 2 \"B\"\n\nCa 2 \"R\"\n\n".to_owned();
        let manager = if last == 3 { "Ca 1 \"M\"\n\n" } else { "" }.to_owned();
        let spare = self.spare.then(|| self.scheme.router(SPARE, last, "\"S1\"[8]", "\"S2\"[8]"));
        let others = [hosts, manager].into_iter().chain(spare).chain((1..last).map(between));
        (1..=last).map(switch).chain(others).collect()
    }

    /// The LIDs of routers that are FLIDs: each end's router has that of the other end.
    fn router_lids(self) -> Vec<(String, u16)> {
        let last = self.subnets;
        if last == 1 {
            return Vec::new();
        }
        let back = if self.spare && self.scheme == Scheme::Flid { last } else { last - 1 };
        router_lids([router_guids(1)[0], router_guids(back)[1]], last)
    }

    /// OpenSM of a subnet, which gives ports these LIDs.
    fn manager(self, subnet: u16, lids: &[(String, u16)]) -> Result<Process> {
        let (place, port) = match subnet {
            1 => (Place::Here, A_PORT),
            // Its cable is not pulled.
            _ if subnet == self.subnets => (Place::Other, B_SECOND),
            _ => (Place::Here, M_PORT),
        };
        let (name, prefix) = (&*subnet.to_string(), self.scheme.prefix(subnet));
        Manager { name, place, port, prefix, lmc: 0, partition: "", others: "", lids }.start()
    }

    /// Commands of `ip` for the first ports, and what the second one of B needs besides.
    fn addresses(self) -> [&'static [(Place, &'static str)]; 2] {
        const A: Place = Place::Here;
        const B: Place = Place::Other;
        match self.ip {
            Ip::One => [
                &[(A, "address add 10.1.0.1/24 dev ib0"), (B, "address add 10.1.0.3/24 dev ib0")],
                &[(B, "address add 10.1.0.4/24 dev ib1")],
            ],
            Ip::Two => [
                &[
                    (A, "address add 10.1.0.1/24 dev ib0"),
                    (A, "route add 10.2.0.0/24 via 10.1.0.254"),
                    (R, "address add 10.1.0.254/24 dev ib1"),
                    (R, "address add 10.2.0.254/24 dev ib2"),
                    (B, "address add 10.2.0.1/24 dev ib0"),
                    (B, "route add 10.1.0.0/24 via 10.2.0.254 dev ib0"),
                ],
                &[
                    (B, "address add 10.2.0.3/24 dev ib1"),
                    (B, "route append 10.1.0.0/24 via 10.2.0.254 dev ib1 metric 200"),
                ],
            ],
            Ip::OneRouted => [
                &[
                    (A, "address add 10.1.0.1/32 dev ib0"),
                    (A, "route add 10.1.0.254 dev ib0"),
                    (A, "route add 10.1.0.0/24 via 10.1.0.254 dev ib0"),
                    (R, "address add 10.1.0.254/32 dev ib1"),
                    (R, "route add 10.1.0.1 dev ib1"),
                    (R, "address add 10.1.0.253/32 dev ib2"),
                    (R, "route add 10.1.0.0/24 dev ib2"),
                    (B, "address add 10.1.0.3/32 dev ib0"),
                    (B, "route add 10.1.0.253 dev ib0"),
                    (B, "route add 10.1.0.1 via 10.1.0.253 dev ib0"),
                ],
                &[
                    (B, "address add 10.1.0.4/32 dev ib1"),
                    (B, "route append 10.1.0.253 dev ib1 metric 200"),
                    (B, "route append 10.1.0.1 via 10.1.0.253 dev ib1 metric 200"),
                ],
            ],
        }
    }
}

/// All that runs for a layout, in the order in which it ends.
#[derive(Debug)]
pub(super) struct World {
    pub(super) layout: Layout,
    pub(super) here: Ibarr,
    there: Process,
    managers: Vec<Process>,
    join: Process,
    fabric: Process,
}

impl World {
    pub(super) fn up(layout: Layout) -> Result<Self> {
        for place in [Place::Here, Place::Other] {
            put(place, TOPOLOGY, &layout.topology())?;
        }
        let devices = if layout.subnets == 3 { "A,R,M" } else { "A,R" };
        let listen = format!("udp:{FIRST}:7471");
        let words = ["ibfab", "run", TOPOLOGY, "--device", devices, "--listen", &listen];
        let fabric = spawn("ibfab", Place::Here, &[&words[..], &["--key", KEY]].concat())?;
        let join = other::join(TOPOLOGY)?;
        let lids = layout.router_lids();
        let managers = (1..=layout.subnets).map(|subnet| layout.manager(subnet, &lids));
        let managers = managers.collect::<Result<Vec<_>>>()?;
        rig::is_active(Place::Here, A_PORT)?;
        rig::is_active(Place::Other, B_PORT)?;
        network(layout)?;
        let here = Ibarr::start("here", Place::Here, "", 1)?;
        let there = other::daemon()?;
        second_port(layout)?;
        let world = Self { layout, here, there, managers, join, fabric };
        world.is_answered()?;
        Ok(world)
    }

    /// A peer's `ibarr` tells the GID that the interface has.
    fn is_answered(&self) -> Result<()> {
        let [ours, theirs] = gids()?;
        for (place, target, gid) in [(Place::Here, self.layout.far(), theirs), (R, NEAR, ours)] {
            // R has no addresses if there is one IP subnet.
            if place == R && self.layout.ip == Ip::One {
                continue;
            }
            eventually(|| {
                let said = rig::query(place, target, super::PATIENCE)?;
                ensure!(said == Some(gid), "{target} answers {said:?}, not {gid}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A's manager starts again, and gives it another LID.
    pub(super) fn gives_lid(&mut self, lid: u16) -> Result<()> {
        let mut lids = self.layout.router_lids();
        lids.push((rig::guid_of(Place::Here, A_PORT)?, lid));
        self.managers[0].kill()?;
        self.managers[0] = self.layout.manager(1, &lids)?;
        eventually(|| {
            let has = rig::port_attribute(Place::Here, A_PORT, "lid")?;
            ensure!(has == format!("{lid:#x}"), "A has LID {has}");
            Ok(())
        })
    }

    /// Ends it all, so that the next one can stand.
    pub(super) fn down(self) -> Result<()> {
        let Self { here, mut there, managers, mut join, mut fabric, .. } = self;
        here.stop()?;
        there.kill()?;
        managers.into_iter().try_for_each(|mut manager| manager.kill())?;
        join.kill()?;
        fabric.kill()?;
        [Place::Here, Place::Other].into_iter().try_for_each(is_empty)
    }
}

/// Of the interfaces of A and of B.
pub(super) fn gids() -> Result<[Gid; 2]> {
    let gid = |place| rig::hw_address(place, "ib0").map(IpoibHwAddr::gid);
    Ok([gid(Place::Here)?, gid(Place::Other)?])
}

/// A guest has no HCA.
fn is_empty(place: Place) -> Result<()> {
    eventually(|| {
        let left = rig::run(place, &["busybox", "ls", "/sys/class/infiniband"])?;
        ensure!(left.is_empty(), "{place:?} has {left}");
        Ok(())
    })
}

fn network(layout: Layout) -> Result<()> {
    let names = if layout.subnets == 3 { &["ib1", "ib2", "ib3"][..] } else { &["ib1", "ib2"] };
    for name in names {
        ip(Place::Here, &format!("link set {name} netns r"))?;
    }
    for (place, name) in [(Place::Here, "ib0"), (R, "ib1"), (R, "ib2"), (Place::Other, "ib0")] {
        ip(place, &format!("link set {name} up"))?;
        rig::is_up(place, name)?;
    }
    let [first, _] = layout.addresses();
    first.iter().try_for_each(|(place, command)| ip(*place, command).map(drop))?;
    if layout.scheme == Scheme::Alias {
        take_alias(Place::Here, "ib0")?;
        take_alias(Place::Other, "ib0")?;
    }
    Ok(())
}

/// Each interface of B answers ARP for its own addresses, and one without carrier has no routes.
fn second_port(layout: Layout) -> Result<()> {
    for setting in ["arp_ignore", "ignore_routes_with_linkdown"] {
        rig::write(Place::Other, &format!("/proc/sys/net/ipv4/conf/all/{setting}"), "1")?;
    }
    ip(Place::Other, "link set ib1 up")?;
    rig::is_up(Place::Other, "ib1")?;
    let [_, second] = layout.addresses();
    second.iter().try_for_each(|(place, command)| ip(*place, command).map(drop))?;
    if layout.scheme == Scheme::Alias {
        take_alias(Place::Other, "ib1")?;
    }
    Ok(())
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.scheme, self.spare) {
            (Scheme::None, _) => "no router",
            (Scheme::Alias, false) => "alias GIDs",
            (Scheme::Alias, true) => "alias GIDs, two routers",
            (Scheme::Flid, false) => "FLID",
            (Scheme::Flid, true) => "FLID, a router each way",
        };
        let ip = match self.ip {
            Ip::One => "one",
            Ip::Two => "two",
            Ip::OneRouted => "one, with routes to hosts",
        };
        write!(f, "{scheme}; {}; {ip}", self.subnets)
    }
}
