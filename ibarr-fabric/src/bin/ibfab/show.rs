// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The commands `ibfab show` and `ibfab fault`, as the fabric executes them.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ibarr_common::ib::Lid;
use ibarr_common::wire::smp::{NodeType, PortState};
use ibarr_fabric::topology::PortId;
use ibarr_fabric::{Fabric, Fault, LinkFault};

/// A request to a running fabric.
#[derive(Debug, Parser)]
#[command(name = "ibfab", no_binary_name = true)]
pub(crate) struct Request {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Show ports with their counters, and why packets were dropped
    Show(ShowArgs),
    /// Cause a fault, or end it
    #[command(subcommand)]
    Fault(FaultCommand),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ShowArgs {
    /// Nodes to show [default: all]
    nodes: Vec<String>,
}

/// A port is written NODE/NUMBER, or NODE for its first.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum FaultCommand {
    /// Make a link lose, repeat or delay packets, in both directions; without an option, restore it
    Link(LinkArgs),
    /// Pull a cable, or plug it in
    Cable {
        /// One of its ends
        port: String,
        to: Switched,
    },
    /// Switch a node off, or on again; it then has no configuration
    Node {
        /// Name of the node
        node: String,
        to: Switched,
    },
    /// Block subnet management and administration at a port (off), or allow them (on)
    Manager {
        /// The port of the subnet manager's channel adapter
        port: String,
        to: Switched,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct LinkArgs {
    /// One of its ends
    port: String,
    /// Share of packets that are lost, such as 2.5%
    #[arg(long, value_name = "SHARE", value_parser = share)]
    loss: Option<u32>,
    /// Share of packets that arrive twice
    #[arg(long, value_name = "SHARE", value_parser = share)]
    duplicate: Option<u32>,
    /// Delay of each packet, such as 5ms
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    delay: Option<Duration>,
    /// Random additional delay up to this; packets overtake each other
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    jitter: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Switched {
    /// Out of order
    Off,
    /// Working
    On,
}

/// Parts per million, from a percentage.
fn share(text: &str) -> Result<u32, String> {
    let percent: f64 =
        text.trim_end_matches('%').parse().map_err(|_| "write it like 2.5%".to_owned())?;
    if !(0.0..=100.0).contains(&percent) {
        return Err("write 0% to 100%".to_owned());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most a million, and positive"
    )]
    Ok((percent * 10_000.0).round() as u32)
}

/// The answer to the words of a request.
pub(crate) fn answer(
    fabric: &mut Fabric,
    words: &[String],
) -> anyhow::Result<(String, Option<Fault>)> {
    match Request::try_parse_from(words)?.command {
        Command::Show(args) => Ok((show(fabric, &args)?, None)),
        Command::Fault(command) => Ok((String::new(), Some(fault(fabric, &command)?))),
    }
}

fn fault(fabric: &Fabric, command: &FaultCommand) -> anyhow::Result<Fault> {
    Ok(match command {
        FaultCommand::Link(args) => Fault::Link {
            port: cabled(fabric, &args.port)?,
            fault: LinkFault {
                loss: args.loss.unwrap_or_default(),
                duplication: args.duplicate.unwrap_or_default(),
                delay: args.delay.unwrap_or_default(),
                jitter: args.jitter.unwrap_or_default(),
            },
        },
        FaultCommand::Cable { port, to } => {
            Fault::Cable { port: cabled(fabric, port)?, down: *to == Switched::Off }
        }
        FaultCommand::Node { node, to } => Fault::Node {
            node: fabric.topology().find(node).with_context(|| format!("no node {node}"))?,
            down: *to == Switched::Off,
        },
        FaultCommand::Manager { port, to } => {
            Fault::Manager { port: cabled(fabric, port)?, cut: *to == Switched::Off }
        }
    })
}

fn cabled(fabric: &Fabric, name: &str) -> anyhow::Result<PortId> {
    let topology = fabric.topology();
    let port = topology.find_port(name);
    let port = port.with_context(|| format!("no port {name}: write it as NODE/NUMBER"))?;
    if topology.peer(port).is_none() {
        bail!("port {name} has no cable");
    }
    Ok(port)
}

fn show(fabric: &Fabric, args: &ShowArgs) -> anyhow::Result<String> {
    let topology = fabric.topology();
    for name in &args.nodes {
        topology.find(name).with_context(|| format!("no node {name}"))?;
    }
    let mut text = format!(
        "{:<20} {:<20} {:<8} {:>5} {:>10} {:>10} {:>8}\n",
        "PORT", "PEER", "STATE", "LID", "SENT", "RECEIVED", "DROPPED"
    );
    let is_asked =
        |id| args.nodes.is_empty() || args.nodes.iter().any(|name| topology.find(name) == Some(id));
    for (id, node) in topology.nodes().filter(|(id, _)| is_asked(*id)) {
        for number in node.port_numbers() {
            let port = PortId { node: id, number };
            let Some(peer) = topology.peer(port) else { continue };
            let Some(config) = fabric.port_config(port) else { continue };
            let Some(counters) = fabric.counters(port) else { continue };
            let state = match config.state {
                PortState::Down => "down",
                PortState::Initialize => "init",
                PortState::Armed => "armed",
                PortState::Active => "active",
            };
            let lid = match node.kind {
                NodeType::Switch => fabric.switch_lid(id),
                _ => config.lid,
            };
            let lid = lid.map_or("-".to_owned(), |lid: Lid| lid.to_string());
            let dropped = counters.send_discards
                + counters.relay_errors
                + counters.send_constraint_errors
                + counters.receive_constraint_errors
                + counters.receive_errors;
            writeln!(
                text,
                "{:<20} {:<20} {state:<8} {lid:>5} {:>10} {:>10} {dropped:>8}",
                topology.port_name(port),
                topology.port_name(peer),
                counters.sent_packets,
                counters.received_packets,
            )?;
        }
    }
    if fabric.drops().total() > 0 {
        writeln!(text, "\nDropped packets:")?;
        for (reason, count) in fabric.drops().iter() {
            writeln!(text, "{count:>10}  {reason}")?;
        }
    }
    Ok(text)
}
