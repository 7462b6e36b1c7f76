// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What `rdma resource show` and `rdma statistic` say of connections.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{End, M, M_ADDRESS, OTHER, OURS, start_pingpong};
use crate::report::Report;
use crate::rig::{self, Place, is_listening, spawn};

/// A queue pair as the kernel lists it.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) device: String,
    pub(super) number: u64,
    remote: u64,
    program: String,
    process: u64,
}

/// Kinds of objects, with those that each end of `ibv_rc_pingpong` makes.
const PINGPONG: [(&str, u64); 6] =
    [("pd", 1), ("cq", 1), ("qp", 1), ("mr", 1), ("ctx", 1), ("cm_id", 0)];

pub(super) fn prove(report: &mut Report) {
    report.claim("rdma lists the objects of a connection, and none after it", objects());
    report.claim("rdma lists shared receive queues", shared_queues());
    report.claim("rdma lists the identifiers of the connection manager", identifiers());
    report.claim("rdma shows the counters of a port", statistics());
}

/// The queue pair at this end that is connected and ready to send. Waits for it.
pub(super) fn connected(end: End<'_>) -> Result<QueuePair> {
    rig::eventually(|| list_connected(end)?.context("no connection is ready to send"))
}

fn list_connected(End(device, port): End<'_>) -> Result<Option<QueuePair>> {
    let link = format!("{device}/{port}");
    let all = rdma(&["resource", "show", "qp", "link", &link])?;
    let rows = all.as_array().context("no list")?;
    let is_it = |row: &&Value| row["type"] == "RC" && row["state"] == "RTS";
    let row = rows.iter().rfind(is_it);
    let number = |row: &Value, name: &str| row[name].as_u64().with_context(|| row.to_string());
    row.map(|row| {
        Ok(QueuePair {
            device: device.to_owned(),
            number: number(row, "lqpn")?,
            remote: number(row, "rqpn")?,
            program: row["comm"].as_str().unwrap_or_default().to_owned(),
            process: number(row, "pid")?,
        })
    })
    .transpose()
}

fn rdma(words: &[&str]) -> Result<Value> {
    let said = rig::run(Place::Here, &[&["rdma", "-j"], words].concat())?;
    serde_json::from_str(&said).with_context(|| format!("{words:?}: {said}"))
}

/// How many objects of each kind the device has.
pub(super) fn summary(device: &str, kinds: &[&str]) -> Result<Vec<u64>> {
    let all = rdma(&["resource", "show"])?;
    let rows = all.as_array().context("no list")?;
    let row = rows.iter().find(|row| row["ifname"] == device).context("no device")?;
    kinds
        .iter()
        .map(|&kind| row[kind].as_u64().with_context(|| format!("no {kind}: {row}")))
        .collect()
}

fn objects() -> Result<()> {
    let kinds = PINGPONG.map(|(kind, _)| kind);
    let now = || -> Result<_> { Ok([summary(OURS.0, &kinds)?, summary(OTHER.0, &kinds)?]) };
    let before = now()?;
    let options = ["-s", "100", "-n", "1000000"];
    let (mut server, words) = start_pingpong("ibv_rc_pingpong", OTHER, OURS, &options)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut client = spawn("ibv_rc_pingpong-listed", Place::Here, &words)?;
    let (ours, other) = (connected(OURS)?, connected(OTHER)?);
    ensure!(
        (ours.number, ours.remote) == (other.remote, other.number),
        "{ours:?} is not connected to {other:?}"
    );
    for (qp, process) in [(&ours, &client), (&other, &server)] {
        let is_it = qp.program == "ibv_rc_pingpong" && qp.process == u64::from(process.id());
        ensure!(is_it, "{qp:?} is of process {}", process.id());
    }
    let regions = rdma(&["resource", "show", "mr", "dev", OURS.0])?;
    let is_it = |row: &Value| row["pid"] == ours.process && row["mrlen"] == 100;
    ensure!(regions.as_array().is_some_and(|all| all.iter().any(is_it)), "{regions}");

    for (before, during) in before.iter().zip(now()?) {
        for (((kind, own), before), during) in PINGPONG.iter().zip(before).zip(during) {
            ensure!(during == before + own, "{kind}: {before} before, {during} during");
        }
    }
    client.kill()?;
    server.kill()?;
    let after = now()?;
    ensure!(after == before, "{kinds:?}: {before:?} before, {after:?} after");
    Ok(())
}

fn shared_queues() -> Result<()> {
    let list = || rdma(&["resource", "show", "srq", "dev", OURS.0]);
    let options = ["-q", "4", "-n", "1000000"];
    let (mut server, words) = start_pingpong("ibv_srq_pingpong", OTHER, OURS, &options)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut client = spawn("ibv_srq_pingpong-listed", Place::Here, &words)?;
    let process = connected(OURS)?.process;
    let all = list()?;
    ensure!(all.as_array().is_some_and(|all| all.iter().any(|row| row["pid"] == process)), "{all}");
    client.kill()?;
    server.kill()
}

fn identifiers() -> Result<()> {
    let now = || -> Result<_> {
        let of = |end: End<'_>| summary(end.0, &["cm_id", "qp"]);
        Ok([of(OURS)?, of(OTHER)?])
    };
    let before = now()?;
    let both = ["-C", "1000000", "-S", "100", "-a", M_ADDRESS];
    let mut server = spawn("rping-listed", M, &[&["rping", "-s"], &both[..]].concat())?;
    is_listening(&server)?;
    let mut client = spawn("rping-client", Place::Here, &[&["rping", "-c"], &both[..]].concat())?;
    connected(OURS)?;
    connected(OTHER)?;
    let during = now()?;
    // The server has one that listens, too.
    let grown = before.iter().flatten().zip([1, 1, 2, 1]).map(|(before, own)| before + own);
    ensure!(during.iter().flatten().copied().eq(grown), "{before:?} before, {during:?} during");
    let all = rdma(&["resource", "show", "cm_id", "link", "ibtun0/1"])?;
    let is_it = |row: &Value| row["state"] == "CONNECT" && row["pid"] == client.id();
    ensure!(all.as_array().is_some_and(|all| all.iter().any(is_it)), "{all}");
    client.kill()?;
    server.kill()?;
    rig::eventually(|| {
        let after = now()?;
        ensure!(after == before, "{before:?} before, {after:?} after");
        Ok(())
    })
}

fn statistics() -> Result<()> {
    let names = ["rc_sequence_naks", "rx_duplicates", "fault_duplicates", "rc_time_outs"];
    let all = rdma(&["statistic", "show", "link", "ibtun0/1"])?;
    let row = all.get(0).context("no port")?;
    for name in names {
        let value = row[name].as_u64().with_context(|| format!("no {name}: {all}"))?;
        ensure!(value == OURS.count(name)?, "{name} is {value}");
    }
    let before = row["tx_packets"].as_u64().context("no tx_packets")?;
    super::pingpong("ibv_rc_pingpong", [OTHER, OURS], &["-e", "-s", "100", "-n", "300"])?;
    let after = rdma(&["statistic", "show", "link", "ibtun0/1"])?;
    let after = after[0]["tx_packets"].as_u64().context("no tx_packets")?;
    // A request and an acknowledge for each message, and little of IPoIB and the connection manager.
    ensure!((600..800).contains(&(after - before)), "{before} before, {after} after");
    Ok(())
}
