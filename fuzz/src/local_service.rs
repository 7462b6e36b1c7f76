// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's requests in any order, with any answers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::{
    Answer, Kind, Message, PortId, Request, ResolveIp, Seq, SetTimeout, messages,
};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::local_service::{
    Config, Counter, Event, FOLLOW_UPS, Input, Limits, LocalService, NUDGE_INTERVAL, Nudge, Nudged,
    OVERRUN_PAUSE, Sender, Transmit,
};
use ibarr_proto::paths;
use ibarr_proto::request::{KernelRequest, Outcome, Source};

use crate::script::Script;

/// The local service under any history, which `script` encodes:
///
/// * Each address request ends once, and is answered no more often than it came.
/// * An answer has a GID that was found for its address.
/// * Each path request gets one answer.
/// * A nudge comes after all answers, and at most once a millisecond unless it is for a single answer.
/// * Each answer, start and loss causes at most one nudge and its repetitions.
/// * Bounds are kept, and nothing is left at the end.
///
/// # Panics
/// The claim does not hold for `script`.
pub fn local_service(script: &[u8]) {
    let mut script = Script(script);
    let mut world = World::new(!script.byte().is_multiple_of(4));
    while !script.0.is_empty() {
        world.step(&mut script);
    }
    world.finish();
}

/// Few targets, so that histories repeat them and reach every bound.
const TARGETS: [&str; 4] = ["10.2.0.5", "10.2.0.6", "fd00:2::5", "224.0.0.1"];
const LIMITS: Limits = Limits { requests: 4, paths: 3 };

struct World {
    now: Instant,
    core: LocalService,
    is_open: bool,
    /// Flights without an answer.
    sought: BTreeMap<KernelRequest, Question>,
    /// GIDs that were found for each address.
    found: BTreeMap<IpAddr, Vec<Gid>>,
    /// The address of the last request with each number.
    asked: BTreeMap<Seq, IpAddr>,
    /// How often a request with each number came and was answered.
    came: BTreeMap<Seq, (u64, u64)>,
    /// Path requests that may still be answered.
    paths: BTreeMap<Seq, u32>,
    nudging: Option<Nudge>,
    last_nudge: Option<Instant>,
    /// Answers since the last nudge.
    answers: u32,
    nudges: usize,
    causes: usize,
    overruns_from: Instant,
    /// The last nudges need not be a millisecond apart.
    has_stopped: bool,
}

