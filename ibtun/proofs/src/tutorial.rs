// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run tutorial`: the commands of `ibtun/README.md`, as they stand there. The guest has the files of the
//! packages already, and its init has loaded the modules.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use crate::report::Report;
use crate::rig::{self, Place};

const README: &str = include_str!("../../README.md");

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(commands) = report.claim("the README has five commands", commands()) {
        let [_, modprobe, fabric, opensm, pingpong] = commands;
        report.claim("the modules that it names are loaded", are_loaded(modprobe));
        report.claim(
            "its fabric makes two HCAs",
            typed(fabric).and_then(|_| hcas("1: DOWN", "2: INIT")),
        );
        report.claim(
            "its subnet manager brings them up",
            typed(opensm).and_then(|_| hcas("4: ACTIVE", "")),
        );
        report.claim("its pingpong connects the HCAs", connects(pingpong));
    }
    report.end()
}

/// The lines of the first block after the heading.
fn commands() -> Result<[&'static str; 5]> {
    let (_, section) = README.split_once("in five commands\n").context("no heading")?;
    let (_, block) = section.split_once("```sh\n").context("no block")?;
    let (block, _) = block.split_once("```").context("a block without end")?;
    let lines: Vec<_> = block.lines().collect();
    lines.try_into().ok().context("another number of commands")
}

fn typed(command: &str) -> Result<String> {
    rig::run(Place::Here, &["busybox", "sh", "-c", command])
}

fn are_loaded(modprobe: &str) -> Result<()> {
    let names = modprobe.strip_prefix("modprobe -a ").context("another command")?;
    for name in names.split(' ') {
        ensure!(Path::new("/sys/module").join(name).exists(), "{name} is not loaded");
    }
    Ok(())
}

/// Waits until the ports of both HCAs are in one of the states.
fn hcas(state: &str, or: &str) -> Result<()> {
    rig::eventually(|| {
        for name in ["ibtun0", "ibtun1"] {
            let file = format!("/sys/class/infiniband/{name}/ports/1/state");
            let found = fs::read_to_string(&file).context(file)?;
            let found = found.trim();
            ensure!(found == state || found == or, "{name} is {found}");
        }
        Ok(())
    })
}

fn connects(pingpong: &str) -> Result<()> {
    rig::ip(Place::Here, "link set lo up")?;
    // The server may need longer than the second of the command.
    let said = rig::eventually(|| typed(pingpong))?;
    ensure!(said.contains("8192000 bytes in "), "{said}");
    let sent = fs::read_to_string("/sys/class/infiniband/ibtun1/ports/1/hw_counters/tx_packets")?;
    ensure!(sent.trim().parse::<u64>()? > 1000, "{sent} packets crossed the fabric");
    Ok(())
}
