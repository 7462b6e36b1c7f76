// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr trace`: shows what happens to each request, as it happens.

use std::pin::pin;
use std::time::Duration;

use clap::Args;
use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use ibarr_proto::ip2gid::is_link_local;
use ibarr_proto::local_service::Nudged;
use ibarr_proto::paths;
use ibarr_proto::request::{Source, Status};
use ibarr_proto::shares::User;
use ibarr_proto::trace::{Caller, Event, Filter, Step, Subject};
use tokio::sync::mpsc;

use super::ping::interrupted;
use super::table::Table;
use super::{Daemon, Exit, ask, doctor, print};
use crate::control::messages::{
    Body, Elapsed, Failure, FailureKind, Millis, Request, TraceEnd, TraceRequest, Traced, Tracing,
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
    match ask::block_on(follow(args)) {
        Ok(()) => Exit::Ok,
        Err(failure) => ask::fail(failure, args.daemon.json),
    }
}

/// Prints until the trace ends, or with a signal.
async fn follow(args: &TraceArgs) -> Result<(), Failure> {
    let only = match &args.only {
        Some(doctor::Peer::Ip(destination)) => {
            let absent = |message| Failure { kind: FailureKind::Absent, message };
            let target = destination.resolve(None).map_err(absent)?.target;
            if target.scope.is_some() && !is_link_local(target.ip) {
                let message = format!("a trace has no interface: name it like {}", target.ip);
                return Err(Failure { kind: FailureKind::Usage, message });
            }
            Some(Filter::Ip(target.ip))
        }
        Some(doctor::Peer::Gid(gid)) => Some(Filter::Gid(*gid)),
        None => None,
    };
    let for_ms = args.time.map(Millis::from);
    let request = Request::Trace(TraceRequest { only, for_ms, kernel: args.kernel });
    let daemon = args.daemon.clone();
    // One at a time: what this command has not read yet waits in the daemon, and is bounded there.
    let (parts, mut read) = mpsc::channel(1);
    let asked = ask::aside(move || {
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
    let Body::Traced { traced } = asked.await? else { return Err(ask::other_version()) };
    report.end(traced.ended, traced.lost);
    Ok(())
}

/// Prints the parts of a trace, and counts them.
#[derive(Default)]
struct Report {
    json: bool,
    begun: Option<Instant>,
    events: u64,
    lost: u64,
    table: Table,
}

impl Report {
    fn note(&mut self, part: Body) {
        match &part {
            Body::Tracing { tracing } => {
                self.begun = Some(tracing.at);
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
                    let cells = cells(event, self.begun.unwrap_or(event.at));
                    print::rows(&mut self.table, [cells]);
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
        Some(Filter::Ip(ip)) => format!("requests for the GID of {ip}, and queries from there"),
        Some(Filter::Gid(gid)) => format!("requests for paths from or to {gid}"),
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
fn cells(event: &Event, begun: Instant) -> Vec<String> {
    let or_any = |gid: Option<Gid>| gid.map_or("any".to_owned(), |gid| gid.to_string());
    let subject = match event.subject {
        // A malformed query is for no address.
        Subject::Address { ip } if ip.is_unspecified() => "-".to_owned(),
        Subject::Address { ip } => ip.to_string(),
        Subject::Path { sgid: None, dgid: None } => "-".to_owned(),
        Subject::Path { sgid, dgid } => format!("{} -> {}", or_any(sgid), or_any(dgid)),
    };
    vec![
        format!("{:.6}", event.at.since(begun).as_secs_f64()),
        format!("#{}", event.chain),
        format!("{:.3}", Elapsed(event.since).millis()),
        subject,
        text(&event.step),
    ]
}

/// What happened, for people.
fn text(step: &Step) -> String {
    match step {
        Step::Asked(by) => format!("{} asks", caller(*by)),
        Step::SearchedAgain => "search begins again".to_owned(),
        Step::Older => "asked, because the remembered GID is older than fresh-for".to_owned(),
        Step::RouteSought => "route look-up".to_owned(),
        Step::Route { interface, next_hop } => {
            format!("route by {interface}, next hop {next_hop}")
        }
        Step::NoRoute { cause } => format!("no route: {cause}"),
        Step::Query { to, number } => numbered("query", *number, &format!("to {to}")),
        Step::NotSent { to, cause } => format!("query to {to} not sent: {cause}"),
        Step::Reply { from, gid, unasked } => {
            let what = if *unasked { "late or forged reply" } else { "reply" };
            format!("{what} of {from}: {}", or_not_here(*gid))
        }
        Step::PortUnreachable { to } => {
            format!("ICMP: port unreachable at {to}: no ibarr there, or a firewall")
        }
        Step::NeighbourSought => "look-up of the kernel's neighbour entry".to_owned(),
        Step::Neighbour { gid: Some(gid) } => format!("neighbour entry: {gid}"),
        Step::Neighbour { gid: None } => "no neighbour entry".to_owned(),
        Step::Mad { port, lid, number, probe } => {
            let probe = if *probe { ", a probe" } else { "" };
            numbered("MAD", *number, &format!("from {port} to the SA at LID {lid}{probe}"))
        }
        Step::MadAnswer { port, lid, refusal } => {
            let from = lid.map_or("an unknown LID".to_owned(), |lid| format!("LID {lid}"));
            let what = refusal.as_deref().unwrap_or("a path");
            format!("answer of the SA at {from} to {port}: {what}")
        }
        Step::AddressAnswered { by, status, gid, source, took_ms } => {
            let what = match (gid, source) {
                (Some(gid), Some(source)) => format!("{gid}, {}", origin(*source)),
                _ => status.to_string(),
            };
            answer(*by, &what, *took_ms)
        }
        Step::PathAnswered { by, status, dlid, source, refusal, left_to_kernel, took_ms } => {
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
            answer(*by, &what, *took_ms)
        }
        Step::Failed { status } => {
            format!("search failed: {}; it is repeated", failure(*status))
        }
        Step::Dropped { cause, took_ms } => {
            format!("no answer to the kernel: {cause}, after {:.3} ms", took_ms.millis())
        }
        Step::Nudge => "nudge".to_owned(),
        Step::Nudged { outcome } => match outcome {
            Nudged::Done => "nudged: the kernel looks at its answers",
            Nudged::Postponed => "nudge postponed: the kernel asks on",
            Nudged::Failed => "nudge failed: ibarr status says why",
        }
        .to_owned(),
        Step::Programs { cause: None } => {
            "the programs in the kernel report their packets from now on".to_owned()
        }
        Step::Programs { cause: Some(cause) } => {
            format!("the programs in the kernel report no packets: {cause}")
        }
        Step::Packet { program, interface, from, verdict, cause } => {
            let cause = cause.as_ref().map_or(String::new(), |cause| format!(": {cause}"));
            format!("{program} on {interface}, query of {from}, {verdict}{cause}")
        }
        Step::Peer { from, cause: Some(cause), .. } => {
            format!("query of the peer {from}, dropped: {cause}")
        }
        Step::Peer { from, gid, cause: None } => {
            format!("query of the peer {from}, reply: {}", or_not_here(*gid))
        }
    }
}

fn numbered(what: &str, number: u32, rest: &str) -> String {
    if number == 1 { format!("{what} {rest}") } else { format!("{what} {number} {rest}") }
}

fn answer(by: Caller, what: &str, took: Elapsed) -> String {
    format!("answer to {}: {what}, after {:.3} ms", caller(by), took.millis())
}

fn caller(by: Caller) -> String {
    match by {
        Caller::Kernel => "the kernel".to_owned(),
        Caller::Control(User(uid)) => format!("user {uid}"),
        Caller::Acm(User(uid)) => format!("user {uid} (ACM)"),
    }
}

fn or_not_here(gid: Option<Gid>) -> String {
    gid.map_or("not here".to_owned(), |gid| gid.to_string())
}

fn origin(source: Source) -> &'static str {
    match source {
        Source::Local => "an address of this node",
        Source::Cache => "remembered",
        Source::Peer => "from the peer",
        Source::Neighbour => "from the neighbour entry",
    }
}

fn path_origin(source: paths::Source) -> &'static str {
    match source {
        paths::Source::Sa => "from the SA",
        paths::Source::Cache => "remembered",
        paths::Source::Doubted => "remembered and in doubt",
    }
}

fn failure(status: Status) -> &'static str {
    match status {
        Status::NotFound => "the peer does not have the address",
        Status::TimedOut => "the peer does not answer",
        Status::Refused => "the peer's port is unreachable",
        Status::Unreachable => "no route",
        Status::Overloaded => "too many requests",
        Status::Found | Status::NotRemembered => "no answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(json: &str) -> Event {
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
                r#""ip":"::","step":"packet","program":"guard","interface":"ib0","from":"10.2.0.9","verdict":"dropped","cause":"malformed""#,
                "-|guard on ib0, query of 10.2.0.9, dropped: malformed",
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
        let at = Instant::BOOT;
        let only = Some(Filter::Ip([10, 2, 0, 5].into()));
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
