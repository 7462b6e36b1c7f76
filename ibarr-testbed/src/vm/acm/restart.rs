// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A server of ACM is killed while librdmacm waits for its reply.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::compare;
use crate::report::Report;
use crate::rig::{self, B, Ibarr, N, Place, Process, Rig, eventually, is_listening, spawn};

const PATIENCE: Duration = Duration::from_mins(1);

/// The name of a client's connection in systemd's store.
const CLIENT: &str = ibarr_user::transport::acm::CLIENT;

pub(super) fn prove(report: &mut Report, rig: &Rig) {
    report.claim(
        "ucmatose waits for its path while ibarr is killed, and connects with the next daemon",
        survives(rig),
    );
    report.claim("with ibacm it dies by SIGPIPE", dies(rig));
}

/// ucmatose asks twice: in `rdma_getaddrinfo` and in `rdma_resolve_route`.
fn survives(rig: &Rig) -> Result<()> {
    let mut here = Ibarr::start("here", Place::Here, super::SERVE, 1)?;
    let (client, _server) = waiting(rig, B, "10.2.0.1", || {
        ensure!(here.count("acm.requests")? == 1, "ucmatose has not asked");
        Ok(())
    })?;
    let kept = here.kept(CLIENT, 1)?;
    here.kill()?;
    rig.opensm.signal(Signal::SIGCONT)?;
    let here = Ibarr::start_with("here", super::SERVE, 1, kept)?;
    let status = client.wait(PATIENCE)?;
    ensure!(status.success(), "ucmatose: {status}");
    let asked = here.count("acm.requests")?;
    ensure!(asked == 2, "the next daemon was asked {asked} times");
    here.stop()
}

fn dies(rig: &Rig) -> Result<()> {
    let mut ibacm = compare::ibacm()?;
    let before = resolved()?;
    let (client, _server) = waiting(rig, N, "10.1.0.2", || {
        ensure!(resolved()? > before, "ucmatose has not asked");
        Ok(())
    })?;
    ibacm.kill()?;
    rig.opensm.signal(Signal::SIGCONT)?;
    let status = client.wait(PATIENCE)?;
    ensure!(status.signal() == Some(Signal::SIGPIPE as i32), "ucmatose: {status}");
    Ok(())
}

/// Starts a server at `target`, stops OpenSM, and starts a client. Its path is not remembered yet. Returns both
/// when the client waits.
fn waiting(
    rig: &Rig,
    place: Place,
    target: &str,
    waits: impl Fn() -> Result<()>,
) -> Result<(Process, Process)> {
    let server = spawn("ucmatose-restart-server", place, &["ucmatose", "-b", target])?;
    is_listening(&server)?;
    rig.opensm.signal(Signal::SIGSTOP)?;
    let client = spawn("ucmatose-restart", Place::Here, &["ucmatose", "-s", target]);
    let client = client.and_then(|client| eventually(&waits).map(|()| client));
    if client.is_err() {
        rig.opensm.signal(Signal::SIGCONT)?;
    }
    Ok((client?, server))
}

/// How many requests for paths ibacm has had.
fn resolved() -> Result<u64> {
    let said = rig::run(Place::Here, &["ib_acme", "-P"])?;
    let row = said.lines().nth(1).with_context(|| said.clone())?;
    let count = row.split(',').nth(2).with_context(|| said.clone())?;
    Ok(count.parse()?)
}
