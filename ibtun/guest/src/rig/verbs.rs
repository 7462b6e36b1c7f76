// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Connections of programs that exchange their addresses over TCP: libibverbs' examples, and perftest.

use std::process::ExitStatus;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::{PATIENCE, Place, Process, eventually, is_listening, run, spawn};

/// One end of a connection: a port of an HCA.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Where its program runs.
    pub place: Place,
    /// The name of the HCA.
    pub device: &'a str,
    /// Its number, from 1.
    pub port: &'a str,
}

/// One of libibverbs' examples, whose server is at the IP address `target`. If `options` has `-c`, both check
/// what they receive.
pub fn pingpong(program: &str, ends: [End<'_>; 2], target: &str, options: &[&str]) -> Result<()> {
    both_end_well(program, ends, target, options, " iters in ").map(drop)
}

/// The same while packets are lost. The end whose last acknowledge is lost fails: its peer has gone, and does not
/// send it again. The other one has received all, and has heard that all it sent was received.
pub fn pingpong_lossy(
    program: &str,
    [server, client]: [End<'_>; 2],
    target: &str,
    options: &[&str],
) -> Result<()> {
    let (listening, words) = start(program, server, client, target, options)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let client = spawn(&format!("{program}-client"), client.place, &words)?;
    let ended = [client.wait(PATIENCE), listening.wait(PATIENCE)];
    ensure!(ended.iter().flatten().any(ExitStatus::success), "{ended:?}");
    Ok(())
}

/// One of perftest's programs, which measure and do not check. Returns what the client says.
///
/// With `-R` they make two connections. The server listens for the second when it has the first, and a client
/// that is faster is rejected, as for a service that does not exist. Then they are started again.
pub fn perftest(
    program: &str,
    ends: [End<'_>; 2],
    target: &str,
    options: &[&str],
) -> Result<String> {
    const REJECTED: &str = "RDMA_CM_EVENT_REJECTED; error: 8";
    let options = [&["-F"], options].concat();
    let mut outcome = Ok(String::new());
    for _ in 0..5 {
        outcome = both_end_well(program, ends, target, &options, "#bytes");
        if !outcome.as_ref().is_err_and(|error| format!("{error:#}").contains(REJECTED)) {
            break;
        }
    }
    outcome
}

/// Returns what the client says.
fn both_end_well(
    program: &str,
    [server, client]: [End<'_>; 2],
    target: &str,
    options: &[&str],
    says: &str,
) -> Result<String> {
    let (listening, words) = start(program, server, client, target, options)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let said = run(client.place, &words);
    let said = said.with_context(|| listening.said().unwrap_or_default())?;
    ensure!(said.contains(says), "{said}");
    let status = listening.wait(Duration::from_secs(30))?;
    ensure!(status.success(), "the server: {status}");
    Ok(said)
}

/// Starts the server, and returns it with the command of its client.
pub fn start(
    program: &str,
    server: End<'_>,
    client: End<'_>,
    target: &str,
    options: &[&str],
) -> Result<(Process, Vec<String>)> {
    static PORT: AtomicU16 = AtomicU16::new(18_600);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let words = |end: End<'_>, last: &[&str]| -> Vec<String> {
        let own = [program, "-d", end.device, "-i", end.port, "-p"].map(str::to_owned);
        let number = std::iter::once(port.to_string());
        let rest = options.iter().chain(last).map(|&word| word.to_owned());
        own.into_iter().chain(number).chain(rest).collect()
    };
    let command = words(server, &[]);
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    let process = spawn(&format!("{program}-server"), server.place, &command)?;
    // Then it listens with the connection manager.
    if options.contains(&"-R") {
        is_listening(&process)?;
        return Ok((process, words(client, &[target])));
    }
    listens(&process, port)?;
    Ok((process, words(client, &[target])))
}

/// Waits until a program listens at a TCP port.
pub fn listens(server: &Process, port: u16) -> Result<()> {
    let local = format!(":{port:04X} ");
    eventually(|| {
        let tables = ["busybox", "cat", "/proc/net/tcp", "/proc/net/tcp6"];
        let sockets = run(server.place(), &tables)?;
        if !sockets.lines().any(|line| line.contains(&local) && line.contains(" 0A ")) {
            bail!("nothing listens: {}", server.said()?);
        }
        Ok(())
    })
}
