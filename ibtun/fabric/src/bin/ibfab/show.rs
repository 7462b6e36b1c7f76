// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The commands of the control socket, as the fabric executes them.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ibarr_common::ib::Lid;
use ibarr_fabric::ibtun::{self, Behaviour, FaultKind, MAX_DELAY, MAX_FAULTS};
use ibarr_fabric::topology::{NodeId, PortId};
use ibarr_fabric::wire::smp::{NodeType, PortState};
use ibarr_fabric::{Fabric, Fault, LinkFault};

use crate::device::Device;
use crate::generate::{self, ExportArgs};
use crate::remote::Remote;
use crate::trace::TraceArgs;

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
    /// Write the topology with its LIDs, as ibnetdiscover does
    Export(ExportArgs),
    /// Cause a fault, or end it
    #[command(subcommand)]
    Fault(FaultCommand),
    /// Make a device of this machine do what the specification allows and few HCAs do
    Behave(BehaveArgs),
    /// Show each packet that a channel adapter or router sends or receives, until interrupted
    Trace(TraceArgs),
    /// Write a line into all traces
    Mark {
        /// What the line says
        text: String,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ShowArgs {
    /// Nodes to show [default: all]
    nodes: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct BehaveArgs {
    /// Its name, such as ibtun0
    device: String,
    behaviour: Liberty,
    /// Whether it does so from now on
    #[arg(action = clap::ArgAction::Set, value_parser = clap::builder::BoolishValueParser::new())]
    on: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Liberty {
    /// A completion with an error has odd bits in all fields that say nothing then
    Fields,
    /// A new queue pair gets the number of the last that was destroyed
    Numbers,
    /// A shared receive queue is not taken in the order of its posts
    SrqOrder,
}

impl Liberty {
    fn behaviour(self) -> Behaviour {
        match self {
            Self::Fields => Behaviour::Fields,
            Self::Numbers => Behaviour::Numbers,
            Self::SrqOrder => Behaviour::SrqOrder,
        }
    }
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
    /// Break a queue pair of a device of this machine; without an option, its packets are whole again
    #[command(name = "qp")]
    QueuePair(QueuePairArgs),
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

#[derive(Args, Clone, Debug)]
pub(crate) struct QueuePairArgs {
    /// Device and number, as in `rdma resource show qp`, such as ibtun0/17
    #[arg(value_name = "DEVICE/QPN", value_parser = queue_pair)]
    queue_pair: (String, u32),
    /// Put it, or one of its queues, into error
    #[arg(long, value_name = "WHAT")]
    error: Option<Broken>,
    /// Drop so many of the packets that it sends next
    #[arg(long, value_name = "NUMBER", value_parser = packets())]
    drop: Option<u32>,
    /// Send so many of its next packets twice
    #[arg(long, value_name = "NUMBER", value_parser = packets())]
    duplicate: Option<u32>,
    /// Invert the last byte of the payload of so many packets that it sends next
    #[arg(long, value_name = "NUMBER", value_parser = packets())]
    corrupt: Option<u32>,
    /// Send its acknowledges so much later, such as 50ms; 0s ends it
    #[arg(long, value_name = "TIME", value_parser = ack_delay)]
    delay_acks: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Broken {
    /// The queue pair
    Qp,
    /// The completion queue of its sends
    SendCq,
    /// The completion queue of its receives
    ReceiveCq,
    /// Its shared receive queue
    Srq,
}

fn queue_pair(text: &str) -> Result<(String, u32), String> {
    let (device, number) = text.split_once('/').ok_or("write it like ibtun0/17")?;
    Ok((device.to_owned(), number.parse().map_err(|_| "write it like ibtun0/17")?))
}

fn packets() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=i64::from(MAX_FAULTS))
}

/// In microseconds.
fn ack_delay(text: &str) -> Result<u32, String> {
    let delay = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let micros = u32::try_from(delay.as_micros()).ok().filter(|&micros| micros <= MAX_DELAY);
    micros.ok_or_else(|| format!("write at most {}s", MAX_DELAY / 1_000_000))
}

/// What a request asks the event loop to do.
#[derive(Debug)]
pub(crate) enum Action {
    Fault(Fault),
    /// Break queue pairs of a device.
    Device {
        name: String,
        faults: Vec<ibtun::Fault>,
    },
    /// Make a device behave so, or no longer.
    Behave {
        name: String,
        behaviour: Behaviour,
        on: bool,
    },
    /// Tell the client about packets.
    Trace(TraceArgs),
    /// Tell all of them this.
    Mark(String),
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
    remote: Option<&Remote>,
    devices: &[(NodeId, Device)],
    words: &[String],
) -> anyhow::Result<(String, Option<Action>)> {
    match Request::try_parse_from(words)?.command {
        Command::Show(args) => {
            let remote = remote.map_or_else(String::new, |remote| remote.show(fabric));
            Ok((show(fabric, &args)? + &remote + &behaviours(devices), None))
        }
        Command::Export(_) => Ok((generate::running(fabric), None)),
        Command::Trace(args) => Ok((String::new(), Some(Action::Trace(args)))),
        Command::Fault(FaultCommand::QueuePair(args)) => {
            let (name, _) = args.queue_pair.clone();
            Ok((String::new(), Some(Action::Device { name, faults: queue_pair_faults(&args) })))
        }
        Command::Mark { text } => Ok((String::new(), Some(Action::Mark(text)))),
        Command::Behave(BehaveArgs { device: name, behaviour, on }) => {
            let behaviour = behaviour.behaviour();
            Ok((String::new(), Some(Action::Behave { name, behaviour, on })))
        }
        Command::Fault(command) => {
            Ok((String::new(), Some(Action::Fault(fault(fabric, &command)?))))
        }
    }
}

/// A line for each device that behaves otherwise than most.
fn behaviours(devices: &[(NodeId, Device)]) -> String {
    let lines = devices.iter().filter_map(|(_, device)| {
        let on = Liberty::value_variants().iter().filter(|all| device.behaves(all.behaviour()));
        let names = on.filter_map(|one| Some(one.to_possible_value()?.get_name().to_owned()));
        let names = names.collect::<Vec<_>>().join(", ");
        (!names.is_empty()).then(|| format!("\n{} behaves: {names}\n", device.name()))
    });
    lines.collect()
}

fn queue_pair_faults(args: &QueuePairArgs) -> Vec<ibtun::Fault> {
    let fault = |kind: FaultKind, count, delay| {
        let (_, qpn) = args.queue_pair;
        ibtun::Fault { qpn, kind: kind as u8, count, delay, ..ibtun::Fault::default() }
    };
    let error = args.error.map(|what| match what {
        Broken::Qp => FaultKind::QueuePair,
        Broken::SendCq => FaultKind::SendCq,
        Broken::ReceiveCq => FaultKind::ReceiveCq,
        Broken::Srq => FaultKind::Srq,
    });
    let counts = [
        (FaultKind::Drop, args.drop),
        (FaultKind::Duplicate, args.duplicate),
        (FaultKind::Corrupt, args.corrupt),
    ];
    let named = counts.iter().filter_map(|&(kind, count)| Some(fault(kind, count?, 0)));
    let delay = args.delay_acks.map(|delay| fault(FaultKind::DelayAcks, 0, delay));
    // The error comes last: after it no packet is sent.
    let mut faults: Vec<_> = named.chain(delay).collect();
    faults.extend(error.map(|kind| fault(kind, 0, 0)));
    if faults.is_empty() {
        faults.extend(counts.map(|(kind, _)| fault(kind, 0, 0)));
    }
    faults
}

fn fault(fabric: &Fabric, command: &FaultCommand) -> anyhow::Result<Fault> {
    Ok(match command {
        FaultCommand::QueuePair(_) => bail!("the fabric has no queue pairs"),
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
