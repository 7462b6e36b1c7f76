// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the specification allows and few HCAs do: it breaks a program that relies on more, and no other.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::report::Report;
use crate::rig::{self, Place, spawn};
use crate::wire::OURS;

const RUN: &str = "/run/behave.py";
/// How a program ends that has got something else than it expects.
const BROKEN: i32 = 3;

pub(super) fn prove(report: &mut Report) {
    if report.claim("our small programs are here", unpack()).is_none() {
        return;
    }
    for behaviour in ["fields", "numbers", "srq-order"] {
        report.claim(&format!("{behaviour}: the wrong program is broken"), breaks(behaviour));
    }
}

fn unpack() -> Result<()> {
    fs::write(RUN, include_str!("behave.py")).context(RUN)
}

fn breaks(behaviour: &str) -> Result<()> {
    let ends = |program: &str, status: i32| -> Result<()> {
        let name = format!("{behaviour}-{program}");
        let python = ["busybox", "env", "PYTHONHOME=/usr", "python3.11", RUN, OURS.0, &name];
        let ended = spawn(&name, Place::Here, &python)?.wait(Duration::from_mins(1))?;
        ensure!(ended.code() == Some(status), "{ended}; {name}.log has more");
        Ok(())
    };
    let shown = || rig::run(Place::Here, &["ibfab", "show"]);
    let line = format!("{} behaves: {behaviour}\n", OURS.0);
    let switch = |to| rig::run(Place::Here, &["ibfab", "behave", OURS.0, behaviour, to]);
    ends("wrong", 0)?;
    ensure!(!shown()?.contains(&line), "it behaves so already");
    switch("on")?;
    ensure!(shown()?.contains(&line), "{}", shown()?);
    ends("wrong", BROKEN)?;
    ends("right", 0)?;
    switch("off")?;
    ends("wrong", 0)
}
