// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A core whose socket and node the test plays.

use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{Answer, SetTimeout};

use super::super::*;

/// A time long after boot.
pub(super) const START: Instant = Instant::from_nanos(1_000_000_000_000);

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) struct Rig {
    pub(super) core: LocalService,
    pub(super) now: Instant,
    /// Searches that wait for an answer, each with its target.
    pub(super) wanted: Vec<(KernelRequest, String)>,
    /// Requests that ended without an answer: address, age and cause.
    pub(super) dropped: Vec<String>,
    /// Whether repetitions of nudges are left out.
    pub(super) skips_follow_ups: bool,
}

impl Rig {
    /// Starts with a socket, after the first nudge.
    pub(super) fn new() -> Self {
        Self::with(Config::default(), Limits::default())
    }

    pub(super) fn with(config: Config, limits: Limits) -> Self {
        let mut rig = Self {
            core: LocalService::new(Config { limits, ..config }),
            now: START,
            wanted: Vec::new(),
            dropped: Vec::new(),
            skips_follow_ups: true,
        };
        rig.tell(Input::Opened { port_id: PortId(180), is_member: true });
        let first = if config.nudge { "timeout 3000, nudge" } else { "timeout 3000" };
        rig.does(first);
        if config.nudge {
            rig.tell(Input::Nudged(Nudged::Done));
        }
        for pause in FOLLOW_UPS {
            rig.pass(pause);
            rig.does("");
        }
        rig.pass(ms(10));
        rig
    }

    pub(super) fn tell(&mut self, input: Input<'_>) {
        self.core.handle_input(self.now, input);
        self.take_events();
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.core.handle_timeout(self.now);
        self.take_events();
    }

    pub(super) fn datagram(&mut self, bytes: &[u8]) {
        self.tell(Input::Datagram { sender: Sender::Kernel, bytes, cut: false });
    }

    /// The kernel sends one request.
    pub(super) fn asks(&mut self, seq: u32, target: &str) {
        self.datagram(request(seq, target).as_ref());
        self.tell(Input::Drained);
    }

    /// The node ends the oldest search for `target`.
    pub(super) fn finds(&mut self, target: &str, outcome: Outcome) {
        let at = self.wanted.iter().position(|(_, wanted)| wanted == target);
        let (id, _) = self.wanted.remove(at.expect("it is wanted"));
        self.core.handle_input(self.now, Input::Answered { id, outcome });
        self.take_events();
    }

    /// The kernel asks and is answered, and the nudge ends.
    pub(super) fn is_answered(&mut self, seq: u32, target: &str) {
        self.asks(seq, target);
        self.finds(target, peer(target));
        self.does(&format!("{seq} is {}, nudge", gid(target)));
        self.tell(Input::Nudged(Nudged::Done));
    }

    /// Checks all actions that are due.
    #[track_caller]
    pub(super) fn does(&mut self, expected: &str) {
        let done: Vec<_> = std::iter::from_fn(|| self.next()).collect();
        assert_eq!(done.join(", "), expected);
    }

    pub(super) fn next(&mut self) -> Option<String> {
        loop {
            let repeated = self.core.counters().get(Counter::NudgesRepeated);
            let transmit = self.core.poll_transmit()?;
            let repeats = repeated < self.core.counters().get(Counter::NudgesRepeated);
            if !(repeats && self.skips_follow_ups) {
                return Some(tell(&transmit));
            }
            let fails = self.core.nudges.failed();
            self.tell(Input::Nudged(if fails { Nudged::Failed } else { Nudged::Done }));
        }
    }

    #[track_caller]
    pub(super) fn wants(&self, expected: &str) {
        let wanted: Vec<_> = self.wanted.iter().map(|(_, target)| target.as_str()).collect();
        assert_eq!(wanted.join(", "), expected);
    }

    /// Checks the counters above zero since the start; repeated nudges are left out.
    #[track_caller]
    pub(super) fn counted(&self, expected: &str) {
        let first_nudge = |counter: &Counter| u64::from(*counter == Counter::Nudges);
        let counted: Vec<_> = self
            .core
            .counters()
            .iter()
            .map(|(counter, count)| (counter, count - first_nudge(&counter).min(count)))
            .filter(|(counter, count)| *counter != Counter::NudgesRepeated && *count > 0)
            .map(|(counter, count)| format!("{counter} {count}"))
            .collect();
        assert_eq!(counted.join(", "), expected);
    }

    fn take_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::Wanted { id, question, .. } => {
                    assert_eq!(question.egress(), IfIndex::new(2));
                    self.wanted.push((id, question.target().to_string()));
                }
                Event::Unwanted { id, question } => {
                    let unwanted = (id, question.target().to_string());
                    let at = self.wanted.iter().position(|wanted| *wanted == unwanted);
                    self.wanted.remove(at.expect("it was wanted"));
                }
                Event::Dropped { question, asked_at, why } => {
                    let (target, waited) = (question.target(), self.now.since(asked_at));
                    self.dropped.push(format!("{target} after {waited:?}: {why}"));
                }
                Event::PathWanted { id, .. } => {
                    self.core.handle_input(self.now, unknown_port(id));
                }
                Event::PathOverloaded { seq, .. } => {
                    self.core.handle_input(self.now, overloaded(seq));
                }
            }
        }
    }
}

/// Describes a message in words.
pub(super) fn tell(transmit: &Transmit) -> String {
    let message = match transmit {
        Transmit::Message(message) => message,
        Transmit::Open => return "open".to_owned(),
        Transmit::Join => return "join".to_owned(),
        Transmit::Leave(errno) => return format!("leave for {errno}"),
        Transmit::Nudge(Nudge::IfQuiet) => return "nudge".to_owned(),
        Transmit::Nudge(Nudge::Anyway) => return "nudge anyway".to_owned(),
    };
    let mut messages = messages(message.as_ref());
    let message = messages.next().expect("one message").expect("well-formed");
    assert_eq!(messages.next(), None);
    assert_eq!(message.port_id(), PortId(180));
    let Seq(seq) = message.seq();
    if let Ok(timeout) = SetTimeout::parse(&message) {
        return format!("timeout {}", timeout.timeout().get().as_millis());
    }
    match Answer::parse(&message).expect("an answer") {
        Answer::Gid(gid) => format!("{seq} is {gid}"),
        Answer::Error => format!("{seq} asks the SA"),
        Answer::Paths(_) => panic!("no paths yet"),
    }
}

pub(super) fn request(seq: u32, target: &str) -> Emitted {
    let ifindex = IfIndex::new(2).expect("not zero");
    let target: IpAddr = target.parse().expect("an address");
    Request::ResolveIp(ResolveIp { ifindex, target }).emit(Seq(seq))
}

/// The answer of a peer for 10.2.0.N: fe80::N.
pub(super) fn peer(target: &str) -> Outcome {
    let gid = gid(target).parse().expect("a GID");
    Outcome::Found { gid, source: Source::Peer }
}

pub(super) fn gid(target: &str) -> String {
    format!("fe80::{}", target.rsplit(['.', ':']).next().expect("a last part"))
}

/// The bytes of hexadecimal digits.
pub(super) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).expect("digits");
    digits.chunks(2).map(byte).collect()
}

pub(super) fn unknown_port(id: KernelRequest) -> Input<'static> {
    let outcome = &crate::paths::Outcome::UnknownPort;
    Input::PathAnswered { id, outcome, is_left_to_kernel: true }
}

pub(super) fn overloaded(seq: Seq) -> Input<'static> {
    Input::PathOverloaded { seq, is_left_to_kernel: true }
}
