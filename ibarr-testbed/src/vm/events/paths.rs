// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Paths: what the kernel asks, what OpenSM answers, and what the kernel is told.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::{PathUse, Request, ResolvePath, messages};
use ibarr_testbed::standin::path_requests::{as_recorded, recorded};
use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::{HERE, NEAR, NEIGHBOUR, Scene, THERE, pretend};
use crate::ls::socket::Socket;
use crate::report::Report;
use crate::rig::{self, Caller, Place, eventually};
use crate::version;

/// GIDs that no port has. Each is asked for once.
const UNKNOWN: [&str; 4] =
    ["fe80::dead:beef", "fe80::dead:bee0", "fe80::dead:bee1", "fe80::dead:bee2"];
/// Unused addresses of the same IP subnet.
const EMPTY: [&str; 3] = ["10.1.0.77", "fd00:1::77", "10.1.0.78"];

/// The kernel's status for an answer without a path (`ib_nl_process_good_resolve_rsp`).
const NO_PATH: i32 = -(Errno::EIO as i32);
/// The kernel's status if the SA says that it has no record (`recv_handler`).
const NO_RECORD: i32 = -(Errno::EINVAL as i32);
const TIMED_OUT: i32 = -(Errno::ETIMEDOUT as i32);

pub(super) fn prove(report: &mut Report, scene: &Scene) {
    let mut claim = |claim: &str, proof: Result<()>| report.claim(claim, proof).is_some();
    claim("ibarr path gives the path that OpenSM gives, and remembers it", path());
    claim("there is no path to an unknown GID", no_path(UNKNOWN[0], "no-record"));
    claim("IPoIB asks for paths in one direction, and uses ibarr's", ipoib(scene));
    claim(
        "rdma_cm asks for all paths, or for one before 6.1, and uses ibarr's: IPv4",
        rdma_cm(scene, NEAR[0]),
    );
    claim(
        "rdma_cm asks for all paths, or for one before 6.1, and uses ibarr's: IPv6",
        rdma_cm(scene, NEAR[1]),
    );
    claim(
        "a caller of a path that OpenSM does not know gets its error from ibarr: IPv4",
        refused(scene, EMPTY[0], UNKNOWN[1]),
    );
    claim(
        "a caller of a path that OpenSM does not know gets its error from ibarr: IPv6",
        refused(scene, EMPTY[1], UNKNOWN[2]),
    );
    claim(
        "told to ask the SA itself, the kernel gives its own error number",
        falls_back(scene, EMPTY[0]),
    );
    claim(
        "OpenSM is stopped: ibarr calls it silent, and keeps what it has learned",
        silence(scene),
    );
    claim("OpenSM goes on, and everything works", scene.works());
}

/// Asks for the path from the first port to the second.
fn path() -> Result<()> {
    let there = THERE.gid()?.to_string();
    let ask = || {
        rig::run(
            Place::Here,
            &[
                "ibarr",
                "path",
                &there,
                "--port",
                "ibtun0/1",
                "--json",
                "--run-dir",
                "/run/ibarr-here",
            ],
        )
    };
    let answer = ask()?;
    let (from, to) = (HERE.lid()?, THERE.lid()?);
    for expected in
        ["\"status\":\"found\"", &format!("\"slid\":{from},\"dlid\":{to}"), "\"source\":\"sa\""]
    {
        ensure!(answer.contains(expected), "no {expected} in {answer}");
    }
    let answer = ask()?;
    ensure!(answer.contains("\"source\":\"cache\""), "{answer}");
    let saquery = rig::run(Place::Here, &["saquery", "--src-to-dst", &format!("{from}:{to}")])?;
    ensure!(saquery.contains(&format!("dlid....................{to}")), "{saquery}");
    Ok(())
}

fn no_path(dgid: &str, status: &str) -> Result<()> {
    // The exit status is 1, because there is no path.
    let command = format!("ibarr path {dgid} --run-dir /run/ibarr-here --json || true");
    let said = rig::run(Place::Here, &["busybox", "sh", "-c", &command])?;
    ensure!(said.contains(&format!("\"status\":\"{status}\"")), "{said}");
    Ok(())
}

/// IPoIB asks before it sends to a new address.
fn ipoib(scene: &Scene) -> Result<()> {
    let asked = Asked::of(scene, || {
        rig::run(Place::Here, &["ping", "-n", "-c", "1", "-W", "20", NEAR[0]]).map(drop)
    })?;
    let request = asked.only(NEIGHBOUR.gid()?, "IPoIB")?;
    ensure!(request.path_use == PathUse::Unidirectional, "{request:?}");
    ensure!(request.sgid == HERE.gid()? && request.service_id.is_none(), "{request:?}");
    Ok(())
}

