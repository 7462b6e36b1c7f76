// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run j`: two InfiniBand subnets with a subnet manager each. Their prefixes have floating LIDs (FLIDs), by
//! which packets reach the router: the kernel takes three records from `ibarr`, and uses the LIDs of two.
//!
//! ```text
//!   subnet 1                        router X              subnet 2
//!   A  ib0, ib1  10.1.0.1 here      0x42 --- 0x52         B  ib2  10.2.0.1  netns b, OpenSM
//!   SM           OpenSM
//!   R  ib3       10.1.0.254         netns r               R  ib4  10.2.0.254
//! ```
//!
//! In each subnet, the FLID of the other one is a LID of the router's port. A real router has FLIDs beside
//! its LIDs; OpenSM cannot give it such.

mod alias;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::{Gid, Lid, PKey};

use crate::init;
use crate::report::Report;
use crate::rig::{
    self, B, Caller, Ibarr, Place, Process, R, capture, eventually, ip, rping, rping_from, spawn,
};
use crate::version;

/// The prefixes: fec0:0:FLID:SUBNET.
const PREFIXES: [u64; 2] = [0xfec0_0000_0052_0001, 0xfec0_0000_0042_0002];
/// The FLID of a subnet, which is a LID in the other one.
const FLIDS: [u16; 2] = [0x52, 0x42];
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

/// The service level of the partition, when quality of service is on.
const SL: u8 = 3;

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(mut subnets) = report.claim("two subnets stand", Subnets::up()) {
        prove(&mut report, &mut subnets);
        report.claim("fabric and managers are still there", subnets.stand());
    }
    report.end()
}

fn prove(report: &mut Report, subnets: &mut Subnets) {
    let here = report.claim("ibarr runs here", Ibarr::start("here", Place::Here, "", 1));
    let there = report.claim("ibarr runs in the other subnet", Ibarr::start("b", B, "", 1));
    let (Some(here), Some(_there)) = (here, there) else { return };
    report.claim("the kernel's path leaves the subnet", leaves(&here));
    report.claim("an RC connection between the subnets goes by both FLIDs", by_flids());
    report.claim("so it does in a second partition", partition());
    report.claim(
        "the managers give ports four LIDs each, and a service level",
        subnets.restart(2, &format!(", sl={SL}")),
    );
    let claim = "with LMC 2, the FLIDs are other LIDs of the router than its path's";
    if version::linux().is_ok_and(|version| version < version::ALL_PATHS) {
        report.skip(claim, "before Linux 6.1 no path is asked for but that of GMPs");
    } else {
        report.claim(claim, lmc(&here));
    }
    report.claim("with quality of service, packets have the path's service level", level());
    report.claim("alias GIDs that OpenSM gives have paths and connections", alias::works(&here));
    report.claim("a bond of two IPoIB interfaces stands in for the first one", bond(&here));
    report
        .claim("it fails over while pings go on, and is found by its other port", failover(&here));
}

struct Subnets {
    fabric: Process,
    managers: [Process; 2],
}

impl Subnets {
    fn up() -> Result<Self> {
        init::load("/later")?;
        ip(Place::Here, "link set lo up")?;
        let capture = capture::options();
        let words = ["ibfab", "run", "/etc/rig/subnets", "--device", "A,B,R,SM"];
        let words = [&words[..], &[&capture[0], &capture[1]]].concat();
        let fabric = spawn("ibfab", Place::Here, &words)?;
        eventually(|| rig::run(Place::Here, &["ip", "link", "show", "ib5"]))?;
        let managers = [manager(0, 0, "")?, manager(1, 0, "")?];
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
        Ok(Self { fabric, managers })
    }

