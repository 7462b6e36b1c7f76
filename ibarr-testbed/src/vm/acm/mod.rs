// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run g`: clients of ibacm are served by `ibarr`. Debian's `ib_acme` and librdmacm need no change.

mod acme;
mod compare;
mod forms;
mod librdmacm;
mod reasons;
pub(crate) mod speed;

use std::process::ExitCode;

use anyhow::Result;

use self::acme::Acme;
use crate::report::Report;
use crate::rig::{B, INTERFACES, Ibarr, N, Place, Rig};

/// The configuration of the daemon that serves.
const SERVE: &str = "[acm]\nserve = \"full\"\n";

/// What we ask for: what it is, its address, and the port that has it.
const TARGETS: [(&str, &str, usize); 5] = [
    ("next door, IPv4", "10.1.0.2", 4),
    ("next door, IPv6", "fd00:1::2", 4),
    ("across the router, IPv4", "10.2.0.1", 1),
    ("across the router, IPv6", "fd00:2::1", 1),
    ("here", "10.1.0.1", 0),
];

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up()) {
        prove(&mut report);
        report.claim("OpenSM and the fabric are still there", stands(rig));
    }
    report.end()
}

fn prove(report: &mut Report) {
    let here = report.claim("ibarr serves ACM here", Ibarr::start("here", Place::Here, SERVE, 1));
    let next_door = report.claim("ibarr runs next door", Ibarr::start("n", N, "", 1));
    let behind = report.claim("ibarr runs behind the router", Ibarr::start("b", B, "", 1));
    let (Some(here), Some(_next_door), Some(_behind)) = (here, next_door, behind) else { return };
    let _ = (options, librdmacm::prove);
    let ours = report.claim("ours", compare::ask());
    report.claim("stop", here.stop());
    let theirs = report.claim("theirs", compare::ibacm().and_then(|ibacm| {
        let told = compare::ask()?;
        ibacm.stop()?;
        Ok(told)
    }));
    if let (Some(ours), Some(theirs)) = (ours, theirs) {
        report.claim("compare", compare::compare(theirs, ours));
    }
}

/// Every option of `ib_acme`.
fn options(report: &mut Report, here: &Ibarr) {
    for (what, target, port) in TARGETS {
        report.claim(&format!("ib_acme -f i: {what}"), by_ip(target, port));
    }
    report.claim("ib_acme -f g: a GID", by_gid(4));
    for options in [
        &["-d", "10.1.0.2"][..],
        &["-f", "u", "-d", "10.1.0.2"],
        &["-f", "i", "-d", "10.1.0.[1-2]"],
        &["-d", "node[1-3]"],
        &["-f", "n", "-d", "node2"],
        &["-f", "n", "-s", "node1", "-d", "node[2,3]"],
        &["-f", "l", "-d", "3"],
        &["-f", "l", "-s", "1", "-d", "3"],
        &["-f", "i", "-d", "10.1.0.2", "-v"],
        &["-f", "i", "-d", "10.1.0.2", "-c"],
        &["-f", "i", "-d", "10.1.0.77", "-c"],
        &["-f", "i", "-d", "10.1.0.2", "-C", "100"],
        &["-f", "i", "-s", "10.1.0.2", "-d", "10.1.0.2"],
        &["-f", "i", "-s", "10.1.0.1", "-d", "10.1.0.2"],
        &["-S", "/run/ibacm-unix.sock", "-f", "i", "-d", "10.1.0.2"],
        &["-e"],
        &["-e", "1"],
        &["-P"],
        &["-P", "col"],
        &["-P", "1"],
        &["-P", "all"],
        &["-P", "s", "-s", "10.1.0.1"],
    ] {
        let began = std::time::Instant::now();
        let said = Acme::ask(options);
        Report::note(format_args!("{options:?} {:?}\n{said:?}", began.elapsed()));
    }
    let _ = here;
}

fn by_ip(target: &str, port: usize) -> Result<()> {
    let said = Acme::ask(&["-f", "i", "-d", target])?;
    said.leads_to(0, port)
}

fn by_gid(port: usize) -> Result<()> {
    let [from, to] = [0, port].map(|port| INTERFACES[port].gid());
    let said = Acme::ask(&["-f", "g", "-s", &from?.to_string(), "-d", &to?.to_string()])?;
    said.leads_to(0, port)
}

fn stands(mut rig: Rig) -> Result<()> {
    rig.opensm.is_alive()?;
    rig.fabric.is_alive()?;
    Ok(())
}
