// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr doctor`: goes through what a connection needs, in the order in which it needs it.

mod addresses;
mod daemon;
mod firewall;
mod gids;
mod machine;
mod peer;
mod placeholders;
mod probe;
mod report;
mod rules;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use ibarr_common::ib::{Gid, Lid};
use ibarr_proto::paths::{self, Partial};
use ibarr_proto::request::{self, Freshness};

use super::targets::{Addresses, Destination};
use super::verify::Neighbours;
use super::{Daemon, Exit, ask, print};
use crate::control::client;
use crate::control::messages::{
    Answer, Body, CacheEntry, Check, CheckState, Failure, FailureKind, InterfaceStatus, PathAnswer,
    PortStatus, Request, Status, Target,
};
use crate::transport::ports::{self, Dirs};
use crate::transport::rtnetlink;

pub(super) use self::peer::Peer;

/// How many remembered peers are asked afresh.
const PEERS: usize = 3;

/// Prints each check as soon as it is done. The exit status is that of the worst.
pub(super) fn examine(
    daemon: &Daemon,
    dirs: &Dirs,
    bpf_dir: &Path,
    peer: Option<Peer>,
    file: Option<&Path>,
) -> Exit {
    // It is opened first, so that an examination is not in vain.
    let opened = match file
        .map(|path| report::create(path).map_err(|error| not_written(path, &error)))
        .transpose()
    {
        Ok(opened) => opened.zip(file),
        Err(failure) => return ask::fail(failure, daemon.json),
    };
    let name = match &peer {
        Some(Peer::Ip(destination)) => Some(destination.text.clone()),
        _ => None,
    };
    let mut report = Report { is_json: daemon.json, checks: Vec::new() };
    let status = examine_all(&mut report, daemon, dirs, bpf_dir, peer);
    if let Some((file, path)) = opened {
        let counters = counts(daemon).ok().map(|mut counts| {
            counts.retain(|_, count| *count > 0);
            serde_json::json!(counts)
        });
        let Report { checks, .. } = &report;
        let journal = report::journal();
        let findings = report::Findings {
            checks,
            status: status.as_ref(),
            counters,
            peer: name.as_deref(),
            journal: &journal,
        };
        if let Err(error) = report::write(file, dirs, &findings) {
            return ask::fail(not_written(path, &error), daemon.json);
        }
        if !daemon.json {
            print::line(&format!("\n{} is written; read it before you send it", path.display()));
        }
    }
    report.end()
}

fn not_written(path: &Path, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        ErrorKind::PermissionDenied => FailureKind::Permission,
        _ => FailureKind::Usage,
    };
    Failure { kind, message: format!("{}: not written: {error}", path.display()) }
}

/// Returns what the daemon says of itself.
fn examine_all(
    report: &mut Report,
    daemon: &Daemon,
    dirs: &Dirs,
    bpf_dir: &Path,
    peer: Option<Peer>,
) -> Option<Status> {
    report.add_all(machine::checks(dirs));
    let gids = |told: &[InterfaceStatus]| {
        gids::checks(&ports::all(&dirs.sys), &gids::interfaces(&dirs.sys), told)
    };
    report.add(machine::memlock(machine::locked_memory()));
    match status(daemon) {
        Ok(status) => {
            report.add_all(gids(&status.interfaces));
            examine_daemon(report, dirs, bpf_dir, &status);
            examine_node(report, daemon, &status, peer.as_ref());
            for port in &status.ports {
                let answer = port.gids.first().and_then(|gid| path(daemon, *gid, Some(port)).ok());
                report.add(daemon::answer(port, answer.as_deref()));
            }
            if let Some(peer) = peer {
                examine_peer(report, daemon, dirs, &status, peer);
            }
            Some(status)
        }
        Err(Failure { message, .. }) => {
            report.add_all(gids(&[]));
            report.add(machine::bpffs(bpf_dir, None));
            let remedy = "systemctl start ibarr; journalctl -u ibarr";
            report.add(Check::fail("daemon", message, remedy));
            report.add(Check::skipped("firewall", "not proven: only a daemon can try it"));
            if let Some(Peer::Ip(destination)) = peer {
                let _ = address(report, dirs, &destination);
            }
            None
        }
    }
}

/// The daemon, its rights and its health.
fn examine_daemon(report: &mut Report, dirs: &Dirs, bpf_dir: &Path, status: &Status) {
    let proc = Path::new("/proc");
    let its = status.responder.bpf_dir.as_deref().map(Path::new);
    report.add(machine::bpffs(its.unwrap_or(bpf_dir), Some(&proc.join(status.pid.to_string()))));
    report.add_all(daemon::checks(status, proc));
    report.add(daemon::user(status.pid, proc, &dirs.dev));
}

