// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A subnet administrator is stopped for some seconds, as by a heavy sweep, while a node makes a connection
//! every 0.3 s. With ibarr no more of them fail than with the kernel alone.

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PKey, PathRecord, PortNum};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::sa::{Answer, PathQuestion, Question, Refusal, Request};
use ibarr_common::wire::umad::PKeyIndex;
use ibarr_proto::local_service;
use ibarr_proto::paths::{self, Input, Outcome, Paths, PortFacts, PortName, RequestId};
use ibarr_proto::request::{Caller, Freshness, UserRequest};
use ibarr_proto::sa::PortIndex;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

/// What happens to the MADs that a stopped SA is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mads {
    /// They wait for it (SIGSTOP, a sweep).
    Wait,
    /// They are lost (a restart).
    AreLost,
}

/// One history, for the kernel alone and with ibarr.
#[derive(Clone, Copy, Debug)]
struct History {
    seed: u64,
    stopped_at: Instant,
    for_secs: u64,
    mads: Mads,
    /// Whether all connections need the same path.
    is_one_path: bool,
}

const EVERY: Duration = Duration::from_millis(300);
const WAY: Duration = Duration::from_micros(200);
const START: Instant = Instant::from_nanos(1_000_000_000_000);
const PORT: PortIndex = PortIndex(0);

/// `ib_sa_path_rec_get` for a caller that gives 2 s: eleven MADs, a tenth of its time apart.
const KERNEL_SENDS: u32 = 11;
const KERNEL_PATIENCE: Duration = Duration::from_millis(200);

impl History {
    /// When the answer to a MAD arrives.
    fn answered_at(&self, sent_at: Instant) -> Option<Instant> {
        let until = self.stopped_at + Duration::from_secs(self.for_secs);
        let is_stopped = (self.stopped_at..until).contains(&sent_at);
        match self.mads {
            _ if !is_stopped => Some(sent_at + WAY),
            Mads::Wait => Some(until + WAY),
            Mads::AreLost => None,
        }
    }

    /// Whether a kernel that asks by itself gets an answer.
    fn serves_the_kernel(&self, asked_at: Instant) -> bool {
        let sent = (0..KERNEL_SENDS).map(|n| asked_at + KERNEL_PATIENCE * n);
        let ends = asked_at + KERNEL_PATIENCE * KERNEL_SENDS;
        sent.filter_map(|sent_at| self.answered_at(sent_at)).any(|at| at < ends)
    }

    /// When connections are made: from 1 s before the stop to 1 s after it.
    fn connections(&self) -> impl Iterator<Item = Instant> {
        let end = START + Duration::from_secs(2 + self.for_secs);
        (0..).map(|n| START + EVERY * n).take_while(move |at| *at < end)
    }

    fn fail_alone(&self) -> usize {
        let remembered_at = self.connections().find(|at| self.is_one_path && *at < self.stopped_at);
        assert_eq!(remembered_at, None, "the kernel remembers nothing, and ibarr would");
        self.connections().filter(|at| !self.serves_the_kernel(*at)).count()
    }

    fn fail_with_ibarr(&self) -> usize {
        let mut node = Node::new(self);
        let connections: Vec<_> = self.connections().collect();
        for (n, at) in (0..).zip(&connections) {
            node.run_until(*at);
            node.connect(if self.is_one_path { 0 } else { n });
        }
        node.run_until(node.now + Duration::from_secs(20));
        assert_eq!(node.ended, connections.len(), "{self:?}");
        node.failed
    }
}

struct Node<'a> {
    history: &'a History,
    now: Instant,
    paths: Paths,
    answers: Vec<(Instant, Request)>,
    ended: usize,
    failed: usize,
    asked: u64,
}

impl<'a> Node<'a> {
    fn new(history: &'a History) -> Self {
        let paths = Paths::new(paths::Config::default(), ChaCha12Rng::seed_from_u64(history.seed));
        let answers = Vec::new();
        let (ended, failed, asked) = (0, 0, 0);
        // The node has been up for a minute.
        let now = Instant::from_nanos(START.as_nanos() - 60_000_000_000);
        let mut this = Self { history, now, paths, answers, ended, failed, asked };
        this.paths.handle_input(now, Input::Port { port: PORT, name: name(), facts: facts() });
        this
    }

    fn connect(&mut self, peer: u64) {
        self.asked += 1;
        let id = RequestId::User(UserRequest::Control(self.asked));
        let wait = local_service::Config::default().timeout.get() * 4 / 5;
        let (port, deadline) = (name(), self.now + wait);
        let (question, caller, freshness) = (question(peer), Caller::Kernel, Freshness::Any);
        let question = question.into();
        let request = paths::Request { id, caller, port, question, freshness, deadline };
        self.paths.handle_input(self.now, Input::Resolve(request));
        self.drain();
    }

