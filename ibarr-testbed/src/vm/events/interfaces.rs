// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Interfaces go down and come up, are renamed and moved; the HCA vanishes and returns.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ibarr_user::control::messages::Request;
use nix::kmod::{DeleteModuleFlags, delete_module};
use serde_json::Value;

use super::{HERE, Scene, THERE};
use crate::init;
use crate::report::Report;
use crate::rig::{self, Interface, N, Place, Rig, eventually};

pub(super) fn prove(report: &mut Report, scene: &mut Scene) {
    let mut claim = |claim: &str, proof: Result<()>| report.claim(claim, proof).is_some();
    claim("interfaces go down and come up", down_and_up(scene));
    claim("interfaces are renamed", renamed(scene));
    claim("interfaces are moved to another namespace, and back", moved(scene));
    claim("the module is unloaded while it is in use, and loaded again", reloaded(scene));
}

/// The interfaces of both daemons.
const ENDS: [Interface; 2] = [HERE, THERE];

fn down_and_up(scene: &Scene) -> Result<()> {
    for Interface { name, place, .. } in ENDS {
        rig::ip(place, &format!("link set {name} down"))?;
    }
    answers_nothing(scene)?;
    Rig::wire()?;
    scene.works()
}

fn renamed(scene: &Scene) -> Result<()> {
    for (from, to) in [("", "x"), ("x", "")] {
        for interface in &ENDS {
            let Interface { name, place, .. } = interface;
            let (from, to) = (format!("{name}{from}"), format!("{name}{to}"));
            rig::ip(*place, &format!("link set {from} down"))?;
            rig::ip(*place, &format!("link set {from} name {to}"))?;
            rig::equip(interface, &to)?;
        }
        Rig::routes()?;
        eventually(|| {
            let status = scene.there.ask(&Request::Status)?;
            let interfaces = status["status"]["interfaces"].as_array().context("no interfaces")?;
            let name = format!("{}{to}", THERE.name);
            ensure!(interfaces.iter().any(|one| one["name"] == name.as_str()), "{status}");
            Ok(())
        })?;
        scene.works()?;
    }
    Ok(())
}

/// The fabric ends, and all HCAs vanish, while the daemons, OpenSM and IPoIB use them.
fn reloaded(scene: &mut Scene) -> Result<()> {
    scene.rig.fabric.kill()?;
    eventually(|| {
        let left = fs::read_dir("/sys/class/infiniband")?.count();
        ensure!(left == 0, "{left} HCAs are still there");
        Ok(())
    })?;
    scene.rig.opensm.kill()?;
    // The kernel refuses until it has removed the last HCA.
    eventually(|| match delete_module(c"ibtun", DeleteModuleFlags::O_NONBLOCK) {
        Ok(()) => Ok(()),
        Err(error) => Err(error).context("ibtun cannot be unloaded"),
    })?;
    answers_nothing(scene)?;
    init::load_again("ibtun")?;
    scene.rig.fabric = Rig::fabric()?;
    scene.rig.opensm = Rig::opensm()?;
    Rig::ports_are_active()?;
    Rig::distribute()?;
    Rig::wire()?;
    scene.here.check_alive()?;
    scene.there.check_alive()?;
    scene.works()
}

/// Neither daemon serves an address.
fn answers_nothing(scene: &Scene) -> Result<()> {
    eventually(|| {
        for daemon in [&scene.here, &scene.there] {
            let status = daemon.ask(&Request::Status)?;
            let interfaces = status["status"]["interfaces"].as_array().context("no interfaces")?;
            let answers = |one: &Value| {
                one["addresses"].as_object().is_some_and(|addresses| !addresses.is_empty())
            };
            ensure!(!interfaces.iter().any(answers), "{status}");
        }
        Ok(())
    })
}

fn moved(scene: &Scene) -> Result<()> {
    for Interface { name, place, .. } in ENDS {
        rig::ip(place, &format!("link set {name} netns n"))?;
    }
    answers_nothing(scene)?;
    for Interface { name, place, .. } in ENDS {
        let back = match place {
            Place::Netns(name) => name,
            _ => "1",
        };
        rig::ip(N, &format!("link set {name} netns {back}"))?;
    }
    Rig::wire()?;
    scene.works()
}
