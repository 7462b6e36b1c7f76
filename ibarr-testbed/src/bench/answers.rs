// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench answers`: the CPU time of a node for an answer to a peer, in user space, by tc and by XDP, compared with the
//! system calls that the C ibarr makes for it.
//!
//! Kernel threads receive the packets of each server's interface (threaded NAPI), and those of the other end of its
//! wire. So the CPU time of the former and of the server's process is what an answer costs the node, in nanoseconds and
//! whatever else runs. To send the query and to receive the reply is not counted.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::wire::ip2gid::PORT;

use super::flood::{Flood, Wire};
use super::load::Load;
use super::process::{self, Helper, cpu_time};
use super::report::{Report, Round, Target, median};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabName, Node, Plan, Store, TemporaryLab, netns};
use crate::start::program;

/// Measures on one subnet, then across a router, in labs of their own, which are removed in any case.
///
/// # Errors
/// A lab cannot be made, a server answers wrongly, or the daemon answers where a program in the kernel should.
pub fn answers(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let mut report = Report::new("answers", quick)?;
    for (place, has_router) in [("on one subnet", false), ("across a router", true)] {
        let name: LabName = format!("bench-{}", std::process::id()).parse()?;
        // With a router, every other node is in the client's subnet.
        let plan = Plan::new(name, 7, has_router)?;
        let mut lab = TemporaryLab::new(Lab::up(store, plan, ibarr, interrupt)?);
        let [user, client, tc, _, xdp, _, c] = &lab.plan().nodes.clone()[..] else {
            bail!("a lab of seven nodes")
        };
        // XDP cannot tell a missing checksum from a wrong one.
        set_offload(&client.namespace, Node::INTERFACE, "tx", "off")?;
        let servers = [(Way::User, user), (Way::Tc, tc), (Way::Xdp, xdp), (Way::LikeC, c)];
        let servers = servers.into_iter().map(|(way, node)| {
            Server::start(&mut lab, way, node, client, interrupt)
                .with_context(|| format!("{way}, {place}"))
        });
        let mut servers = servers.collect::<Result<Vec<_>>>()?;
        let [rest @ .., like_c] = super::in_turn::<4>(quick, interrupt, |index, time| {
            let server = &mut servers[index];
            let way = server.way;
            server.measure(time, interrupt).with_context(|| format!("{way}, {place}"))
        })?;
        let cost = |rounds: &[Round]| median(rounds.iter().map(|round| 1e9 / round.rate_per_cpu()));
        for (Server { way, .. }, ours) in servers.iter().zip(&rest) {
            let ratios = ours.iter().zip(&like_c);
            let ratios = ratios.map(|(ours, c)| ours.rate_per_cpu() / c.rate_per_cpu());
            let target = way.target();
            let what = format!("{way}, {place}: answers per CPU-second, to C's calls");
            report.add(what, median(ratios)?, target);
            report.add(format!("{way}, {place}: ns of CPU time an answer"), cost(ours)?, None);
        }
        let what = format!("{}, {place}: ns of CPU time an answer", Way::LikeC);
        report.add(what, cost(&like_c)?, None);
        drop(servers);
        lab.down()?;
    }
    Ok(report)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    User,
    Tc,
    Xdp,
    LikeC,
}

impl Way {
    fn target(self) -> Option<Target> {
        match self {
            Self::Tc => Some(Target::AtLeast(130.0)),
            Self::Xdp => Some(Target::AtLeast(330.0)),
            Self::User | Self::LikeC => None,
        }
    }
}

impl Way {
    fn is_in_kernel(self) -> bool {
        matches!(self, Self::Tc | Self::Xdp)
    }

    /// Has a process of this kind serve on the node.
    fn serve(
        self,
        lab: &mut Lab,
        node: &Node,
        interrupt: &Interrupt,
    ) -> Result<(Option<Helper>, u32)> {
        let responder = match self {
            Self::User | Self::LikeC => "user",
            Self::Tc => "tc",
            Self::Xdp => "xdp",
        };
        let config = lab.files(node).config();
        let before = fs::read_to_string(&config)?;
        fs::write(&config, format!("responder = \"{responder}\"\n{before}"))?;
        lab.restart(node.name, interrupt)?;
        if self == Self::LikeC {
            lab.end(node.name, interrupt)?;
            let gid = node.gid()?.to_string();
            let arguments = ["bench", "like-c", "--gid", &gid].map(str::to_owned);
            let helper = Helper::start(&node.namespace, &arguments)?;
            let process = helper.pid();
            return Ok((Some(helper), process));
        }
        let daemon = lab.state().daemons.iter().find(|daemon| daemon.node == node.name);
        Ok((None, daemon.context("the daemon was started")?.process.pid))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user space",
            Self::Tc => "tc",
            Self::Xdp => "XDP",
            Self::LikeC => "C's calls",
        })
    }
}