    /// Starts both managers anew.
    fn restart(&mut self, lmc: u8, partition: &str) -> Result<()> {
        for (number, manager) in self.managers.iter_mut().enumerate() {
            manager.kill()?;
            *manager = self::manager(number, lmc, partition)?;
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

/// OpenSM of a subnet. The router's port in it has the FLID of the other subnet among its LIDs.
fn manager(subnet: usize, lmc: u8, partition: &str) -> Result<Process> {
    let directory = env::temp_dir().join(format!("sm{subnet}")).display().to_string();
    fs::create_dir_all(&directory).context(directory.clone())?;
    let other = 1 - subnet;
    let first = FLIDS[other] >> lmc << lmc;
    let last = first + (1 << lmc) - 1;
    let lids = format!("{} 0x{first:04x} 0x{last:04x}\n", ROUTER[subnet]);
    fs::write(format!("{directory}/guid2lid"), lids)?;
    // To any other prefix by any router.
    fs::write(format!("{directory}/prefix-routes"), "* *\n")?;
    let partitions = format!(
        "Default=0x7fff, ipoib{partition} : ALL=full, SELF=full;\n\
         children=0x0001, ipoib : ALL=full;\n"
    );
    fs::write(format!("{directory}/partitions"), partitions)?;
    let qos = if partition.is_empty() { "FALSE" } else { "TRUE" };
    let config = format!(
        "force_log_flush TRUE\nsubnet_prefix 0x{:016x}\nlmc {lmc}\nhonor_guid2lid_file TRUE\n\
         prefix_routes_file {directory}/prefix-routes\nqos {qos}\n",
        PREFIXES[subnet]
    );
    fs::write(format!("{directory}/opensm.conf"), config)?;
    let port = [SM_PORT, B_PORT][subnet];
    let guid = rig::guid_of(Place::Here, port)?;
    let cache = format!("OSM_CACHE_DIR={directory}/");
    let [config, partitions, log] =
        ["opensm.conf", "partitions", "log"].map(|file| format!("{directory}/{file}"));
    let words = ["busybox", "env", &cache, "opensm", "-F", &config, "--guid", &guid];
    let files = ["--Pconfig", &partitions, "--log_file", &log];
    spawn(&format!("opensm-{subnet}"), Place::Here, &[&words[..], &files].concat())
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

/// The record that the kernel uses for management: to B's GID, by the router's LID, with hops.
fn leaves(here: &Ibarr) -> Result<()> {
    let path = Caller::patient()?.path_to(FAR)?;
    ensure!(path.dgid == gid(B_PORT)?, "{path:?}");
    ensure!(path.dlid.get() == FLIDS[1], "{path:?}");
    ensure!(path.hop_limit > 1, "{path:?}");
    let answered = here.count("local-service.paths-answered")?;
    ensure!(answered > 0, "ibarr has not answered");
    Ok(())
}

/// Makes a connection, and checks the LIDs of its packets on the first link of both directions.
fn by_flids() -> Result<()> {
    let wanted = [(lid(A_PORT)?, FLIDS[1]), (lid(B_PORT)?, FLIDS[0])];
    let seen = connection(|| rping(B, FAR))?;
    for (from, (slid, dlid)) in [A_PORT, B_PORT].into_iter().zip(wanted) {
        let (sgid, mut packets) = (gid(from)?, 0);
        for one in seen.iter().filter(|one| one.sgid == sgid && one.slid == slid) {
            ensure!(one.dlid == dlid, "{from} sends to LID {:#x}, not {dlid:#x}", one.dlid);
            packets += 1;
        }
        ensure!(packets > 10, "{packets} packets of {from}: {seen:?}");
        Report::note(format_args!("{from}: {packets} packets from {slid:#x} to {dlid:#x}"));
    }
    Ok(())
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

fn partition() -> Result<()> {
    for (place, name, _, address) in INTERFACES {
        rig::add_child(name, place, &[address])?;
    }
    routes(CHILD_ROUTES)?;
    eventually(|| {
        rig::query(Place::Here, FAR_CHILD, Duration::from_millis(500))?.context("no answer")
    })?;
    let seen = connection(|| rping(B, FAR_CHILD))?;
    let mut counts = BTreeMap::new();
    for one in &seen {
        let pkey = one.pkey.map(PKey::get);
        *counts.entry((pkey, one.dlid)).or_insert(0) += 1;
    }
    for dlid in FLIDS {
        let packets = counts.get(&(Some(0x8001), dlid)).copied().unwrap_or(0);
        ensure!(packets > 10, "to {dlid:#x}: {counts:?}");
    }
    Ok(())
}

fn lmc(here: &Ibarr) -> Result<()> {
    eventually(|| {
        here.flush()?;
        let path = Caller::patient()?.path_to(FAR)?;
        let base = FLIDS[1] >> 2 << 2;
        ensure!(path.dlid.get() >> 2 << 2 == base && path.dlid.get() != FLIDS[1], "{path:?}");
        Ok(())
    })?;
    by_flids()
}

fn level() -> Result<()> {
    let seen = connection(|| rping(B, FAR))?;
    ensure!(!seen.is_empty() && seen.iter().all(|one| one.sl == SL), "{seen:?}");
    Ok(())
}

/// Both ports of A.
fn bond(here: &Ibarr) -> Result<()> {
    ip(Place::Here, "link delete ib0.8001")?;
    ip(Place::Here, "address flush dev ib0")?;
    ip(Place::Here, "link add bond1 type bond mode active-backup miimon 100 fail_over_mac active")?;
    for name in ["ib0", "ib1"] {
        ip(Place::Here, &format!("link set {name} down"))?;
        ip(Place::Here, &format!("link set {name} master bond1"))?;
    }
    ip(Place::Here, &format!("address add {NEAR}/24 dev bond1"))?;
    ip(Place::Here, "link set bond1 up")?;
    rig::is_up(Place::Here, "bond1")?;
    routes(ROUTES)?;
    works(here, A_PORT)
}

/// Both ends find each other, and A by this port.
fn works(here: &Ibarr, port: &str) -> Result<()> {
    let gid = gid(port)?;
    eventually(|| {
        here.flush()?;
        let said = rig::query(B, NEAR, Duration::from_millis(500))?;
        ensure!(said == Some(gid), "{NEAR} answers {said:?}, not {gid}");
        Ok(())
    })?;
    let seen = connection(|| {
        rping(B, FAR)?;
        rping_from(B, Place::Here, NEAR)
    })?;
    let sent = seen.iter().filter(|one| one.sgid == gid).count();
    ensure!(sent > 20, "{sent} packets of {gid}");
    Ok(())
}

fn failover(here: &Ibarr) -> Result<()> {
    let words = ["ping", "-n", "-i", "0.2", "-W", "10", FAR];
    let mut pings = spawn("bond-ping", Place::Here, &words)?;
    let count = || -> Result<usize> { Ok(pings.said()?.matches("ttl=").count()) };
    eventually(|| {
        ensure!(count()? > 5, "no pings");
        Ok(())
    })?;
    rig::run(Place::Here, &["ibfab", "fault", "cable", "A/1", "off"])?;
    eventually(|| {
        let file = "/sys/class/net/bond1/bonding/active_slave";
        let active = fs::read_to_string(file).context(file)?;
        ensure!(active.trim() == "ib1", "{active} is active");
        Ok(())
    })?;
    let before = count()?;
    eventually(|| {
        ensure!(count()? > before + 5, "no more pings: {}", pings.said()?);
        Ok(())
    })?;
    pings.kill()?;
    works(here, A_SECOND)
}
