// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr trace`: shows what happens to each request, as it happens.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::ping::interrupted;
use super::{Daemon, Exit, ask, doctor, print};
use crate::control::messages::{
    AnswerSource, AnswerStatus, Body, Elapsed, Failure, FailureKind, Millis, Number, PathSource,
    Request, TraceCaller, TraceEnd, TraceEvent, TraceNudge, TraceOnly, TraceStep, Traced, Tracing,
};

#[derive(Args, Debug)]
pub(super) struct TraceArgs {
    /// Only requests for this address, queries of this peer, or requests for a path from or to this GID
    #[arg(value_name = "IP|NAME|GID")]
    only: Option<doctor::Peer>,
    /// How long, like 10s, instead of until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = super::patience)]
    time: Option<Duration>,
    /// Also show what the BPF programs do with each query of a peer. For the time of the trace, programs
    /// that report take their place
    #[arg(long)]
    kernel: bool,
    #[command(flatten)]
    daemon: Daemon,
}

pub(super) fn run(args: &TraceArgs) -> Exit {
    match trace(args) {
        Ok(()) => Exit::Ok,
        Err(failure) => ask::fail(failure, args.daemon.json),
    }
}

fn trace(args: &TraceArgs) -> Result<(), Failure> {
    let internal = |error: io::Error| {
        let message = format!("no event loop for signals: {error}");
        Failure { kind: FailureKind::Internal, message }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(internal)?;
    let outcome = runtime.block_on(follow(args));
    // The thread that waits for the next event delays nothing.
    runtime.shutdown_background();
    outcome
}

/// Prints until the trace ends, or with a signal.
async fn follow(args: &TraceArgs) -> Result<(), Failure> {
    let only = match &args.only {
        Some(doctor::Peer::Ip(destination)) => {
            let absent = |message| Failure { kind: FailureKind::Absent, message };
            Some(TraceOnly::Ip(destination.resolve(None).map_err(absent)?.target.ip))
        }
        Some(doctor::Peer::Gid(gid)) => Some(TraceOnly::Gid(*gid)),
        None => None,
    };
    let request = Request::Trace { only, for_ms: args.time.map(Millis::from), kernel: args.kernel };
    let daemon = args.daemon.clone();
    // One at a time: what this command has not read yet waits in the daemon, and is bounded there.
    let (parts, mut read) = mpsc::channel(1);
    let asked = spawn_blocking(move || {
        daemon.connect()?.ask(&request, |part| {
            // The command may have been interrupted.
            drop(parts.blocking_send(part));
        })
    });
    let mut report = Report { json: args.daemon.json, ..Report::default() };
    let mut interrupted = pin!(interrupted());
    loop {
        let part = tokio::select! {
            biased;
            () = &mut interrupted => {
                report.end(TraceEnd::Interrupted, report.lost);
                return Ok(());
            }
            part = read.recv() => part,
        };
        let Some(part) = part else { break };
        report.note(part);
        if print::has_failed() {
            return Ok(());
        }
    }
    let end = asked.await.map_err(|error| Failure {
        kind: FailureKind::Internal,
        message: format!("the thread that asks has ended: {error}"),
    })?;
    match end {
        Ok(Body::Traced { traced }) => {
            report.end(traced.ended, traced.lost);
            Ok(())
        }
        end => Err(ask::unexpected(end)),
    }
}

/// Prints the parts of a trace, and counts them.
#[derive(Default)]
struct Report {
    json: bool,
    begun: Option<Instant>,
    events: u64,
    lost: u64,
    widths: Vec<usize>,
}

impl Report {
    fn note(&mut self, part: Body) {
        match &part {
            Body::Tracing { tracing } => {
                self.begun = Some(tracing.at.0);
                if !self.json {
                    print::line(&heading(tracing));
                }
            }
            Body::Event { event } => {
                self.events += 1;
                self.lost += event.lost;
                if !self.json {
                    if event.lost > 0 {
                        print::line(&format!("{} events lost", event.lost));
                    }
                    let cells = cells(event, self.begun.unwrap_or(event.at.0));
                    print::row(&mut self.widths, cells);
                }
            }
            _ => {}
        }
        if self.json {
            print::json(&part.into());
        }
    }

    fn end(&self, ended: TraceEnd, lost: u64) {
        let traced = Traced { ended, events: self.events, lost };
        if self.json {
            print::json(&Body::Traced { traced }.into());
        } else {
            print::line(&ending(&traced));
        }
    }
}

fn heading(tracing: &Tracing) -> String {
    let what = match tracing.only {
        None => "all requests".to_owned(),
        Some(TraceOnly::Ip(ip)) => format!("requests for the GID of {ip}, and queries from there"),
        Some(TraceOnly::Gid(gid)) => format!("requests for paths from or to {gid}"),
    };
    let until = tracing.for_ms.map_or("until Ctrl-C".to_owned(), |time| {
        format!("for {}", humantime::format_duration(time.into()))
    });
    format!("tracing {what}, {until}; seconds, number of the request, ms since the request:")
}

fn ending(traced: &Traced) -> String {
    let why = match traced.ended {
        TraceEnd::Time => "the time of the trace is over",
        TraceEnd::Interrupted => "the trace was interrupted",
        TraceEnd::Daemon => "the daemon ends, and the trace with it",
    };
    format!("{why}: {} events shown, {} lost", traced.events, traced.lost)
}

/// The columns of an event.
fn cells(event: &TraceEvent, begun: Instant) -> Vec<String> {
    let or_any = |gid: Option<Gid>| gid.map_or("any".to_owned(), |gid| gid.to_string());
    let subject = match event.ip {
        Some(ip) => ip.to_string(),
        None if (event.sgid, event.dgid) == (None, None) => "-".to_owned(),
        None => format!("{} -> {}", or_any(event.sgid), or_any(event.dgid)),
    };
    let Number(at) = event.at;
    vec![
        format!("{:.6}", at.since(begun).as_secs_f64()),
        format!("#{}", event.request),
        format!("{:.3}", event.ms.millis()),
        subject,
        text(&event.step),
    ]
}

/// What happened, for people.
fn text(step: &TraceStep) -> String {
    match step {
        TraceStep::Asked { by, uid } => format!("{} asks", caller(*by, *uid)),
        TraceStep::SearchedAgain => "search begins again".to_owned(),
        TraceStep::Older => "asked, because the remembered GID is older than fresh-for".to_owned(),
        TraceStep::RouteSought => "route look-up".to_owned(),
        TraceStep::Route { interface, next_hop } => {
            format!("route by {interface}, next hop {next_hop}")
        }
        TraceStep::NoRoute { cause } => format!("no route: {cause}"),
        TraceStep::Query { to, number } => numbered("query", *number, &format!("to {to}")),
        TraceStep::NotSent { to, cause } => format!("query to {to} not sent: {cause}"),
        TraceStep::Reply { from, gid, unasked } => {
            let what = if *unasked { "late or forged reply" } else { "reply" };
            format!("{what} of {from}: {}", or_not_here(*gid))
        }
        TraceStep::PortUnreachable { to } => {
            format!("ICMP: port unreachable at {to}: no ibarr there, or a firewall")
        }
        TraceStep::NeighbourSought => "look-up of the kernel's neighbour entry".to_owned(),
        TraceStep::Neighbour { gid: Some(gid) } => format!("neighbour entry: {gid}"),
        TraceStep::Neighbour { gid: None } => "no neighbour entry".to_owned(),
        TraceStep::Mad { port, lid, number, probe } => {
            let probe = if *probe { ", a probe" } else { "" };
            numbered("MAD", *number, &format!("from {port} to the SA at LID {lid}{probe}"))
        }
        TraceStep::MadAnswer { port, lid, refusal } => {
            let from = lid.map_or("an unknown LID".to_owned(), |lid| format!("LID {lid}"));
            let what = refusal.as_deref().unwrap_or("a path");
            format!("answer of the SA at {from} to {port}: {what}")
        }
        TraceStep::AddressAnswered { by, uid, status, gid, source, took_ms } => {
            let what = match (gid, source) {
                (Some(gid), Some(source)) => format!("{gid}, {}", origin(*source)),
                _ => status.to_string(),
            };
            answer(*by, *uid, &what, *took_ms)
        }
        TraceStep::PathAnswered {
            by,
            uid,
            status,
            dlid,
            source,
            refusal,
            left_to_kernel,
            took_ms,
        } => {
            let mut what = match (dlid, refusal) {
                (Some(dlid), _) => format!("a path to LID {dlid}"),
                (None, Some(refusal)) => format!("{status}: {refusal}"),
                (None, None) => status.to_string(),
            };
            if let Some(source) = source {
                what = format!("{what}, {}", path_origin(*source));
            }
            if *left_to_kernel {
                what.push_str("; the kernel asks the SA itself");
            }
            answer(*by, *uid, &what, *took_ms)
        }
        TraceStep::Failed { status } => {
            format!("search failed: {}; it is repeated", failure(*status))
        }
        TraceStep::Dropped { cause, took_ms } => {
            format!("no answer to the kernel: {cause}, after {:.3} ms", took_ms.millis())
        }
        TraceStep::Nudge => "nudge".to_owned(),
        TraceStep::Nudged { outcome } => match outcome {
            TraceNudge::Done => "nudged: the kernel looks at its answers",
            TraceNudge::Postponed => "nudge postponed: the kernel asks on",
            TraceNudge::Failed => "nudge failed: ibarr status says why",
        }
        .to_owned(),
        TraceStep::Programs { cause: None } => {
            "the programs in the kernel report their packets from now on".to_owned()
        }
        TraceStep::Programs { cause: Some(cause) } => {
            format!("the programs in the kernel report no packets: {cause}")
        }
        TraceStep::Packet { program, interface, from, verdict, cause } => {
            let cause = cause.as_ref().map_or(String::new(), |cause| format!(": {cause}"));
            format!("{program} on {interface}, query of {from}, {verdict}{cause}")
        }
        TraceStep::Peer { from, gid, cause } => peer(*from, *gid, cause.as_deref()),
    }
}

fn numbered(what: &str, number: u32, rest: &str) -> String {
    if number == 1 { format!("{what} {rest}") } else { format!("{what} {number} {rest}") }
}

fn answer(by: TraceCaller, uid: Option<u32>, what: &str, took: Elapsed) -> String {
    format!("answer to {}: {what}, after {:.3} ms", caller(by, uid), took.millis())
}

fn caller(by: TraceCaller, uid: Option<u32>) -> String {
    let uid = uid.map_or("unknown".to_owned(), |uid| uid.to_string());
    match by {
        TraceCaller::Kernel => "the kernel".to_owned(),
        TraceCaller::Control => format!("user {uid}"),
        TraceCaller::Acm => format!("user {uid} (ACM)"),
    }
}

fn peer(from: SocketAddr, gid: Option<Gid>, cause: Option<&str>) -> String {
    match cause {
        Some(cause) => format!("query of the peer {from}, dropped: {cause}"),
        None => format!("query of the peer {from}, reply: {}", or_not_here(gid)),
    }
}

fn or_not_here(gid: Option<Gid>) -> String {
    gid.map_or("not here".to_owned(), |gid| gid.to_string())
}

fn origin(source: AnswerSource) -> &'static str {
    match source {
        AnswerSource::Local => "an address of this node",
        AnswerSource::Cache => "remembered",
        AnswerSource::Peer => "from the peer",
        AnswerSource::Neighbour => "from the neighbour entry",
    }
}

