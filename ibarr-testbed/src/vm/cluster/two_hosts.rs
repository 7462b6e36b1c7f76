// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What `ibtun/README.md` has typed on two hosts, as it stands there. The guests have the files of the packages
//! already, and their modules are loaded.

use anyhow::{Context as _, Result, ensure};
use ibtun_guest::page;

use crate::report::Report;
use crate::rig::{self, Place};

const README: &str = include_str!("../../../../ibtun/README.md");

const SECTION: &str = "## Two hosts, in five minutes\n";
const ON_THE_SECOND: &str = "On the second";

pub(super) fn prove(report: &mut Report) {
    let (first, second) =
        page::section(README, SECTION).split_once(ON_THE_SECOND).unwrap_or_default();
    let mut said = String::new();
    for (place, text) in [(Place::Here, first), (Place::Other, second)] {
        for command in page::commands(text) {
            let text = &command.text;
            let outcome = match text.split(' ').next() {
                Some("apt" | "modprobe") => continue,
                Some("scp") => copy(text),
                _ => typed(place, text),
            };
            let claim = format!("README, {place:?}: {text}");
            said = report.claim(&claim, outcome).unwrap_or_default();
        }
    }
    let pings = said.matches("ping data: rdma-ping-").count();
    let all = if pings == 3 { Ok(()) } else { Err(anyhow::anyhow!("{pings}: {said}")) };
    report.claim("rping on the second host has moved data to the first, three times", all);
    for place in [Place::Other, Place::Here] {
        let down = typed(place, "ibfab down");
        report.claim(&format!("{place:?}: `ibfab down` ends it"), down);
    }
}

fn typed(place: Place, command: &str) -> Result<String> {
    rig::run(place, &["busybox", "sh", "-c", command])
}

/// Does in the guests what a command of scp does on hosts.
fn copy(command: &str) -> Result<String> {
    let file = command.split(' ').nth(1).context("no file")?;
    let bytes = typed(Place::Here, &format!("base64 {file}"))?.replace('\n', "");
    ensure!(bytes.len() > 40, "a short key");
    typed(Place::Other, &format!("umask 077; echo {bytes} | base64 -d > {file}"))
}
