// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Connections of librdmacm's own programs, from here to a server in some namespace.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{Place, Process, eventually, run, spawn};

/// rping reads and writes the other's memory, and checks what it finds there.
pub(crate) fn rping(place: Place, target: &str) -> Result<()> {
    let both = ["-V", "-C", "5", "-S", "1000", "-a", target];
    let server = spawn("rping-server", place, &[&["rping", "-s"], &both[..]].concat())?;
    is_listening(&server)?;
    let client = run(Place::Here, &[&["rping", "-c", "-v"], &both[..]].concat());
    let client = client.with_context(|| server.said().unwrap_or_default())?;
    let pings = client.matches("ping data: rdma-ping-").count();
    ensure!(pings == 5, "{pings} of 5 pings: {client}");
    ended_well(server)
}

/// `udaddy` (datagrams) or `ucmatose` (connections).
pub(crate) fn pair(program: &str, place: Place, target: &str) -> Result<()> {
    let server = spawn(&format!("{program}-server"), place, &[program, "-b", target])?;
    is_listening(&server)?;
    let client = run(Place::Here, &[program, "-s", target]);
    let client = client.with_context(|| server.said().unwrap_or_default())?;
    ensure!(client.contains("return status 0"), "{client}");
    ended_well(server)
}

fn ended_well(server: Process) -> Result<()> {
    let status = server.wait(Duration::from_secs(30))?;
    ensure!(status.success(), "the server: {status}");
    Ok(())
}

/// A server of librdmacm's says nothing when it listens; the kernel's list of its identifiers does.
fn is_listening(server: &Process) -> Result<()> {
    eventually(|| {
        let listed = run(Place::Here, &["rdma", "resource", "show", "cm_id"])?;
        ensure!(listed.contains("state LISTEN"), "nobody listens: {listed}{}", server.said()?);
        Ok(())
    })
}
