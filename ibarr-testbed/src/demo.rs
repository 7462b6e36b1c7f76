// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `cargo xtask run` on a machine without InfiniBand: two nodes resolve each other across an IP router,
//! the kernel of one of them asks for an address and for the path there, and every message is shown.

mod asked;
mod kernel;
mod line;
mod path;
mod subnet;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{PORT, Query, Reply};
use nix::net::if_::if_nametoindex;
use serde::Deserialize;

use crate::capture::{Capture, Captured};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabName, Node, Plan, Store, Subnet, TemporaryLab, netns};

use self::subnet::Ports;

/// Makes a lab, makes its nodes resolve each other, and shows that on `out`. Then, unless `once`, leaves
/// the lab up until interrupted. The lab is removed in any case.
///
/// # Errors
/// The lab cannot be made, an answer is wrong, or bytes did not cross the router as they should.
pub fn run(
    store: &Store,
    name: &LabName,
    ibarr: &Path,
    once: bool,
    interrupt: &Interrupt,
    out: &mut impl Write,
) -> Result<()> {
    let lab = Lab::up(store, Plan::new(name.clone(), 2, true)?, ibarr, interrupt)?;
    let mut lab = TemporaryLab::new(lab);
    let shown = show(&mut lab, interrupt, out);
    if shown.is_ok() && !once {
        write!(out, "{}", next_steps(&lab))?;
        out.flush()?;
        while interrupt.sleep(Duration::from_hours(1)).is_ok() {}
        writeln!(out)?;
    }
    // Drop the ports before the lab.
    let shown = shown.map(drop);
    lab.down()?;
    shown
}

fn show(lab: &mut Lab, interrupt: &Interrupt, out: &mut impl Write) -> Result<Ports> {
    let nodes = lab.plan().nodes.clone();
    let [n1, n2] = nodes.as_slice() else { bail!("the demonstration has two nodes") };
    let router = Router::new(lab.plan())?;
    writeln!(out, "{}", picture(n1, n2))?;
    let ([n1_v4, n1_v6], [n2_v4, n2_v6]) = (n1.addresses, n2.addresses);
    let questions = [(n1, n2, n2_v4), (n2, n1, n1_v4), (n1, n2, n2_v6), (n2, n1, n1_v6)];
    for (asker, owner, ip) in questions {
        interrupt.check()?;
        let (answer, crossings) = ask(lab, &router, asker, &[&ip.to_string()])?;
        let gid = check(&answer, asker, owner, ip, &crossings)?;
        let Answer { source, ms, .. } = &answer;
        writeln!(out, "\n{} asks: which GID has {ip}?", asker.name)?;
        writeln!(out, "  {gid}, from the {source} in {ms:.3} ms. What crossed the router:\n")?;
        print(&crossings, out)?;
    }

    let (answer, crossings) = ask(lab, &router, n1, &[&n2_v4.to_string(), "--cached"])?;
    ensure!(
        answer.gid == Some(n2.gid.clone()) && answer.source == "cache" && crossings.is_empty(),
        "{}: the cache should have {n2_v4}, but: {answer:?}, {} packets",
        n1.name,
        crossings.len(),
    );
    writeln!(out, "\n{} remembers {n2_v4}", n1.name)?;
    writeln!(out, "  {}, from the cache. Nothing crossed the router.", n2.gid)?;

    kernel::show(lab, &router, (n1, n2), interrupt, out)?;
    let ports = asked::show(lab, (n1, n2), interrupt, out)?;
    writeln!(out, "\nAll answers are right; both nodes were reached through the router only.")?;
    Ok(ports)
}

/// Makes `asker` resolve `ip`. Returns the answer and what the router forwarded meanwhile.
fn ask(
    lab: &Lab,
    router: &Router,
    asker: &Node,
    words: &[&str],
) -> Result<(Answer, Vec<Crossing>)> {
    let before = router.crossings()?;
    ensure!(before.is_empty(), "the router forwards unexpected datagrams: {before:?}");
    let output = lab.ibarr(asker, &[&["resolve", "--json"], words].concat())?;
    let said = || {
        let [out, err] = [&output.stdout, &output.stderr].map(|s| String::from_utf8_lossy(s));
        format!("{}: ibarr resolve {words:?} ended with {}: {out}{err}", asker.name, output.status)
    };
    let answers: Answers = serde_json::from_slice(&output.stdout).with_context(said)?;
    let [answer] = answers.answers.try_into().ok().with_context(said)?;
    ensure!(output.status.success(), said());
    Ok((answer, router.crossings()?))
}

/// Checks that `ip` of `owner` was resolved to the right GID, by a query and a reply that both crossed
/// the router.
fn check(
    answer: &Answer,
    asker: &Node,
    owner: &Node,
    ip: IpAddr,
    crossings: &[Crossing],
) -> Result<Gid> {
    let gid = owner.gid()?;
    ensure!(
        answer.ip == ip && answer.status == "found" && answer.gid == Some(gid.to_string()),
        "{}: {ip} should be {gid}, but the answer is {answer:?}",
        asker.name,
    );
    ensure!(
        answer.source == "peer",
        "{}: no peer was asked for {ip}, the answer comes from: {}",
        asker.name,
        answer.source,
    );
    let server = SocketAddr::new(ip, PORT);
    let queries: Vec<_> = crossings
        .iter()
        .filter(|crossing| crossing.from == asker.subnet && crossing.packet.destination == server)
        .filter(|crossing| asker.addresses.contains(&crossing.packet.source.ip()))
        .filter_map(|crossing| {
            let query = Query::parse(&crossing.packet.payload).ok()?;
            (query.target() == ip).then_some((query.msg_id(), crossing.packet.source))
        })
        .collect();
    let is_reply = |crossing: &&Crossing| {
        let Captured { source, destination, payload, .. } = &crossing.packet;
        let reply = Reply::parse(payload);
        crossing.from == owner.subnet
            && *source == server
            && reply.is_ok_and(|reply| {
                reply.gid == Some(gid) && queries.contains(&(reply.msg_id, *destination))
            })
    };
    ensure!(
        crossings.iter().any(|crossing| is_reply(&crossing)),
        "{}: {ip} was answered, but no query with its reply crossed the router: {crossings:?}",
        asker.name,
    );
    Ok(gid)
}

