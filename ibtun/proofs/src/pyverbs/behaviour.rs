// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the specification allows and few HCAs do: it breaks a program that relies on more, and no other.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::report::Report;
use crate::rig::{self, Place};
use crate::wire::OURS;

const RUN: &str = "/run/behave.py";
const BEHAVIOURS: [&str; 3] = ["fields", "numbers", "srq-order"];

pub(super) fn prove(report: &mut Report) {
    report.claim("wrong programs work with most HCAs", unpack().and_then(|()| all_work()));
    for behaviour in BEHAVIOURS {
        report.claim(&format!("{behaviour}: the wrong program is broken"), breaks(behaviour));
    }
    report.claim("wrong programs work again", all_work());
}

fn unpack() -> Result<()> {
    fs::write(RUN, include_str!("behave.py")).context(RUN)
}

/// Runs programs one after another. Returns what they say.
fn outcomes(programs: &[String]) -> Result<Vec<String>> {
    let python = ["busybox", "env", "PYTHONHOME=/usr", "python3.11", RUN, OURS.0];
    let programs: Vec<_> = programs.iter().map(String::as_str).collect();
    let said = rig::run(Place::Here, &[&python[..], &programs].concat())?;
    Ok(said.lines().map(str::to_owned).collect())
}

fn all_work() -> Result<()> {
    let wrong = BEHAVIOURS.map(|behaviour| format!("{behaviour}-wrong"));
    let expected = wrong.clone().map(|program| format!("{program} works"));
    let outcomes = outcomes(&wrong)?;
    ensure!(outcomes == expected, "{outcomes:?}");
    Ok(())
}

fn breaks(behaviour: &str) -> Result<()> {
    let shown = || rig::run(Place::Here, &["ibfab", "show"]);
    let line = format!("{} behaves: {behaviour}\n", OURS.0);
    let switch = |to| rig::run(Place::Here, &["ibfab", "behave", OURS.0, behaviour, to]);
    ensure!(!shown()?.contains(&line), "it behaves so already");
    switch("on")?;
    ensure!(shown()?.contains(&line), "{}", shown()?);
    let [wrong, right] = ["wrong", "right"].map(|kind| format!("{behaviour}-{kind}"));
    let expected = [format!("{wrong} is broken"), format!("{right} works")];
    let outcomes = outcomes(&[wrong, right])?;
    ensure!(outcomes == expected, "{outcomes:?}");
    switch("off").map(drop)
}