struct Server {
    way: Way,
    process: u32,
    /// The threads that receive the packets of its interface.
    receivers: Vec<u32>,
    client: Client,
    /// The process, if it is not the daemon.
    _helper: Option<Helper>,
}

/// A process needs more for an answer.
const LEAST: Duration = Duration::from_nanos(500);

enum Client {
    /// One that reads each answer.
    Process(Load),
    /// One that is cheap enough to keep a program in the kernel busy.
    Kernel(Flood),
}

impl Server {
    fn start(
        lab: &mut Lab,
        way: Way,
        node: &Node,
        client: &Node,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (hub, port) = (lab.plan().hub.clone(), node.name.to_string());
        let receivers = have_threads(&node.namespace, Node::INTERFACE)?;
        have_threads(&hub, &port)?;
        let wire = Wire::new(&hub, &port)?;
        // XDP cannot see tags that the driver strips (ibarr-user/src/bpf/xdp.rs).
        set_offload(&node.namespace, Node::INTERFACE, "rxvlan", "off")?;
        let (helper, process) = way.serve(lab, node, interrupt)?;
        process::pin(&[&[process][..], &receivers].concat())?;

        let server = SocketAddr::new(node.addresses[0], PORT);
        let load = Load::new(&client.namespace, server, &node.gid()?.octets())?;
        let load = load.datagram_by_datagram();
        // Each answer has to be right, before those of a flood are only counted.
        load.closed_loop(Duration::from_millis(100), interrupt)?;
        let client = if way.is_in_kernel() {
            Client::Kernel(wire.flood(node, client)?)
        } else {
            Client::Process(load)
        };
        Ok(Self { way, process, receivers, client, _helper: helper })
    }

    fn measure(&mut self, time: Duration, interrupt: &Interrupt) -> Result<Round> {
        let Self { way, process, receivers, client, .. } = self;
        let used = || -> Result<[Duration; 2]> {
            let receivers = receivers.iter().map(|&thread| cpu_time(thread));
            Ok([cpu_time(*process)?, receivers.sum::<Result<_>>()?])
        };
        let before = used()?;
        let (answers, wall) = match client {
            Client::Process(load) => load.closed_loop(time, interrupt)?,
            Client::Kernel(flood) => flood.load(time, interrupt)?,
        };
        let after = used()?;
        let [process, receivers] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
        let cpu = process + receivers;
        let answers = u32::try_from(answers)?;
        let is_in_kernel = process < answers * LEAST;
        ensure!(
            is_in_kernel == way.is_in_kernel(),
            "{answers} answers took the process {process:?} of {cpu:?}"
        );
        Ok(Round { answers: f64::from(answers), wall, cpu })
    }
}

/// Has kernel threads receive the packets of an interface, and returns them.
fn have_threads(namespace: &str, interface: &str) -> Result<Vec<u32>> {
    let before = receiving_threads()?;
    // A veth has NAPI for this alone, and uses it if its other end does not segment (veth_skb_is_eligible_for_napi in
    // drivers/net/veth.c).
    set_offload(namespace, interface, "gro", "on")?;
    set_offload(namespace, interface, "tso", "off")?;
    let write = "echo 1 > /sys/class/net/$0/threaded";
    run(namespace, "sh", &["-c", write, interface])?;
    let new: Vec<_> = receiving_threads()?.difference(&before).copied().collect();
    ensure!(!new.is_empty(), "{namespace}: no thread receives the packets of {interface}");
    Ok(new)
}

fn receiving_threads() -> Result<BTreeSet<u32>> {
    let mut threads = BTreeSet::new();
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let entry = entry.context("cannot list /proc")?;
        // A process that ends meanwhile is none of them.
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with("napi/") {
            threads.extend(entry.file_name().to_str().and_then(|pid| pid.parse::<u32>().ok()));
        }
    }
    Ok(threads)
}

fn set_offload(namespace: &str, interface: &str, feature: &str, to: &str) -> Result<()> {
    run(namespace, "ethtool", &["-K", interface, feature, to])
}

fn run(namespace: &str, tool: &str, arguments: &[&str]) -> Result<()> {
    let mut command = program(tool);
    let status = netns::spawn(namespace, command.args(arguments).stdout(Stdio::null()))?.wait()?;
    ensure!(status.success(), "{namespace}: {tool} {}: {status}", arguments.join(" "));
    Ok(())
}
