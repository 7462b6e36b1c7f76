// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run g`: clients of ibacm are served by `ibarr`. Debian's `ib_acme` and librdmacm need no change.

mod compare;
mod forms;
mod librdmacm;
mod options;
mod reasons;
mod restart;
pub(crate) mod speed;

use std::process::ExitCode;

use anyhow::Result;

use crate::report::Report;
use crate::rig::{B, Ibarr, N, Place, Rig};

/// The configuration of the daemon that serves.
pub(crate) const SERVE: &str = "[acm]\nserve = \"full\"\n";

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up()) {
        prove(&mut report, &rig);
        report.claim("OpenSM and the fabric are still there", stands(rig));
    }
    report.end()
}

/// The part of it that does not depend on a single subnet manager.
pub(crate) fn prove_librdmacm(report: &mut Report) {
    if let Some([here, ..]) = start(report, ["acm-here", "acm-n", "acm-b"]) {
        librdmacm::prove(report, &here);
    }
}

/// Here, next door, and behind the router.
fn start(report: &mut Report, [here, next_door, behind]: [&'static str; 3]) -> Option<[Ibarr; 3]> {
    let here = report.claim("ibarr serves ACM here", Ibarr::start(here, Place::Here, SERVE, 1));
    let next_door = report.claim("ibarr runs next door", Ibarr::start(next_door, N, "", 1));
    let behind = report.claim("ibarr runs behind the router", Ibarr::start(behind, B, "", 1));
    Some([here?, next_door?, behind?])
}

fn prove(report: &mut Report, rig: &Rig) {
    let Some([here, _next_door, _behind]) = start(report, ["here", "n", "b"]) else { return };
    options::prove(report, &here);
    librdmacm::prove(report, &here);
    let ours = compare::ask().and_then(|told| here.stop().map(|()| told));
    let ours = report.claim("every form of a request is put to ibarr", ours);
    options::prove_tcp(report);
    restart::prove(report, rig);
    let theirs = compare::ibacm().and_then(|ibacm| {
        let told = compare::ask()?;
        ibacm.stop().map(|_| told)
    });
    let theirs = report.claim("and to ibacm", theirs);
    if let (Some(ours), Some(theirs)) = (ours, theirs) {
        report.claim("each difference of the replies has a reason", compare::compare(theirs, ours));
    }
}

fn stands(mut rig: Rig) -> Result<()> {
    rig.opensm.check_alive()?;
    rig.fabric.check_alive()?;
    Ok(())
}
