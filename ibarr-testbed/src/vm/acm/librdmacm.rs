// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Debian's programs of librdmacm, which ask for paths before they ask the kernel.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::report::Report;
use crate::rig::{self, B, Ibarr, N, Place, is_listening, pair, rping, spawn, stream};

/// Where the servers are: what that is, the place, and its addresses, IPv4 and IPv6.
const ENDS: [(&str, Place, [&str; 2]); 2] = [
    ("next door", N, ["10.1.0.2", "fd00:1::2"]),
    ("across the router", B, ["10.2.0.1", "fd00:2::1"]),
];

/// What the daemon counts: requests of librdmacm, those that failed, and what the kernel asks for.
const COUNTERS: [&str; 5] = [
    "acm.requests",
    "acm.failed",
    "acm.no-data",
    "local-service.requests",
    "local-service.path-requests",
];

pub(super) fn prove(report: &mut Report, here: &Ibarr) {
    for (what, place, [ipv4, ipv6]) in ENDS {
        let mut af_ib = |program: &str, proof: &dyn Fn() -> Result<()>| {
            let claim = format!("{program} connects by AF_IB with our path: {what}");
            report.claim(&claim, by_af_ib(here, proof));
        };
        af_ib("rdma_client", &|| simple(["rdma_server", "rdma_client"], place, ipv4));
        af_ib("rdma_xclient", &|| without_inline_data(place, ipv4));
        af_ib("ucmatose", &|| pair("ucmatose", place, ipv4));
        af_ib("udaddy", &|| pair("udaddy", place, ipv4));
        af_ib("ucmatose, IPv6,", &|| pair("ucmatose", place, ipv6));
        let mut by_ip = |program: &str, proof: &dyn Fn() -> Result<()>| {
            let claim = format!("{program} connects by IP with our path: {what}");
            report.claim(&claim, with_our_path(here, proof));
        };
        by_ip("rping", &|| rping(place, ipv4));
        by_ip("rping, IPv6,", &|| rping(place, ipv6));
        by_ip("rstream", &|| stream(place, ipv4));
    }
}

/// Client and server, both with nothing but the address.
fn simple([server, client]: [&str; 2], place: Place, target: &str) -> Result<()> {
    let listening = spawn(server, place, &[server])?;
    is_listening(&listening)?;
    let said = rig::run(Place::Here, &[client, "-s", target]);
    let said = said.with_context(|| listening.said().unwrap_or_default())?;
    ensure!(said.contains("end 0"), "{said}");
    let status = listening.wait(Duration::from_secs(30))?;
    ensure!(status.success(), "the server: {status}");
    Ok(())
}

/// rdma_xclient sends inline data, which the software HCA does not have (rdmavt's `max_inline_data` is 0). It
/// gets so far only after it has connected.
fn without_inline_data(place: Place, target: &str) -> Result<()> {
    let listening = spawn("rdma_xserver", place, &["rdma_xserver"])?;
    is_listening(&listening)?;
    match rig::run(Place::Here, &["rdma_xclient", "-s", target]) {
        Ok(said) => bail!("it has inline data: {said}"),
        Err(error) => {
            let said = format!("{error:#}");
            ensure!(said.contains("rdma_post_send: Invalid argument"), "{said}");
            Ok(())
        }
    }
}

/// The kernel is asked neither for the address nor for the path.
fn by_af_ib(here: &Ibarr, proof: &dyn Fn() -> Result<()>) -> Result<()> {
    let [asked, failed, no_data, addresses, paths] = counted(here, proof)?;
    ensure!(
        asked > 0 && failed == 0 && no_data == 0,
        "{asked} asked, {failed} and {no_data} failed"
    );
    ensure!(
        addresses == 0 && paths == 0,
        "the kernel asked for {addresses} addresses, {paths} paths"
    );
    Ok(())
}

/// The kernel is not asked for the path.
fn with_our_path(here: &Ibarr, proof: &dyn Fn() -> Result<()>) -> Result<()> {
    let [asked, failed, no_data, _, paths] = counted(here, proof)?;
    ensure!(
        asked > 0 && failed == 0 && no_data == 0,
        "{asked} asked, {failed} and {no_data} failed"
    );
    ensure!(paths == 0, "the kernel asked for {paths} paths");
    Ok(())
}

/// How much the counters have grown meanwhile.
fn counted(here: &Ibarr, proof: &dyn Fn() -> Result<()>) -> Result<[u64; 5]> {
    let counts = || -> Result<Vec<u64>> { COUNTERS.iter().map(|name| here.count(name)).collect() };
    let before = counts()?;
    proof()?;
    let now = counts()?;
    let mut grown = [0; 5];
    for (grown, (now, before)) in grown.iter_mut().zip(now.into_iter().zip(before)) {
        *grown = now - before;
    }
    Ok(grown)
}
