// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run l`: a node with two rails. The source of a connection selects the rail, and each rail has a router
//! of its own; the main table knows no way to the target.
//!
//! ```text
//!   here  ib0  10.1.0.1 --- 10.1.0.254 netns r  ---.
//!         ib4  10.3.0.1 --- 10.3.0.254 netns r2 ---'--- 10.2.0.1 netns b
//! ```

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use crate::report::Report;
use crate::rig::{self, B, Ibarr, Place, R, Rig, ip, spawn};

const R2: Place = Place::Netns("r2");
const FAR: [&str; 2] = ["10.2.0.1", "fd00:2::1"];

/// A rail: its source addresses, IPv4 and IPv6, and its router.
const RAILS: [([&str; 2], Place); 2] =
    [(["10.1.0.1", "fd00:1::1"], R), (["10.3.0.1", "fd00:3::1"], R2)];

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("a node has two rails with a router each", network()) {
        prove(&mut report);
        drop(rig);
    }
    report.end()
}

fn prove(report: &mut Report) {
    let daemons = || Ok([Ibarr::start("here", Place::Here, "", 2)?, Ibarr::start("b", B, "", 1)?]);
    let Some([here, there]) = report.claim("ibarr runs at both ends", daemons()) else { return };
    for (family, target) in FAR.into_iter().enumerate() {
        for (sources, _) in RAILS {
            let source = sources[family];
            let claim =
                format!("a connection from {source} to {target} is asked for by its rail alone");
            report.claim(&claim, by_its_rail(&here, source, target, family));
        }
    }
    report.claim("both daemons end when they are asked to", here.stop().and(there.stop()));
}

/// Connects from `source`. Only the router of that rail forwards the query.
fn by_its_rail(here: &Ibarr, source: &str, target: &str, family: usize) -> Result<()> {
    here.flush()?;
    let before = RAILS.map(|(_, router)| forwarded(router, family));
    connect(source, target)?;
    for ((sources, router), before) in RAILS.into_iter().zip(before) {
        let packets = forwarded(router, family)? - before?;
        let is_its = sources[family] == source;
        ensure!((packets > 0) == is_its, "the router of {} forwarded {packets}", sources[family]);
    }
    Ok(())
}

fn connect(source: &str, target: &str) -> Result<()> {
    let server = spawn("rping-server", B, &["rping", "-s", "-C", "3", "-a", target])?;
    rig::is_listening(&server)?;
    let client = ["rping", "-c", "-C", "3", "-I", source, "-a", target];
    rig::run(Place::Here, &client).with_context(|| server.said().unwrap_or_default())?;
    Ok(())
}

/// How many packets of this family a router has forwarded: `ip` and `ip6` in /proc/net of its namespace.
fn forwarded(router: Place, family: usize) -> Result<u64> {
    if family == 1 {
        let text = rig::run(router, &["busybox", "cat", "/proc/net/snmp6"])?;
        let line = text.lines().find(|line| line.starts_with("Ip6OutForwDatagrams"));
        return Ok(line
            .and_then(|line| line.split_whitespace().nth(1))
            .context(text.clone())?
            .parse()?);
    }
    let text = rig::run(router, &["busybox", "cat", "/proc/net/snmp"])?;
    let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
    let (names, values) = lines.next().zip(lines.next()).context(text.clone())?;
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = both.find(|(name, _)| *name == "ForwDatagrams").context(text.clone())?;
    Ok(value.parse()?)
}

fn network() -> Result<Rig> {
    let rig = Rig::up_without_capture()?;
    ip(Place::Here, "netns add r2")?;
    ip(R2, "link set lo up")?;
    // The second rail: `n` gives its interface back, and `r` one to the second router.
    ip(rig::N, "link set ib4 netns 1")?;
    ip(R, "link set ib3 netns r2")?;
    for router in [R, R2] {
        for (file, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv6/conf/all/forwarding", "1"),
        ] {
            rig::write(router, &format!("/proc/sys/net/{file}"), value)?;
        }
    }
    rig::set_up(Place::Here, "ib4", ["10.3.0.1/24", "fd00:3::1/64"])?;
    rig::set_up(R, "ib2", ["10.1.0.254/24", "fd00:1::fe/64"])?;
    rig::set_up(R, "ib2", ["10.2.0.253/24", "fd00:2::fd/64"])?;
    rig::set_up(R2, "ib3", ["10.3.0.254/24", "fd00:3::fe/64"])?;
    rig::set_up(R2, "ib3", ["10.2.0.254/24", "fd00:2::fe/64"])?;
    for (place, name) in [(Place::Here, "ib4"), (R, "ib2"), (R2, "ib3")] {
        rig::is_up(place, name)?;
    }
    for route in ["10.2.0.0/24", "fd00:2::/64"] {
        ip(Place::Here, &format!("route del {route}"))?;
    }
    for (table, ([v4, v6], gateways, device)) in [
        (10, (RAILS[0].0, ["10.1.0.254", "fd00:1::fe"], "ib0")),
        (11, (RAILS[1].0, ["10.3.0.254", "fd00:3::fe"], "ib4")),
    ] {
        for (family, source, gateway) in [("-4", v4, gateways[0]), ("-6", v6, gateways[1])] {
            ip(Place::Here, &format!("{family} rule add from {source} lookup {table}"))?;
            let route = format!("default via {gateway} dev {device} table {table}");
            ip(Place::Here, &format!("{family} route add {route}"))?;
        }
    }
    for (destination, gateway) in [
        ("10.1.0.0/24", "10.2.0.253"),
        ("fd00:1::/64", "fd00:2::fd"),
        ("10.3.0.0/24", "10.2.0.254"),
        ("fd00:3::/64", "fd00:2::fe"),
    ] {
        ip(B, &format!("route replace {destination} via {gateway}"))?;
    }
    Ok(rig)
}