/// The addresses of this node, the ways of queries to and from it, and the firewall.
fn examine_node(report: &mut Report, daemon: &Daemon, status: &Status, peer: Option<&Peer>) {
    let own = rtnetlink::addresses().unwrap_or_default();
    let static_gids =
        status.config.as_deref().and_then(|files| addresses::static_gids(files, &own));
    report.add_all(static_gids.into_iter().collect());
    let mut peers: Vec<_> = remembered(daemon).into_iter().map(|target| (target, true)).collect();
    // That of the command line, which may not be remembered.
    if let Some(Peer::Ip(destination)) = peer
        && let Ok(Addresses { target, .. }) = destination.resolve(None)
        && !peers.iter().any(|(known, _)| known.ip == target.ip)
    {
        peers.insert(0, (target, false));
    }
    let ips: Vec<_> = peers.iter().map(|(target, _)| target.ip).collect();
    let links = addresses::on_links(&status.interfaces, &rtnetlink::networks().unwrap_or_default());
    let conf = Path::new("/proc/sys/net/ipv4/conf");
    report.add_all(addresses::returns(&links, &ips, conf, rtnetlink::route, rtnetlink::takes));
    report.add_all(addresses::arp(&links, conf).into_iter().collect());
    let ask = || {
        let ask = |&(target, is_remembered): &(Target, bool)| {
            let answer =
                resolve(daemon, target, Freshness::Fresh, Some(firewall::PATIENCE)).ok()?;
            // The silence of a peer that was never heard proves nothing.
            (is_remembered || answer.status == request::Status::Found).then_some(answer)
        };
        peers.iter().filter_map(ask).collect()
    };
    match firewall::attempt(status, || counts(daemon), ask) {
        Ok(tried) => {
            let checks = firewall::checks(&tried, machine::forwards(), rules::suspects);
            report.add_all(checks.into());
        }
        Err(Failure { message, .. }) => report.add(Check::skipped("firewall", message)),
    }
}

/// The peers of which the daemon has heard last.
fn remembered(daemon: &Daemon) -> Vec<Target> {
    let Ok(Body::Cache { mut entries, .. }) = request(daemon, &Request::Cache { after: None })
    else {
        return Vec::new();
    };
    entries.retain(|entry| entry.gid.is_some());
    entries.sort_by_key(|entry| std::cmp::Reverse(Duration::from(entry.expires_in_ms)));
    let target = |CacheEntry { ip, interface, .. }: &CacheEntry| {
        let scope = interface.as_deref().map(rtnetlink::interface).transpose().ok()?;
        Some(Target { ip: *ip, scope })
    };
    entries.iter().filter_map(target).take(PEERS).collect()
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
            let remembered = resolve(daemon, target, Freshness::Memory, None);
            let remembered = remembered.ok().and_then(|answer| answer.gid);
            let answer = match resolve(daemon, target, Freshness::Fresh, None) {
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

fn request(daemon: &Daemon, request: &Request) -> Result<Body, Failure> {
    client::ask(&daemon.run_dir, request, daemon.patience())
}

fn status(daemon: &Daemon) -> Result<Status, Failure> {
    match request(daemon, &Request::Status) {
        Ok(Body::Status { status }) => Ok(*status),
        other => Err(ask::unexpected(other)),
    }
}

fn counts(daemon: &Daemon) -> Result<BTreeMap<String, u64>, Failure> {
    match request(daemon, &Request::Counters) {
        Ok(Body::Counters { counters }) => Ok(counters),
        other => Err(ask::unexpected(other)),
    }
}

fn resolve(
    daemon: &Daemon,
    target: Target,
    lookup: Freshness,
    timeout: Option<Duration>,
) -> Result<Answer, Failure> {
    ask::one(target, lookup, timeout, |asked| request(daemon, asked))
}

/// From a port to a GID, as its subnet administrator says now; or from the port that the daemon chooses, as it is
/// remembered.
fn path(daemon: &Daemon, dgid: Gid, from: Option<&PortStatus>) -> Result<Box<PathAnswer>, Failure> {
    let port = from.map(|port| port.port);
    let path = Partial { dgid, sgid: None, port, pkey: None, fresh: from.is_some() };
    match request(daemon, &Request::Path { path }) {
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
