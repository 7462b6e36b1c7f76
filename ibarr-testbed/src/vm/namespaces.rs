// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run p`: HCAs belong to network namespaces (`rdma system set netns exclusive`), and one is moved to a namespace
//! and back while daemons use it.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ibarr_common::ib::Gid;
use ibarr_proto::paths::Partial;
use ibarr_user::control::messages::Request;
use serde_json::Value;

use crate::join::FAR_V4;
use crate::report::Report;
use crate::rig::{
    self, B, Caller, INTERFACES, Ibarr, N, Place, Rig, eventually, inside, ip, query,
};
use crate::sys::rdma_cm::EventKind;

/// The namespace to which the HCA of all nodes is moved.
const POD: Place = Place::Netns("pod");
/// The address of the first interface, here and in the pod, and that of its neighbour.
const OWN: &str = "10.1.0.1";
const NEAR: &str = "10.1.0.2";

const MOVABLE: &str = "/sys/module/ibtun/parameters/movable";
/// The time-out of a caller that gets no answer, and how long a peer is waited for.
const SHORT: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(10);

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    // The kernel refuses this once there is another namespace.
    let exclusive = rig::run(Place::Here, &["rdma", "system", "set", "netns", "exclusive"]);
    let exclusive = exclusive.and_then(|_| fs::write(MOVABLE, "Y").context(MOVABLE));
    report.claim("each HCA is to belong to one namespace", exclusive);
    if let Some(rig) = report.claim("the rig stands", Rig::up_without_capture()) {
        prove(&mut report);
        drop(rig);
    }
    report.end()
}

/// In the scenario of `vm run b`, where all namespaces share all HCAs.
pub(crate) fn prove_shared(report: &mut Report, here: &Ibarr, there: &Ibarr) {
    report.claim("a program in a namespace connects by the router that is here, too", resolves(N));
    let claim = "it gets no own address of this machine, which is another node's there";
    report.claim(claim, own_address_is_not_told(here));
    let claim = "a daemon in a namespace names no fault, and asks the subnet administrator";
    report.claim(claim, query(N, FAR_V4, LONG).and_then(|gid| asks_administrator(there, gid)));
}

fn prove(report: &mut Report) {
    let here = report.claim("ibarr runs here", Ibarr::start("here", Place::Here, "", 1));
    let there = report.claim("so it does behind the router", Ibarr::start("b", B, "", 1));
    let (Some(here), Some(there)) = (here, there) else { return };
    report.claim("a program here connects across the router", resolves(Place::Here));
    let claim =
        "a program without the HCA gets no address, and the daemon has answered for a router here";
    report.claim(claim, without_hca(&here));
    let claim = "a daemon without the HCA answers peers, names no fault, and has no port";
    report.claim(claim, answers_without_hca(&there));
    report.claim(
        "the HCA is moved away: its ports are gone, without a fault of them",
        moves_away(&here),
    );
    let claim = "a daemon beside it answers peers, hears events and asks the subnet administrator";
    let pod = report.claim(claim, beside_hca());
    report.claim("a program beside it gets no address across the router", unanswered(&here));
    report.claim(
        "it gets its neighbour's, and its path from the kernel's own question",
        neighbour(&here),
    );
    let Some(pod) = pod else { return };
    let back = pod.stop().and_then(|()| comes_back(&here));
    report.claim("the namespace ends: the HCA is back, and the daemon here uses it", back);
    report.claim("both daemons are still there", here.stop().and_then(|()| there.stop()));
}

/// Address and path across the router, from the daemon here.
fn resolves(place: Place) -> Result<()> {
    inside(place, || Caller::patient()?.path_to(FAR_V4).map(drop))
}

/// How `rdma_resolve_addr` ends, if it fails.
fn refused(place: Place, target: &str) -> Result<i32> {
    inside(place, || {
        let caller = Caller::new(SHORT)?;
        caller.start(target)?;
        let (_, status) = caller.end(EventKind::AddrResolved, EventKind::AddrError)?;
        if status == 0 {
            bail!("{target} is resolved")
        }
        Ok(status)
    })
}

fn without_hca(here: &Ibarr) -> Result<()> {
    let before = here.count("local-service.requests")?;
    let status = refused(N, FAR_V4)?;
    // The GID is right, and the kernel has no HCA for it (`cma_validate_port`).
    ensure!(status == -nix::libc::ENODEV, "it ends with {status}");
    ensure!(here.count("local-service.requests")? > before, "the daemon was not asked");
    Ok(())
}

fn answers_without_hca(there: &Ibarr) -> Result<()> {
    eventually(|| {
        let (causes, status) = causes(there)?;
        ensure!(causes.is_empty() && is_empty(&status["ports"]), "{causes:?}: {status}");
        Ok(())
    })?;
    let gid = query(Place::Here, FAR_V4, LONG)?.context("no answer")?;
    ensure!(there.count("bpf.tc.answered")? > 0, "not by BPF: {gid}");
    Ok(())
}

