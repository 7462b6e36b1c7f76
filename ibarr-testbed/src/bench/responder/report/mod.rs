// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The figures of a run.

mod table;

use anyhow::{Context, Result};
use ibarr_proto::ip2gid::Family;
use serde::Serialize;

use super::super::head::Head;
use super::super::report::{Percentiles, float, median};
use super::bulk::Attached;
use super::costs::{Case, Cost};
use super::flood::Flooded;
use super::wire::Server;
use super::{Bulk, Effort, OPEN_LOOP_RATE, Rest, Served};

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    head: Head,
    /// Runs of each program in each case.
    runs: u64,
    programs: Vec<Program>,
    open_loop_per_second: u32,
    servers: Vec<Answering>,
    daemon: Vec<Daemon>,
    bulk_tcp: Vec<Stream>,
}

/// A program on one kind of frame.
#[derive(Debug, Serialize)]
struct Program {
    name: &'static str,
    family: &'static str,
    /// Number of addresses of the node, if the program looks at them.
    entries: Option<u32>,
    /// Whether targets are scattered over all entries, or always the same.
    scattered: bool,
    /// Nanoseconds of a run by the kernel's account, the median over the rounds.
    ns: f64,
    /// The same minus the time of an empty program of the same hook, in the same round.
    net_ns: f64,
    /// `ns` divided by that of a program of the same hook and family that swaps addresses and sends back,
    /// in the same round.
    to_bounce: Option<f64>,
    /// Like `to_bounce`, but both without the empty program.
    net_to_bounce: Option<f64>,
    /// Like `net_to_bounce`, compared with a program that sends as many bytes as a reply has.
    net_to_rewrite: Option<f64>,
}

/// A server on a wire.
#[derive(Debug, Serialize)]
struct Answering {
    #[serde(rename = "name")]
    server: Server,
    family: &'static str,
    /// Nanoseconds of CPU time for an answer under a flood, softirq and process together, without the
    /// generator's share; the median over the rounds.
    cpu_ns: f64,
    /// Answers in a second of that CPU time.
    answers_per_cpu_second: f64,
    /// CPU time divided by user space's, in neighbouring rounds.
    cpu_to_user_space: Option<f64>,
    /// Answers in a second of wall time. The generator runs on the same CPU as the kernel's part.
    answers_per_second: f64,
    latency_us: Percentiles,
}

/// The daemon while the kernel answers.
#[derive(Debug, Serialize)]
struct Daemon {
    responder: Server,
    answers: u64,
    seconds: f64,
    cpu_ms: f64,
    context_switches: u64,
    idle_cpu_ms: f64,
    idle_context_switches: u64,
}

/// A TCP stream to the node.
#[derive(Debug, Serialize)]
struct Stream {
    attached: Attached,
    family: &'static str,
    gigabits_per_second: f64,
    /// Throughput divided by that without a program, in neighbouring rounds.
    to_none: f64,
}

impl Report {
    pub(super) fn new(
        quick: bool,
        effort: &Effort,
        costs: &[Cost],
        served: &[Served],
        rests: &[Rest],
        bulk: &[Bulk],
    ) -> Result<Self> {
        Ok(Self {
            head: Head::new("responder", quick)?,
            runs: u64::from(effort.runs) * u64::try_from(effort.cost_rounds)?,
            programs: programs(costs)?,
            open_loop_per_second: OPEN_LOOP_RATE,
            servers: served.iter().map(|one| answering(one, served)).collect::<Result<_>>()?,
            daemon: rests.iter().map(daemon).collect(),
            bulk_tcp: bulk.iter().map(|one| stream(one, bulk)).collect::<Result<_>>()?,
        })
    }
}