fn rdma_cm(scene: &Scene, target: &str) -> Result<()> {
    // This part is not about the resolution of the address, and IPoIB's path for that.
    let caller = Caller::patient()?;
    let (id, _) = caller.address(target)?;
    let asked = Asked::of(scene, || caller.route(id).map(drop))?;
    let is_v4 = target.contains('.');
    let module = if is_v4 { "rdma_cm, IPv4" } else { "rdma_cm, IPv6" };
    let (module, path_use) = if version::linux()? >= version::ALL_PATHS {
        (module.to_owned(), PathUse::All)
    } else {
        (format!("{module}, before 6.1"), PathUse::Gmp)
    };
    let request = asked.only(NEIGHBOUR.gid()?, &module)?;
    ensure!(request.path_use == path_use && request.service_id.is_some(), "{request:?}");
    ensure!(request.qos_class.is_some() == is_v4, "{request:?}");
    ensure!(request.tclass.is_some() != is_v4, "{request:?}");
    let path = caller.path(id)?;
    ensure!(path.dgid == NEIGHBOUR.gid()? && path.sgid == HERE.gid()?, "{path:?}");
    ensure!(path.dlid.get() == NEIGHBOUR.lid()? && path.slid.get() == HERE.lid()?, "{path:?}");
    Ok(())
}

/// The status that only an answer of ibarr causes. Without an answer of ibarr, the kernel would ask
/// the SA, and give the status that follows from the SA's answer.
fn refused(scene: &Scene, target: &str, gid: &str) -> Result<()> {
    pretend(target, gid.parse()?)?;
    let caller = Caller::patient()?;
    let (id, _) = caller.address(target)?;
    let before = scene.here.count("local-service.paths-none")?;
    let status = caller.route_status(id)?;
    ensure!(status == NO_PATH, "it ends with {status}");
    let after = scene.here.count("local-service.paths-none")?;
    ensure!(after == before + 1, "the counter of no-record answers went from {before} to {after}");
    Ok(())
}

/// ibarr leaves a request for a path that does not exist to the kernel.
fn falls_back(scene: &Scene, target: &str) -> Result<()> {
    scene.here.reconfigure("on-no-record = \"fallback\"\n")?;
    let caller = Caller::patient()?;
    let (id, _) = caller.address(target)?;
    let before = scene.here.count("local-service.paths-no-record")?;
    let status = caller.route_status(id)?;
    ensure!(status == NO_RECORD, "it ends with {status}");
    let after = scene.here.count("local-service.paths-no-record")?;
    ensure!(
        after == before + 1,
        "the counter of no-record fallbacks went from {before} to {after}"
    );
    scene.here.reconfigure("")
}

fn silence(scene: &Scene) -> Result<()> {
    scene.rig.opensm.signal(Signal::SIGSTOP)?;
    let outcome = while_silent(scene);
    // The kernel returns MADs that get no answer. This shows that it does so in time.
    let unanswered = eventually(|| {
        let unanswered = scene.here.count("sa.unanswered")?;
        ensure!(unanswered > 0, "the kernel has returned no MAD");
        Ok(())
    });
    scene.rig.opensm.signal(Signal::SIGCONT)?;
    outcome.and(unanswered)
}

fn while_silent(scene: &Scene) -> Result<()> {
    no_path(UNKNOWN[3], "silent")?;
    let before = scene.here.count("paths.found-cache")?;
    Caller::patient()?.path_to(NEAR[0]).context("the path that was learned before")?;
    let after = scene.here.count("paths.found-cache")?;
    ensure!(after > before, "the path was not from memory: {before}, {after}");
    // ibarr got no answer, and tells the kernel to ask the SA itself.
    pretend(EMPTY[2], UNKNOWN[3].parse()?)?;
    let caller = Caller::new(Duration::from_secs(1))?;
    let (id, _) = caller.address(EMPTY[2])?;
    let before = scene.here.count("local-service.paths-silent")?;
    let status = caller.route_status(id)?;
    ensure!(status == TIMED_OUT, "it ends with {status}");
    let after = scene.here.count("local-service.paths-silent")?;
    ensure!(
        after == before + 1,
        "the counter of silent-SA fallbacks went from {before} to {after}"
    );
    Ok(())
}

/// The kernel's path requests, parsed and as bytes.
struct Asked(Vec<(ResolvePath, Vec<u8>)>);

impl Asked {
    /// Collects the requests during `work`, and checks that all were answered with paths.
    fn of(scene: &Scene, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let answered = || scene.here.count("local-service.paths-answered");
        let spy = Socket::open()?;
        let before = answered()?;
        work()?;
        let mut asked = Vec::new();
        while let Some(datagram) = spy.receive(Duration::ZERO)? {
            for message in messages(&datagram) {
                if let Ok(Request::ResolvePath(request)) = Request::parse(&message?) {
                    asked.push((request, datagram.clone()));
                }
            }
        }
        let count = u64::try_from(asked.len())?;
        let after = answered()?;
        ensure!(after == before + count, "{} answered of {asked:?}", after - before);
        Ok(Self(asked))
    }

    /// The only request for the path to `dgid`. It must have the bytes that were recorded of `asker`.
    fn only(&self, dgid: Gid, asker: &str) -> Result<ResolvePath> {
        let mut requests = self.0.iter().filter(|(request, _)| request.dgid == dgid);
        let (request, bytes) =
            requests.next().with_context(|| format!("nothing for {dgid}: {:?}", self.0))?;
        ensure!(requests.next().is_none(), "more than once: {:?}", self.0);
        let (said, recorded) = (as_recorded(bytes), recorded(asker).unwrap_or_default());
        ensure!(said == recorded, "{asker} asks {said}, but the recording has {recorded}");
        Ok(*request)
    }
}
