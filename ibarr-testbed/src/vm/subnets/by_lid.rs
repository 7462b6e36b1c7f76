// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run n`: a router as it is sold. It sends a packet to the LID in the 16 low bits of the destination's GID. So the
//! subnet managers give both ends alias GIDs that end in their LIDs, and the IPoIB interfaces have to use them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::Gid;
use ibarr_fabric::wire::packet::Packet;
use ibarr_proto::paths::Partial;
use ibarr_user::control::messages::Request;
use serde_json::{Value, json};

use super::{
    A_PORT, B_PORT, CHILD_ROUTES, FAR, FAR_CHILD, INTERFACES, NEAR, ROUTES, Subnets, alias, by_acm,
    connection, gid, lid, routes, set,
};
use crate::report::Report;
use crate::rig::{
    self, B, Caller, Ibarr, Place, R, capture, eventually, ip, pair, rping, rping_from, spawn,
};

/// No FLID: bits 32 to 47 are 0.
pub(super) const PREFIXES: [u64; 2] = [0xfec0_0000_0000_0001, 0xfec0_0000_0000_0002];

const FAR_IPV6: &str = "fd00:2::1";

const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    let up = Subnets::up("lid", PREFIXES);
    if let Some(mut subnets) = report.claim("two subnets stand", up) {
        prove(&mut report);
        report.claim("fabric and managers are still there", subnets.stand());
    }
    report.end()
}

fn prove(report: &mut Report) {
    let here = report.claim("ibarr runs here", Ibarr::start("here", Place::Here, "", 1));
    let there = report.claim("ibarr runs in the other subnet", Ibarr::start("b", B, "", 1));
    let (Some(here), Some(there)) = (here, there) else { return };
    let Some(own) = report.claim("ports have their own GIDs", both([gid(A_PORT), gid(B_PORT)]))
    else {
        return;
    };
    report.claim(
        "both interfaces on their ports' own GIDs: requests go to another LID",
        is_lost(own[0], own[1], B_PORT),
    );
    let aliases = [A_PORT, B_PORT].map(|port| alias::add(port, lid(port)?.into()));
    let Some(aliases) =
        report.claim("OpenSM gives both ports aliases with their LIDs", both(aliases))
    else {
        return;
    };
    let [ours, theirs] = aliases;
    report.claim("doctor says that routers cannot find the interface, and what helps", {
        finds(&here, "routers", "warn", "routers cannot find ib0").and_then(|check| {
            let remedy = "ibarr gid ib0 --set alias";
            ensure!(check["remedy"] == remedy, "no {remedy}: {check}");
            Ok(())
        })
    });
    report.claim(
        "the other end alone on its alias: its replies go to another LID",
        take(B, "ib2", theirs)
            .and_then(|()| routes(ROUTES))
            .and_then(|()| answers(&here, Place::Here, FAR, theirs))
            .and_then(|()| is_lost(theirs, own[0], A_PORT)),
    );
    report.claim("this end's interface takes its alias by `ibarr gid`, and keeps all it has", {
        set::furnish("ib0", 1).and_then(|()| set::set("ib0", "alias", ours, &[]))
    });
    report.claim("each ibarr tells the other's kernel the alias, unconfigured", {
        answers(&here, Place::Here, FAR, theirs).and_then(|()| answers(&there, B, NEAR, ours))
    });
    report.claim("status and doctor say which interface has the alias", {
        finds(&here, "routers", "ok", "ib0 has it").and_then(|_| is_shown(&here, ours))
    });
    report.claim("the kernel's path is between the aliases", is_between(aliases));
    report.claim("rping connects, and all its packets are between the aliases", connects(aliases));
    report.claim(
        "a caller in another network namespace is not told this machine's own GID",
        is_not_told(NEAR),
    );
    report.claim("udaddy exchanges datagrams", pair("udaddy", B, FAR));
    report.claim("ucmatose connects", pair("ucmatose", B, FAR));
    report.claim("ACM: ucmatose connects by AF_IB between the aliases", by_acm(&here, aliases));
    report.claim("IPv6: rping and udaddy connect, too", {
        ipv6()
            .and_then(|()| answers(&here, Place::Here, FAR_IPV6, theirs))
            .and_then(|()| rping(B, FAR_IPV6))
            .and_then(|()| pair("udaddy", B, FAR_IPV6))
    });
    report
        .claim("the daemon gives others the path between the aliases", gives_path(&here, aliases));
    report.claim("both interfaces go back, and children in another partition take the aliases", {
        children(own, aliases)
    });
    report.claim("a GID that gets no carrier is given up, and nothing is lost", {
        set::gives_up(rig::PKEY)
    });
    report.claim("the children connect", rping(B, FAR_CHILD));
    report.claim("the interfaces still connect in their subnet", rping_from(R, Place::Here, NEAR));
    report.claim("doctor names the child whose alias the manager has replaced", {
        let child = rig::child_of("ib0");
        alias::add(A_PORT, 0x0011_2233_4455_0003).and_then(|_| {
            finds(&here, "gids", "fail", &format!("{child} has the GID {ours}, which is in no"))
        })
    });
    report.claim("the child has a carrier again once `ibarr gid` has asked for its alias", {
        set::asks(&rig::child_of("ib0"), ours)
    });
    report.claim("both daemons are still there", here.stop().and_then(|()| there.stop()));
}

