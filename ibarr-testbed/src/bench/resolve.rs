// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench resolve`: what the kernel's address requests cost the daemon if it knows the answers.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{Request, ResolveIp};
use nix::net::if_::if_nametoindex;

use super::local_service::Server;
use super::process;
use super::report::{Report, Target};
use crate::interrupt::Interrupt;
use crate::lab::{Node, Store, netns};

/// Measures in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or an answer is wrong.
pub fn resolve(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let mut lab = super::lab(store, 2, true, ibarr, interrupt)?;
    let [asker, target] = lab.plan().nodes.as_slice() else { bail!("a lab of two nodes") };
    let (asker, target) = (asker.clone(), target.clone());
    let ibarr = Server::daemon(&mut lab, asker.name, interrupt)?;
    let (echo, helper) = Server::echo(&asker.namespace)?;
    process::pin(&[ibarr.pid(), echo.pid()])?;
    let ifindex = netns::inside(&asker.namespace, || Ok(if_nametoindex(Node::INTERFACE)?))?;
    let ifindex = IfIndex::new(ifindex).context("a network device without a number")?;

    let gid = target.gid()?.octets().to_vec();
    let mut report = Report::new("resolve", quick)?;
    for address in target.addresses {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let request = Request::ResolveIp(ResolveIp { ifindex, target: address });
        let servers = [(&ibarr, &gid), (&echo, &octets)];
        let [ours, theirs] = super::in_turn(quick, interrupt, |index, time| {
            let (server, ending) = servers[index];
            let is_right = |_, answer: &[u8]| answer.ends_with(ending);
            server.closed_loop(OUTSTANDING, time, |seq| request.emit(seq), is_right)
        })?;
        let family = if address.is_ipv6() { "IPv6" } else { "IPv4" };
        report.compare(family, &ours, &theirs, Some(Target::AtLeast(0.3)))?;
    }
    drop((ibarr, echo, helper));
    lab.down()?;
    Ok(report)
}

/// Requests in flight, each of a different caller, as in a kernel with that many callers.
const OUTSTANDING: u32 = 16;
