// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr doctor`: goes through what a connection needs, in the order in which it needs it.

mod daemon;
mod firewall;
mod machine;
mod peer;
mod rules;

use std::path::Path;

use ibarr_common::ib::{Gid, Lid};
use ibarr_common::wire::ip2gid::PORT;
use ibarr_proto::paths::{self, Partial};
use ibarr_proto::request::{self, Freshness};

use super::targets::{Addresses, Destination};
use super::verify::Neighbours;
use super::{Daemon, Exit, ask, print};
use crate::control::client;
use crate::control::messages::{
    Answer, Body, Check, CheckState, Failure, PathAnswer, PortStatus, Request, Status, Target,
};
use crate::transport::ports::Dirs;
use crate::transport::rtnetlink;

pub(super) use self::peer::Peer;

/// Prints each check as soon as it is done. The exit status is that of the worst.
pub(super) fn examine(daemon: &Daemon, dirs: &Dirs, bpf_dir: &Path, peer: Option<Peer>) -> Exit {
    let mut report = Report { is_json: daemon.json, checks: Vec::new() };
    let proc = Path::new("/proc");
    report.add_all(machine::checks(dirs));
    report.add(machine::memlock(machine::locked_memory()));
    match status(daemon) {
        Ok(status) => {
            let its = status.responder.bpf_dir.as_deref().map(Path::new);
            let process = proc.join(status.pid.to_string());
            report.add(machine::bpffs(its.unwrap_or(bpf_dir), Some(&process)));
            report.add_all(daemon::checks(&status, proc));
            report.add(daemon::user(status.pid, proc, &dirs.dev));
            let port = status.servers.first().map_or(PORT, |server| server.port.get());
            report.add(firewall::check(port));
            for port in &status.ports {
                let answer = port.gids.first().and_then(|gid| path(daemon, *gid, Some(port)).ok());
                report.add(daemon::answer(port, answer.as_deref()));
            }
            if let Some(peer) = peer {
                examine_peer(&mut report, daemon, dirs, &status, peer);
            }
        }
        Err(Failure { message, .. }) => {
            report.add(machine::bpffs(bpf_dir, None));
            report.add(Check::fail(
                "daemon",
                message,
                "systemctl start ibarr; journalctl -u ibarr",
            ));
            report.add(firewall::check(PORT));
            if let Some(Peer::Ip(destination)) = peer {
                let _ = address(&mut report, dirs, &destination);
            }
        }
    }
    report.end()
}

fn examine_peer(report: &mut Report, daemon: &Daemon, dirs: &Dirs, status: &Status, peer: Peer) {
    let own = status.ports.iter().flat_map(|port| port.gids.iter().copied());
    let own: Vec<Gid> =
        own.chain(status.interfaces.iter().filter_map(|interface| interface.gid)).collect();
    let lids: Vec<Lid> = status.ports.iter().filter_map(|port| port.lid).collect();
    let gid = match peer {
        Peer::Gid(gid) => gid,
        Peer::Ip(destination) => {
            let Some(target) = address(report, dirs, &destination) else { return };
            let remembered = resolve(daemon, target, Freshness::Memory);
            let remembered = remembered.ok().and_then(|answer| answer.gid);
            let answer = match resolve(daemon, target, Freshness::Fresh) {
                Ok(answer) => answer,
                Err(failure) => return report.add(Check::skipped("peer", failure.message)),
            };
            report.add(peer::gid(&answer, remembered, &own));
            match answer.gid {
                Some(gid) => {
                    // What the peer said last, if this is what the entry says.
                    let is_entry = answer.source == Some(request::Source::Neighbour);
                    let said = remembered.filter(|_| is_entry).unwrap_or(gid);
                    let mismatch = Neighbours::read().contradict(target, said);
                    report.add(peer::neighbour(target.ip, mismatch));
                    gid
                }
                None => return report.add(Check::skipped("path", "the GID is not known")),
            }
        }
    };
    report.add(match path(daemon, gid, None) {
        Ok(answer) => {
            let is_old = answer.source == Some(paths::Source::Cache);
            let from = status.ports.iter().find(|port| port.port == answer.port).filter(|_| is_old);
            let now = from.and_then(|port| path(daemon, gid, Some(port)).ok());
            peer::path(&answer, now.as_deref(), &lids, own.contains(&gid))
        }
        Err(failure) => Check::skipped("path", failure.message),
    });
}

/// Examines the name of a destination and the route to it. Returns what applications connect to, if it has an address.
fn address(report: &mut Report, dirs: &Dirs, of: &Destination) -> Option<Target> {
    let Addresses { target, others } = match of.resolve(None) {
        Ok(found) => found,
        Err(message) => {
            let remedy = format!("look at /etc/hosts and DNS (getent ahosts {})", of.text);
            report.add(Check::fail("name", format!("{}: {message}", of.text), remedy));
            return None;
        }
    };
    if !report.is_json {
        print::others(&of.text, target.ip, &others);
    }
    let addresses = rtnetlink::addresses().unwrap_or_default();
    let (check, bound) = peer::route(target, &dirs.sys, &addresses, rtnetlink::route);
    report.add(check);
    Some(Target { scope: target.scope.or(bound), ..target })
}

fn status(daemon: &Daemon) -> Result<Status, Failure> {
    match client::ask(&daemon.run_dir, &Request::Status, daemon.patience) {
        Ok(Body::Status { status }) => Ok(*status),
        other => Err(ask::unexpected(other)),
    }
}

fn resolve(daemon: &Daemon, target: Target, lookup: Freshness) -> Result<Answer, Failure> {
    ask::one(target, lookup, None, |request| client::ask(&daemon.run_dir, request, daemon.patience))
}

/// From a port to a GID, as its subnet administrator says now; or from the port that the daemon chooses, as it is
/// remembered.
fn path(daemon: &Daemon, dgid: Gid, from: Option<&PortStatus>) -> Result<Box<PathAnswer>, Failure> {
    let port = from.map(|port| port.port);
    let path = Partial { dgid, sgid: None, port, pkey: None, fresh: from.is_some() };
    match client::ask(&daemon.run_dir, &Request::Path { path }, daemon.patience) {
        Ok(Body::Path { path }) => Ok(path),
        other => Err(ask::unexpected(other)),
    }
}

struct Report {
    is_json: bool,
    checks: Vec<Check>,
}

impl Report {
    fn add_all(&mut self, checks: Vec<Check>) {
        for check in checks {
            self.add(check);
        }
    }

    fn add(&mut self, check: Check) {
        if !self.is_json {
            let Check { check: name, state, found, remedy } = &check;
            print::line(&format!("{:<8}{name:<14} {found}", state.to_string()));
            if let Some(remedy) = remedy {
                print::line(&format!("{:<23}{remedy}", ""));
            }
        }
        self.checks.push(check);
    }

    fn end(self) -> Exit {
        let worst = self.checks.iter().map(|check| check.state).max();
        if self.is_json {
            print::json(&Body::Checks { checks: self.checks }.into());
        }
        match worst {
            Some(CheckState::Fail) => Exit::Failing,
            Some(CheckState::Warn) => Exit::Negative,
            Some(CheckState::Skipped | CheckState::Ok) | None => Exit::Ok,
        }
    }
}
