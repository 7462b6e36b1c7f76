// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Two InfiniBand subnets with a subnet manager each, and what connects them.
//!
//! ```text
//!   subnet 1                        router X              subnet 2
//!   A  ib0, ib1  10.1.0.1 here      0x42 --- 0x52         B  ib2  10.2.0.1  netns b, OpenSM
//!   SM           OpenSM
//!   R  ib3       10.1.0.254         netns r               R  ib4  10.2.0.254
//! ```
//!
//! R is a router of IP, X one of InfiniBand.

pub(crate) mod alias;
pub(crate) mod by_lid;
pub(crate) mod flid;
pub(crate) mod records;
mod set;

use std::env;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::{Gid, Lid, PKey};

use crate::acm::SERVE;
use crate::init;
use crate::rig::{
    self, B, Ibarr, Manager, Place, Process, R, capture, eventually, ip, pair, spawn,
};

/// A LID of the router's port in each subnet.
const ROUTER_LIDS: [u16; 2] = [0x42, 0x52];

/// The GUIDs of the router's ports.
const ROUTER: [&str; 2] = ["0x0000000000300001", "0x0000000000300002"];

/// Ports, as sysfs writes them.
const A_PORT: &str = "ibtun0/ports/1";
const A_SECOND: &str = "ibtun0/ports/2";
const B_PORT: &str = "ibtun1/ports/1";
const R_PORT: &str = "ibtun2/ports/1";
const SM_PORT: &str = "ibtun3/ports/1";
const ALL: [&str; 6] = [A_PORT, A_SECOND, B_PORT, R_PORT, "ibtun2/ports/2", SM_PORT];

const NEAR: &str = "10.1.0.1";
const FAR: &str = "10.2.0.1";
/// The same in the second partition.
const FAR_CHILD: &str = "10.4.0.1";

/// IPoIB interfaces: place, name, address, and the address in the second partition.
const INTERFACES: [(Place, &str, &str, &str); 4] = [
    (Place::Here, "ib0", "10.1.0.1/24", "10.3.0.1/24"),
    (B, "ib2", "10.2.0.1/24", "10.4.0.1/24"),
    (R, "ib3", "10.1.0.254/24", "10.3.0.254/24"),
    (R, "ib4", "10.2.0.254/24", "10.4.0.254/24"),
];

/// Destination networks, and their gateways.
const ROUTES: [(Place, &str, &str); 2] =
    [(Place::Here, "10.2.0.0/24", "10.1.0.254"), (B, "10.1.0.0/24", "10.2.0.254")];
const CHILD_ROUTES: [(Place, &str, &str); 2] =
    [(Place::Here, "10.4.0.0/24", "10.3.0.254"), (B, "10.3.0.0/24", "10.4.0.254")];

/// A multicast group that only the third partition has.
const GROUP: &str = "ff12:401b:2::707";

struct Subnets {
    /// Of the GIDs, by subnet.
    prefixes: [u64; 2],
    fabric: Process,
    managers: [Process; 2],
}

impl Subnets {
    /// The router finds LIDs by `routing`, see ibfab.
    fn up(routing: &str, prefixes: [u64; 2]) -> Result<Self> {
        init::load("/later")?;
        ip(Place::Here, "link set lo up")?;
        let capture = capture::options();
        let topology = fs::read_to_string("/etc/rig/subnets")?;
        let file = env::temp_dir().join("subnets").display().to_string();
        fs::write(&file, format!("routing={routing}\n{topology}"))?;
        let words = ["ibfab", "run", &file, "--device", "A,B,R,SM"];
        let words = [&words[..], &[&capture[0], &capture[1]]].concat();
        let fabric = spawn("ibfab", Place::Here, &words)?;
        eventually(|| rig::run(Place::Here, &["ip", "link", "show", "ib5"]))?;
        let manager = |subnet| manager(subnet, prefixes[subnet], 0, "");
        let managers = [manager(0)?, manager(1)?];
        ALL.iter().try_for_each(|port| rig::is_active(Place::Here, port))?;
        for name in ["b", "r"] {
            ip(Place::Here, &format!("netns add {name}"))?;
            ip(Place::Netns(name), "link set lo up")?;
        }
        rig::write(R, "/proc/sys/net/ipv4/ip_forward", "1")?;
        for (place, name, address, _) in INTERFACES {
            if let Place::Netns(netns) = place {
                ip(Place::Here, &format!("link set {name} netns {netns}"))?;
            }
            ip(place, &format!("address add {address} dev {name}"))?;
            ip(place, &format!("link set {name} up"))?;
            rig::is_up(place, name)?;
        }
        routes(ROUTES)?;
        Ok(Self { prefixes, fabric, managers })
    }

