// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the specification allows and few HCAs do: it breaks a program that relies on more, and no other. And what the
//! kernel warns of, and refuses if it is told to.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::kernel_log;
use crate::report::Report;
use crate::rig::{self, Place};
use crate::wire::OURS;

const RUN: &str = "/run/behave.py";
const MANNER_ERR: &str = "/sys/module/ibtun/parameters/manner_err";
/// What is said of the wrong programs of that name.
const WIDE_PSN: &str = "sq_psn overflow, masking to 24 bits";
const RESET: &str = "it is reset before its work is complete";
const BEHAVIOURS: [&str; 3] = ["fields", "numbers", "srq-order"];

pub(super) fn prove(report: &mut Report) {
    report.claim("wrong programs work with most HCAs", unpack().and_then(|()| all_work()));
    for behaviour in BEHAVIOURS {
        report.claim(&format!("{behaviour}: the wrong program is broken"), breaks(behaviour));
    }
    report.claim("wrong programs work again", all_work());
    report.claim("what the kernel warns of is refused, if wanted", refused());
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

fn refused() -> Result<()> {
    let expect = |programs: &[&str], how: &str| -> Result<()> {
        let programs: Vec<_> = programs.iter().map(|&program| program.to_owned()).collect();
        let outcomes = outcomes(&programs)?;
        let expected: Vec<_> = programs.iter().map(|program| format!("{program} {how}")).collect();
        ensure!(outcomes == expected, "{outcomes:?}");
        Ok(())
    };
    let warnings = |text: &str| -> Result<usize> {
        Ok(kernel_log::lines()?.iter().filter(|line| line.contains(text)).count())
    };
    let before = warnings(WIDE_PSN)?;
    expect(&["psn-right", "reset-right"], "works")?;
    ensure!(warnings(RESET)? == 0 && warnings(WIDE_PSN)? == before, "right programs are warned of");
    expect(&["psn-wrong", "reset-wrong"], "works")?;
    ensure!(warnings(RESET)? == 1, "no warning of the reset");
    ensure!(warnings(WIDE_PSN)? == before + 1, "no warning of the PSN");
    fs::write(MANNER_ERR, "Y").context(MANNER_ERR)?;
    let strict = expect(&["reset-wrong", "time-out-wrong"], "is broken");
    let strict = strict.and_then(|()| expect(&["reset-right", "time-out-right"], "works"));
    fs::write(MANNER_ERR, "N").context(MANNER_ERR)?;
    strict
}
