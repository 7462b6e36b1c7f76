// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! XDP on IPoIB: only the daemon tells the program where its answers go.

use std::cell::Cell;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Reply, Version};
use ibarr_user::control::messages::Request;
use serde_json::Value;

use crate::report::Report;
use crate::rig::{self, B, Ibarr, N, Place, Rig, eventually, inside, ip};

/// Addresses of the node that answers.
const TARGETS: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
const INTERFACE: &str = "ib4";

/// The peers: a name, their place, and the next hop to which the answer is sent.
const PEERS: [(&str, Place, [&str; 2]); 2] = [
    ("a peer in the same subnet", Place::Here, ["10.1.0.1", "fd00:1::1"]),
    ("a peer behind the router", B, ["10.1.0.254", "fd00:1::fe"]),
];

/// Queries of one round, all of which XDP must answer.
const QUERIES: u32 = 20;

/// Counter of the daemon's own answers.
const BY_DAEMON: &str = "ip2gid.server.answered";

pub(crate) fn prove(report: &mut Report) {
    let Some(daemon) = report.claim("XDP is attached to IPoIB", start()) else { return };
    for (peer, place, next_hops) in PEERS {
        for (target, next_hop) in TARGETS.into_iter().zip(next_hops) {
            let claim = format!("XDP on IPoIB answers {peer}, asked for {target}");
            report.claim(&claim, answers_by_xdp(&daemon, place, target, next_hop));
        }
    }
    for (target, next_hop) in TARGETS.into_iter().zip(PEERS[0].2) {
        let claim = "a peer with an unknown next hop is answered by the daemon first, asked for";
        report.claim(&format!("{claim} {target}"), meets(&daemon, target, next_hop));
        let claim = format!("and then by XDP, asked for {target}");
        report.claim(&claim, answers_by_xdp(&daemon, Place::Here, target, next_hop));
    }
    let ping = || rig::run(Place::Here, &["ping", "-c", "20", "-i", "0.1", "-q", TARGETS[0]]);
    let passes = ping().and_then(|said| {
        ensure!(said.contains(" 0% packet loss"), "{said}");
        Ok(())
    });
    report.claim("other packets pass XDP on IPoIB", passes);
    for (peer, place, next_hops) in PEERS {
        let claim = format!("in connected mode, too, XDP on IPoIB answers {peer}");
        let proof = Rig::connected_mode();
        let proof = proof.and_then(|()| answers_by_xdp(&daemon, place, TARGETS[0], next_hops[0]));
        report.claim(&claim, proof);
    }
    let daemon = report.claim("XDP on IPoIB goes on without the daemon", replaced(daemon));
    if let Some(daemon) = daemon {
        report.claim("after detaching nothing is left of XDP on IPoIB", leaves_nothing(daemon));
    }
}

/// Starts `ibarr` in `n`, which answers by XDP.
fn start() -> Result<Ibarr> {
    let daemon = Ibarr::start("next-door", N, "responder = \"xdp\"\n", 1)?;
    let status = daemon.ask(&Request::Status)?;
    let mut interfaces = status["status"]["interfaces"].as_array().into_iter().flatten();
    let interface = interfaces.find(|interface| interface["name"] == INTERFACE);
    let interface = interface.with_context(|| status.to_string())?;
    ensure!(interface["responder"] == "xdp-generic", "{interface}");
    let left = interface["in-user-space"].as_str().unwrap_or_default();
    ensure!(left.contains("neighbours confirmed lately"), "{interface}");
    Ok(daemon)
}

/// The daemon is killed. XDP answers meanwhile, and the next daemon takes over its next hops.
fn replaced(mut daemon: Ibarr) -> Result<Ibarr> {
    let next_hop = PEERS[0].2[0];
    answers_by_xdp(&daemon, Place::Here, TARGETS[0], next_hop)?;
    // An entry that becomes stale now would stay stale until there is a daemon again.
    let hwaddr = hwaddr_of(&daemon, next_hop)?;
    ip(N, &format!("neighbour replace {next_hop} lladdr {hwaddr} dev {INTERFACE} nud permanent"))?;
    answers_by_xdp(&daemon, Place::Here, TARGETS[0], next_hop)?;
    daemon.kill()?;
    // Without a socket only the program can answer.
    ask(Place::Here, TARGETS[0], QUERIES)?;
    let daemon = start()?;
    answers_by_xdp(&daemon, Place::Here, TARGETS[0], next_hop)?;
    Ok(daemon)
}

fn leaves_nothing(daemon: Ibarr) -> Result<()> {
    let bpf_dir = daemon.bpf_dir();
    daemon.stop()?;
    ensure!(ip(N, &format!("link show dev {INTERFACE}"))?.contains("xdp"));
    rig::run(N, &["ibarr", "detach", "--bpf-dir", &bpf_dir])?;
    ensure!(!ip(N, &format!("link show dev {INTERFACE}"))?.contains("xdp"));
    ensure!(!fs::exists(&bpf_dir)?, "{bpf_dir} is still there");
    Ok(())
}

