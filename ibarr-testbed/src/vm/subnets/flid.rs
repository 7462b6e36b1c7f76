// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run j`: the prefixes of both subnets have floating LIDs (FLIDs), by which packets reach the router: the
//! kernel takes three records from `ibarr`, and uses the LIDs of two.
//!
//! In each subnet, the FLID of the other one is a LID of the router's port. A real router has FLIDs beside
//! its LIDs; OpenSM cannot give it such.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::PKey;

use super::{
    A_PORT, A_SECOND, B_PORT, CHILD_ROUTES, FAR, FAR_CHILD, GROUP, INTERFACES, NEAR, R_PORT,
    ROUTER_LIDS, ROUTES, Subnets, alias, by_acm, connection, gid, lid, routes,
};
use crate::report::Report;
use crate::rig::{self, B, Caller, Ibarr, Place, eventually, ip, rping, spawn};
use crate::version;

/// The prefixes: fec0:0:FLID:SUBNET.
const PREFIXES: [u64; 2] = [0xfec0_0000_0052_0001, 0xfec0_0000_0042_0002];
/// The FLID of a subnet, which is a LID in the other one.
const FLIDS: [u16; 2] = [ROUTER_LIDS[1], ROUTER_LIDS[0]];

/// The service level of the partition, when quality of service is on.
const SL: u8 = 3;

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(mut subnets) = report.claim("two subnets stand", Subnets::up("guid", PREFIXES)) {
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
    report.claim("ACM: ucmatose connects by AF_IB between both ports' GIDs", {
        gid(A_PORT).and_then(|ours| by_acm(&here, [ours, gid(B_PORT)?]))
    });
    report.claim("so it does in a second partition", partition());
    report.claim(
        "rate and MTU of a partition are its groups': its paths have the links', or are none",
        limited(),
    );
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
    report.claim(
        "spread over four LIDs: the kernel's questions get each in turn, the SA gets one",
        spread(&here),
    );
    report.claim("with quality of service, packets have the path's service level", level());
    report.claim("alias GIDs that OpenSM gives have paths and connections", alias::works(&here));
    report.claim("a bond of two IPoIB interfaces stands in for the first one", bond(&here));
    report
        .claim("it fails over while pings go on, and is found by its other port", failover(&here));
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
    by_flids_from(0)
}

/// The same, where a port's own LIDs differ in so many low bits.
fn by_flids_from(lmc: u8) -> Result<()> {
    let wanted = [(lid(A_PORT)?, FLIDS[1]), (lid(B_PORT)?, FLIDS[0])];
    let seen = connection(|| rping(B, FAR))?;
    for (from, (slid, dlid)) in [A_PORT, B_PORT].into_iter().zip(wanted) {
        let (sgid, mut packets) = (gid(from)?, 0);
        let is_own = |lid: u16| lid >> lmc == slid >> lmc;
        for one in seen.iter().filter(|one| one.sgid == sgid && is_own(one.slid)) {
            ensure!(one.dlid == dlid, "{from} sends to LID {:#x}, not {dlid:#x}", one.dlid);
            packets += 1;
        }
        ensure!(packets > 10, "{packets} packets of {from}: {seen:?}");
        Report::note(format_args!("{from}: {packets} packets from {slid:#x} to {dlid:#x}"));
    }
    Ok(())
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

/// This port is a limited member of a partition whose groups are slow: there is a path to a full member, as fast as in
/// the default partition, and none to a limited one. A group is no destination of a path.
fn limited() -> Result<()> {
    let ask = |gid: &str, pkey: &str| {
        let words = format!("--port ibtun0/1 --pkey {pkey} --run-dir /run/ibarr-here --json");
        // The exit status is not 0 if there is no path.
        let line = format!("ibarr path {gid} {words} 2>&1 || true");
        rig::run(Place::Here, &["busybox", "sh", "-c", &line])
    };
    let [full, other] = [gid(R_PORT)?.to_string(), gid(A_SECOND)?.to_string()];
    let speed = |said: &str| -> Result<String> {
        let from = said.find("\"mtu\"").with_context(|| format!("no path: {said}"))?;
        let rest = &said[from..];
        Ok(rest[..rest.find(",\"pkey\"").unwrap_or(rest.len())].to_owned())
    };
    let (usual, there) = (ask(&full, "0xffff")?, ask(&full, "0x0002")?);
    ensure!(speed(&usual)? == speed(&there)?, "{usual} {there}");
    let none = ask(&other, "0x0002")?;
    ensure!(none.contains("\"status\":\"no-record\""), "{none}");
    let group = ask(GROUP, "0x0002")?;
    ensure!(!group.contains("\"status\""), "{group}");
    Report::note(format_args!("{} {}", there.trim(), group.trim()));
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

/// Twice the four LIDs of the router's port, from one question to the SA. It is asked for no more paths than a port has
/// LIDs.
fn spread(here: &Ibarr) -> Result<()> {
    here.reconfigure("[paths]\nspread = 8\n")?;
    let counts =
        || -> Result<_> { Ok([here.count("paths.found-sa")?, here.count("paths.found-cache")?]) };
    eventually(|| {
        here.flush()?;
        let before = counts()?;
        let caller = Caller::patient()?;
        let paths = (0..8).map(|_| caller.path_to(FAR)).collect::<Result<Vec<_>>>()?;
        let after = counts()?;
        ensure!(after == [before[0] + 1, before[1] + 7], "{before:?} {after:?}");
        let lids: Vec<_> = paths.iter().map(|path| path.dlid.get()).collect();
        let own: BTreeSet<_> = paths.iter().map(|path| path.slid.get()).collect();
        let base = FLIDS[1] >> 2 << 2;
        ensure!(lids[..4] == lids[4..] && own.len() == 4, "{lids:?} from {own:?}");
        let mut once = lids[..4].to_vec();
        once.sort_unstable();
        ensure!(once == [base, base + 1, base + 2, base + 3], "{lids:?}");
        Report::note(format_args!("by LIDs {lids:x?}, from {own:x?}"));
        Ok(())
    })?;
    if version::linux()? >= version::ALL_PATHS {
        by_flids_from(2)?;
    }
    here.reconfigure("")
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
        rping(B, FAR)
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
