// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What an operator sees of real requests and of a real neighbour entry: `ibarr trace` and `ibarr doctor`.

use std::net::Ipv6Addr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::join::FAR_V4;
use crate::report::Report;
use crate::rig::{self, Caller, INTERFACES, Ibarr, N, Place, R, eventually, ip, rping, spawn};

/// The node to which the kernel connects by its neighbour entry, and an address of the router on the same link.
const NEAR: &str = "10.1.0.2";
const ROUTER: &str = "ib2";

/// `here` answers the kernel.
pub(crate) fn prove(report: &mut Report, here: &Ibarr) {
    report.claim("trace shows each step of a connection's address and path", traces(here));
    report.claim(
        "doctor sees a peer's datagrams come in, names a wrong neighbour entry, and what removes it",
        names_entry(here),
    );
}

/// The daemon remembers nothing, and the kernel asks for an address and for the path there.
fn traces(here: &Ibarr) -> Result<()> {
    here.flush()?;
    let words = ["ibarr", "trace", "--json", "--run-dir", &here.run_dir()];
    let mut tracer = spawn("trace", Place::Here, &words)?;
    let documents = || -> Result<Vec<Value>> {
        let said = tracer.said()?;
        // The first line is the command. The last one may be incomplete.
        let (whole, _) = said.rsplit_once('\n').unwrap_or_default();
        let documents: Result<_, _> = whole.lines().skip(1).map(serde_json::from_str).collect();
        documents.with_context(|| said.clone())
    };
    // The results have what people see, too; docs/operate.md shows it.
    let words = ["ibarr", "trace", "--run-dir", &here.run_dir()];
    let people = spawn("trace-text", Place::Here, &words)?;
    eventually(|| {
        let said = people.said()?;
        ensure!(said.contains("\ntracing all requests"), "{said}");
        Ok(())
    })?;
    eventually(|| documents()?.first().map(drop).context("the trace has not begun"))?;
    let caller = Caller::patient()?;
    let (id, _) = caller.address(FAR_V4)?;
    caller.route(id)?;

    // The nudge comes after the answer.
    let steps = |wanted: &[Value]| {
        eventually(|| {
            let documents = documents()?;
            let events: Vec<_> = documents.iter().map(|document| &document["event"]).collect();
            let found = of_one_request(&events, wanted);
            found.with_context(|| format!("{wanted:?} are not in {events:?}"))
        })
    };
    let from = format!("{FAR_V4}:4791");
    let address = steps(&[
        json!({ "step": "asked", "by": "kernel", "ip": FAR_V4 }),
        json!({ "step": "route", "interface": "ib0", "next-hop": "10.1.0.254" }),
        json!({ "step": "query", "to": from }),
        json!({ "step": "reply", "from": from }),
        json!({ "step": "address-answered", "by": "kernel", "status": "found", "source": "peer" }),
        json!({ "step": "nudge" }),
        json!({ "step": "nudged", "outcome": "done" }),
    ])?;
    let gid = &address[4]["gid"];
    ensure!(gid.is_string() && *gid == address[3]["gid"], "{address:?}");
    steps(&[
        json!({ "step": "asked", "by": "kernel", "dgid": gid }),
        json!({ "step": "mad", "port": "ibtun0/1", "number": 1 }),
        json!({ "step": "mad-answer", "port": "ibtun0/1" }),
        json!({ "step": "path-answered", "by": "kernel", "status": "found", "source": "sa" }),
    ])?;
    people.stop()?;
    tracer.kill()
}

/// The events of a request that have these fields, in this order. Others may lie between.
fn of_one_request(events: &[&Value], wanted: &[Value]) -> Option<Vec<Value>> {
    let fits = |event: &Value, wanted: &Value| {
        let mut fields = wanted.as_object().into_iter().flatten();
        fields.all(|(name, value)| event[name] == *value)
    };
    let first = wanted.first()?;
    let requests = events.iter().filter(|event| fits(event, first)).map(|event| &event["request"]);
    let found = requests.map(|request| {
        let mut events = events.iter().filter(|event| event["request"] == *request);
        let mut next =
            |wanted| events.find(|event| fits(event, wanted)).map(|event| (*event).clone());
        wanted.iter().map(&mut next).collect::<Option<Vec<_>>>()
    });
    found.into_iter().flatten().next()
}

