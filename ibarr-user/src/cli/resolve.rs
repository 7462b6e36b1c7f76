// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr resolve`: asks for many destinations, and prints each answer when it is there.
//!
//! Workers take the destinations in chunks. Each asks the system's resolver for the names of its
//! chunk, then the daemon, on a connection of its own. The daemon serves a user's questions by
//! turns with those of other users, so there are few workers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ibarr_proto::ip2gid::Family;
use ibarr_proto::request::Freshness;
use ibarr_proto::{paths, request};

use super::source::Source;
use super::table::Table;
use super::targets::{self, Addresses, Destination};
use super::times::Tally;
use super::verify::{self, Neighbours};
use super::{Daemon, Exit, ask, print};
use crate::control::client::Connection;
use crate::control::messages::{
    Answer, Body, Elapsed, Failure, PathAnswer, PathHops, Request, Resolved, Summary, UnknownName,
};

#[derive(Args, Debug)]
pub(super) struct ResolveArgs {
    /// Addresses, host names, or lists of them like node[1-8,12],login1 or @FILE; %IF stands for an interface
    #[arg(required = true, value_name = "IP|NAME")]
    destinations: Vec<String>,
    #[command(flatten)]
    family: FamilyArgs,
    /// How long to wait for peers, at most 60s
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = super::timeout)]
    timeout: Duration,
    #[command(flatten)]
    lookup: LookupArgs,
    /// Ask so many times; an answer is shown again if it has changed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    repeat: u32,
    /// Resolve the path to each GID as well
    #[arg(long)]
    path: bool,
    /// Compare each answer with the peer, the subnet administrator and the kernel's neighbour entry
    #[arg(long, conflicts_with = "cached")]
    verify: bool,
    /// Resolve the paths, too, from here: an IP address, a GID, or a port like mlx5_0/1
    #[arg(long, value_name = "IP|GID|PORT")]
    source: Option<String>,
    /// Print one JSON document a line: one for each answer, then the summary
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
    #[command(flatten)]
    daemon: Daemon,
}

/// Where the answers come from.
#[derive(Args, Clone, Copy, Debug)]
struct LookupArgs {
    /// Ask nothing: show what the daemon remembers
    #[arg(long)]
    cached: bool,
    /// Ask the peers, even if the daemon remembers their answers
    #[arg(long, conflicts_with = "cached")]
    fresh: bool,
}

/// Which address of a host name counts.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct FamilyArgs {
    /// Take the IPv4 address of a host name
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    ipv4: bool,
    /// Take the IPv6 address of a host name
    #[arg(short = '6', long)]
    ipv6: bool,
}

impl FamilyArgs {
    pub(super) fn family(self) -> Option<Family> {
        match self {
            Self { ipv4: true, .. } => Some(Family::V4),
            Self { ipv6: true, .. } => Some(Family::V6),
            Self { .. } => None,
        }
    }
}

/// Addresses of a request: a quarter of what a user may have in flight, for each worker.
const CHUNK: usize = 64;
/// As many as a user may have requests for paths in flight.
const WORKERS: usize = 4;
/// The daemon closes a connection without a request after 10 s.
const IDLE: Duration = Duration::from_secs(5);

pub(super) fn run(args: &ResolveArgs) -> Exit {
    let is_json = args.daemon.json || args.json_lines;
    match Job::new(args).and_then(|job| job.run()) {
        Ok(exit) => exit,
        Err(failure) => ask::fail(failure, is_json),
    }
}

/// The destinations, and how to ask for them.
struct Job<'a> {
    args: &'a ResolveArgs,
    lookup: Freshness,
    destinations: Vec<Destination>,
    source: Source,
    neighbours: Neighbours,
}

/// What a worker tells.
enum Event {
    Answered(usize, Resolved),
    Unknown(usize, UnknownName),
    Failed(Failure),
}

impl<'a> Job<'a> {
    fn new(args: &'a ResolveArgs) -> Result<Self, Failure> {
        let destinations = targets::parse(&args.destinations)?;
        let source = match &args.source {
            Some(source) => Source::find(&args.daemon, source)?,
            None => Source::default(),
        };
        let lookup = match args.lookup {
            LookupArgs { cached: true, .. } => Freshness::Memory,
            LookupArgs { fresh: true, .. } => Freshness::Fresh,
            LookupArgs { .. } => Freshness::Any,
        };
        let neighbours = if args.verify { Neighbours::read() } else { Neighbours::default() };
        Ok(Self { args, lookup, destinations, source, neighbours })
    }

