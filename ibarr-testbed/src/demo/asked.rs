// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The part of the demonstration where it is the kernel that asks, for `rdma_resolve_addr`.

use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::wire::ls::{ResolveIp, Seq};
use ibarr_common::{IfIndex, Instant};
use ibarr_user::sys::clock;
use nix::net::if_::if_nametoindex;

use crate::interrupt::Interrupt;
use crate::lab::{Lab, Node, netns};
use crate::standin::{Config, Event, IpOutcome, Said, StandIn, Wake};

/// Lets the kernel of `asker` ask for the addresses of `owner`, and shows what it and the daemon
/// say. The daemon is an ordinary one again afterwards.
///
/// # Errors
/// An answer is wrong, or the caller would have waited for its time-out.
pub(super) fn show(
    lab: &mut Lab,
    (asker, owner): (&Node, &Node),
    interrupt: &Interrupt,
    out: &mut impl Write,
) -> Result<()> {
    let name = asker.name;
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
        let start = print(&said, out)?;
        let ms = woken_at.since(start).as_secs_f64() * 1e3;
        writeln!(out, "  {ms:>6.2}  {:<21}the neighbour is new: the caller is woken", "nudge")?;
    }
    drop(kernel);
    lab.restart(name, interrupt)?;
    Ok(())
}

/// Which neighbour woke the caller.
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
            // What came too early is said again after the nudge.
            Some(Event::AnswerLost(_)) => {}
            other => bail!("the kernel was not told which GID has {target}: {other:?}"),
        }
    }
}

/// When the first was said.
fn print(said: &[Said], out: &mut impl Write) -> Result<Instant> {
    let start = said.first().map(|first| first.at).unwrap_or_default();
    writeln!(out, "  {:>6}  {:<21}message", "ms", "on netlink")?;
    for one in said {
        let ms = one.at.since(start).as_secs_f64() * 1e3;
        let way = if one.by_kernel { "kernel → ibarr" } else { "ibarr → kernel" };
        writeln!(out, "  {ms:>6.2}  {way:<21}{one}")?;
        let words: Vec<_> = one.bytes.chunks(4).map(super::hex).collect();
        for line in words.chunks(10) {
            writeln!(out, "  {:>6}  {:<21}{}", "", "", line.join(" "))?;
        }
    }
    Ok(start)
}

/// What most programs give `rdma_resolve_addr`.
const CALLERS_TIMEOUT: Duration = Duration::from_secs(2);