/// The peer has given its GID, and then the kernel's entry says the router's.
fn names_entry(here: &Ibarr) -> Result<()> {
    let near = Ibarr::start("near", N, "responder = \"user\"\n", 0)?;
    // What the peer has said is still known when its entry leads nowhere.
    here.reconfigure("[client]\ncache-ttl = \"10min\"\n")?;
    let (_, check) = doctor(here, "firewall")?;
    let found = check["found"].as_str().unwrap_or_default();
    let is_proven =
        found.ends_with("to UDP port 4791 have come to the daemon (no reply was tried)");
    ensure!(found.contains(NEAR) && is_proven, "{check}");
    let (_, check) = doctor(here, "neighbour")?;
    ensure!(check["state"] == "ok", "{check}");

    let (interface, wrong) = (INTERFACES[0].name, hwaddr(R, ROUTER)?);
    ip(Place::Here, &format!("neigh replace {NEAR} lladdr {wrong} dev {interface} nud permanent"))?;
    let (status, check) = doctor(here, "neighbour")?;
    ensure!(check["state"] == "warn" && [1, 2].contains(&status), "exit {status}: {check}");
    let found = check["found"].as_str().unwrap_or_default();
    for named in [NEAR, interface, &gid(&wrong)?, &gid(&hwaddr(N, "ib4")?)?] {
        ensure!(found.contains(named), "no {named} in {check}");
    }

    let words = ["ibarr", "doctor", "--peer", NEAR, "--run-dir", &here.run_dir()];
    let people = spawn("doctor", Place::Here, &words)?.wait(Duration::from_secs(30))?;
    ensure!(people.code() == Some(status), "{people}, but for programs exit {status}");

    let remedy = check["remedy"].as_str().unwrap_or_default();
    let command = remedy.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let (command, _) = command.with_context(|| check.to_string())?;
    rig::run(Place::Here, &command.split(' ').collect::<Vec<_>>())?;
    let (_, check) = doctor(here, "neighbour")?;
    ensure!(check["state"] == "ok", "after `{command}`: {check}");
    rping(N, NEAR)?;
    near.stop()
}

/// The exit status of `ibarr doctor`, and the last of its checks that has this name. Other checks find faults, too: of
/// ports in other namespaces, for example.
fn doctor(here: &Ibarr, name: &str) -> Result<(i32, Value)> {
    let doctor = format!("ibarr doctor --json --peer {NEAR} --run-dir {}", here.run_dir());
    let said = rig::run(Place::Here, &["busybox", "sh", "-c", &format!("{doctor}; echo $?")])?;
    let lines: Vec<_> = said.trim_end().lines().collect();
    let [document, status] = lines[..] else { anyhow::bail!("{said}") };
    let document: Value = serde_json::from_str(document).with_context(|| said.clone())?;
    let checks = document["checks"].as_array().into_iter().flatten();
    let mut named = checks.filter(|check| check["check"] == name);
    let check = named.next_back().with_context(|| said.clone())?;
    Ok((status.parse()?, check.clone()))
}

fn hwaddr(place: Place, interface: &str) -> Result<String> {
    let links: Value =
        serde_json::from_str(&ip(place, &format!("-json link show dev {interface}"))?)?;
    Ok(links[0]["address"].as_str().context("no hardware address")?.to_owned())
}

/// The GID in a hardware address of IPoIB.
fn gid(hwaddr: &str) -> Result<String> {
    let octets = hwaddr.split(':').skip(4).map(|octet| u8::from_str_radix(octet, 16));
    let octets = octets.collect::<Result<Vec<_>, _>>()?;
    let octets: [u8; 16] = octets.try_into().ok().with_context(|| hwaddr.to_owned())?;
    Ok(Ipv6Addr::from(octets).to_string())
}