impl World {
    fn new(nudge: bool) -> Self {
        let config = Config { nudge, ..Config::default() };
        Self {
            now: Instant::from_nanos(1),
            core: LocalService::with_limits(config, LIMITS),
            is_open: false,
            sought: BTreeMap::new(),
            found: BTreeMap::new(),
            asked: BTreeMap::new(),
            came: BTreeMap::new(),
            paths: BTreeMap::new(),
            nudging: None,
            last_nudge: None,
            answers: 0,
            nudges: 0,
            causes: 0,
            overruns_from: Instant::BOOT,
            has_stopped: false,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 14 {
            0 => self.open(),
            1..=3 => {
                let target = TARGETS[usize::from(script.byte()) % TARGETS.len()];
                let ifindex = IfIndex::new(u32::from(script.byte() % 2) + 1).expect("not zero");
                let request = ResolveIp { ifindex, target: address(target) };
                let seq = Seq(u32::from(script.byte() % 8));
                self.datagram(Request::ResolveIp(request).emit(seq).as_ref(), false);
            }
            4 | 5 => {
                let length = usize::from(script.byte());
                let cut = script.byte().is_multiple_of(8);
                self.datagram(script.bytes(length), cut);
            }
            6 => {
                let bytes = script.bytes(64);
                self.input(Input::Datagram { sender: Sender::Other, bytes, cut: false });
            }
            7 | 8 => self.find(script),
            9 => self.input(Input::Drained),
            10 => {
                if self.overruns_from <= self.now {
                    self.overruns_from = self.now + OVERRUN_PAUSE;
                    self.causes += 1;
                }
                self.input(Input::Overrun);
            }
            11 => self.take(usize::from(script.byte() % 4)),
            12 => self.nudged(match script.byte() % 4 {
                0 => Nudged::Failed,
                1 => Nudged::Postponed,
                _ => Nudged::Done,
            }),
            _ => match script.byte() {
                0 => {
                    self.is_open = false;
                    self.input(Input::Closed);
                    assert!(self.core.is_idle() && self.core.load().held == 0);
                }
                1 => {
                    self.has_stopped = true;
                    self.input(Input::Stop);
                    assert_eq!(self.core.load().waiting, 0);
                }
                2 => {
                    let nudge = script.byte().is_multiple_of(2);
                    self.core.reconfigure(Config { nudge, ..Config::default() });
                }
                3..128 => self.pass(Duration::from_millis(u64::from(script.byte()).pow(2))),
                _ => self.next_timeout(),
            },
        }
    }

    fn open(&mut self) {
        self.is_open = true;
        self.causes += 1;
        // The core must work whether or not the socket is a member already.
        let is_member = self.causes.is_multiple_of(2);
        self.input(Input::Opened { port_id: PortId(9), is_member });
    }

    fn datagram(&mut self, bytes: &[u8], cut: bool) {
        let mut read = messages(bytes);
        let mut note = |message: &Message<'_>| {
            if message.kind() == Kind::ResolvePath && message.is_request() {
                *self.paths.entry(message.seq()).or_default() += 1;
            }
            if let Ok(Request::ResolveIp(request)) = Request::parse(message)
                && Question::new(request.target, Some(request.ifindex)).is_some()
            {
                self.asked.insert(message.seq(), request.target);
                self.came.entry(message.seq()).or_default().0 += 1;
            }
        };
        while let Some(message) = read.next() {
            if let Some(message) = message.ok().or(read.broken()) {
                note(&message);
            }
        }
        self.input(Input::Datagram { sender: Sender::Kernel, bytes, cut });
    }