fn both([ours, theirs]: [Result<Gid>; 2]) -> Result<[Gid; 2]> {
    Ok([ours?, theirs?])
}

/// A connection is tried, and the router sends packets between these GIDs to the LID that they end in, which is not
/// the LID of `port`.
fn is_lost(from: Gid, to: Gid, port: &str) -> Result<()> {
    let taken = u16::try_from(to.guid().get() & 0xffff)?;
    ensure!(taken != lid(port)?, "{to} ends in the LID of {port}");
    let before = capture::packets()?.len();
    let mut server = spawn("lost-server", B, &["rping", "-s", "-C", "1", "-a", FAR])?;
    let mut client = spawn("lost-client", Place::Here, &["rping", "-c", "-C", "1", "-a", FAR])?;
    let lost = eventually(|| {
        let packets = capture::packets()?;
        let mut new = packets[before..].iter().filter_map(|packet| Packet::parse(packet).ok());
        let is_one = |packet: Packet<'_>| {
            let grh = packet.grh.map(|grh| (Gid::new(grh.sgid), Gid::new(grh.dgid)));
            grh == Some((Some(from), Some(to))) && packet.dlid.get() == taken
        };
        ensure!(new.any(is_one), "no packet from {from} to LID {taken:#x}");
        Ok(())
    });
    client.kill()?;
    server.kill()?;
    lost
}

/// Gives an IPoIB interface the hardware address of another GID, which takes its routes away.
pub(super) fn take(place: Place, name: &str, gid: Gid) -> Result<()> {
    let address = rig::hw_address(place, name)?.with_gid(gid);
    ip(place, &format!("link set {name} down"))?;
    ip(place, &format!("link set {name} address {address}"))?;
    ip(place, &format!("link set {name} up"))?;
    rig::is_up(place, name)
}

/// The peer's kernel is told this GID.
fn answers(ibarr: &Ibarr, from: Place, target: &str, gid: Gid) -> Result<()> {
    eventually(|| {
        ibarr.flush()?;
        let said = rig::query(from, target, PATIENCE)?;
        ensure!(said == Some(gid), "{target} answers {said:?}, not {gid}");
        Ok(())
    })
}

fn is_between([ours, theirs]: [Gid; 2]) -> Result<()> {
    let path = Caller::patient()?.path_to(FAR)?;
    ensure!(path.sgid == ours && path.dgid == theirs, "{path:?}");
    ensure!(path.hop_limit > 1, "{path:?}");
    Ok(())
}