    /// Starts both managers anew.
    fn restart(&mut self, lmc: u8, partition: &str) -> Result<()> {
        for (number, manager) in self.managers.iter_mut().enumerate() {
            manager.kill()?;
            *manager = self::manager(number, self.prefixes[number], lmc, partition)?;
        }
        eventually(|| {
            for port in ALL {
                let has = rig::port_attribute(Place::Here, port, "lid_mask_count")?;
                ensure!(has == lmc.to_string(), "{port} has LMC {has}");
            }
            Ok(())
        })?;
        ALL.iter().try_for_each(|port| rig::is_active(Place::Here, port))
    }

    fn stand(&mut self) -> Result<()> {
        self.managers.iter_mut().try_for_each(Process::check_alive)?;
        self.fabric.check_alive()
    }
}

/// OpenSM of a subnet. The router's port in it has one of [`ROUTER_LIDS`] among its LIDs.
fn manager(subnet: usize, prefix: u64, lmc: u8, partition: &str) -> Result<Process> {
    let (name, port) = [("1", SM_PORT), ("2", B_PORT)][subnet];
    let lids = &[(ROUTER[subnet].to_owned(), ROUTER_LIDS[subnet])];
    // The third one has a slow group, and one full member in the first subnet.
    let full = rig::guid_of(Place::Here, R_PORT)?;
    let others = &format!(
        "slow=0x0002, ipoib, rate=2, mtu=2 :\n    mgid={GROUP}, rate=2, mtu=2\n    \
         ALL=limited, {full}=full;\n"
    );
    Manager { name, place: Place::Here, port, prefix, lmc, partition, others, lids }.start()
}

fn routes(routes: [(Place, &str, &str); 2]) -> Result<()> {
    routes.iter().try_for_each(|(place, destination, gateway)| {
        ip(*place, &format!("route replace {destination} via {gateway}")).map(drop)
    })
}

fn gid(port: &str) -> Result<Gid> {
    Ok(rig::port_attribute(Place::Here, port, "gids/0")?.parse()?)
}

fn lid(port: &str) -> Result<u16> {
    let text = rig::port_attribute(Place::Here, port, "lid")?;
    Ok(u16::from_str_radix(text.trim_start_matches("0x"), 16)?)
}

/// A packet of a connection.
#[derive(Debug)]
struct Seen {
    sgid: Gid,
    slid: u16,
    dlid: u16,
    sl: u8,
    pkey: Option<PKey>,
}

/// The packets of the connections that `made` makes.
fn connection(made: impl FnOnce() -> Result<()>) -> Result<Vec<Seen>> {
    let before = capture::packets()?.len();
    made()?;
    let packets = capture::packets()?;
    let seen = capture::connected(&packets[before..]).map(|packet| {
        let grh = packet.grh.context("a packet without a global route header")?;
        Ok(Seen {
            sgid: Gid::new(grh.sgid).context("a source GID")?,
            slid: packet.slid.map_or(0, Lid::get),
            dlid: packet.dlid.get(),
            sl: packet.sl.get(),
            pkey: packet.pkey,
        })
    });
    seen.collect()
}

/// librdmacm asks `ibarr` here by ACM, and connects by AF_IB between these GIDs.
fn by_acm(here: &Ibarr, gids: [Gid; 2]) -> Result<()> {
    here.reconfigure(SERVE)?;
    let before = here.count("acm.requests")?;
    let seen = connection(|| pair("ucmatose", B, FAR))?;
    ensure!(here.count("acm.requests")? > before, "librdmacm does not ask");
    for gid in gids {
        let sent = seen.iter().filter(|one| one.sgid == gid).count();
        ensure!(sent > 0 && seen.iter().all(|one| gids.contains(&one.sgid)), "{gid}: {seen:?}");
    }
    here.reconfigure("")
}