    /// Answers the oldest question.
    fn find(&mut self, script: &mut Script<'_>) {
        let Some((id, question)) = self.sought.pop_first() else { return };
        let outcome = match script.byte() {
            0..32 => Outcome::NotFound,
            32..64 => Outcome::TimedOut,
            64..80 => Outcome::Unreachable,
            80..96 => Outcome::Overloaded,
            n => {
                let octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 1, n];
                let gid = Gid::new(octets).expect("a port's");
                self.found.entry(question.target()).or_default().push(gid);
                Outcome::Found { gid, source: Source::Peer }
            }
        };
        self.core.handle_input(self.now, Input::Answered { id, outcome });
        // A second outcome must be ignored.
        self.core.handle_input(self.now, Input::Answered { id, outcome: Outcome::NotFound });
        self.listen();
    }

    fn take(&mut self, count: usize) {
        for _ in 0..count {
            let Some(transmit) = self.core.poll_transmit() else { return };
            assert!(self.is_open, "sent without a socket");
            match transmit {
                Transmit::Join => {}
                Transmit::Leave(errno) => {
                    assert!(errno < 0 && self.core.load().held == 0);
                    self.is_open = false;
                    self.input(Input::Closed);
                }
                Transmit::Message(message) => self.message(message.as_ref()),
                Transmit::Nudge(nudge) => {
                    let next = self.core.poll_transmit();
                    assert_eq!(next, None, "the nudge should have waited for this");
                    self.nudge(nudge);
                }
            }
        }
    }

    fn message(&mut self, bytes: &[u8]) {
        let mut read = messages(bytes);
        let message = read.next().expect("one message").expect("well-formed");
        assert!(read.next().is_none());
        assert_eq!(message.port_id(), PortId(9));
        if message.is_request() {
            SetTimeout::parse(&message).expect("the core sends only this request");
            return;
        }
        match Answer::parse(&message).expect("a message that is no request is an answer") {
            Answer::Error => {
                let left = self.paths.get_mut(&message.seq()).expect("the request came before");
                *left = left
                    .checked_sub(1)
                    .expect("the request is answered at most as often as it came");
            }
            Answer::Gid(gid) => {
                let target = self.asked[&message.seq()];
                assert!(self.found[&target].contains(&gid), "{gid} was not found for {target}");
                self.answers += 1;
                self.causes += 1;
                let (came, answered) = self.came.entry(message.seq()).or_default();
                *answered += 1;
                let repeated = self.core.counters().get(Counter::AnswersRepeated);
                assert!(
                    *answered <= *came + repeated,
                    "came {came} times, answered {answered} times"
                );
            }
            Answer::Paths(_) => panic!("the core gives no paths here"),
        }
    }

    fn nudge(&mut self, nudge: Nudge) {
        assert!(self.nudging.is_none(), "two nudges at once");
        if let Some(last) = self.last_nudge {
            let is_apart = self.now.since(last) >= NUDGE_INTERVAL;
            assert!(is_apart || self.answers == 1 || self.has_stopped);
        }
        self.answers = 0;
        (self.nudging, self.last_nudge) = (Some(nudge), Some(self.now));
    }

    fn nudged(&mut self, outcome: Nudged) {
        let Some(nudge) = self.nudging.take() else { return };
        // Only such a nudge may be postponed.
        let may_be_postponed = nudge == Nudge::IfQuiet;
        let outcome =
            if outcome == Nudged::Postponed && !may_be_postponed { Nudged::Done } else { outcome };
        if outcome != Nudged::Postponed {
            self.nudges += 1;
            let (nudges, causes) = (self.nudges, self.causes);
            assert!(nudges <= causes * (1 + FOLLOW_UPS.len()), "{nudges} nudges for {causes}");
        }
        self.input(Input::Nudged(outcome));
    }

    fn next_timeout(&mut self) {
        if let Some(at) = self.core.poll_timeout() {
            self.pass(at.since(self.now));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.core.handle_timeout(self.now);
        self.listen();
    }

    fn input(&mut self, input: Input<'_>) {
        self.core.handle_input(self.now, input);
        self.listen();
    }

    fn listen(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::Wanted { id, question, .. } => {
                    assert_eq!(self.sought.insert(id, question), None, "an id is used again");
                }
                Event::Unwanted { id, question } => {
                    assert_eq!(
                        self.sought.remove(&id),
                        Some(question),
                        "the request was not wanted"
                    );
                }
                Event::Dropped { .. } => {}
                Event::PathWanted { id, .. } => {
                    let outcome = &paths::Outcome::UnknownPort;
                    let input = Input::PathAnswered { id, outcome, is_left_to_kernel: true };
                    self.core.handle_input(self.now, input);
                }
                Event::PathOverloaded { seq, .. } => {
                    let input = Input::PathOverloaded { seq, is_left_to_kernel: true };
                    self.core.handle_input(self.now, input);
                }
            }
        }
        let load = self.core.load();
        assert!(load.waiting <= load.held && load.held <= LIMITS.requests, "{load:?}");
        assert!(self.sought.len() <= load.waiting, "{load:?}");
        let ended = [
            Counter::AnsweredLocal,
            Counter::AnsweredCache,
            Counter::AnsweredPeer,
            Counter::NotFound,
            Counter::TimedOut,
            Counter::Unreachable,
            Counter::Overloaded,
            Counter::Superseded,
            Counter::Abandoned,
            Counter::RequestsFull,
        ];
        let count = |counter| self.core.counters().get(counter);
        let ended: u64 = ended.into_iter().map(count).sum();
        let waiting = u64::try_from(load.waiting).expect("few");
        assert_eq!(count(Counter::Requests), ended + waiting, "{:?}", self.core.counters());
    }

    /// Without further input, every request ends.
    fn finish(&mut self) {
        self.open();
        self.input(Input::Drained);
        for _ in 0..1_000 {
            self.take(usize::MAX);
            if self.nudging.is_some() {
                self.nudged(Nudged::Done);
            } else if self.core.poll_timeout().is_some() {
                self.next_timeout();
            } else {
                assert_eq!(self.core.load().held, 0);
                assert!(self.sought.is_empty() && self.core.is_idle());
                return;
            }
        }
        panic!("a thousand timers without work");
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address of the table above")
}
