// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The subnet manager dies and comes back, gives other LIDs, makes all ports register anew, and gives the
//! subnet another prefix.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::Gid;

use super::lids::{give, has};
use super::{FAR, HERE, NEAR, NEIGHBOUR, Scene, THERE, asked, moved};
use crate::report::Report;
use crate::rig::{self, B, Caller, Place, Rig, eventually, rping};

const CONFIG: &str = "/etc/rig/opensm.conf";

/// A site-local prefix (IBA volume 1, 4.1.1).
const PREFIX: &str = "0xfec0000000000007";

/// Aim: within this time a new GID is answered. The scenario prints it and does not claim it.
const AIM_S: f64 = 6.0;

/// Number of queries after the first answer with the new GID.
const AFTERWARDS: usize = 200;

pub(super) fn prove(report: &mut Report, scene: &mut Scene) {
    report.claim("while OpenSM is dead, ibarr keeps what it has learned", killed(scene));
    let claim = "OpenSM is back, all ports register anew, and another port has another LID: it is \
                 reached, and the kernel has the path there";
    report.claim(claim, another_lid(scene));
    report.claim("IPoIB is registered again: rping connects across the router", rping(B, FAR[0]));
    report.claim("ibarr is started again, and hears events", moved::hears_again(scene));
    report.claim("this port has another LID: the kernel gets every path", own_lid(scene));
    let claim = "another subnet prefix: the new GID is answered, and then never the old one";
    report.claim(claim, another_prefix(scene));
    report.claim("with the new prefix everything works", scene.works());
    report.claim("rping connects with the new GIDs across the router", rping(B, FAR[1]));
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

/// This port changes in nothing, but must register again. The daemon hears no events, so only IPoIB
/// knows that.
fn another_lid(scene: &mut Scene) -> Result<()> {
    let lid = give(NEIGHBOUR, 40)?;
    scene.rig.opensm = Rig::opensm()?;
    has(NEIGHBOUR, lid)?;
    eventually(|| rig::run(Place::Here, &["ping", "-n", "-c", "1", "-W", "1", NEAR[0]]).map(drop))?;
    // The answer to IPoIB contradicts the remembered path.
    let path = Caller::patient()?.path_to(NEAR[0])?;
    ensure!(path.dlid.get() == lid, "the target has LID {lid}, but the path is {path:?}");
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
            ensure!(path.slid.get() == lid, "this port has LID {lid}, but the path is {path:?}");
            ensure!(path.dlid.get() == NEIGHBOUR.lid()?, "{path:?}");
        }
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
            "{target}: the new GID is answered {took:.1} s after the port has it; the aim is {AIM_S} s: \
            {aim}"
        ));
    }
    let mut silences = 0;
    for _ in 0..AFTERWARDS {
        for target in FAR {
            match asked(target)? {
                None => silences += 1,
                Some(said) => ensure!(said == new, "{target} answers {said} after {new}"),
            }
        }
    }
    // One was seen on a machine with much other work.
    ensure!(silences <= AFTERWARDS / 10, "{silences} queries are not answered");
    Report::note(format_args!("{silences} of {} queries are not answered", AFTERWARDS * FAR.len()));
    Ok(())
}

/// The answer is the old GID or none, and then the new GID.
fn turns(target: &str, old: Gid, new: Gid) -> Result<()> {
    let said = eventually(|| {
        let said = asked(target)?;
        said.filter(|said| *said != old).with_context(|| format!("{target} still answers {said:?}"))
    })?;
    ensure!(said == new, "{target} answers {said} after {old}, but {new} is right");
    Ok(())
}
