// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr ping`: asks one peer again and again, past the daemon's memory.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use ibarr_proto::request::{self, Freshness};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::resolve::FamilyArgs;
use super::targets::{self, Addresses, Destination};
use super::times::Tally;
use super::verify::Neighbours;
use super::{Daemon, Exit, ask, print};
use crate::control::messages::{Answer, Body, Failure, FailureKind, Pinged, Resolved, Target};

#[derive(Args, Debug)]
pub(super) struct PingArgs {
    /// Address or host name of the peer
    #[arg(value_name = "IP|NAME")]
    destination: String,
    #[command(flatten)]
    family: FamilyArgs,
    /// How many times to ask, instead of until Ctrl-C
    #[arg(short, long, value_name = "N", value_parser = count)]
    count: Option<NonZeroU64>,
    /// Time between two questions, in seconds or like 200ms; at least 10ms
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// How long to wait for each answer, at most 60s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = super::timeout)]
    timeout: Duration,
    /// Print one JSON document a line: one for each answer, then the summary
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
    #[command(flatten)]
    daemon: Daemon,
}

fn count(text: &str) -> Result<NonZeroU64, &'static str> {
    text.parse().map_err(|_| "write a whole number from 1")
}

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = match seconds {
        Some(time) => time,
        None => humantime::parse_duration(text).map_err(|error| error.to_string())?,
    };
    let is_fit = (Duration::from_millis(10)..=Duration::from_hours(24)).contains(&time);
    if is_fit { Ok(time) } else { Err("must be from 10ms to 1day".to_owned()) }
}

pub(super) fn run(args: &PingArgs) -> Exit {
    match ping(args) {
        Ok(exit) => exit,
        Err(failure) => ask::fail(failure, args.daemon.json || args.json_lines),
    }
}

fn ping(args: &PingArgs) -> Result<Exit, Failure> {
    let destination = targets::one(&args.destination)?;
    let Addresses { target, others } =
        destination.resolve(args.family.family()).map_err(|message| {
            let message = format!("{}: {message}", destination.text);
            Failure { kind: FailureKind::Absent, message }
        })?;
    if !(args.daemon.json || args.json_lines) {
        print::others(&destination.text, target.ip, &others);
    }
    let mut rounds = Rounds {
        args,
        destination: &destination,
        target,
        others,
        tally: Tally::default(),
        last: None,
    };
    ask::block_on(rounds.run())?;
    Ok(rounds.end())
}

struct Rounds<'a> {
    args: &'a PingArgs,
    destination: &'a Destination,
    target: Target,
    others: Vec<IpAddr>,
    tally: Tally,
    /// The last answer with a GID.
    last: Option<Answer>,
}

impl Rounds<'_> {
    /// Ends after the last round, or with a signal.
    async fn run(&mut self) -> Result<(), Failure> {
        let mut interrupted = pin!(interrupted());
        let mut next = Instant::now();
        for round in 0..self.args.count.map_or(u64::MAX, NonZeroU64::get) {
            tokio::select! {
                biased;
                () = &mut interrupted => return Ok(()),
                () = sleep_until(next) => {}
            }
            // A slow answer makes the next question late, and no two follow at once.
            next = Instant::now() + self.args.interval;
            let daemon = self.args.daemon.clone();
            let (target, timeout) = (self.target, self.args.timeout);
            let answer = tokio::select! {
                answer = ask::aside(move || ask_peer(&daemon, target, timeout)) => answer?,
                () = &mut interrupted => return Ok(()),
            };
            self.note(round, answer);
            if print::has_failed() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn note(&mut self, round: u64, answer: Answer) {
        self.tally.note(&answer);
        if self.args.json_lines {
            let name = self.destination.name();
            let answer = Box::new(Resolved { name, ..answer.clone().into() });
            let place = usize::try_from(round).unwrap_or(usize::MAX);
            print::json(&Body::Answer { answer, place }.into());
        } else if !self.args.daemon.json {
            let ms = answer.ms.millis();
            let by = match answer.source {
                Some(request::Source::Local) => ", this node itself",
                _ => "",
            };
            let says = match answer.gid {
                Some(gid) => format!("is {gid}: {ms:.3} ms{by}"),
                None => format!("{}: {ms:.3} ms", answer.status),
            };
            print::line(&format!("{} {says}", self.target));
        }
        if answer.status == request::Status::Found {
            self.last = Some(answer);
        }
    }

    fn end(self) -> Exit {
        let (asked, answered) = (self.tally.count(), self.tally.found());
        let gid = self.last.as_ref().and_then(|last| last.gid);
        let contradict = |gid| Neighbours::read().contradict(self.target, gid);
        let lost = 100.0 - 100.0 * ratio(answered, asked);
        let pinged = Pinged {
            ip: self.target.ip,
            name: self.destination.name(),
            other_addresses: self.others,
            gid,
            asked,
            answered,
            lost_percent: lost,
            answers: self.tally.statuses.clone(),
            ms: self.tally.times(),
            mismatches: gid.and_then(contradict).into_iter().collect(),
        };
        let is_whole = asked == answered && pinged.mismatches.is_empty() && asked > 0;
        if self.args.daemon.json || self.args.json_lines {
            print::json(&Body::Ping { ping: pinged }.into());
        } else {
            print::pinged(&self.destination.text, &pinged);
        }
        if is_whole { Exit::Ok } else { Exit::Negative }
    }
}

fn ask_peer(daemon: &Daemon, target: Target, timeout: Duration) -> Result<Answer, Failure> {
    let answer = ask::one(target, Freshness::Fresh, Some(timeout), |request| daemon.ask(request))?;
    Ok(match answer.source {
        // The kernel's entry answers for a peer that does not.
        Some(request::Source::Neighbour) => {
            Answer { status: request::Status::TimedOut, gid: None, source: None, ..answer }
        }
        _ => answer,
    })
}

/// Returns at SIGINT or SIGTERM; never if they cannot be caught.
pub(super) async fn interrupted() {
    let caught = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = caught else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_seconds_or_a_time_with_a_unit() {
        for (text, millis) in
            [("1", 1000), ("0.2", 200), ("200ms", 200), ("10ms", 10), ("2s", 2000)]
        {
            assert_eq!(interval(text).map(|time| time.as_millis()), Ok(millis), "{text}");
        }
        for wrong in ["0", "0.009", "-1", "nan", "inf", "1w", "", "x"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
