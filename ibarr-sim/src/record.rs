// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The record of all events: always as a hash, and as lines for people on request.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::ip2gid::{Query, Reply};
use ibarr_common::wire::ls::{Answer, Request, SetTimeout, messages};
use ibarr_common::wire::sa::{self, Question};
use ibarr_proto::health;

use crate::kernel::{Event, IpOutcome, Wake};

/// The time at which a simulation begins: long after boot.
pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000_000);

#[derive(Debug)]
pub(crate) struct Record {
    hash: u64,
    lines: Option<VecDeque<Line>>,
}

/// An event, with the machines concerned.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) about: [Option<usize>; 2],
    pub(crate) text: String,
}

/// Older lines are dropped.
const MAX_LINES: usize = 2_000_000;

/// An event to record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry<'a> {
    /// A caller of the kernel asks for an address.
    Called { target: IpAddr, timeout: Duration },
    /// A user asks for an address.
    Asked { target: IpAddr },
    /// A user gets an answer.
    Told { target: IpAddr, outcome: &'a str },
    /// The kernel sends a message to the daemon.
    Kernel { bytes: &'a [u8], fate: Fate },
    /// The daemon sends a message to the kernel.
    Daemon { bytes: &'a [u8] },
    /// A neighbour has changed.
    Neighbour { by_us: bool },
    /// A request has ended.
    Ended(&'a Event),
    /// A datagram is sent.
    Datagram { from: SocketAddr, to: SocketAddr, to_machine: usize, payload: &'a [u8], fate: Fate },
    /// A daemon asks an SA.
    Mad { question: &'a Question, fate: Fate },
    /// A daemon receives an answer of an SA.
    Answer { question: &'a Question, answer: &'a sa::Answer },
    /// A fault, with its duration.
    Weather(&'a str, Option<Duration>),
    /// A change of the machine's addresses and links.
    Network(&'a str, IpAddr),
    /// A change of the health that the daemon reports.
    Health(&'a health::Event),
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    Arrives,
    /// The message arrives twice.
    Repeated,
    Lost,
}

impl Record {
    pub(crate) fn new(with_lines: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: with_lines.then(VecDeque::new) }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn into_lines(self) -> Vec<Line> {
        self.lines.unwrap_or_default().into()
    }

    pub(crate) fn add(&mut self, now: Instant, machine: usize, entry: &Entry<'_>) {
        self.mix(now.as_nanos());
        self.mix(u64::try_from(machine).unwrap_or(u64::MAX));
        let other = match entry {
            Entry::Datagram { to_machine, .. } => Some(*to_machine),
            _ => None,
        };
        self.mix_entry(entry);
        if let Some(lines) = &mut self.lines {
            if lines.len() >= MAX_LINES {
                lines.pop_front();
            }
            let after = now.since(START).as_secs_f64();
            let text = format!("{after:12.6} s  node {machine:>2}  {entry}");
            lines.push_back(Line { about: [Some(machine), other], text });
        }
    }

    fn mix_entry(&mut self, entry: &Entry<'_>) {
        match *entry {
            Entry::Called { target, timeout } => {
                self.mix(1);
                self.mix_address(target);
                self.mix(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
            }
            Entry::Asked { target } => {
                self.mix(2);
                self.mix_address(target);
            }
            Entry::Told { target, outcome } => {
                self.mix(3);
                self.mix_address(target);
                self.mix_bytes(outcome.as_bytes());
            }
            Entry::Kernel { bytes, fate } => {
                self.mix(4 << 8 | fate as u64);
                self.mix_bytes(bytes);
            }
            Entry::Daemon { bytes } => {
                self.mix(5);
                self.mix_bytes(bytes);
            }
            Entry::Neighbour { by_us } => self.mix(6 << 8 | u64::from(by_us)),
            Entry::Ended(event) => {
                let (kind, seq) = match event {
                    Event::Ip(seq, IpOutcome::Resolved { gid, by }) => {
                        self.mix_bytes(gid);
                        (if *by == Wake::TimeOut { 1 } else { 2 }, seq)
                    }
                    Event::Ip(seq, IpOutcome::TimedOut) => (3, seq),
                    Event::Ip(seq, IpOutcome::NoListener) => (4, seq),
                    Event::Path(seq, _) => (5, seq),
                    Event::AnswerLost(seq) => (6, seq),
                };
                self.mix(7 << 40 | kind << 32 | u64::from(seq.0));
            }
            Entry::Datagram { from, to, payload, fate, .. } => {
                self.mix(8 << 40 | u64::from(from.port()) << 16 | u64::from(to.port()));
                self.mix(fate as u64);
                self.mix_address(to.ip());
                self.mix_bytes(payload);
            }
            Entry::Mad { question, fate } => {
                self.mix(9 << 8 | fate as u64);
                self.mix_question(question);
            }
            Entry::Answer { question, answer } => {
                self.mix(10);
                self.mix_question(question);
                if let sa::Answer::Path(record) = answer {
                    self.mix_bytes(&record.octets());
                }
            }
            Entry::Weather(what, time) => {
                self.mix_bytes(what.as_bytes());
                self.mix(time.map_or(0, |time| u64::from(time.subsec_nanos())));
            }
            Entry::Network(what, address) => {
                self.mix_bytes(what.as_bytes());
                self.mix_address(address);
            }
            Entry::Health(event) => {
                let (kind, cause) = match event {
                    health::Event::Worse(_, cause, _) => (1, cause),
                    health::Event::Better { cause, .. } => (2, cause),
                };
                self.mix(11 << 40 | kind << 32 | *cause as u64);
            }
        }
    }

    fn mix_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.mix(u64::from(address.to_bits())),
            IpAddr::V6(address) => self.mix_bytes(&address.octets()),
        }
    }

    fn mix_question(&mut self, question: &Question) {
        if let Question::Path(question) = question {
            self.mix_bytes(&question.dgid.octets());
            self.mix(u64::from(question.reversible));
        }
    }

    fn mix_bytes(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            let word = word.first_chunk::<8>().copied().unwrap_or_default();
            self.mix(u64::from_le_bytes(word));
        }
        for &byte in words.remainder() {
            self.mix(u64::from(byte));
        }
    }

    /// The finalizer of MurmurHash3, which is a bijection.
    fn mix(&mut self, word: u64) {
        let mixed = (self.hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.hash = mixed ^ mixed >> 32;
    }
}

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Called { target, timeout } => {
                write!(f, "rdma_resolve_addr({target}, {} ms)", timeout.as_millis())
            }
            Self::Asked { target } => write!(f, "ibarr resolve {target}"),
            Self::Told { target, outcome } => write!(f, "ibarr resolve {target}: {outcome}"),
            Self::Kernel { bytes, fate } => {
                write!(f, "kernel  -> daemon  {}{fate}", Netlink(bytes))
            }
            Self::Daemon { bytes } => write!(f, "daemon  -> kernel  {}", Netlink(bytes)),
            Self::Neighbour { by_us: true } => f.write_str("nudge: a neighbour changes"),
            Self::Neighbour { by_us: false } => f.write_str("a neighbour changes"),
            Self::Ended(Event::Ip(seq, outcome)) => {
                write!(f, "rdma_resolve_addr ends (number {}): ", seq.0)?;
                match outcome {
                    IpOutcome::Resolved { gid, by } => {
                        let by = if *by == Wake::TimeOut {
                            "the time-out"
                        } else {
                            "a neighbour change"
                        };
                        write!(f, "{}, woken by {by}", std::net::Ipv6Addr::from(*gid))
                    }
                    IpOutcome::TimedOut => f.write_str("ETIMEDOUT"),
                    IpOutcome::NoListener => f.write_str("EADDRNOTAVAIL"),
                }
            }
            Self::Ended(Event::Path(seq, outcome)) => {
                write!(f, "path request ends (number {}): {outcome:?}", seq.0)
            }
            Self::Ended(Event::AnswerLost(seq)) => {
                write!(f, "kernel: no request waits for this answer (number {})", seq.0)
            }
            Self::Datagram { from, to, to_machine, payload, fate } => {
                write!(f, "{from} -> {to} (node {to_machine})  ")?;
                match (Query::parse(payload), Reply::parse(payload)) {
                    (Ok(query), _) => write!(f, "{query}{fate}"),
                    (_, Ok(reply)) => write!(f, "{reply}{fate}"),
                    _ => write!(f, "{payload:02x?}{fate}"),
                }
            }
            Self::Mad { question, fate } => {
                write!(f, "daemon  -> SA      {}{fate}", Asked(question))
            }
            Self::Answer { question, answer } => {
                write!(f, "SA      -> daemon  {}: ", Asked(question))?;
                match answer {
                    sa::Answer::Path(record) => write!(f, "{record:?}"),
                    sa::Answer::ClassPortInfo(_) => f.write_str("this"),
                    sa::Answer::Refused(refusal) => write!(f, "{refusal}"),
                }
            }
            Self::Weather(what, Some(time)) => write!(f, "** {what}, for {time:?}"),
            Self::Weather(what, None) => write!(f, "** {what}"),
            Self::Health(health::Event::Worse(subsystem, cause, reason)) => {
                write!(f, "health of {subsystem}: {} because of {cause}", reason.state)
            }
            Self::Health(health::Event::Better { subsystem, cause, state, .. }) => {
                write!(f, "health of {subsystem}: {state}, {cause} has ended")
            }
            Self::Network(what, address) => write!(f, "** {what} {address}"),
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arrives => "",
            Self::Repeated => "  [twice]",
            Self::Lost => "  [lost]",
        })
    }
}

/// Formats a question to an SA for people.
struct Asked<'a>(&'a Question);

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Question::ClassPortInfo => f.write_str("ClassPortInfo"),
            Question::Known(query) => write!(f, "path with {query:?}"),
            Question::Path(question) | Question::Paths(question, _) => {
                let ways = if question.reversible { "both ways" } else { "one way" };
                write!(f, "path to {}, {ways}", question.dgid)
            }
        }
    }
}

/// Formats messages between kernel and daemon for people.
#[derive(Clone, Copy, Debug)]
pub struct Netlink<'a>(pub &'a [u8]);

impl fmt::Display for Netlink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for message in messages(self.0) {
            let Ok(message) = message else { return write!(f, "not netlink {:02x?}", self.0) };
            let seq = message.seq().0;
            if let Ok(request) = Request::parse(&message) {
                write!(f, "{request} (number {seq})")?;
            } else if let Ok(answer) = Answer::parse(&message) {
                write!(f, "{answer} (number {seq})")?;
            } else if let Ok(told) = SetTimeout::parse(&message) {
                write!(f, "ls time-out: {:?}", told.timeout().get())?;
            } else {
                write!(f, "{:?} (number {seq})", message.kind())?;
            }
        }
        Ok(())
    }
}