    fn run_until(&mut self, end: Instant) {
        self.drain();
        loop {
            let answer = self.answers.iter().map(|(at, _)| *at).min();
            let next = self.paths.poll_timeout().into_iter().chain(answer).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            let arrived = self.answers.iter().position(|(at, _)| *at <= self.now);
            if let Some((_, request)) = arrived.map(|at| self.answers.remove(at)) {
                let answer = match request.question {
                    Question::Path(question) | Question::Paths(question, _) => {
                        Answer::Path(record(&question))
                    }
                    Question::ClassPortInfo => Answer::ClassPortInfo(ClassPortInfo::default()),
                    Question::Known(_) => Answer::Refused(Refusal::DENIED),
                };
                let mad = request.answer(answer).emit();
                let (from, mad) = (Lid::new(1), mad.as_ref());
                self.paths.handle_input(self.now, Input::Mad { port: PORT, from, mad });
            }
            self.drain();
        }
        self.now = end;
    }

    fn drain(&mut self) {
        self.paths.handle_timeout(self.now);
        while let Some(sent) = self.paths.poll_transmit() {
            let request = Request::parse(sent.mad.as_ref()).unwrap();
            let at = self.history.answered_at(self.now);
            self.answers.extend(at.map(|at| (at, request)));
        }
        while let Some(paths::Event::Answered(answered)) = self.paths.poll_event() {
            let is_served = match answered.outcome {
                Outcome::Found { .. } => true,
                _ => answered.is_left_to_kernel && self.history.serves_the_kernel(self.now),
            };
            self.ended += 1;
            self.failed += usize::from(!is_served);
        }
    }
}

#[test]
fn stopped_sa_fails_no_more_connections_than_with_the_kernel_alone() {
    let offsets = (0..300).step_by(30).map(Duration::from_millis);
    for (for_secs, mads) in
        [1, 2, 4, 8].into_iter().flat_map(|s| [(s, Mads::Wait), (s, Mads::AreLost)])
    {
        let (mut alone, mut with_ibarr) = (0, 0);
        for (offset, is_one_path) in
            offsets.clone().flat_map(|offset| [(offset, false), (offset, true)])
        {
            for seed in 0..10 {
                // A path that is asked for before the stop would be remembered.
                let before =
                    if is_one_path { Duration::ZERO } else { Duration::from_secs(1) + offset };
                let stopped_at = START + before;
                let history = History { seed, stopped_at, for_secs, mads, is_one_path };
                let (fail_alone, fail_with_ibarr) =
                    (history.fail_alone(), history.fail_with_ibarr());
                assert!(
                    fail_with_ibarr <= fail_alone,
                    "{history:?}: {fail_with_ibarr} > {fail_alone}"
                );
                alone += fail_alone;
                with_ibarr += fail_with_ibarr;
            }
        }
        println!(
            "stopped for {for_secs} s, MADs {mads:?}: {alone} fail alone, {with_ibarr} with ibarr"
        );
        assert!(for_secs < 4 || with_ibarr > 0, "a caller does not wait for ever");
    }
}

fn name() -> PortName {
    PortName { device: "mlx5_0".parse().unwrap(), port: PortNum::new(1).unwrap() }
}

fn gid(n: u64) -> Gid {
    Gid::new((0xfe80_u128 << 112 | u128::from(n + 1)).to_be_bytes()).unwrap()
}

fn facts() -> PortFacts {
    PortFacts {
        is_active: true,
        has_umad: true,
        lid: Lid::new(8),
        sm_lid: Lid::new(1),
        gids: [gid(0xffff)].into(),
        pkeys: vec![(PKeyIndex(0), PKey::DEFAULT)],
        ..PortFacts::default()
    }
}

fn question(n: u64) -> PathQuestion {
    PathQuestion {
        dgid: gid(n),
        sgid: gid(0xffff),
        reversible: true,
        pkey: Some(PKey::DEFAULT),
        tclass: None,
        service_id: None,
        qos_class: None,
    }
}

fn record(question: &PathQuestion) -> PathRecord {
    let mut octets = [0; PathRecord::LEN];
    octets[8..24].copy_from_slice(&question.dgid.octets());
    octets[24..40].copy_from_slice(&question.sgid.octets());
    octets[40..44].copy_from_slice(&[0, 9, 0, 8]);
    octets[49..52].copy_from_slice(&[0x80, 0xff, 0xff]);
    PathRecord::from_octets(octets)
}