/// `ibarr doctor` says this in a check.
fn finds(here: &Ibarr, check: &str, state: &str, found: &str) -> Result<Value> {
    let doctor = format!("ibarr doctor --json --run-dir {}; true", here.run_dir());
    let said = rig::run(Place::Here, &["busybox", "sh", "-c", &doctor])?;
    let document: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let mut checks = document["checks"].as_array().into_iter().flatten();
    let is_it = |one: &&Value| {
        let says = one["found"].as_str().is_some_and(|said| said.contains(found));
        one["check"] == check && one["state"] == state && says
    };
    checks.find(is_it).cloned().with_context(|| said.clone())
}

/// `ibarr status` has the alias behind the port's own GID, with the interface that has it.
fn is_shown(here: &Ibarr, alias: Gid) -> Result<()> {
    let said = here.ask(&Request::Status)?;
    let entry = json!({ "index": 1, "gid": alias.to_string(), "interfaces": ["ib0"] });
    let mut ports = said["status"]["ports"].as_array().into_iter().flatten();
    let has_entry =
        |port: &Value| port["gid-table"].as_array().is_some_and(|table| table.contains(&entry));
    ensure!(ports.any(has_entry), "no {entry}: {said}");
    Ok(())
}

/// In the other namespace the address may be another node's.
fn is_not_told(own: &str) -> Result<()> {
    let words = ["rping", "-c", "-C", "1", "-a", own];
    let mut client = spawn("namespace-client", B, &words)?;
    let refused = eventually(|| {
        let said = client.said()?;
        ensure!(said.contains("RDMA_CM_EVENT_ADDR_ERROR"), "it says {said:?}");
        Ok(())
    });
    client.kill()?;
    refused
}

/// The first address of `ib0` is there since it was furnished.
fn ipv6() -> Result<()> {
    rig::write(R, "/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
    let others = [(R, "ib3", "fd00:1::fe"), (R, "ib4", "fd00:2::fe"), (B, "ib2", FAR_IPV6)];
    for (place, name, address) in others {
        ip(place, &format!("address add {address}/64 dev {name} nodad"))?;
    }
    ip(Place::Here, "route add fd00:2::/64 via fd00:1::fe")?;
    ip(B, "route add fd00:1::/64 via fd00:2::fe").map(drop)
}

fn gives_path(here: &Ibarr, [ours, theirs]: [Gid; 2]) -> Result<()> {
    let path = Partial { dgid: theirs, sgid: Some(ours), port: None, pkey: None, fresh: true };
    let answer = here.ask(&Request::Path { path })?.to_string();
    for wanted in [format!("\"sgid\":\"{ours}\""), format!("\"dgid\":\"{theirs}\"")] {
        ensure!(answer.contains(&wanted), "no {wanted}: {answer}");
    }
    Ok(())
}

/// The way to serve hosts in the same subnet and behind the router: a port has one GID in each partition.
fn children(own: [Gid; 2], aliases: [Gid; 2]) -> Result<()> {
    for (place, name, _, address) in INTERFACES {
        rig::add_child(name, place, &[address])?;
    }
    routes(CHILD_ROUTES)?;
    // The child has got the alias that its parent has, and keeps it.
    set::set("ib0", "port", own[0], &[&rig::child_of("ib0")])?;
    take(B, "ib2", own[1])?;
    take(B, &rig::child_of("ib2"), aliases[1])?;
    routes(ROUTES)?;
    routes(CHILD_ROUTES)?;
    // Neighbours know the interface by its last GID until they ask again, and connections to that are rejected.
    ip(R, "neighbour flush all").map(drop)
}

fn connects(aliases: [Gid; 2]) -> Result<()> {
    let seen = connection(|| rping(B, FAR))?;
    for alias in aliases {
        let sent = seen.iter().filter(|one| one.sgid == alias).count();
        ensure!(sent > 10, "{sent} packets of {alias}");
    }
    ensure!(seen.iter().all(|one| aliases.contains(&one.sgid)), "{seen:?}");
    ensure!(gid(A_PORT)? != aliases[0], "an alias that is the port's own GID");
    Ok(())
}
