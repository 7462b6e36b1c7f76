// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Many callers at once on a machine where each thread waits for a processor: the daemon, the
//! thread that nudges, and the callers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::rig::{START, gid, peer, request, tell};

/// How long they ask: after [`NUDGE_BEHIND`] a nudge would be made in any case.
const CROWD: Duration = NUDGE_BEHIND.saturating_sub(Duration::from_millis(10));

const TARGET: &str = "10.2.0.1";

/// Successive waits of each thread for its processor, in microseconds.
#[derive(Clone, Debug)]
struct Waits {
    /// Before each request.
    asks: Vec<u64>,
    /// Before each turn of the daemon.
    turns: Vec<u64>,
    /// Before each nudge.
    nudges: Vec<u64>,
}

fn waits() -> impl Strategy<Value = Waits> {
    let mostly_short = || prop_oneof![8 => 5..200_u64, 1 => 200..6_000_u64];
    let some = || prop::collection::vec(mostly_short(), 1..20);
    (prop::collection::vec(mostly_short(), 2..200), some(), some())
        .prop_map(|(asks, turns, nudges)| Waits { asks, turns, nudges })
}

/// A kernel that accepts every answer, with the messages in transit.
struct Machine {
    core: LocalService,
    now: Instant,
    /// Waiting requests, each with whether the kernel has its answer.
    waiting: BTreeMap<u32, bool>,
    /// Requests in the socket.
    sent: VecDeque<u32>,
    /// Number of requests read.
    read: usize,
    repeated: usize,
    /// The nudge in progress: when it is made, how, and how many requests had been read before.
    nudge: Option<(Instant, Nudge, usize)>,
    nudged: Option<Nudged>,
    turn_at: Option<Instant>,
}

impl Machine {
    fn ask(&mut self, seq: u32) {
        self.waiting.insert(seq, false);
        self.sent.push_back(seq);
    }

    /// Reads all requests, and performs all actions.
    fn turn(&mut self, hop: Duration) {
        self.turn_at = None;
        if let Some(nudged) = self.nudged.take() {
            self.core.handle_input(self.now, Input::Nudged(nudged));
        }
        for seq in std::mem::take(&mut self.sent) {
            self.read += 1;
            let bytes = request(seq, TARGET);
            let bytes = bytes.as_ref();
            self.core.handle_input(
                self.now,
                Input::Datagram { sender: Sender::Kernel, bytes, cut: false },
            );
        }
        self.core.handle_input(self.now, Input::Drained);
        self.core.handle_timeout(self.now);
        while let Some(event) = self.core.poll_event() {
            if let Event::Wanted { id, .. } = event {
                self.core.handle_input(self.now, Input::Answered { id, outcome: peer(TARGET) });
            }
        }
        while let Some(transmit) = self.core.poll_transmit() {
            match transmit {
                Transmit::Nudge(how) => self.nudge = Some((self.now + hop, how, self.read)),
                Transmit::Open | Transmit::Join | Transmit::Leave(_) => {
                    unreachable!("it is a member")
                }
                Transmit::Message(_) => {
                    let told = tell(&transmit);
                    let (seq, found) = told.split_once(" is ").expect("an answer");
                    assert_eq!(found, gid(TARGET));
                    let seq = seq.parse().expect("a number");
                    self.waiting.entry(seq).and_modify(|answered| *answered = true);
                }
            }
        }
    }

    fn make_nudge(&mut self, how: Nudge, read: usize) {
        self.nudge = None;
        if how == Nudge::IfQuiet && (!self.sent.is_empty() || self.read > read) {
            self.nudged = Some(Nudged::Postponed);
            return;
        }
        self.nudged = Some(Nudged::Done);
        self.waiting.retain(|_, answered| !*answered);
        self.repeated += self.waiting.len();
        self.sent.extend(self.waiting.keys());
    }

    fn has_something_to_do(&self) -> bool {
        let is_due = self.core.poll_timeout().is_some_and(|due| due <= self.now);
        is_due || !self.sent.is_empty() || self.nudged.is_some()
    }
}

proptest! {
    /// Whatever the waits for a processor, no request is repeated and every one is answered.
    #[test]
    fn crowd_of_callers_causes_no_repetition(waits in waits()) {
        let mut core = LocalService::new(Config::default());
        core.handle_input(START, Input::Opened { port_id: PortId(180), is_member: true });
        while core.poll_transmit().is_some() {}
        core.handle_input(START, Input::Nudged(Nudged::Done));
        let mut machine = Machine {
            core,
            now: START,
            waiting: BTreeMap::new(),
            sent: VecDeque::new(),
            read: 0,
            repeated: 0,
            nudge: None,
            nudged: None,
            turn_at: None,
        };
        let wait = |waits: &[u64], at: usize| Duration::from_micros(waits[at % waits.len()]);
        let mut asks = (1..).zip(&waits.asks).scan(START, |at, (seq, pause)| {
            *at += Duration::from_micros(*pause);
            (*at < START + CROWD).then_some((*at, seq))
        }).peekable();
        let (mut turns, mut last_ask) = (0, START);
        loop {
            if machine.turn_at.is_none() && machine.has_something_to_do() {
                machine.turn_at = Some(machine.now + wait(&waits.turns, turns));
            }
            let ask = asks.peek().map(|(at, _)| *at);
            let nudge = machine.nudge.map(|(at, ..)| at);
            // A due turn may be late; until it runs, its timer does not count.
            let timer = machine.core.poll_timeout().filter(|_| machine.turn_at.is_none());
            let next = [ask, nudge, machine.turn_at, timer].into_iter().flatten().min();
            let Some(next) = next else { break };
            machine.now = machine.now.max(next);
            if ask == Some(next) {
                let (at, seq) = asks.next().expect("it was there");
                last_ask = at;
                machine.ask(seq);
            } else if nudge == Some(next) {
                let (_, how, read) = machine.nudge.expect("it was there");
                machine.make_nudge(how, read);
            } else if machine.turn_at == Some(next) {
                turns += 1;
                machine.turn(wait(&waits.nudges, turns));
            }
            if machine.now > last_ask + NUDGE_BEHIND {
                prop_assert!(machine.waiting.is_empty(), "some requests still wait");
            }
        }
        prop_assert_eq!(machine.repeated, 0);
        prop_assert_eq!(machine.core.load(), Load::default());
    }
}
