// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! All other ports get other LIDs while IPoIB is idle, so only the kernel's event tells this port. With
//! libibverbs, `ibarr` hears the event. Without it, `ibarr` asks the SA now and then for a path in use.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ibarr_user::control::messages::Request;
use serde_json::Value;

use super::lids::{give, has};
use super::{HERE, NEAR, NEIGHBOUR, Scene};
use crate::report::Report;
use crate::rig::{self, Caller, INTERFACES, Ibarr, N, Place, Rig, eventually, rping};

/// Aims: how soon the new LID is given after the port has it, with events (`AIM_HEARD`) and without. A
/// guest has one emulated processor, on which OpenSM still sweeps, so the claim with events is ten
/// times as long.
const AIM_HEARD: Duration = Duration::from_secs(1);
const AIM_DEAF: Duration = Duration::from_secs(30);
const SLOWER: u32 = 10;

/// Path at which the loader finds libibverbs, and a path at which it does not.
const LIBRARY: &str = "/lib64/libibverbs.so.1";
const HIDDEN: &str = "/lib64/hidden";

pub(super) fn prove(report: &mut Report, scene: &mut Scene) {
    report.claim("events of every port are heard by libibverbs", hears(scene));
    let claim = "IPoIB is idle and other ports have other LIDs: after an event ibarr asks the SA, and the \
                 kernel gets the new LID";
    report.claim(claim, heard(scene));
    report.claim("a connection to the new LID", rping(N, NEAR[0]));
    report.claim(
        "without libibverbs ibarr reports that it hears no events, and why",
        deafened(scene),
    );
    let claim = "IPoIB is idle, no event is heard and other ports have other LIDs: a canary finds it \
                 out, and the kernel gets the new LID";
    report.claim(claim, found_out(scene));
    report.claim("a connection to the LID that the canary found", rping(N, NEAR[0]));
}

/// Starts the daemon here again, with libibverbs.
pub(super) fn hears_again(scene: &mut Scene) -> Result<()> {
    restart(scene)?;
    hears(scene)
}

fn hears(scene: &Scene) -> Result<()> {
    eventually(|| {
        let (ports, warnings) = shown(scene)?;
        let deaf = ports.iter().find(|port| !port["deaf"].is_null());
        ensure!(deaf.is_none() && !ports.is_empty(), "{deaf:?}");
        ensure!(!warnings.contains("are not received"), "{warnings}");
        Ok(())
    })
}

fn deafened(scene: &mut Scene) -> Result<()> {
    fs::rename(LIBRARY, HIDDEN).context(LIBRARY)?;
    let outcome = restart(scene).and_then(|()| is_deaf(scene));
    fs::rename(HIDDEN, LIBRARY).context(HIDDEN)?;
    outcome
}

fn is_deaf(scene: &Scene) -> Result<()> {
    eventually(|| {
        let (ports, warnings) = shown(scene)?;
        let reason = "libibverbs.so.1 cannot be used: install rdma-core's libibverbs";
        for port in &ports {
            ensure!(port["deaf"].as_str().is_some_and(|deaf| deaf.contains(reason)), "{port}");
        }
        ensure!(!ports.is_empty(), "no ports");
        ensure!(warnings.contains("are not received") && warnings.contains(reason), "{warnings}");
        Ok(())
    })
}

/// The ports that `ibarr` knows, and the warnings of `ibarr status`.
fn shown(scene: &Scene) -> Result<(Vec<Value>, String)> {
    let ports = scene.here.ask(&Request::Ports)?;
    let ports = ports["ports"].as_array().with_context(|| format!("no ports: {ports}"))?.clone();
    let status = scene.here.ask(&Request::Status)?;
    Ok((ports, status["status"]["warnings"].to_string()))
}

fn restart(scene: &mut Scene) -> Result<()> {
    scene.here.kill()?;
    scene.here = Ibarr::start("here", Place::Here, "", 1)?;
    Ok(())
}

fn heard(scene: &mut Scene) -> Result<()> {
    let (before, counted) =
        moved_alone(scene, [50, 90, 100], "with events", (AIM_HEARD, AIM_HEARD * SLOWER))?;
    ensure!(counted.events > before.events, "no event: {before:?}, {counted:?}");
    ensure!(counted.doubts_asked > before.doubts_asked, "not asked: {before:?}, {counted:?}");
    Ok(())
}