    fn run(&self) -> Result<Exit, Failure> {
        let begun = Instant::now();
        let mut report = Report::new(self);
        for _ in 0..self.args.repeat {
            let next = AtomicUsize::new(0);
            thread::scope(|scope| {
                let (events, told) = channel();
                for _ in 0..WORKERS.min(self.destinations.len().div_ceil(CHUNK)) {
                    let events = events.clone();
                    let next = &next;
                    scope.spawn(move || {
                        if let Err(failure) = self.work(next, &events) {
                            drop(events.send(Event::Failed(failure)));
                        }
                    });
                }
                drop(events);
                report.hear(told)
            })?;
            if print::has_failed() {
                break;
            }
        }
        Ok(report.end(begun.elapsed()))
    }

    /// Takes chunks until none is left. A failure to send means that nothing more is wanted.
    fn work(&self, next: &AtomicUsize, events: &Sender<Event>) -> Result<(), Failure> {
        let mut connection = None;
        loop {
            let from = next.fetch_add(CHUNK, Ordering::Relaxed);
            let chunk = self.destinations.iter().enumerate().skip(from).take(CHUNK);
            let mut asked: Vec<(usize, Addresses)> = Vec::new();
            let begun = Instant::now();
            for (place, destination) in chunk {
                match destination.resolve(self.args.family.family()) {
                    Ok(found) => asked.push((place, found)),
                    Err(message) => {
                        let name = destination.text.clone();
                        let unknown = Event::Unknown(place, UnknownName { name, message });
                        if events.send(unknown).is_err() {
                            return Ok(());
                        }
                    }
                }
            }
            if begun.elapsed() > IDLE {
                connection = None;
            }
            if !asked.is_empty() {
                let connection = match &mut connection {
                    Some(connection) => connection,
                    none => none.insert(self.args.daemon.connect()?),
                };
                if self.ask(connection, &asked, events)?.is_none() {
                    return Ok(());
                }
            }
            if from + CHUNK >= self.destinations.len() {
                return Ok(());
            }
        }
    }

    /// Asks for a chunk; `None` if nothing more is wanted.
    fn ask(
        &self,
        connection: &mut Connection,
        asked: &[(usize, Addresses)],
        events: &Sender<Event>,
    ) -> Result<Option<()>, Failure> {
        let request = Request::Resolve {
            addresses: asked.iter().map(|(_, found)| found.target).collect(),
            timeout_ms: Some(self.args.timeout.into()),
            lookup: self.lookup,
            each: true,
        };
        let ResolveArgs { path, verify, source, .. } = self.args;
        let needs_path = *path || *verify || source.is_some();
        // Their paths are asked for when the connection is free.
        let mut found = Vec::new();
        let mut is_wanted = true;
        let body = connection.ask(&request, |part| {
            let Body::Answer { answer, place } = part else { return };
            let Some(&(place, Addresses { target, ref others })) = asked.get(place) else { return };
            let (name, other_addresses) = (self.destinations[place].name(), others.clone());
            let resolved = Resolved { name, other_addresses, ..*answer };
            if needs_path && resolved.answer.status == request::Status::Found {
                found.push((place, target, resolved));
            } else {
                is_wanted &= events.send(Event::Answered(place, resolved)).is_ok();
            }
        })?;
        if !matches!(body, Body::Answers { .. }) {
            return Err(ask::other_version());
        }
        for (place, target, mut resolved) in found {
            if self.args.verify {
                let timeout = self.args.timeout;
                let against =
                    verify::Against { source: &self.source, neighbours: &self.neighbours, timeout };
                verify::verify(connection, &against, target, &mut resolved)?;
            } else if let Some(gid) = resolved.answer.gid {
                resolved.path = Some(self.source.path(connection, gid, false)?);
            }
            is_wanted &= events.send(Event::Answered(place, resolved)).is_ok();
        }
        Ok(is_wanted.then_some(()))
    }
}

/// Prints the answers, and counts them.
struct Report<'a> {
    job: &'a Job<'a>,
    tally: Tally,
    has_lack: bool,
    mismatches: u64,
    unknown: Vec<Option<UnknownName>>,
    /// The last answer for each destination.
    last: Vec<Option<Resolved>>,
    refused: Vec<String>,
    table: Table,
}

