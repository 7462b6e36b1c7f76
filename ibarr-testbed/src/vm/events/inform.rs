// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! OpenSM's reports of a GID that comes and goes, through the umad device of a stock kernel.

use anyhow::{Context as _, Result, ensure};
use ibarr_user::control::messages::{PathRequest, Request, Text};
use serde_json::Value;

use super::{HERE, NEIGHBOUR, Scene};
use crate::report::Report;
use crate::rig::{self, Place, eventually};

/// The cable of [`NEIGHBOUR`]. An event of its port reaches only that port of this machine.
const CABLE: &str = "S1/5";

pub(super) fn prove(report: &mut Report, scene: &Scene) {
    report.claim("with `inform`, OpenSM has four subscriptions of a port", subscribes(scene));
    report.claim("a report of OpenSM puts the path to its GID in doubt", is_told(scene));
    report.claim("without `inform` again, OpenSM has none", unsubscribes(scene));
}

fn subscribes(scene: &Scene) -> Result<()> {
    ensure!(subscriptions()? == 0, "subscribed by default");
    // OpenSM was stopped before. Until a probe is answered, `ibarr` takes it for silent, asks it
    // nothing, and tries to subscribe again after half a minute.
    eventually(|| {
        let ports = scene.here.ask(&Request::Ports)?;
        let ports = ports["ports"].as_array().context("no ports")?;
        let probing = ports.iter().find(|port| !port["probing"].is_null());
        ensure!(probing.is_none() && !ports.is_empty(), "{probing:?}");
        Ok(())
    })?;
    scene.here.reconfigure("[paths]\ninform = true\n")?;
    eventually(|| {
        let ports = scene.here.ask(&Request::Ports)?;
        let ports = ports["ports"].as_array().context("no ports")?;
        let silent = ports.iter().find(|port| port["informed"] != "yes");
        ensure!(silent.is_none() && !ports.is_empty(), "{silent:?}");
        Ok(())
    })?;
    let subscribed = subscriptions()?;
    ensure!(subscribed == 4, "{subscribed} subscriptions");
    // Once its cable is pulled, a port asks in vain, so these are read before.
    for counter in ["paths.informs-failed", "umad.not-sent"] {
        ensure!(scene.here.count(counter)? == 0, "{counter}");
    }
    Ok(())
}

/// Pulls a cable and plugs it in again.
fn is_told(scene: &Scene) -> Result<()> {
    let path = PathRequest {
        dgid: Text(NEIGHBOUR.gid()?),
        sgid: None,
        port: None,
        pkey: None,
        fresh: false,
    };
    let path = || -> Result<Value> {
        Ok(scene.here.ask(&Request::Path { path: path.clone() })?["path"].take())
    };
    for (state, status) in [("off", "no-record"), ("on", "found")] {
        path()?;
        ensure!(path()?["source"] == "cache", "{:?} is not remembered", path()?);
        let before = scene.here.count("paths.reports-doubted")?;
        rig::run(Place::Here, &["ibfab", "fault", "cable", CABLE, state])?;
        eventually(|| {
            let doubted = scene.here.count("paths.reports-doubted")? - before;
            let reports = scene.here.count("paths.reports")?;
            let unknown = scene.here.count("paths.reports-unknown")?;
            ensure!(doubted > 0, "cable {state}: {reports} reports, {unknown} of unknown GIDs");
            Ok(())
        })?;
        let asked = path()?;
        ensure!(asked["source"] == "sa" && asked["status"] == status, "cable {state}: {asked}");
    }
    Ok(())
}

fn unsubscribes(scene: &Scene) -> Result<()> {
    scene.here.reconfigure("")?;
    eventually(|| {
        let subscribed = subscriptions()?;
        ensure!(subscribed == 0, "{subscribed} subscriptions");
        Ok(())
    })
}

/// Number of subscriptions of the first port that OpenSM lists.
fn subscriptions() -> Result<usize> {
    let printed = rig::run(Place::Here, &["saquery", "IIR"])?;
    let gid = HERE.gid()?.to_string();
    let of_port = |line: &&str| line.contains("SubscriberGID") && line.ends_with(&gid);
    Ok(printed.lines().filter(of_port).count())
}
