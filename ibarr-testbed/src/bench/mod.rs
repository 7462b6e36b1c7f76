// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench`: the costs of ibarr, compared with what the machine allows.
//!
//! Machines differ, so ratios within one run come first. [`ip2gid`](fn@ip2gid) compares the daemon with a
//! UDP echo server that runs beside it, is loaded in turn with it, and moves datagrams with the same code.

pub mod echo;

mod cache;
mod head;
mod load;
mod local_service;
mod paths;
mod process;
mod report;
mod resolve;
mod responder;
mod rounds;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ibarr_common::wire::ip2gid::PORT;

use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabName, Plan, Store, TemporaryLab};
use echo::Style;
use load::{Latencies, Load};
use process::Helper;
use rounds::Round;

pub use cache::{Cache, measure as measure_cache};
pub use local_service::echo as echo_local_service;
pub use paths::{Report as PathsReport, paths};
pub use report::Report;
pub use resolve::{Report as ResolveReport, resolve};
pub use responder::{Report as ResponderReport, responder};

/// Measures ip2gid in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or a server answers wrongly.
pub fn ip2gid(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let name: LabName = format!("bench-{}", std::process::id()).parse()?;
    let lab = Lab::up(store, Plan::new(name, 2, false)?, ibarr, interrupt)?;
    let mut lab = TemporaryLab::new(lab);
    let effort = if quick { Effort::QUICK } else { Effort::FULL };

    let mut servers = Servers::start(&lab)?;
    eprintln!("bench: rates, {} rounds of {:?} a server …", effort.rounds, effort.round);
    let throughput = servers.throughput(&effort, interrupt)?;
    eprintln!("bench: latencies at {OPEN_LOOP_RATE} queries a second …");
    let latency = servers.latency(&effort, interrupt)?;
    drop(servers);

    eprintln!("bench: start-up, {} times …", effort.starts);
    let node = lab.plan().nodes.first().context("a lab has nodes")?.name;
    let mut startup = Vec::new();
    for _ in 0..effort.starts {
        startup.push(lab.restart(node, interrupt)?);
    }
    lab.down()?;

    eprintln!("bench: caches, in {} processes …", effort.caches);
    let caches = cache::measure_in_children(Cache::Peers, quick, effort.caches, interrupt)?;
    Report::new(quick, &throughput, &latency, &startup, caches)
}

/// The servers that are compared, in the order of the reports.
const SERVERS: [&str; 3] = ["ibarr", "echo", "batched echo"];

/// At most a tenth of what one CPU can answer, so queues are short and the server is measured.
const OPEN_LOOP_RATE: u32 = 10_000;

struct Effort {
    rounds: usize,
    round: Duration,
    open_loop: Duration,
    starts: usize,
    caches: usize,
}

impl Effort {
    const FULL: Self = Self {
        rounds: 11,
        round: Duration::from_secs(1),
        open_loop: Duration::from_secs(2),
        starts: 21,
        caches: 11,
    };
    /// Shows that the bench works, and the order of magnitude.
    const QUICK: Self = Self {
        rounds: 3,
        round: Duration::from_millis(200),
        open_loop: Duration::from_millis(200),
        starts: 3,
        caches: 1,
    };
}

/// Servers on the first node, under load from the second.
struct Servers {
    pids: [u32; SERVERS.len()],
    loads: [Load; SERVERS.len()],
    _echoes: [Helper; 2],
}

impl Servers {
    fn start(lab: &Lab) -> Result<Self> {
        let plan = lab.plan();
        let [server, client] = plan.nodes.as_slice() else { anyhow::bail!("a lab of two nodes") };
        let echo = |style: Style, port: u16| {
            let value = match style {
                Style::Daemon => "daemon",
                Style::Batched => "batched",
            };
            let arguments = ["bench", "echo", "--style", value, "--port", &port.to_string()];
            Helper::start(&server.namespace, &arguments.map(str::to_owned))
        };
        let echoes = [echo(Style::Daemon, PORT + 1)?, echo(Style::Batched, PORT + 2)?];
        let daemon = lab.state().daemons.iter().find(|daemon| daemon.node == server.name);
        let daemon = daemon.context("the daemon was started")?.process.pid;
        let pids = [daemon, echoes[0].pid(), echoes[1].pid()];
        process::pin(&pids)?;

        let [ipv4, _] = server.addresses;
        let at = |port: u16| SocketAddr::new(ipv4, port);
        let load = |port, ending: &[u8]| Load::new(&client.namespace, at(port), ending);
        let gid = server.gid()?.octets();
        // An echo ends as the query does, in the address that is asked for.
        let std::net::IpAddr::V4(target) = ipv4 else { anyhow::bail!("IPv4 comes first") };
        let target = target.octets();
        let loads = [load(PORT, &gid)?, load(PORT + 1, &target)?, load(PORT + 2, &target)?];
        Ok(Self { pids, loads, _echoes: echoes })
    }

    /// The rounds of each server. Rounds with the same index are neighbours in time.
    fn throughput(
        &mut self,
        effort: &Effort,
        interrupt: &Interrupt,
    ) -> Result<[Vec<Round>; SERVERS.len()]> {
        let mut rounds = [const { Vec::new() }; SERVERS.len()];
        // One more, because the first warms caches and neighbour tables.
        for turn in 0..=effort.rounds {
            for ((pid, load), rounds) in self.pids.iter().zip(&self.loads).zip(&mut rounds) {
                interrupt.check()?;
                let cpu = process::cpu_time(*pid)?;
                let (answers, wall) = load.closed_loop(effort.round, interrupt)?;
                let cpu = process::cpu_time(*pid)?.saturating_sub(cpu);
                let answers = f64::from(u32::try_from(answers)?);
                ensure!(!cpu.is_zero(), "a server answers without using a CPU");
                if turn > 0 {
                    rounds.push(Round { answers, wall, cpu });
                }
            }
        }
        Ok(rounds)
    }

    fn latency(
        &mut self,
        effort: &Effort,
        interrupt: &Interrupt,
    ) -> Result<[Latencies; SERVERS.len()]> {
        let mut all = [const { Latencies::none() }; SERVERS.len()];
        for _ in 0..effort.rounds {
            for (load, all) in self.loads.iter().zip(&mut all) {
                interrupt.check()?;
                all.merge(load.open_loop(OPEN_LOOP_RATE, effort.open_loop)?);
            }
        }
        Ok(all)
    }
}
