// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run e`: `ibarr` between a stock kernel and a stock OpenSM while things happen to the subnet.
//! What the kernel asks and is told, a subnet manager that is silent, gone, back and of another
//! mind, interfaces that go and come, HCAs that vanish.

mod interfaces;
mod moved;
mod paths;
mod subnet;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::Gid;
use ibarr_user::control::messages::Request;

use crate::report::Report;
use crate::rig::{self, B, Caller, INTERFACES, Ibarr, Interface, Place, Rig, eventually};

/// What each daemon of ours answers in its namespace: ours is the first interface, the other
/// daemon's the second.
const HERE: Interface = INTERFACES[0];
const THERE: Interface = INTERFACES[1];
/// Next door, where no daemon is.
const NEIGHBOUR: Interface = INTERFACES[4];
const FAR: [&str; 2] = ["10.2.0.1", "fd00:2::1"];
const NEAR: [&str; 2] = ["10.1.0.2", "fd00:1::2"];

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(scene) = report.claim("ibarr runs here and behind the router", Scene::set()) {
        prove(&mut report, scene);
    }
    report.end()
}

fn prove(report: &mut Report, mut scene: Scene) {
    paths::prove(report, &scene);
    moved::prove(report, &mut scene);
    // That is without events, so it is IPoIB that shows what has changed.
    subnet::prove(report, &mut scene);
    interfaces::prove(report, &mut scene);
    report.claim("both daemons end when they are asked to", scene.end());
}

/// The rig, and a daemon at either end.
struct Scene {
    rig: Rig,
    here: Ibarr,
    there: Ibarr,
}

impl Scene {
    fn set() -> Result<Self> {
        let rig = Rig::up()?;
        let here = Ibarr::start("here", Place::Here, "", 1)?;
        let there = Ibarr::start("b", B, "", 1)?;
        let scene = Self { rig, here, there };
        eventually(|| {
            let ports = scene.here.ask(&Request::Ports)?.to_string();
            ensure!(
                ports.contains("\"port\":\"ibtun0/1\"") && !ports.contains("blocked"),
                "{ports}"
            );
            Ok(())
        })?;
        Ok(scene)
    }

    /// All of it does what it is for: who is behind the router says its GID, and the kernel finds
    /// the way there, with nothing remembered.
    fn works(&self) -> Result<()> {
        eventually(|| {
            let gid = THERE.gid()?;
            for target in FAR {
                let said = asked(target)?;
                ensure!(said == Some(gid), "{target} says {said:?}, and has {gid}");
            }
            Ok(())
        })?;
        eventually(|| {
            self.here.flush()?;
            let caller = Caller::patient()?;
            for target in FAR {
                let path = caller.path_to(target).context(target)?;
                ensure!(path.dgid == THERE.gid()?, "{target}: {path:?}");
                ensure!(path.slid.get() == HERE.lid()?, "{target}: {path:?}");
                ensure!(path.dlid.get() == THERE.lid()?, "{target}: {path:?}");
            }
            Ok(())
        })
    }

    fn end(self) -> Result<()> {
        let Self { here, there, .. } = self;
        let counters = here.ask(&Request::Counters)?;
        let counted = counters["counters"].as_object().context("no counters")?;
        let counted = counted.iter().filter(|(_, count)| **count != 0);
        let counted = counted.map(|(name, count)| format!("{name} {count}"));
        Report::note(counted.collect::<Vec<_>>().join("; "));
        here.stop()?;
        there.stop()
    }
}

/// What a stranger here is answered who asks for `target`; `None` if nothing is.
fn asked(target: &str) -> Result<Option<Gid>> {
    rig::query(Place::Here, target, Duration::from_millis(500))
}

/// Has the kernel take an unused GID for that of an address next door.
fn pretend(target: &str, gid: Gid) -> Result<()> {
    let mut octets = vec![0x80, 0, 0, 0x48];
    octets.extend(gid.octets());
    let octets: Vec<_> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
    let name = HERE.name;
    let address = octets.join(":");
    rig::ip(
        Place::Here,
        &format!("neighbour replace {target} lladdr {address} dev {name} nud permanent"),
    )
    .map(drop)
}