fn moves_away(here: &Ibarr) -> Result<()> {
    ip(Place::Here, "netns add pod")?;
    ip(POD, "link set lo up")?;
    rig::run(Place::Here, &["rdma", "dev", "set", "ibtun0", "netns", "pod"])?;
    eventually(|| {
        let (causes, status) = causes(here)?;
        ensure!(!status["ports"].to_string().contains("ibtun0"), "{status}");
        // Its interface lost its address with the HCA.
        ensure!(causes.iter().all(|cause| cause == "no-gid"), "{causes:?}: {status}");
        Ok(())
    })
}

fn beside_hca() -> Result<Ibarr> {
    // IPoIB begins anew, in the first namespace.
    eventually(|| ip(Place::Here, "link show ib4").map(drop))?;
    for (name, place) in [("ib0", "pod"), ("ib4", "n")] {
        ip(Place::Here, &format!("link set {name} netns {place}"))?;
    }
    rig::set_up(POD, "ib0", INTERFACES[0].addresses)?;
    rig::equip(&INTERFACES[4], "ib4")?;
    ip(POD, "route replace 10.2.0.0/24 via 10.1.0.254")?;
    rig::is_up(POD, "ib0")?;
    rig::is_up(N, "ib4")?;
    let pod = Ibarr::start("pod", POD, "", 1)?;
    let gid = eventually(|| query(N, OWN, LONG)?.context("no answer"))?;
    ensure!(pod.count("bpf.tc.answered")? > 0, "not by BPF");
    asks_administrator(&pod, Some(gid))?;
    Ok(pod)
}

fn asks_administrator(daemon: &Ibarr, gid: Option<Gid>) -> Result<()> {
    let dgid = gid.context("no answer")?;
    let path = Partial { dgid, sgid: None, port: None, pkey: None, fresh: true };
    eventually(|| {
        let answer = daemon.ask(&Request::Path { path })?;
        ensure!(answer["path"]["status"] == "found", "{answer}");
        let (causes, status) = causes(daemon)?;
        ensure!(causes.is_empty(), "{causes:?}: {status}");
        Ok(())
    })
}

/// The route there leads to a router, behind which another node has the address.
fn own_address_is_not_told(here: &Ibarr) -> Result<()> {
    let before = here.count("local-service.requests")?;
    ip(Place::Here, "address add 10.3.0.1/32 dev ib0")?;
    ip(N, "route add 10.3.0.0/24 via 10.1.0.254")?;
    eventually(|| {
        let status = here.ask(&Request::Status)?;
        ensure!(status.to_string().contains("10.3.0.1"), "{status}");
        Ok(())
    })?;
    let status = refused(N, "10.3.0.1")?;
    ensure!(status == -nix::libc::ETIMEDOUT, "it ends with {status}");
    ensure!(here.count("local-service.requests")? > before, "the daemon was not asked");
    ip(Place::Here, "address del 10.3.0.1/32 dev ib0")?;
    ip(N, "route del 10.3.0.0/24").map(drop)
}

/// The kernel asks the daemon here, which has no way to the router any more.
fn unanswered(here: &Ibarr) -> Result<()> {
    let before = here.count("local-service.requests")?;
    let status = refused(POD, FAR_V4)?;
    ensure!(status == -nix::libc::ETIMEDOUT, "it ends with {status}");
    ensure!(here.count("local-service.requests")? > before, "the daemon was not asked");
    Ok(())
}

fn neighbour(here: &Ibarr) -> Result<()> {
    let unknown = || here.count("local-service.paths-unknown");
    let before = unknown()?;
    inside(POD, || Caller::patient()?.path_to(NEAR).map(drop))?;
    ensure!(unknown()? > before, "the daemon here did not leave the path to the kernel");
    Ok(())
}

fn comes_back(here: &Ibarr) -> Result<()> {
    ip(Place::Here, "netns delete pod")?;
    eventually(|| ip(Place::Here, "link show ib4").map(drop))?;
    Rig::distribute()?;
    Rig::wire()?;
    eventually(|| {
        let (causes, status) = causes(here)?;
        ensure!(causes.is_empty(), "{causes:?}: {status}");
        Ok(())
    })?;
    let unknown = here.count("local-service.paths-unknown")?;
    resolves(Place::Here)?;
    ensure!(here.count("local-service.paths-unknown")? == unknown, "not by the daemon");
    Ok(())
}

/// The causes of all reasons of its health, and its status.
fn causes(daemon: &Ibarr) -> Result<(Vec<String>, Value)> {
    let mut status = daemon.ask(&Request::Status)?["status"].take();
    let health = status["health"].as_array().context("no health")?;
    let reasons = health.iter().filter_map(|one| one["reasons"].as_array()).flatten();
    let causes = reasons.filter(|reason| reason["state"] != "ok");
    let causes = causes.map(|reason| reason["cause"].as_str().unwrap_or_default().to_owned());
    let causes = causes.collect();
    Ok((causes, status.take()))
}

fn is_empty(list: &Value) -> bool {
    list.as_array().is_none_or(Vec::is_empty)
}