impl<'a> Report<'a> {
    fn new(job: &'a Job<'a>) -> Self {
        let count = job.destinations.len();
        let longest =
            job.destinations.iter().map(|destination| destination.text.chars().count()).max();
        Self {
            job,
            tally: Tally::default(),
            has_lack: false,
            mismatches: 0,
            unknown: vec![None; count],
            last: vec![None; count],
            refused: Vec::new(),
            table: Table { widths: vec![longest.unwrap_or(0)], ..Table::default() },
        }
    }

    /// Takes what the workers of a round tell.
    fn hear(&mut self, told: Receiver<Event>) -> Result<(), Failure> {
        for event in told {
            match event {
                Event::Failed(failure) => return Err(failure),
                Event::Unknown(place, name) => self.note_unknown(place, name),
                Event::Answered(place, resolved) => self.note_answer(place, resolved),
            }
            if print::has_failed() {
                break;
            }
        }
        Ok(())
    }

    fn note_unknown(&mut self, place: usize, unknown: UnknownName) {
        if self.unknown[place].is_none() {
            if self.job.args.json_lines {
                let unknown_name = unknown.clone();
                print::json(&Body::UnknownName { unknown_name }.into());
            } else if !self.job.args.daemon.json {
                print::error_line(&format!("{}: {}", unknown.name, unknown.message));
            }
        }
        self.unknown[place] = Some(unknown);
    }

    fn note_answer(&mut self, place: usize, resolved: Resolved) {
        self.tally.note(&resolved.answer);
        let has_path =
            resolved.path.as_ref().is_none_or(|path| path.status == paths::Status::Found);
        self.has_lack |= !has_path;
        self.mismatches += u64::from(!resolved.mismatches.is_empty());
        let is_new = self.last[place].as_ref().is_none_or(|last| said(last) != said(&resolved));
        if is_new {
            if self.job.args.json_lines {
                let answer = Box::new(resolved.clone());
                print::json(&Body::Answer { answer, place }.into());
            } else if !self.job.args.daemon.json {
                self.print(place, &resolved);
            }
        }
        self.last[place] = Some(resolved);
    }

    fn print(&mut self, place: usize, resolved: &Resolved) {
        let destination = &self.job.destinations[place];
        let mut cells = print::answer(&resolved.answer);
        cells[0].clone_from(&destination.text);
        if destination.is_name() {
            cells.push(resolved.answer.ip.to_string());
        }
        print::rows(&mut self.table, [cells]);
        print::others(&destination.text, resolved.answer.ip, &resolved.other_addresses);
        if let Some(path) = &resolved.path {
            print::line(&format!("    {}", print::path_outcome(path)));
        }
        for mismatch in &resolved.mismatches {
            print::line(&format!("    mismatch: {}", mismatch.message));
        }
        if resolved.answer.status == request::Status::Refused {
            self.refused.push(destination.text.clone());
        }
    }

    fn end(self, total: Duration) -> Exit {
        let unknown_names: Vec<_> = self.unknown.into_iter().flatten().collect();
        let summary = Summary {
            answers: self.tally.statuses.clone(),
            unknown_names: unknown_names.len() as u64,
            mismatches: self.mismatches,
            ms: self.tally.times(),
            total_ms: Elapsed(total),
        };
        let is_whole = self.tally.found() == self.tally.count()
            && unknown_names.is_empty()
            && self.mismatches == 0
            && !self.has_lack;
        if self.job.args.json_lines {
            print::json(&Body::Summary { summary }.into());
        } else if self.job.args.daemon.json {
            let answers = self.last.into_iter().flatten().collect();
            print::json(&Body::Resolved { answers, unknown_names, summary }.into());
        } else {
            print::refused(&self.refused);
            if self.tally.count() > 1 {
                print::line(&print::summary(&self.tally, &summary));
            }
        }
        if is_whole { Exit::Ok } else { Exit::Negative }
    }
}

/// What an answer says, without its times and origin.
fn said(
    resolved: &Resolved,
) -> (request::Status, Option<ibarr_common::ib::Gid>, Vec<&PathHops>, usize) {
    let Answer { status, gid, .. } = resolved.answer;
    let paths = resolved.path.as_deref().map(PathAnswer::paths).unwrap_or_default();
    (status, gid, paths, resolved.mismatches.len())
}
