// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr status`: the health first, on one screen; as one line for Nagios; again and again.

use std::io::{IsTerminal as _, stdout};
use std::thread;
use std::time::{Duration, Instant};

use ibarr_proto::health;

use super::print::line;
use super::{Daemon, Exit, ask, print};
use crate::control::messages::{
    Body, Failure, HealthReason, Request, Seconds, Status, SubsystemHealth,
};

/// The most lines of one kind on a screen.
const LINES: usize = 4;

/// Names on one line.
const NAMES: usize = 6;

/// How long the daemon may take to answer, unless the user says: a plug-in of a monitoring system has to end within
/// seconds, also if the daemon hangs.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The pause before `--wait` checks again.
const AGAIN: Duration = Duration::from_millis(100);

/// Clears a terminal and goes to its first line.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// Prints the status once.
pub(super) fn show(daemon: &Daemon, in_full: bool) -> Exit {
    match look(daemon) {
        Ok(status) => {
            print(&status, daemon.json, in_full);
            Exit::Ok
        }
        Err(failure) => ask::fail(failure, daemon.json),
    }
}

fn look(daemon: &Daemon) -> Result<Box<Status>, Failure> {
    let patience = Some(daemon.patience.unwrap_or(PATIENCE));
    match (Daemon { patience, ..daemon.clone() }).ask(&Request::Status) {
        Ok(Body::Status { status }) => Ok(status),
        other => Err(ask::unexpected(other)),
    }
}

/// Prints the status every `interval`, until a signal ends the command or its output. A daemon that
/// is started again is found again.
pub(super) fn watch(daemon: &Daemon, interval: Duration, in_full: bool) -> Exit {
    let clears = stdout().is_terminal() && !daemon.json;
    loop {
        let status = look(daemon);
        if clears {
            print::write(CLEAR);
        }
        match status {
            Ok(status) => print(&status, daemon.json, in_full),
            Err(failure) if daemon.json => print::json(&failure.into()),
            Err(failure) => line(&failure.message),
        }
        if print::has_failed() {
            return Exit::Ok;
        }
        thread::sleep(interval);
    }
}

/// Prints one line as the plug-ins of Nagios do, and exits as they do: at once, or when all works or `wait` is over.
/// The causes `accepted` do not count.
pub(super) fn check(daemon: &Daemon, wait: Option<Duration>, accepted: &[String]) -> Exit {
    let begun = Instant::now();
    loop {
        let mut status = look(daemon);
        if let Ok(status) = &mut status {
            status.health.iter_mut().for_each(|subsystem| accept(subsystem, accepted));
        }
        let exit = match status.as_deref().map(verdict) {
            Ok(Some(health::State::Ok)) => Exit::Ok,
            Ok(Some(health::State::Degraded)) => Exit::Warning,
            Ok(Some(health::State::Failed)) => Exit::Critical,
            Ok(None) | Err(_) => Exit::Unknown,
        };
        let left = wait.map(|wait| wait.saturating_sub(begun.elapsed()));
        if exit != Exit::Ok
            && let Some(left) = left.filter(|left| !left.is_zero())
        {
            thread::sleep(AGAIN.min(left));
            continue;
        }
        match status {
            Ok(status) if daemon.json => print::json(&Body::Status { status }.into()),
            Ok(status) => line(&check_line(&status)),
            Err(failure) if daemon.json => print::json(&failure.into()),
            Err(failure) => line(&format!("IBARR UNKNOWN - {}", reason(&failure))),
        }
        return exit;
    }
}

/// Makes mere advice of the reasons with the causes `accepted`.
fn accept(subsystem: &mut SubsystemHealth, accepted: &[String]) {
    for reason in subsystem.reasons.iter_mut().filter(|reason| accepted.contains(&reason.cause)) {
        reason.state = health::State::Ok;
    }
    let worst = subsystem.reasons.iter().map(|reason| reason.state).max();
    subsystem.state = worst.unwrap_or(health::State::Ok);
}

/// Why the daemon cannot be asked: what the service manager knows of it, if it knows something.
fn reason(failure: &Failure) -> String {
    plain(failure.message.lines().last().unwrap_or_default())
}

/// The worst state; `None` while what is not known yet could be worse.
pub(crate) fn verdict(status: &Status) -> Option<health::State> {
    let worst = status.health.iter().map(|subsystem| subsystem.state).max();
    let is_sure = status.unknown.is_empty() || worst == Some(health::State::Failed);
    worst.filter(|_| is_sure)
}

/// A verdict in words.
pub(crate) fn named(verdict: Option<health::State>) -> String {
    verdict.map_or("not known yet".to_owned(), |state| state.to_string())
}

/// Which daemon this is.
pub(crate) fn head(version: &str, node: Option<&str>, pid: u32, uptime: Seconds) -> String {
    let on = node.map_or(String::new(), |node| format!(" on {node}"));
    let uptime = humantime::format_duration(uptime.into());
    format!("ibarr {version}{on}, pid {pid}, up {uptime}")
}

