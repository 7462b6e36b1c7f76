// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! UCX and libfabric, through which MPI and others use verbs. Each with connections alone, from one HCA to another.

use anyhow::{Context as _, Result, ensure};

use crate::report::Report;
use crate::rig::verbs::listens;
use crate::rig::{self, PATIENCE, Place, Process, is_listening, spawn};
use crate::wire::{self, End, M, M_ADDRESS, OTHER, OURS};

/// `rc` has UD beside RC, by which both ends of a connection find each other.
const UCX: [&str; 5] = [
    "busybox",
    "env",
    "UCX_TLS=rc",
    "UCX_MODULE_DIR=/usr/lib/x86_64-linux-gnu/ucx",
    "UCX_LOG_LEVEL=info",
];

/// Tests of `ucx_perftest`: each way of UCX to send, with a size below and one above that of a packet.
const UCX_TESTS: [(&str, &str); 8] = [
    ("tag_lat", "100"),
    ("tag_bw", "300000"),
    ("ucp_am_bw", "20000"),
    ("stream_bw", "20000"),
    ("ucp_put_bw", "300000"),
    ("ucp_get", "300000"),
    ("ucp_fadd", "8"),
    ("ucp_cswap", "8"),
];

/// What UCX says of the transport that it has chosen.
const RC: &str = "rc_verbs/ibtun0:1";

pub(crate) fn prove(report: &mut Report) {
    if report.claim("the other HCA has an interface", wire::other_host()).is_none() {
        return;
    }
    for (test, size) in UCX_TESTS {
        let claim = format!("UCX: {test} of {size} bytes runs over RC");
        report.claim(&claim, ucx_perftest(test, size));
    }
    report.claim("UCX: io_demo's data is right, connected by rdma_cm", io_demo());
    for (size, times) in [("100", "20"), ("300000", "20"), ("all", "2")] {
        let claim = format!("libfabric: fi_pingpong's {size} bytes are right over RC");
        report.claim(&claim, fi_pingpong(size, times));
    }
    report.claim("without loss nothing was sent twice", wire::nothing_lost());
}

/// A program with UCX, on this HCA alone.
fn with_ucx<'a>(device: &'a str, words: &[&'a str]) -> Vec<&'a str> {
    [&UCX[..], &[device], words].concat()
}

fn devices() -> [String; 2] {
    [OTHER, OURS].map(|End(device, port)| format!("UCX_NET_DEVICES={device}:{port}"))
}

fn ucx_perftest(test: &str, size: &str) -> Result<()> {
    let [there, here] = devices();
    let both = ["ucx_perftest", "-t", test, "-s", size, "-n", "20", "-w", "5"];
    let server = spawn("ucx_perftest", Place::Here, &with_ucx(&there, &both))?;
    listens(&server, 13_337)?;
    let client = with_ucx(&here, &[&both[..], &["127.0.0.1"]].concat());
    let said = ends_well(server, &client)?;
    ensure!(said.contains(RC) && said.contains("Final:"), "{said}");
    Ok(())
}

fn io_demo() -> Result<()> {
    let [there, here] = devices();
    let both = ["UCX_SOCKADDR_TLS_PRIORITY=rdmacm", "io_demo", "-q", "-d", "1:300000"];
    let server = spawn("io_demo", M, &with_ucx(&there, &both))?;
    is_listening(&server)?;
    let options = ["-i", "50", "-o", "read,write", M_ADDRESS];
    let client = with_ucx(&here, &[&both[..], &options].concat());
    let said = rig::run(Place::Here, &client).with_context(|| server.said().unwrap_or_default())?;
    ensure!(said.contains(RC), "{said}");
    Ok(())
}

fn fi_pingpong(size: &str, times: &str) -> Result<()> {
    let words = ["fi_pingpong", "-p", "verbs", "-e", "msg", "-c", "-I", times, "-S", size];
    let pingpong = [&words[..], &["-d"]].concat();
    // A server that names no HCA takes the first, and refuses callers at the other.
    let [there, here] = [OTHER, OURS].map(|end| [&pingpong[..], &[end.0]].concat());
    let server = spawn("fi_pingpong", M, &there)?;
    listens(&server, 47_592)?;
    let said = ends_well(server, &[&here[..], &[M_ADDRESS]].concat())?;
    ensure!(said.contains(&format!("={times}")), "{said}");
    Ok(())
}

/// Runs the client here, and returns what it says.
fn ends_well(server: Process, client: &[&str]) -> Result<String> {
    let said = rig::run(Place::Here, client);
    let said = said.with_context(|| server.said().unwrap_or_default())?;
    let status = server.wait(PATIENCE)?;
    ensure!(status.success(), "the server: {status}");
    Ok(said)
}
