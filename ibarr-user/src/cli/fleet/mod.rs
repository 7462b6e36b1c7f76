// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr fleet`: asks many nodes at the same time, each afresh, and compares what they say with each other, with the
//! kernel's neighbour entries and with what the daemon remembers.
//!
//! The queries leave by sockets of this process ([`asking`]): a fleet is asked once a second by rules of its own
//! ([`survey`]), and takes no place in the daemon that an application needs. The daemon is asked only what it remembers.

mod asking;
mod judge;
mod names;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::time::{Duration, Instant};

use clap::Args;
use ibarr_common::ib::Gid;
use ibarr_proto::ip2gid::client::survey;
use ibarr_proto::request::Status;

use super::resolve::FamilyArgs;
use super::table::Table;
use super::targets;
use super::times::Tally;
use super::verify::Neighbours;
use super::{Daemon, Exit, ask, place, print};
use crate::config::{self, Config};
use crate::control::messages::{
    AddressMark, Body, Elapsed, Failure, FailureKind, Fleet, FleetNode, FleetSummary, Request,
    UnknownName,
};

#[derive(Args, Debug)]
pub(super) struct FleetArgs {
    /// Addresses, host names, or lists of them like node[1-8,12],login1 or @FILE; %IF stands for an interface
    #[arg(required = true, value_name = "NODES")]
    nodes: Vec<String>,
    #[command(flatten)]
    family: FamilyArgs,
    /// How often a node that does not answer is asked, once a second
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=60))]
    tries: u32,
    /// How many replies each node is asked for, one a second
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// UDP port of the nodes [default: as configured]
    #[arg(long, value_name = "PORT")]
    udp_port: Option<NonZeroU16>,
    /// Show only the nodes that are not well
    #[arg(long)]
    faults: bool,
    #[command(flatten)]
    daemon: Daemon,
}

/// The most queries in a second: a fleet of 10,000 nodes is asked within four, and a link of 10 Gbit/s carries a thousand
/// times as much.
const RATE: NonZeroU32 = NonZeroU32::new(6000).expect("not zero");

pub(super) fn run(args: &FleetArgs) -> Exit {
    match fleet(args) {
        Ok(exit) => exit,
        Err(failure) => ask::fail(failure, args.daemon.json),
    }
}

fn fleet(args: &FleetArgs) -> Result<Exit, Failure> {
    let begun = Instant::now();
    let settings = survey::Settings {
        udp_port: args.udp_port.map_or_else(configured_port, Ok)?,
        rate: RATE,
        tries: NonZeroU32::new(args.tries).unwrap_or(NonZeroU32::MIN),
        rounds: NonZeroU32::new(args.rounds).unwrap_or(NonZeroU32::MIN),
    };
    let (nodes, unknown_names) = names::resolve(targets::parse(&args.nodes)?, args.family.family());
    let remembered = match remembered(&args.daemon) {
        Ok(remembered) => remembered,
        Err(Failure { message, .. }) => {
            print::error_line(&format!("answers are not compared with the daemon's: {message}"));
            BTreeMap::new()
        }
    };
    let neighbours = Neighbours::read();
    let targets: Vec<_> = nodes.iter().map(|(target, _)| *target).collect();
    let asked = asking::ask(settings, &targets)?;
    let mut tally = Tally::default();
    let mut rows: Vec<_> = nodes
        .iter()
        .zip(&asked.findings)
        .map(|((target, name), finding)| judge::node(*target, name.clone(), finding, &mut tally))
        .collect();
    judge::compare(&mut rows, &targets, &neighbours, &remembered);
    let summary = judge::summary(&rows, &unknown_names, &tally, Elapsed(begun.elapsed()));
    let is_whole = asked.is_whole && summary.well == summary.nodes && unknown_names.is_empty();
    if args.daemon.json {
        let nodes = rows.into_iter().filter(|node| !args.faults || !judge::is_well(node)).collect();
        print::json(&Body::Fleet { fleet: Fleet { nodes, unknown_names, summary } }.into());
    } else {
        show(args, &rows, &unknown_names, &summary);
    }
    Ok(if is_whole { Exit::Ok } else { Exit::Negative })
}

/// The port in the file that the daemon reads, too.
fn configured_port() -> Result<NonZeroU16, Failure> {
    let (file, absent) = place(None);
    let config = config::gather(&file, absent).and_then(|sources| Config::read(&sources));
    let port = config.map(|config| config.client.settings().udp_port);
    port.map_err(|error| Failure {
        kind: FailureKind::Config,
        message: format!("{error}; mend it, or name the port (--udp-port)"),
    })
}

/// What the daemon has learned.
fn remembered(daemon: &Daemon) -> Result<BTreeMap<IpAddr, Gid>, Failure> {
    // A daemon that hangs delays the answers of its peers no longer than this.
    let patience = daemon.patience().min(Duration::from_secs(5));
    let mut connection = Daemon { patience: Some(patience), ..daemon.clone() }.connect()?;
    let (mut all, mut after) = (BTreeMap::new(), None::<AddressMark>);
    loop {
        let Body::Cache { entries, next } = connection.ask(&Request::Cache { after }, |_| ())?
        else {
            return Err(ask::other_version());
        };
        all.extend(entries.iter().filter_map(|entry| Some((entry.ip, entry.gid?))));
        match next {
            None => return Ok(all),
            next => after = next,
        }
    }
}

fn show(args: &FleetArgs, nodes: &[FleetNode], unknown: &[UnknownName], summary: &FleetSummary) {
    for name in unknown {
        print::error_line(&format!("{}: {}", name.name, name.message));
    }
    let is_shown = |node: &&FleetNode| !args.faults || !judge::is_well(node);
    let mut table = Table::default();
    // The columns are as wide as all rows need.
    table.text(nodes.iter().filter(is_shown).map(cells));
    for node in nodes.iter().filter(is_shown) {
        print::rows(&mut table, [cells(node)]);
        for mismatch in &node.mismatches {
            print::line(&format!("    mismatch: {}", mismatch.message));
        }
        if print::has_failed() {
            return;
        }
    }
    let refused = |node: &&FleetNode| node.status == Status::Refused;
    let refused: Vec<_> = nodes.iter().filter(refused).take(MOST_NAMED).map(name).collect();
    print::refused(&refused);
    print::line(&print::fleet(summary));
}

const MOST_NAMED: usize = 20;

fn name(node: &FleetNode) -> String {
    node.name.clone().unwrap_or_else(|| node.ip.to_string())
}

fn cells(node: &FleetNode) -> Vec<String> {
    let says = node.gid.map_or_else(|| node.status.to_string(), |gid| gid.to_string());
    let speaks = node.speaks.map_or(String::new(), |speaks| speaks.to_string());
    let times = node.ms.map_or(String::new(), |ms| {
        let [median, max] = [ms.median, ms.max].map(Elapsed::millis);
        format!("{median:.3} ms, at most {max:.3}")
    });
    let address = node.name.as_ref().map_or(String::new(), |_| node.ip.to_string());
    vec![name(node), says, speaks, times, address]
}