fn check_line(status: &Status) -> String {
    let Status { health, unknown, .. } = status;
    let Some(state) = verdict(status) else {
        let awaited = unknown.iter().map(|unknown| format!("{unknown}: {}", unknown.awaited));
        let awaited = awaited.collect::<Vec<_>>().join("; ");
        return format!("IBARR UNKNOWN - not known yet: {}", plain(&awaited));
    };
    let word = match state {
        health::State::Ok => "OK",
        health::State::Degraded => "WARNING",
        health::State::Failed => "CRITICAL",
    };
    let count = |of| health.iter().filter(|subsystem| subsystem.state == of).count();
    let (failed, degraded) = (count(health::State::Failed), count(health::State::Degraded));
    let mut reasons = by_state(health);
    reasons.retain(|(_, reason)| reason.state > health::State::Ok);
    let text = match reasons.as_slice() {
        [] => format!("{} subsystems work", health.len()),
        [(subsystem, reason), more @ ..] => {
            let more = match more.len() {
                0 => String::new(),
                more => format!("; {more} more (ibarr status)"),
            };
            let (why, remedy) = (plain(&reason.why), plain(&reason.remedy));
            format!("{subsystem}: {why}: {remedy}{more}")
        }
    };
    format!("IBARR {word} - {text} | failed={failed} degraded={degraded}")
}

/// On one line, without the bar that begins performance data.
fn plain(text: &str) -> String {
    text.lines().next().unwrap_or_default().replace('|', "/")
}

/// All reasons, the worst first.
fn by_state(health: &[SubsystemHealth]) -> Vec<(&SubsystemHealth, &HealthReason)> {
    let of = |subsystem| move |reason| (subsystem, reason);
    let mut reasons: Vec<_> =
        health.iter().flat_map(|subsystem| subsystem.reasons.iter().map(of(subsystem))).collect();
    reasons.sort_by_key(|(_, reason)| std::cmp::Reverse(reason.state));
    reasons
}

fn print(status: &Status, json: bool, in_full: bool) {
    if json {
        print::json(&Body::Status { status: Box::new(status.clone()) }.into());
    } else {
        health(status, in_full);
        if in_full {
            print::details(status);
        } else {
            summary(status);
        }
    }
}

/// One line for what works, and two for each reason.
fn health(status: &Status, in_full: bool) {
    let head = head(&status.version, status.node.as_deref(), status.pid, status.uptime_s);
    line(&format!("{head}: {}", named(verdict(status))));
    let healthy = status.health.iter().filter(|subsystem| subsystem.state == health::State::Ok);
    let names = names(
        healthy.map(ToString::to_string).collect(),
        if in_full { usize::MAX } else { NAMES * 2 },
    );
    if !names.is_empty() {
        line(&format!("ok        {names}"));
    }
    let reasons = by_state(&status.health);
    let most = if in_full { usize::MAX } else { LINES };
    for (subsystem, HealthReason { cause, state, since_s, why, remedy }) in
        reasons.iter().take(most)
    {
        let since = humantime::format_duration((*since_s).into());
        let state = match state {
            health::State::Ok => "advice".to_owned(),
            state => state.to_string(),
        };
        line(&format!("{state:8}  {subsystem}: {cause}, for {since}"));
        let lines = why.lines().take(if in_full { usize::MAX } else { 1 });
        lines.for_each(|why| line(&format!("          {why}")));
        line(&format!("          remedy: {remedy}"));
    }
    more(reasons.len().saturating_sub(most), "reasons");
    for unknown in status.unknown.iter().take(most) {
        line(&format!("unknown   {unknown}: {}", unknown.awaited));
    }
    more(status.unknown.len().saturating_sub(most), "subsystems that are not known yet");
}

/// One line for each thing, as far as they fit.
fn summary(status: &Status) {
    line("");
    line(&format!("configuration  {}", status.config.as_deref().unwrap_or("defaults")));
    line(&format!("addresses      {} cached, {} in flight", status.cached, status.pending));
    line(&format!(
        "paths          {} cached; {} questions saved, {} MADs sent",
        status.cached_paths, status.path_requests.avoided, status.path_requests.sa_queries
    ));
    for port in status.ports.iter().take(LINES) {
        let state = if port.active { "active" } else { "not active" };
        let sm = port.sm_lid.map_or("none".to_owned(), |lid| lid.to_string());
        line(&format!("port           {}: {state}, subnet manager LID {sm}", port.port));
    }
    more(status.ports.len().saturating_sub(LINES), "ports");
    let served = status.interfaces.iter().filter(|interface| !interface.addresses.is_empty());
    let served: Vec<_> = served.collect();
    for interface in served.iter().take(LINES) {
        let addresses = interface.addresses.keys().map(ToString::to_string).collect();
        let by = interface.responder.as_ref();
        let by = by.map_or("the daemon".to_owned(), |hook| format!("the kernel ({hook})"));
        let addresses = names(addresses, LINES);
        line(&format!("interface      {}: {addresses}, answered by {by}", interface.name));
    }
    more(served.len().saturating_sub(LINES), "interfaces");
}

fn more(count: usize, of: &str) {
    if count > 0 {
        line(&format!("          {count} more {of}: ibarr status --all"));
    }
}

/// The first names, and how many more there are.
fn names(mut names: Vec<String>, most: usize) -> String {
    let more = names.len().saturating_sub(most);
    names.truncate(most);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}
