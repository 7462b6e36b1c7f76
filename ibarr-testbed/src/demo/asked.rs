// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The part of the demonstration in which the kernel asks, for `rdma_resolve_addr` and then for
//! `rdma_resolve_route`.

use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{ResolveIp, Seq};
use ibarr_user::sys::clock;
use nix::net::if_::if_nametoindex;

use super::line::{Line, print};
use super::path;
use super::subnet::Ports;
use crate::interrupt::Interrupt;
use crate::lab::{Lab, Node, netns};
use crate::standin::{Config, Event, IpOutcome, StandIn, Wake};

/// Makes the kernel of `asker` ask for the addresses of `owner`, then for the path there, and shows the
/// messages of both sides. Afterwards the daemon runs as before, except that it has the ports.
///
/// # Errors
/// An answer is wrong, or the caller would have waited for its time-out.
pub(super) fn show(
    lab: &mut Lab,
    (asker, owner): (&Node, &Node),
    interrupt: &Interrupt,
    out: &mut impl Write,
) -> Result<Ports> {
    let name = asker.name;
    let ports = Ports::make(lab, (asker, owner))?;
    let mut kernel = StandIn::attach(lab, name, Config::default(), interrupt)?;
    writeln!(
        out,
        "\nNow the kernel of {name} asks, as it does when a program calls rdma_resolve_addr. Without InfiniBand
it has no RDMA core: one stands in for it, by the kernel's rules. An answer wakes no caller, only a
neighbour that changes does; so {name}'s daemon makes one change (the nudge)."
    )?;
    let ifindex = netns::inside(&asker.namespace, || Ok(if_nametoindex(Node::INTERFACE)?))?;
    let ifindex = IfIndex::new(ifindex).context("a network device without a number")?;
    for target in owner.addresses {
        kernel.take_said();
        let request = ResolveIp { ifindex, target };
        let seq = kernel.resolve_ip(request, CALLERS_TIMEOUT)??;
        let by = outcome(&mut kernel, seq, owner, target, interrupt)?;
        let woken_at = clock::now();
        let said = kernel.take_said();
        writeln!(out, "\n{name}'s kernel asks: which GID has {target}?")?;
        writeln!(out, "  {}; the caller was woken by neighbour {by}.\n", owner.gid)?;
        let lines: Vec<_> = said.iter().map(Line::from).collect();
        let start = print(&lines, out)?;
        let ms = woken_at.since(start).as_secs_f64() * 1e3;
        writeln!(out, "  {ms:>6.2}  {:<21}the new neighbour wakes the caller", "nudge")?;
    }
    ports.wait(lab, asker, interrupt)?;
    path::show(&mut kernel, &ports, (asker, owner), interrupt, out)?;
    drop(kernel);
    lab.restart(name, interrupt)?;
    Ok(ports)
}

/// Returns the neighbour that woke the caller.
fn outcome(
    kernel: &mut StandIn,
    asked: Seq,
    owner: &Node,
    target: IpAddr,
    interrupt: &Interrupt,
) -> Result<IpAddr> {
    let right = owner.gid()?.octets();
    loop {
        match kernel.next_event(2 * CALLERS_TIMEOUT, interrupt)? {
            Some(Event::Ip(seq, IpOutcome::Resolved { gid, by })) if seq == asked => {
                ensure!(gid == right, "the kernel was told a wrong GID of {target}: {gid:02x?}");
                let Wake::Neighbour(neighbour) = by else {
                    bail!("the kernel was told of {target}, but nothing woke the caller")
                };
                return Ok(neighbour);
            }
            // An answer that came too early is sent again after the nudge.
            Some(Event::AnswerLost(_)) => {}
            other => bail!("the kernel was not told which GID has {target}: {other:?}"),
        }
    }
}

/// The time-out that most programs give `rdma_resolve_addr`.
const CALLERS_TIMEOUT: Duration = Duration::from_secs(2);
