// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run f`: like `vm run b` on a kernel without IPv6 (`ipv6.disable=1`). There `ibarr` nudges on an
//! IPoIB interface, by an IPv4 neighbour.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use ibarr_user::control::messages::Request;

use crate::join::FAR_V4;
use crate::ls::resolve;
use crate::report::Report;
use crate::rig::{self, B, INTERFACES, Ibarr, Place, Rig, rping, survive_nudges};
use crate::rtnetlink::ifindex;
use crate::sys::rdma_cm::EventKind;

/// Number of addresses resolved one after another.
const RESOLVES: u64 = 20;

/// The network for documentation (RFC 5737) in which nudges have their neighbour.
const DOCUMENTATION: &str = "198.51.100.";

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    report.claim("this kernel has no IPv6", has_none());
    if let Some(_rig) = report.claim("the rig stands", Rig::up()) {
        prove(&mut report);
    }
    report.end()
}

fn prove(report: &mut Report) {
    let here = report.claim("ibarr runs here", Ibarr::start("here", Place::Here, "", 1));
    let there = report.claim("ibarr runs behind the router", Ibarr::start("b", B, "", 1));
    let (Some(here), Some(there)) = (here, there) else { return };
    let claim = format!("{RESOLVES} addresses are resolved, none by its caller's time-out");
    report.claim(&claim, resolves());
    let before_stop = nudges_on_ipoib(&here);
    report
        .claim("ibarr says that it nudges on an IPoIB interface, and no nudge failed", before_stop);
    report.claim("the nudges leave no neighbour behind", nothing_left());
    report.claim("rping connects across the router, and its data is right", rping(B, FAR_V4));
    let survives = survive_nudges(B, &[FAR_V4]).and_then(|on| {
        ensure!(on == ifindex(INTERFACES[0].name)?, "nudges were made on interface {on}");
        Ok(())
    });
    report.claim("an open connection survives 10,000 nudges on its own interface", survives);
    report.claim("both daemons are still there", here.stop().and_then(|()| there.stop()));
    report.claim("the last nudge leaves no neighbour behind either", nothing_left());
}

fn has_none() -> Result<()> {
    ensure!(!rig::has_ipv6(), "there is /proc/net/if_inet6");
    Ok(())
}

fn resolves() -> Result<()> {
    let mut took = Vec::new();
    for number in 0..RESOLVES {
        let began = Instant::now();
        let event = resolve(FAR_V4).with_context(|| format!("address {number}"))?;
        ensure!(event.kind == EventKind::AddrResolved, "address {number}: {event:?}");
        took.push(began.elapsed());
    }
    took.sort();
    let median = took.get(took.len() / 2).copied().unwrap_or_default();
    Report::note(format_args!("median {median:?}, longest {:?}", took.last()));
    Ok(())
}

fn nudges_on_ipoib(here: &Ibarr) -> Result<()> {
    let status = here.ask(&Request::Status)?;
    let service = &status["status"]["local-service"];
    ensure!(service["nudges"] == "on", "{service}");
    let named = service["nudge-interface"].as_str().context("no interface is named")?;
    ensure!(INTERFACES.iter().any(|one| one.name == named && one.place == Place::Here), "{named}");
    let of = |name: &str| here.count(&format!("local-service.{name}"));
    let (nudges, failed) = (of("nudges")?, of("nudges-failed")?);
    ensure!(nudges >= RESOLVES && failed == 0, "{nudges} nudges, {failed} failed");
    Ok(())
}

fn nothing_left() -> Result<()> {
    let neighbours = rig::ip(Place::Here, "neigh show nud all")?;
    ensure!(!neighbours.contains(DOCUMENTATION), "{neighbours}");
    // This shows that the list would contain our neighbours.
    ensure!(neighbours.contains("10.1.0.254"), "the router is missing: {neighbours}");
    Ok(())
}