/// XDP answers `place` every time, as soon as it knows the next hop.
fn answers_by_xdp(daemon: &Ibarr, place: Place, target: &str, next_hop: &str) -> Result<()> {
    let rounds = Cell::new(0_u32);
    eventually(|| {
        rounds.set(rounds.get() + 1);
        let before = counts(daemon)?;
        ask(place, target, QUERIES)?;
        let now = counts(daemon)?;
        let (by_xdp, by_daemon) = (now.0 - before.0, now.1 - before.1);
        ensure!(
            (by_xdp, by_daemon) == (u64::from(QUERIES), 0),
            "of {QUERIES} queries XDP answered {by_xdp}, the daemon {by_daemon}"
        );
        // The program's next hop is the kernel's.
        let hwaddr = hwaddr_of(daemon, next_hop)?;
        let kernel = ip(N, &format!("neighbour show {next_hop} dev {INTERFACE}"))?;
        ensure!(kernel.contains(&hwaddr), "{hwaddr}, but the kernel says {kernel}");
        Ok(())
    })?;
    if rounds.get() > 1 {
        Report::note(format_args!("it took {} rounds of {QUERIES}", rounds.get()));
    }
    Ok(())
}

/// The kernel forgets its neighbours, and then a peer asks. The peer has a permanent neighbour entry
/// for the node. If it had to ask for that address first, the kernel would learn the peer's address from
/// the question, and XDP would answer.
fn meets(daemon: &Ibarr, target: &str, next_hop: &str) -> Result<()> {
    let link: Value = serde_json::from_str(&ip(N, &format!("-json link show dev {INTERFACE}"))?)?;
    let hwaddr = link[0]["address"].as_str().context("no hardware address")?;
    let here = rig::INTERFACES[0].name;
    let known = format!("{target} lladdr {hwaddr} dev {here} nud permanent");
    ip(Place::Here, &format!("neighbour replace {known}"))?;
    ip(N, &format!("neighbour flush dev {INTERFACE}"))?;
    eventually(|| {
        let known = next_hops(daemon)?;
        ensure!(known.iter().all(|(ip, _)| ip != next_hop), "{known:?}");
        Ok(())
    })?;
    let before = counts(daemon)?;
    ask(Place::Here, target, 1)?;
    daemon.until_counted(BY_DAEMON, before.1 + 1)?;
    let by_xdp = counts(daemon)?.0 - before.0;
    ensure!(by_xdp == 0, "XDP answered {by_xdp}");
    ip(Place::Here, &format!("neighbour delete {target} dev {here}")).map(drop)
}

/// Number of answers by XDP, and by the daemon.
fn counts(daemon: &Ibarr) -> Result<(u64, u64)> {
    Ok((daemon.count("bpf.xdp.answered")?, daemon.count(BY_DAEMON)?))
}

/// Sends so many queries, one after the other. Each must be answered with the GID of the interface.
fn ask(place: Place, target: &str, queries: u32) -> Result<()> {
    let target: IpAddr = target.parse()?;
    let link = ip(N, &format!("-o link show dev {INTERFACE}"))?;
    inside(place, move || {
        let socket = UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.connect((target, PORT))?;
        for number in 0..queries {
            let msg_id = MsgId(0x1b00_0000 + number);
            let query = Query::new(Version::V1, msg_id, target).context("no target")?;
            socket.send(query.emit().as_ref())?;
            let mut buffer = [0; 64];
            let len = socket.recv(&mut buffer).with_context(|| format!("query {number}"))?;
            let reply = Reply::parse(&buffer[..len]).context("no reply")?;
            ensure!(reply.msg_id == msg_id, "{reply:?}");
            let gid = reply.gid.context("the answer is negative")?.octets();
            let gid: Vec<_> = gid.iter().map(|octet| format!("{octet:02x}")).collect();
            ensure!(link.contains(&gid.join(":")), "{gid:?} is not the GID of {link}");
        }
        Ok(())
    })
}

fn hwaddr_of(daemon: &Ibarr, next_hop: &str) -> Result<String> {
    let known = next_hops(daemon)?;
    let found = known.iter().find(|(ip, _)| ip == next_hop);
    let (_, hwaddr) = found.with_context(|| format!("no {next_hop} in {known:?}"))?;
    Ok(hwaddr.clone())
}

/// The next hops in the programs' map, with their hardware addresses.
fn next_hops(daemon: &Ibarr) -> Result<Vec<(String, String)>> {
    let words = ["ibarr", "cache", "--kernel", "--json", "--bpf-dir", &daemon.bpf_dir()];
    let shown: Value = serde_json::from_str(&rig::run(N, &words)?)?;
    let neighbours = shown["kernel"]["neighbours"].as_array().context("no neighbours")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(neighbours.iter().map(|there| (text(&there["ip"]), text(&there["hwaddr"]))).collect())
}
