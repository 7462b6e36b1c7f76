// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A daemon that answers, as the applications that wait for it see it.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ibarr_common::wire::ls::{Request, messages};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::network::{FAR_V4, FAR_V6};
use super::socket::Socket;
use super::{Attempt, CALLER_TIMEOUT, PATIENCE, TAKEN, is_refused, start};
use crate::report::Report;
use crate::sys::rdma_cm::{Channel, EventKind};

/// Number of attempts one after another, and at once.
const IN_TURN: usize = 100;
const AT_ONCE: usize = 200;
const ROUNDS: usize = 5;

/// Aim of the median, one after another.
const AIM: Duration = Duration::from_millis(2);

/// What passes while the guest's clock runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Clock {
    /// Time, which includes other work of the machine: durations are printed and not claimed.
    Real,
    /// Instructions of the guest.
    Steady,
}

pub(super) fn prove(responder: &[String], clock: Clock, report: &mut Report) {
    let claim = format!("`{}` listens", responder.join(" "));
    let early_before = early_answers();
    let Some(daemon) = report.claim(&claim, Daemon::start(responder)) else { return };
    for (what, target) in [("IPv4", FAR_V4), ("IPv6", FAR_V6)] {
        // The daemon does not know this address yet, and will know it for all that follow.
        let claim = format!("the first {what} address is resolved");
        if let Some(took) = report.claim(&claim, one(target)) {
            let ms = took.as_secs_f64() * 1e3;
            Report::note(format_args!("{what}, first request: {ms:.2} ms"));
        }
        let claim = format!(
            "{IN_TURN} {what} addresses are resolved one after another, none by its caller's time-out"
        );
        if let Some((took, asked)) = report.claim(&claim, in_turn(target)) {
            let took = Summary::of(took);
            Report::note(format_args!("{what} in turn: {took}; {asked}"));
            if clock == Clock::Steady {
                report.claim(&format!("the median is under {AIM:?}"), is_under(&took));
            } else {
                let aim = if took.median < AIM { "met" } else { "missed" };
                Report::note(format_args!("  aim, a median under {AIM:?}: {aim}"));
            }
        }
    }
    let mut all = Asked::default();
    let early_in_turn = early_answers();
    for _ in 0..ROUNDS {
        let claim =
            format!("{AT_ONCE} addresses are resolved at once, none by its caller's time-out");
        if let Some((took, asked)) = report.claim(&claim, at_once()) {
            Report::note(format_args!("at once: {}; {asked}", Summary::of(took)));
            all.requests += asked.requests;
            all.distinct += asked.distinct;
        }
    }
    report.claim("nudges do not make the kernel ask for everything again", few_repeated(&all));
    let early = early_answers();
    Report::note(format_args!(
        "answers that came before the kernel waited for them: {}, {} of them at once",
        early - early_before,
        early - early_in_turn
    ));
    if clock == Clock::Steady {
        let proof = few_but_early_repeated(&all, early - early_in_turn);
        let claim = "nudges make the kernel repeat requests with early answers, and few others";
        report.claim(claim, proof);
    }
    report.claim("the daemon ends when it is asked to", daemon.stop());
    report.claim("without the daemon addresses are refused at once", is_refused(FAR_V4));
}

fn one(target: &str) -> Result<Duration> {
    let began = Instant::now();
    Attempt::start(target, CALLER_TIMEOUT)?.ends(TAKEN)?;
    Ok(began.elapsed())
}

fn in_turn(target: &str) -> Result<(Vec<Duration>, Asked)> {
    let spy = Socket::open()?;
    let mut took = Vec::new();
    for number in 0..IN_TURN {
        took.push(one(target).with_context(|| format!("attempt {number}"))?);
    }
    Ok((took, Asked::of(&spy)?))
}

fn at_once() -> Result<(Vec<Duration>, Asked)> {
    let spy = Socket::open()?;
    let channel = Channel::open()?;
    let mut began = HashMap::new();
    for _ in 0..AT_ONCE {
        let now = Instant::now();
        began.insert(start(&channel, FAR_V4, CALLER_TIMEOUT)?, now);
    }
    let mut took = Vec::new();
    while !began.is_empty() {
        let left = began.len();
        let event = channel.event(PATIENCE)?;
        let event = event.with_context(|| format!("{left} of {AT_ONCE} have not ended"))?;
        ensure!(event.kind == EventKind::AddrError && event.status == TAKEN, "{event:?}");
        took.push(began.remove(&event.id).context("an attempt ended twice")?.elapsed());
    }
    Ok((took, Asked::of(&spy)?))
}

