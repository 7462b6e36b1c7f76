// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench resolve`: what the kernel's address requests cost the daemon if it knows the answers.

mod report;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{Request, ResolveIp};
use nix::net::if_::if_nametoindex;

pub use self::report::Report;
use super::local_service::Server;
use super::process::{self, Helper};
use super::rounds::Round;
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabName, Node, Plan, Store, TemporaryLab, netns};

/// Measures in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or an answer is wrong.
pub fn resolve(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let name: LabName = format!("bench-{}", std::process::id()).parse()?;
    let lab = Lab::up(store, Plan::new(name, 2, true)?, ibarr, interrupt)?;
    let mut lab = TemporaryLab::new(lab);
    let (rounds, round) =
        if quick { (3, Duration::from_millis(200)) } else { (11, Duration::from_secs(1)) };

    let servers = Servers::start(&mut lab, interrupt)?;
    eprintln!("bench: {rounds} rounds of {round:?} a server and family …");
    let mut costs = [const { Vec::new() }; CASES.len()];
    // One more, because the first warms caches, the daemon's among them.
    for turn in 0..=rounds {
        for (case, costs) in CASES.iter().zip(&mut costs) {
            interrupt.check()?;
            let cost = servers.round(*case, round)?;
            if turn > 0 {
                costs.push(cost);
            }
        }
    }
    drop(servers);
    lab.down()?;
    Report::new(quick, &costs)
}

/// The server, and the family of the addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Case {
    is_ours: bool,
    ipv6: bool,
}

/// In the order of the reports. The first is compared with the second, the third with the fourth.
const CASES: [Case; 4] = [
    Case { is_ours: true, ipv6: false },
    Case { is_ours: false, ipv6: false },
    Case { is_ours: true, ipv6: true },
    Case { is_ours: false, ipv6: true },
];

/// Requests in flight.
const OUTSTANDING: u32 = 16;

struct Servers {
    ibarr: Server,
    echo: Server,
    _echo: Helper,
    ifindex: IfIndex,
    /// The node whose addresses are asked for.
    target: Node,
}

impl Servers {
    fn start(lab: &mut Lab, interrupt: &Interrupt) -> Result<Self> {
        let [asker, target] = lab.plan().nodes.as_slice() else { bail!("a lab of two nodes") };
        let (asker, target) = (asker.clone(), target.clone());
        let ibarr = Server::daemon(lab, asker.name, interrupt)?;
        let (echo, helper) = Server::echo(&asker.namespace)?;
        process::pin(&[ibarr.pid(), echo.pid()])?;
        let ifindex = netns::inside(&asker.namespace, || Ok(if_nametoindex(Node::INTERFACE)?))?;
        let ifindex = IfIndex::new(ifindex).context("a network device without a number")?;
        Ok(Self { ibarr, echo, _echo: helper, ifindex, target })
    }

    fn round(&self, case: Case, time: Duration) -> Result<Round> {
        let server = if case.is_ours { &self.ibarr } else { &self.echo };
        let [ipv4, ipv6] = self.target.addresses;
        let target = if case.ipv6 { ipv6 } else { ipv4 };
        let request = Request::ResolveIp(ResolveIp { ifindex: self.ifindex, target });
        // An echo ends as the request does.
        let ending = match (case.is_ours, target) {
            (true, _) => self.target.gid()?.octets().to_vec(),
            (false, IpAddr::V4(address)) => address.octets().to_vec(),
            (false, IpAddr::V6(address)) => address.octets().to_vec(),
        };
        let is_right = |_, answer: &[u8]| answer.ends_with(&ending);
        server.closed_loop(OUTSTANDING, time, |seq| request.emit(seq), is_right)
    }
}
