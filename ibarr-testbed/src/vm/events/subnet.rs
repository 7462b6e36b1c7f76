// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a subnet manager does: it dies and comes back, gives other LIDs, has all register anew, gives
//! the subnet another prefix.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::Gid;

use super::{FAR, HERE, NEAR, NEIGHBOUR, Scene, THERE, asked, moved};
use crate::report::Report;
use crate::rig::{self, B, Caller, Interface, Place, Rig, eventually, rping};

/// Where OpenSM remembers which LIDs it gave.
const LIDS: &str = "/var/cache/opensm/guid2lid";
const CONFIG: &str = "/etc/rig/opensm.conf";

/// Of a site-local prefix (IBA volume 1, 4.1.1).
const PREFIX: &str = "0xfec0000000000007";

/// How soon a new GID is to be answered. Said, not claimed.
const AIM_S: f64 = 6.0;

/// Queries that follow the first that is answered with the new GID.
const AFTERWARDS: usize = 200;

pub(super) fn prove(report: &mut Report, scene: &mut Scene) {
    report.claim("while OpenSM is dead, what was learned is known", killed(scene));
    let claim = "OpenSM is back, has all register anew, and another port has another LID: it is \
                 reached, and the kernel has the path there";
    report.claim(claim, another_lid(scene));
    report.claim("IPoIB is registered again: a connection across the router", rping(B, FAR[0]));
    report.claim("ibarr is started again, and hears events", moved::hears_again(scene));
    report.claim("this port has another LID: the kernel has every path", own_lid(scene));
    let claim = "another subnet prefix: the new GID is answered, and the old one never after";
    report.claim(claim, another_prefix(scene));
    report.claim("with it everything is as before", scene.works());
    report.claim("a connection with the new GIDs across the router", rping(B, FAR[1]));
}

fn killed(scene: &mut Scene) -> Result<()> {
    let caller = Caller::patient()?;
    let (id, _) = caller.address(NEAR[0])?;
    caller.route(id)?;
    scene.rig.opensm.kill()?;
    let before = scene.here.count("paths.found-cache")?;
    let path = caller.path_to(NEAR[0])?;
    let after = scene.here.count("paths.found-cache")?;
    ensure!(path.dlid.get() == NEIGHBOUR.lid()?, "{path:?}");
    ensure!(after > before, "the path was not from memory: {before}, {after}");
    Ok(())
}

/// Nothing about this port is new but that it is to register. The daemon hears no events, so only IPoIB
/// is told that.
fn another_lid(scene: &mut Scene) -> Result<()> {
    let lid = give(NEIGHBOUR, 40)?;
    scene.rig.opensm = Rig::opensm()?;
    has(NEIGHBOUR, lid)?;
    eventually(|| rig::run(Place::Here, &["ping", "-n", "-c", "1", "-W", "1", NEAR[0]]).map(drop))?;
    // What IPoIB was answered then contradicts what is remembered.
    let path = Caller::patient()?.path_to(NEAR[0])?;
    ensure!(path.dlid.get() == lid, "it has LID {lid}: {path:?}");
    Ok(())
}

fn own_lid(scene: &mut Scene) -> Result<()> {
    scene.rig.opensm.kill()?;
    let lid = give(HERE, 41)?;
    scene.rig.opensm = Rig::opensm()?;
    has(HERE, lid)?;
    eventually(|| {
        for target in NEAR {
            let path = Caller::patient()?.path_to(target)?;
            ensure!(path.slid.get() == lid, "we have LID {lid}: {path:?}");
            ensure!(path.dlid.get() == NEIGHBOUR.lid()?, "{path:?}");
        }
        Ok(())
    })
}

/// Has the next OpenSM give a port another LID.
pub(super) fn give(interface: Interface, lid: u16) -> Result<u16> {
    let guid = format!("0x{:016x}", interface.gid()?.guid().get());
    let table = fs::read_to_string(LIDS).context(LIDS)?;
    let line = |line: &str| {
        if line.starts_with(&guid) {
            format!("{guid} 0x{lid:04x} 0x{lid:04x}\n")
        } else {
            format!("{line}\n")
        }
    };
    ensure!(table.contains(&guid), "no {guid} in {table}");
    fs::write(LIDS, table.lines().map(line).collect::<String>()).context(LIDS)?;
    Ok(lid)
}

pub(super) fn has(interface: Interface, lid: u16) -> Result<()> {
    eventually(|| {
        let has = interface.lid()?;
        ensure!(has == lid, "{} has LID {has}, not {lid}", interface.name);
        Ok(())
    })
}

fn another_prefix(scene: &mut Scene) -> Result<()> {
    let old = THERE.gid()?;
    scene.rig.opensm.kill()?;
    let config = fs::read_to_string(CONFIG).context(CONFIG)?;
    fs::write(CONFIG, format!("{config}subnet_prefix {PREFIX}\n")).context(CONFIG)?;
    scene.rig.opensm = Rig::opensm()?;
    let new = eventually(|| {
        let gid = THERE.gid()?;
        ensure!(gid != old, "the port still has {gid}");
        Ok(gid)
    })?;
    let began = Instant::now();
    for target in FAR {
        turns(target, old, new)?;
        let took = began.elapsed().as_secs_f64();
        let aim = if took < AIM_S { "met" } else { "missed" };
        Report::figure(format_args!(
            "{target}: the new GID is answered {took:.1} s after the port has it; within {AIM_S} s \
             is the aim: {aim}"
        ));
    }
    let mut silences = 0;
    for _ in 0..AFTERWARDS {
        for target in FAR {
            match asked(target)? {
                None => silences += 1,
                Some(said) => ensure!(said == new, "{target} says {said} after {new}"),
            }
        }
    }
    // One was seen where the machine had much else to do.
    ensure!(silences <= AFTERWARDS / 10, "{silences} queries are not answered");
    Report::note(format_args!("{silences} of {} queries are not answered", AFTERWARDS * FAR.len()));
    Ok(())
}

/// The old GID or nothing is said, then the new one.
fn turns(target: &str, old: Gid, new: Gid) -> Result<()> {
    let said = eventually(|| {
        let said = asked(target)?;
        said.filter(|said| *said != old).with_context(|| format!("{target} still says {said:?}"))
    })?;
    ensure!(said == new, "{target} says {said} after {old}, and {new} is right");
    Ok(())
}
