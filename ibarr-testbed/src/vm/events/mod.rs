// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run e`: `ibarr` between a stock kernel and a stock OpenSM while the subnet changes. The kernel
//! asks and is answered; the subnet manager is silent, ends, comes back and gives other LIDs; interfaces
//! and HCAs vanish and return.

mod interfaces;
mod lids;
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

/// The interface that the daemon here serves.
const HERE: Interface = INTERFACES[0];
const THERE: Interface = INTERFACES[1];
/// In the same IP subnet, where no daemon runs.
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
    // The daemon hears no events now, so only IPoIB's requests show it what has changed.
    subnet::prove(report, &mut scene);
    interfaces::prove(report, &mut scene);
    report.claim("both daemons end when they are asked to", scene.end());
}

/// The rig, and a daemon at each end.
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

    /// The peer behind the router answers with its GID, and the kernel finds the path there, with an
    /// empty cache.
    fn works(&self) -> Result<()> {
        eventually(|| {
            let gid = THERE.gid()?;
            for target in FAR {
                let said = asked(target)?;
                ensure!(said == Some(gid), "{target} answers {said:?}, but has {gid}");
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

/// The answer to an ip2gid query for `target` from here; `None` if there is none.
fn asked(target: &str) -> Result<Option<Gid>> {
    rig::query(Place::Here, target, Duration::from_millis(500))
}

/// Makes the kernel believe that an address in the same subnet has this unused GID.
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