fn few_repeated(asked: &Asked) -> Result<()> {
    ensure!(asked.distinct == AT_ONCE * ROUNDS, "{asked} in {ROUNDS} rounds");
    // With one nudge an answer, the kernel would ask again for half of the waiting requests each time.
    ensure!(asked.requests < 2 * asked.distinct, "{asked}");
    Ok(())
}

/// Only requests whose answers came too early may be asked again, and a few that the kernel made between
/// the daemon's last look and the nudge: one of 1,000 was seen.
fn few_but_early_repeated(asked: &Asked, early: usize) -> Result<()> {
    let repeated = asked.requests - asked.distinct;
    ensure!(repeated <= early + asked.distinct / 100, "{asked}, {early} early answers");
    Ok(())
}

fn is_under(took: &Summary) -> Result<()> {
    ensure!(took.median < AIM, "{took}");
    Ok(())
}

/// Number of the kernel's requests, and of the addresses in them.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    requests: usize,
    distinct: usize,
}

impl Asked {
    fn of(spy: &Socket) -> Result<Self> {
        let mut counts = HashMap::new();
        while let Some(datagram) = spy.receive(Duration::ZERO)? {
            for message in messages(&datagram) {
                let message = message?;
                if Request::parse(&message).is_ok() {
                    *counts.entry(message.seq()).or_insert(0) += 1;
                }
            }
        }
        Ok(Self { requests: counts.values().sum(), distinct: counts.len() })
    }
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { requests, distinct } = self;
        write!(f, "{requests} requests for {distinct} addresses")
    }
}

/// A daemon's process. It is in the group.
struct Daemon(Child);

impl Daemon {
    fn start(command: &[String]) -> Result<Self> {
        let [program, arguments @ ..] = command else { bail!("no command") };
        let child = Command::new(program).args(arguments).spawn();
        let mut daemon = Self(child.with_context(|| format!("{program} cannot be started"))?);
        let deadline = Instant::now() + PATIENCE;
        while !group_has_a_member()? {
            if let Some(status) = daemon.0.try_wait()? {
                bail!("the daemon ended: {status}");
            }
            ensure!(Instant::now() < deadline, "no process has joined the group");
            // The kernel does not announce new members.
            thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM)?;
        self.0.wait()?;
        Ok(())
    }
}

/// Whether a socket is in the local service's group.
fn group_has_a_member() -> Result<bool> {
    const NETLINK_RDMA: &str = "20";
    let sockets = fs::read_to_string("/proc/net/netlink").context("/proc/net/netlink")?;
    // sk Eth Pid Groups …
    Ok(sockets.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let family = fields.next();
        let groups = fields.nth(1).and_then(|groups| u32::from_str_radix(groups, 16).ok());
        family == Some(NETLINK_RDMA) && groups.is_some_and(|groups| groups & 1 << 2 != 0)
    }))
}

/// How often the kernel's log says that an answer found no request.
fn early_answers() -> usize {
    let kmsg = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
    let Ok(mut kmsg) = kmsg else { return 0 };
    let mut record = [0; 8192];
    // A read returns one record.
    std::iter::from_fn(|| kmsg.read(&mut record).ok().map(|length| record[..length].to_vec()))
        .filter(|record| String::from_utf8_lossy(record).contains("Couldn't find request waiting"))
        .count()
}

/// Minimum, median, 90th percentile and maximum of times.
struct Summary {
    min: Duration,
    median: Duration,
    p90: Duration,
    max: Duration,
}

impl Summary {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |percent: usize| {
            let index = (times.len().saturating_sub(1)) * percent / 100;
            times.get(index).copied().unwrap_or_default()
        };
        Self { min: at(0), median: at(50), p90: at(90), max: at(100) }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [min, median, p90, max] =
            [self.min, self.median, self.p90, self.max].map(|time| time.as_secs_f64() * 1e3);
        write!(f, "min {min:.2} median {median:.2} p90 {p90:.2} max {max:.2} ms")
    }
}