fn found_out(scene: &mut Scene) -> Result<()> {
    let how = "without events, by canaries";
    let (before, counted) = moved_alone(scene, [60, 70, 80], how, (AIM_DEAF, AIM_DEAF))?;
    ensure!(counted.events == before.events, "an event: {before:?}, {counted:?}");
    ensure!(counted.canaries > before.canaries, "no canary: {before:?}, {counted:?}");
    ensure!(counted.contradicted > before.contradicted, "no doubt: {before:?}, {counted:?}");
    let mads = counted.mads - before.mads;
    ensure!(mads <= 30, "the SA was sent {mads} MADs");
    Ok(())
}

/// Moves the other ports, and waits for the new LID at most for the second of the times. Returns the
/// counters before and after. IPoIB may send something meanwhile, which shows `ibarr` that the subnet has
/// changed: then it tries again with the next LIDs.
fn moved_alone(
    scene: &mut Scene,
    first_lids: [u16; 3],
    how: &str,
    (aim, limit): (Duration, Duration),
) -> Result<(Counted, Counted)> {
    for first in first_lids {
        let before = learn(scene)?;
        let took = aims_right(others_move(scene, first)?, limit)?;
        let counted = Counted::of(scene)?;
        if counted.asked_again == before.asked_again {
            tell(how, took, aim, &before, &counted);
            return Ok((before, counted));
        }
    }
    bail!("IPoIB was never idle")
}

/// Puts the paths to the neighbours into memory, and makes the neighbour entries permanent, so that
/// IPoIB has nothing to send.
fn learn(scene: &Scene) -> Result<Counted> {
    for target in NEAR {
        eventually(|| {
            rig::run(Place::Here, &["ping", "-n", "-c", "1", "-W", "5", target]).map(drop)
        })?;
        let change = format!("neighbour change {target} dev {} nud permanent", HERE.name);
        rig::ip(Place::Here, &change)?;
        let caller = Caller::patient()?;
        caller.path_to(target)?;
        let before = scene.here.count("paths.found-cache")?;
        let path = caller.path_to(target)?;
        let after = scene.here.count("paths.found-cache")?;
        ensure!(after > before, "the path to {target} is not from memory: {before}, {after}");
        ensure!(path.dlid.get() == NEIGHBOUR.lid()?, "{path:?}");
    }
    Counted::of(scene)
}

/// Starts OpenSM again, which gives every port of this machine except ours another LID. Returns the
/// new LID of the neighbour.
fn others_move(scene: &mut Scene, first: u16) -> Result<u16> {
    let (own, sm) = (HERE.lid()?, HERE.attribute("sm_lid")?);
    scene.rig.opensm.kill()?;
    for (interface, lid) in INTERFACES[1..].iter().zip(first..) {
        give(*interface, lid)?;
    }
    let lid = first + u16::try_from(INTERFACES.len())? - 2;
    scene.rig.opensm = Rig::opensm()?;
    has(NEIGHBOUR, lid)?;
    ensure!(HERE.lid()? == own && HERE.attribute("sm_lid")? == sm, "this port has changed, too");
    Ok(lid)
}

/// How long the kernel is still given the old LID of the neighbour.
fn aims_right(lid: u16, limit: Duration) -> Result<Duration> {
    let began = Instant::now();
    for target in NEAR {
        loop {
            let path = Caller::patient()?.path_to(target)?;
            if path.dlid.get() == lid {
                break;
            }
            let took = began.elapsed();
            ensure!(
                took < limit,
                "{target} has LID {lid}, but after {took:?} the path is {path:?}"
            );
            thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(began.elapsed())
}

/// Counters of `ibarr` here.
#[derive(Debug)]
struct Counted {
    events: u64,
    doubts_asked: u64,
    asked_again: u64,
    canaries: u64,
    contradicted: u64,
    mads: u64,
}

impl Counted {
    fn of(scene: &Scene) -> Result<Self> {
        let count = |counter| scene.here.count(counter);
        let mut mads = 0;
        for counter in ["sa.queries", "sa.resends", "sa.resends-busy", "sa.probes"] {
            mads += count(counter)?;
        }
        Ok(Self {
            events: count("paths.events")?,
            doubts_asked: count("paths.doubts-asked")?,
            asked_again: count("paths.asked-again")?,
            canaries: count("paths.canaries")?,
            contradicted: count("paths.contradicted")?,
            mads,
        })
    }
}

fn tell(how: &str, took: Duration, aim: Duration, before: &Counted, after: &Counted) {
    let (took, aim) = (took.as_secs_f64(), aim.as_secs_f64());
    let verdict = if took <= aim { "met" } else { "missed" };
    Report::figure(format_args!(
        "{how}: a neighbour's new LID is given {took:.2} s after its port has it, by {} MADs; \
         the aim is {aim} s: {verdict}",
        after.mads - before.mads
    ));
}
