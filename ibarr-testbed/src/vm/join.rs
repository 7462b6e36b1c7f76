// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run b`: connections across the IP router. The kernel alone cannot make them. With `ibarr` at both
//! ends it can, and programs need no change. `vm run r` and `s`: the same, and librdmacm's part of `vm run g`, with a
//! router of InfiniBand there.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use ibarr_user::control::messages::Request;
use ibarr_user::transport::rtnetlink::LOOPBACK;

use crate::report::Report;
use crate::rig::{self, B, Ibarr, Place, Rig, Routed, Scheme, pair, rping, survive_nudges};
use crate::{acm, namespaces, next_hops, operator};

/// Addresses behind the router.
pub(crate) const FAR_V4: &str = "10.2.0.1";
const FAR_V6: &str = "fd00:2::1";

/// The number of programs that connect, each with a new connection.
const PROGRAMS: u64 = 8;

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up()) {
        prove(&mut report);
        next_hops::prove(&mut report);
        report.claim("OpenSM and the fabric are still there", stands(rig));
    }
    report.end()
}

pub(crate) fn run_behind(scheme: Scheme) -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Routed::up(scheme)) {
        prove(&mut report);
        acm::prove_librdmacm(&mut report);
        report.claim("both OpenSMs and the fabric are still there", rig.stands());
    }
    report.end()
}

fn prove(report: &mut Report) {
    report.claim("without ibarr IPv4 across the router is refused", is_refused(FAR_V4));
    report.claim("without ibarr IPv6 across the router is refused", is_refused(FAR_V6));
    let start = |name, place| Ibarr::start_as_service(name, place, "", 1);
    report.claim(
        "a daemon without the right to umad devices says so, and what to do",
        start("here", Place::Here).and_then(has_no_right),
    );
    report.claim("udev gives them to it", Ibarr::give_devices());
    let here = report.claim(
        "ibarr of the package runs here, as its user with three capabilities",
        start("here", Place::Here),
    );
    let there = report.claim("so it does behind the router", start("b", B));
    let (Some(here), Some(there)) = (here, there) else { return };
    for (target, family) in [(FAR_V4, "IPv4"), (FAR_V6, "IPv6")] {
        let mut claim = |what: &str, proof| report.claim(&format!("{what} {family}"), proof);
        claim("rping connects across the router, and its data is right:", rping(B, target));
        claim("udaddy exchanges datagrams across the router:", pair("udaddy", B, target));
        claim("ucmatose connects across the router:", pair("ucmatose", B, target));
    }
    let survive = survive_nudges(B, &[FAR_V4, FAR_V6]).and_then(|on| {
        ensure!(on == LOOPBACK, "nudges were made on interface {on}");
        Ok(())
    });
    report.claim("open connections of either family survive 10,000 nudges", survive);
    report.claim("the kernel got its answers from ibarr", answered(&here));
    let by_program = answered_by_program(&there);
    report.claim(
        "behind the router a BPF program on IPoIB answered for the other daemon",
        by_program,
    );
    operator::prove(report, &here);
    namespaces::prove_shared(report, &here, &there);
    report.claim("both daemons are still there", here.stop().and_then(|()| there.stop()));
    report.claim("without ibarr IPv4 across the router is refused again", is_refused(FAR_V4));
}

fn has_no_right(ibarr: Ibarr) -> Result<()> {
    // A device that is not open yet is no reason for three seconds.
    rig::eventually(|| {
        let status = ibarr.ask(&Request::Status)?;
        let warnings = status["status"]["warnings"].to_string();
        for words in ["ibtun0/1 cannot be asked", "umad", "Permission denied", "udevadm trigger"] {
            ensure!(warnings.contains(words), "no {words:?}: {status}");
        }
        Ok(())
    })?;
    ibarr.stop()
}

/// The kernel refuses before it sends anything.
fn is_refused(target: &str) -> Result<()> {
    match rig::run(Place::Here, &["rping", "-c", "-C", "1", "-a", target]) {
        Ok(said) => bail!("rping connected: {said}"),
        Err(error) => {
            let said = format!("{error:#}");
            ensure!(said.contains("Cannot assign requested address"), "{said}");
            Ok(())
        }
    }
}

/// ibarr answered every question of the kernel, and left none to it.
fn answered(here: &Ibarr) -> Result<()> {
    let of = |name: &str| here.count(name);
    let (addresses, paths) = (of("local-service.requests")?, of("local-service.path-requests")?);
    let mut answered = 0;
    for from in ["cache", "local", "peer"] {
        answered += of(&format!("local-service.answered-{from}"))?;
    }
    ensure!(addresses >= PROGRAMS, "the kernel asked for {addresses} addresses");
    ensure!(answered == addresses, "{answered} of {addresses} addresses");
    let answered = of("local-service.paths-answered")?;
    ensure!(paths >= PROGRAMS, "the kernel asked for {paths} paths");
    ensure!(answered == paths, "{answered} of {paths} paths");
    let queries = of("sa.questions")?;
    Report::note(format_args!(
        "{addresses} addresses and {paths} paths for the kernel, {queries} questions to the SA"
    ));
    Ok(())
}

fn answered_by_program(there: &Ibarr) -> Result<()> {
    let by_program = there.count("bpf.tc.answered")?;
    let by_daemon = there.count("ip2gid.server.answered")?;
    // At least one of each family, and none was left to the daemon.
    ensure!(by_program >= 2 && by_daemon == 0, "{by_program} by BPF, {by_daemon} by the daemon");
    Ok(())
}

fn stands(mut rig: Rig) -> Result<()> {
    rig.opensm.check_alive()?;
    rig.fabric.check_alive()
}