fn path_origin(source: PathSource) -> &'static str {
    match source {
        PathSource::Sa => "from the SA",
        PathSource::Cache => "remembered",
        PathSource::Doubted => "remembered and in doubt",
    }
}

fn failure(status: AnswerStatus) -> &'static str {
    match status {
        AnswerStatus::NotFound => "the peer does not have the address",
        AnswerStatus::TimedOut => "the peer does not answer",
        AnswerStatus::Refused => "the peer's port is unreachable",
        AnswerStatus::Unreachable => "no route",
        AnswerStatus::Overloaded => "too many requests",
        AnswerStatus::Found | AnswerStatus::NotRemembered => "no answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(json: &str) -> TraceEvent {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn each_step_is_a_line_for_people() {
        let base = r#""request":3,"ms":1.5,"at":2000500000"#;
        let begun = Instant::from_nanos(1_000_000_000);
        for (rest, expected) in [
            (r#""ip":"10.2.0.5","step":"asked","by":"kernel""#, "10.2.0.5|the kernel asks"),
            (
                r#""ip":"10.2.0.5","step":"query","to":"10.2.0.5:4791","number":2"#,
                "10.2.0.5|query 2 to 10.2.0.5:4791",
            ),
            (
                r#""ip":"10.2.0.5","step":"reply","from":"10.2.0.5:4791","unasked":true"#,
                "10.2.0.5|late or forged reply of 10.2.0.5:4791: not here",
            ),
            (
                r#""ip":"10.2.0.5","step":"address-answered","by":"control","uid":7,"status":"found","gid":"fe80::1","source":"peer","took-ms":1.25"#,
                "10.2.0.5|answer to user 7: fe80::1, from the peer, after 1.250 ms",
            ),
            (
                r#""dgid":"fe80::2","step":"path-answered","by":"kernel","status":"silent","left-to-kernel":true,"took-ms":2.0"#,
                "any -> fe80::2|answer to the kernel: silent; the kernel asks the SA itself, after 2.000 ms",
            ),
            (
                r#""sgid":"fe80::1","dgid":"fe80::2","step":"mad-answer","port":"mlx5_0/1","lid":1,"refusal":"no records""#,
                "fe80::1 -> fe80::2|answer of the SA at LID 1 to mlx5_0/1: no records",
            ),
            (
                r#""ip":"10.2.0.5","step":"packet","program":"tc","interface":"ib0","from":"10.2.0.9","verdict":"answered""#,
                "10.2.0.5|tc on ib0, query of 10.2.0.9, answered",
            ),
            (
                r#""ip":"10.2.0.5","step":"packet","program":"guard","interface":"ib0","from":"10.2.0.9","verdict":"dropped","cause":"not-allowed""#,
                "10.2.0.5|guard on ib0, query of 10.2.0.9, dropped: not-allowed",
            ),
            (
                r#""step":"programs","cause":"responder = \"user\"""#,
                "-|the programs in the kernel report no packets: responder = \"user\"",
            ),
            (
                r#""ip":"10.2.0.5","step":"peer","from":"10.2.0.9:5000","cause":"source-ours""#,
                "10.2.0.5|query of the peer 10.2.0.9:5000, dropped: source-ours",
            ),
        ] {
            let cells = cells(&event(&format!("{{{base},{rest}}}")), begun);
            assert_eq!(cells.join("|"), format!("1.000500|#3|1.500|{expected}"));
        }
    }

    #[test]
    fn beginning_and_each_end_have_a_sentence() {
        let at = Number(Instant::BOOT);
        let only = Some(TraceOnly::Ip([10, 2, 0, 5].into()));
        let for_ms = Some(Duration::from_secs(10).into());
        let said = heading(&Tracing { at, only, for_ms });
        assert!(said.contains("of 10.2.0.5,") && said.contains("for 10s"), "{said}");
        let said = heading(&Tracing { at, only: None, for_ms: None });
        assert!(said.contains("all requests, until Ctrl-C"), "{said}");
        for (ended, expected) in [
            (TraceEnd::Time, "the time of the trace is over"),
            (TraceEnd::Interrupted, "the trace was interrupted"),
            (TraceEnd::Daemon, "the daemon ends, and the trace with it"),
        ] {
            let said = ending(&Traced { ended, events: 3, lost: 2 });
            assert_eq!(said, format!("{expected}: 3 events shown, 2 lost"));
        }
    }
}
