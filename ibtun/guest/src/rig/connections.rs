// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Connections of librdmacm's own programs, from here to a server in a namespace.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::{Place, Process, eventually, run, spawn};

/// rping here reads and writes the memory of the other end, and checks the data.
pub fn rping(place: Place, target: &str) -> Result<()> {
    rping_from(Place::Here, place, target)
}

/// The same with its client elsewhere.
pub fn rping_from(client: Place, place: Place, target: &str) -> Result<()> {
    ended_well(rping_with(client, place, target)?)
}

/// The same while packets are lost. The client tells the connection's end once, and exits (in
/// drivers/infiniband/core/cm.c, destroying an identifier gives up the retries of its DREQ), so the server may
/// never hear of it.
pub fn rping_lossy(client: Place, place: Place, target: &str) -> Result<()> {
    rping_with(client, place, target)?.kill()
}

/// Returns the server when the client has ended.
fn rping_with(client: Place, place: Place, target: &str) -> Result<Process> {
    let both = ["-V", "-C", "5", "-S", "1000", "-a", target];
    let server = spawn("rping-server", place, &[&["rping", "-s"], &both[..]].concat())?;
    is_listening(&server)?;
    let client = run(client, &[&["rping", "-c", "-v"], &both[..]].concat());
    let client = client.with_context(|| server.said().unwrap_or_default())?;
    let pings = client.matches("ping data: rdma-ping-").count();
    ensure!(pings == 5, "{pings} of 5 pings: {client}");
    Ok(server)
}

/// `udaddy` (datagrams) or `ucmatose` (connections).
pub fn pair(program: &str, place: Place, target: &str) -> Result<()> {
    let server = spawn(&format!("{program}-server"), place, &[program, "-b", target])?;
    is_listening(&server)?;
    let client = run(Place::Here, &[program, "-s", target]);
    let client = client.with_context(|| server.said().unwrap_or_default())?;
    ensure!(client.contains("return status 0"), "{client}");
    ended_well(server)
}

/// A stream of rsockets, whose data is checked.
pub fn stream(place: Place, target: &str) -> Result<()> {
    let both = ["-S", "4096", "-I", "2", "-C", "10", "-T", "v"];
    let server = spawn("rstream-server", place, &[&["rstream", "-b", target], &both[..]].concat())?;
    is_listening(&server)?;
    let said = run(Place::Here, &[&["rstream", "-s", target], &both[..]].concat());
    let said = said.with_context(|| server.said().unwrap_or_default())?;
    ensure!(said.contains("4k"), "{said}");
    let status = server.wait(Duration::from_secs(30))?;
    ensure!(status.success(), "the server: {status}");
    Ok(())
}

/// A connection of rping, in use until it is closed.
pub struct Connection {
    server: Process,
    client: Process,
}

impl Connection {
    /// The connection with this number, of those that are open at once.
    pub fn open(number: usize, place: Place, target: &str) -> Result<Self> {
        let both = ["-V", "-S", "100", "-a", target];
        let words = [&["rping", "-s"], &both[..]].concat();
        let server = spawn(&format!("rping-server-{number}"), place, &words)?;
        are_listening(number + 1, &server)?;
        let words = [&["rping", "-c", "-v"], &both[..]].concat();
        let client = spawn(&format!("rping-client-{number}"), Place::Here, &words)?;
        let connection = Self { server, client };
        connection.goes_on()?;
        Ok(connection)
    }

    /// Data goes in both directions, and neither end has reported anything else.
    pub fn goes_on(&self) -> Result<()> {
        let pings = || -> Result<usize> {
            Ok(self.client.said()?.matches("ping data: rdma-ping-").count())
        };
        let before = pings()?;
        eventually(|| {
            // rping writes its output when its buffer is full.
            ensure!(pings()? > before, "no more pings: {}", self.client.said()?);
            Ok(())
        })?;
        for end in [&self.server, &self.client] {
            let said = end.said()?;
            ensure!(!said.contains("cma event"), "{said}");
        }
        Ok(())
    }

    /// The end that sends next gets no acknowledgement any more (`IBV_WC_RETRY_EXC_ERR`). The other one goes on waiting.
    pub fn breaks(mut self) -> Result<()> {
        let broken = eventually(|| {
            let said = [self.client.said()?, self.server.said()?];
            ensure!(said.iter().any(|said| said.contains("failed status 12")), "{said:?}");
            Ok(())
        });
        self.client.kill()?;
        self.server.kill()?;
        broken
    }

    /// Sends a signal to both ends.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.server.signal(signal)?;
        self.client.signal(signal)
    }

    /// Ends both, if neither has ended by itself.
    pub fn close(mut self) -> Result<()> {
        self.server.check_alive()?;
        self.client.check_alive()?;
        self.client.kill()?;
        self.server.kill()
    }
}

fn ended_well(server: Process) -> Result<()> {
    let status = server.wait(Duration::from_secs(30))?;
    ensure!(status.success(), "the server: {status}");
    Ok(())
}

/// A server of librdmacm does not report that it listens, but the kernel lists its identifiers.
pub fn is_listening(server: &Process) -> Result<()> {
    are_listening(1, server)
}

/// Waits until so many servers listen, of which `server` is the last.
fn are_listening(servers: usize, server: &Process) -> Result<()> {
    // The command lists those of all namespaces.
    let kernel = if server.place() == Place::Other { Place::Other } else { Place::Here };
    eventually(|| {
        let listed = run(kernel, &["rdma", "resource", "show", "cm_id"])?;
        // Those of the kernel's servers have no process.
        let is_server = |line: &&str| line.contains("state LISTEN") && line.contains(" pid ");
        let listening = listed.lines().filter(is_server).count();
        ensure!(listening >= servers, "{listening} listen: {listed}{}", server.said()?);
        Ok(())
    })
}