fn programs(costs: &[Cost]) -> Result<Vec<Program>> {
    let beside = |case: &Case, prefix: &str| {
        let is_it = |cost: &&Cost| {
            (cost.case.hook, cost.case.ipv6) == (case.hook, case.ipv6)
                && cost.case.program.starts_with(prefix)
        };
        let found = costs.iter().find(is_it).with_context(|| format!("no {prefix} was run"))?;
        Ok::<_, anyhow::Error>(&found.rounds)
    };
    let mut programs = Vec::new();
    for Cost { case, rounds } in costs {
        let [empty, bounce, rewrite] =
            ["empty", "bounce", "rewrite"].map(|name| beside(case, name));
        let (empty, bounce, rewrite) = (empty?, bounce?, rewrite?);
        let net = |rounds: &[f64]| median(rounds.iter().zip(empty).map(|(ours, none)| ours - none));
        let net_ns = net(rounds).context("no rounds")?;
        // The differences are so small that only medians make sense.
        let net_to = |other: &[f64]| {
            let other = net(other).filter(|&other| other > 0.0 && case.is_ours())?;
            Some(net_ns / other)
        };
        let to_bounce = rounds.iter().zip(bounce).map(|(ours, bounce)| ours / bounce);
        programs.push(Program {
            name: case.program,
            family: name_of(case.ipv6),
            entries: case.is_ours().then(|| case.maps.entries()),
            scattered: case.scattered,
            ns: median(rounds.iter().copied()).context("no rounds")?,
            net_ns,
            to_bounce: median(to_bounce).filter(|_| case.is_ours()),
            net_to_bounce: net_to(bounce),
            net_to_rewrite: net_to(rewrite),
        });
    }
    Ok(programs)
}

fn answering(one: &Served, all: &[Served]) -> Result<Answering> {
    let is_user = |other: &&Served| other.family == one.family && other.server == Server::User;
    let user = all.iter().find(is_user).context("user space was not measured")?;
    let ratios = net(one).zip(net(user)).map(|(ours, theirs)| ours / theirs);
    let cpu_ns = median(net(one)).context("no server was measured")?;
    let rates = one.floods.iter().map(|flood| float(flood.answers) / flood.wall.as_secs_f64());
    Ok(Answering {
        server: one.server,
        family: name_of(one.family == Family::V6),
        cpu_ns,
        answers_per_cpu_second: 1e9 / cpu_ns,
        cpu_to_user_space: median(ratios).filter(|_| one.server != Server::User),
        answers_per_second: median(rates).context("no server was measured")?,
        latency_us: Percentiles::of(&one.latencies),
    })
}

/// Nanoseconds of CPU time for an answer in each round, without the generator's.
fn net(served: &Served) -> impl Iterator<Item = f64> {
    let nanos = |flood: &Flooded| flood.cpu.as_secs_f64() * 1e9;
    served.floods.iter().zip(&served.generator).map(move |(flood, alone)| {
        let alone = nanos(alone) / float(alone.sent);
        (nanos(flood) - alone * float(flood.sent)) / float(flood.answers)
    })
}

fn daemon(rest: &Rest) -> Daemon {
    let Rest { server, answers, wall, busy, idle } = *rest;
    Daemon {
        responder: server,
        answers,
        seconds: wall.as_secs_f64(),
        cpu_ms: busy.0.as_secs_f64() * 1e3,
        context_switches: busy.1,
        idle_cpu_ms: idle.0.as_secs_f64() * 1e3,
        idle_context_switches: idle.1,
    }
}

fn stream(one: &Bulk, all: &[Bulk]) -> Result<Stream> {
    let is_none = |other: &&Bulk| other.family == one.family && other.attached == Attached::Nothing;
    let none = all.iter().find(is_none).context("nothing to compare with")?;
    let ratios = one.rates.iter().zip(&none.rates).map(|(ours, none)| ours / none);
    let gigabits = one.rates.iter().map(|rate| rate * 8.0 / 1e9);
    Ok(Stream {
        attached: one.attached,
        family: name_of(one.family == Family::V6),
        gigabits_per_second: median(gigabits).context("no rounds")?,
        to_none: median(ratios).context("no rounds")?,
    })
}

fn name_of(ipv6: bool) -> &'static str {
    if ipv6 { "IPv6" } else { "IPv4" }
}