/// A capture in the router's namespace.
struct Router {
    capture: Capture,
    subnets: HashMap<usize, Subnet>,
}

impl Router {
    fn new(plan: &Plan) -> Result<Self> {
        let subnets = netns::inside(&plan.hub, || {
            plan.subnets
                .iter()
                .map(|subnet| {
                    let index = if_nametoindex(subnet.bridge().as_str())?;
                    Ok((usize::try_from(index)?, *subnet))
                })
                .collect()
        })?;
        Ok(Self { capture: Capture::start(&plan.hub)?, subnets })
    }

    /// The datagrams forwarded since the last call: each came in from one subnet, and left to the other
    /// with the same bytes.
    fn crossings(&self) -> Result<Vec<Crossing>> {
        let mut arrived: Vec<(Subnet, Captured)> = Vec::new();
        let mut crossings = Vec::new();
        for packet in self.capture.take()? {
            // The ports of the bridges show each packet a second time.
            let Some(&subnet) = self.subnets.get(&packet.ifindex) else { continue };
            if !packet.is_leaving {
                arrived.push((subnet, packet));
                continue;
            }
            let came = arrived.iter().position(|(from, before)| {
                *from != subnet
                    && (before.source, before.destination) == (packet.source, packet.destination)
                    && before.payload == packet.payload
            });
            if let Some(came) = came {
                let (from, packet) = arrived.swap_remove(came);
                crossings.push(Crossing { from, to: subnet, packet });
            }
        }
        Ok(crossings)
    }
}

/// A datagram that the router forwarded, as it arrived.
#[derive(Debug)]
struct Crossing {
    from: Subnet,
    to: Subnet,
    packet: Captured,
}

fn print(crossings: &[Crossing], out: &mut impl Write) -> Result<()> {
    let start = crossings.first().map(|first| first.packet.time).unwrap_or_default();
    writeln!(out, "  {:>6}  {:<21}{:<18}{:<18}message", "ms", "subnets", "from", "to")?;
    for Crossing { from, to, packet } in crossings {
        let ms = packet.time.saturating_sub(start).as_secs_f64() * 1e3;
        let way = format!("{from} → {to}");
        let (source, destination) = (packet.source.to_string(), packet.destination.to_string());
        let payload = &packet.payload;
        let message = match (Query::parse(payload), Reply::parse(payload)) {
            (Ok(query), _) => query.to_string(),
            (_, Ok(reply)) => reply.to_string(),
            (Err(error), _) => format!("not ip2gid: {error}"),
        };
        writeln!(out, "  {ms:>6.2}  {way:<21}{source:<18}{destination:<18}{message}")?;
        writeln!(out, "  {:>6}  {:<21}{}", "", "", hex(payload))?;
    }
    Ok(())
}

/// Hexadecimal, grouped by the fields of the protocol: 4, 4, 4, 4 bytes and the value.
fn hex(payload: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in payload.iter().enumerate() {
        let is_group_start = at > 0 && at <= 16 && at.is_multiple_of(4);
        let _ = write!(text, "{}{byte:02x}", if is_group_start { " " } else { "" });
    }
    text
}

fn picture(n1: &Node, n2: &Node) -> String {
    let line = |left: &str, middle: &str, right: &str| format!("  {left:<24}{middle:<37}{right}\n");
    let addresses = |node: &Node| node.addresses.map(|ip| ip.to_string()).join("  ");
    let name = |node: &Node| format!("node {}", node.name);
    let mut text = "\
Two nodes with an IP router between them. ARP ends at the router, so neither can learn the other's
InfiniBand address (GID) by it; each runs ibarr, which asks the other's over UDP.\n\n"
        .to_owned();
    text += &line(&name(n1), "", &name(n2));
    text += &line(&addresses(n1), "── subnet 1 ── router ── subnet 2 ──", &addresses(n2));
    text += &line(&n1.gid, "", &n2.gid);
    text
}

fn next_steps(lab: &Lab) -> String {
    let name = &lab.plan().name;
    let gid = lab.plan().nodes.last().map_or("", |node| &node.gid);
    format!(
        "
The lab stays up until Ctrl-C. In another terminal:
  cargo xtask lab status --name {name}
  cargo xtask lab exec --name {name} n1 -- ibarr cache
  cargo xtask lab exec --name {name} n1 -- ibarr resolve 10.2.0.99
  cargo xtask lab exec --name {name} n1 -- ibarr ports
  cargo xtask lab exec --name {name} n1 -- ibarr path {gid}
  cargo xtask lab exec --name {name} r -- ip address
A lab of your own: cargo xtask lab up --nodes 4 --router   (docs/lab.md)
"
    )
}

/// An answer in the output of `ibarr resolve --json`.
#[derive(Debug, Deserialize)]
struct Answers {
    answers: Vec<Answer>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    ip: IpAddr,
    status: String,
    gid: Option<String>,
    #[serde(default)]
    source: String,
    ms: f64,
}
