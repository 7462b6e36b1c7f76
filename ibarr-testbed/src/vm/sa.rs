// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run c`: `ibarr` between a stock kernel and a stock OpenSM, over the kernel's own umad devices, on
//! a subnet of software HCAs.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::report::Report;
use crate::rig::{self, Place, Process, Rig, spawn};

/// Nobody's, and one that has not been asked for.
const NOBODY: [&str; 2] = ["fe80::dead:beef", "fe80::dead:beee"];

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up()) {
        prove(&mut report, &rig);
    }
    report.end()
}

fn prove(report: &mut Report, rig: &Rig) {
    let started = start();
    let Some(ibarr) = report.claim("ibarr finds the ports and their SA", started) else { return };
    let mut claim = |claim: &str, proof: Result<()>| report.claim(claim, proof).is_some();
    claim("a path is what OpenSM says, and remembered", path());
    claim("no path is no path", no_path(NOBODY[0], "no-record"));
    claim("the kernel takes ibarr's paths: IPoIB finds its neighbours", ipoib());
    claim("a stopped OpenSM is a silent one", silence(rig));
    claim("ibarr ends when it is asked to", end(ibarr));
}

fn start() -> Result<Process> {
    let ibarr = spawn("ibarr", Place::Here, &["ibarr", "run", "-l", "0"])?;
    rig::eventually(|| {
        let ports = rig::run(Place::Here, &["ibarr", "ports", "--json"])?;
        ensure!(ports.contains("\"port\":\"ibtun0/1\""), "no port: {ports}");
        ensure!(!ports.contains("blocked"), "{ports}");
        Ok(())
    })?;
    Ok(ibarr)
}

/// From the first port to the second.
fn path() -> Result<()> {
    let dgid = text("/sys/class/infiniband/ibtun0/ports/2/gids/0")?;
    let lid = |port: u8| -> Result<u16> {
        let lid = text(&format!("/sys/class/infiniband/ibtun0/ports/{port}/lid"))?;
        Ok(u16::from_str_radix(lid.trim_start_matches("0x"), 16)?)
    };
    let said = rig::run(Place::Here, &["ibarr", "path", &dgid, "--port", "ibtun0/1", "--json"])?;
    for expected in [
        "\"status\":\"found\"",
        &format!("\"slid\":{},\"dlid\":{}", lid(1)?, lid(2)?),
        "\"source\":\"sa\"",
    ] {
        ensure!(said.contains(expected), "no {expected} in {said}");
    }
    let said = rig::run(Place::Here, &["ibarr", "path", &dgid, "--port", "ibtun0/1", "--json"])?;
    ensure!(said.contains("\"source\":\"cache\""), "{said}");
    let lids = format!("{}:{}", lid(1)?, lid(2)?);
    let saquery = rig::run(Place::Here, &["saquery", "--src-to-dst", &lids])?;
    let expected = format!("dlid....................{}", lid(2)?);
    ensure!(saquery.contains(&expected), "{saquery}");
    Ok(())
}

fn no_path(dgid: &str, status: &str) -> Result<()> {
    // Its exit status says that there is no path.
    let command = format!("ibarr path {dgid} --json || true");
    let said = rig::run(Place::Here, &["busybox", "sh", "-c", &command])?;
    ensure!(said.contains(&format!("\"status\":\"{status}\"")), "{said}");
    Ok(())
}

fn ipoib() -> Result<()> {
    let before = counter("local-service.paths-answered")?;
    // What IPoIB knows already it does not ask for.
    rig::ip(Place::Here, "link set ib0 down")?;
    rig::ip(Place::Here, "link set ib0 up")?;
    rig::run(Place::Here, &["ping", "-n", "-c", "3", "-W", "20", "10.1.0.254"])?;
    let after = counter("local-service.paths-answered")?;
    ensure!(after > before, "the kernel was given no path: {before}, {after}");
    Ok(())
}

fn silence(rig: &Rig) -> Result<()> {
    rig.opensm.signal(Signal::SIGSTOP)?;
    let outcome = no_path(NOBODY[1], "silent");
    rig.opensm.signal(Signal::SIGCONT)?;
    outcome
}

fn end(ibarr: Process) -> Result<()> {
    let said = rig::run(Place::Here, &["ibarr", "counters"])?;
    let counted = said.lines().filter(|line| !line.ends_with(" 0"));
    Report::note(counted.collect::<Vec<_>>().join("; "));
    let status = ibarr.stop()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

fn counter(name: &str) -> Result<u64> {
    let said = rig::run(Place::Here, &["ibarr", "counters"])?;
    let line = said.lines().find(|line| line.starts_with(&format!("{name} ")));
    let count = line.and_then(|line| line.split_whitespace().last());
    Ok(count.with_context(|| format!("no counter {name} in {said}"))?.parse()?)
}

fn text(file: &str) -> Result<String> {
    Ok(fs::read_to_string(file).context(file.to_owned())?.trim().to_owned())
}
