// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Requests for paths under any subnet administrators.

use std::collections::BTreeMap;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PKey, PathRecord, PortNum};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::sa::{
    Answer, PathCount, PathQuestion, Question, Refusal, Request as SaRequest,
};
use ibarr_common::wire::umad::PKeyIndex;
use ibarr_proto::paths::{
    Answered, Config, Event, Input, Outcome, Paths, PortEvent, PortFacts, PortName, Request,
    RequestId,
};
use ibarr_proto::request::{Caller, Freshness, UserRequest};
use ibarr_proto::sa::{PortIndex, Transmit};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

use crate::script::Script;

/// With any behaviour of subnet administrators, ports and time, each request is answered once and in time,
/// a path is given only to its own question, and bounds are kept.
///
/// # Panics
/// The claim does not hold for `script`.
pub fn paths(script: &[u8]) {
    let mut script = Script(script);
    let mut world = World::new(script.byte());
    while !script.0.is_empty() {
        world.step(&mut script);
    }
    world.pass(DEADLINE);
    assert!(world.waiting.is_empty());
    world.pass(2 * TTL);
    world.pass(2 * TTL);
    let load = world.core.load();
    assert_eq!((load.waiters, load.cached), (0, 0));
}

const DEADLINE: Duration = Duration::from_millis(1_600);
/// Short, because the core asks for the SA's abilities at a fixed rate, and an hour would be thousands of
/// turns.
const TTL: Duration = Duration::from_mins(1);
const PORTS: u8 = 2;

struct World {
    now: Instant,
    core: Paths,
    next: u64,
    waiting: BTreeMap<RequestId, (PathQuestion, Instant)>,
    sent: Vec<Transmit>,
}

impl World {
    fn new(seed: u8) -> Self {
        let spread = PathCount::new(seed % 8 + 1).expect("1 to 8");
        let mut config =
            Config { ttl: TTL, max_cached: 4, max_waiters: 6, spread, ..Config::default() };
        (config.sa.outstanding, config.sa.flights) = (3, 5);
        let core = Paths::new(config, ChaCha12Rng::seed_from_u64(seed.into()));
        let now = Instant::from_nanos(1 << 40);
        Self { now, core, next: 0, waiting: BTreeMap::new(), sent: Vec::new() }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let (op, n) = (script.byte(), script.byte());
        match op % 8 {
            0 | 1 => self.resolve(n),
            2 => self.port(n, script.byte()),
            3 => {
                let port = PortIndex(u16::from(n % PORTS));
                self.core.handle_input(self.now, Input::PortGone { port });
            }
            4 if !self.sent.is_empty() => {
                let sent = self.sent.swap_remove(usize::from(n) % self.sent.len());
                self.answer(&sent, script.byte());
            }
            5 => {
                let (port, len) = (PortIndex(u16::from(n % PORTS)), script.byte());
                let from = Lid::new(u16::from(n / PORTS % 4));
                let mad = script.bytes(len.into());
                self.core.handle_input(self.now, Input::Mad { port, from, mad });
            }
            6 => self.pass(Duration::from_millis(u64::from(n) * 10)),
            7 => self.pass(Duration::from_millis(u64::from(n) * 500)),
            _ if n & 1 == 0 => drop(self.core.flush()),
            _ => {
                let port = PortIndex(u16::from(n >> 1 & 1));
                let event = PortEvent::ClientReregister;
                self.core.handle_input(self.now, Input::Happened { port, event });
            }
        }
        self.drain();
    }

    fn resolve(&mut self, n: u8) {
        self.next += 1;
        let id = RequestId::User(UserRequest::Control(self.next));
        let question = PathQuestion {
            dgid: gid(n / 16),
            sgid: gid(200),
            reversible: n & 1 != 0,
            pkey: (n & 2 != 0).then_some(PKey::DEFAULT),
            tclass: (n & 4 != 0).then_some(0),
            service_id: None,
            qos_class: None,
        };
        let deadline = self.now + DEADLINE;
        self.waiting.insert(id, (question, deadline));
        let port = name(n >> 3 & 1);
        let (caller, freshness, question) = (Caller::Kernel, Freshness::Any, question.into());
        let request = Request { id, caller, port, question, freshness, deadline };
        self.core.handle_input(self.now, Input::Resolve(request));
    }

    fn port(&mut self, n: u8, how: u8) {
        let facts = PortFacts {
            is_active: how & 1 != 0,
            has_umad: how & 2 != 0,
            lid: Lid::new(u16::from(how >> 2 & 1) + 8),
            lmc: n / PORTS % 4,
            sm_lid: Lid::new(u16::from(how >> 3 & 3)),
            gids: [gid(200), gid(how >> 5)].into(),
            pkeys: vec![(PKeyIndex(0), PKey::DEFAULT)],
            ..PortFacts::default()
        };
        let (port, name) = (PortIndex(u16::from(n % PORTS)), name(n % PORTS));
        self.core.handle_input(self.now, Input::Port { port, name, facts });
    }

    fn answer(&mut self, sent: &Transmit, how: u8) {
        let (port, from) = (sent.port, Some(sent.sa.lid));
        let request = SaRequest::parse(sent.mad.as_ref()).expect("a sent request is legal");
        let answer = match (how % 8, request.question) {
            (0, _) => Answer::Refused(Refusal::BUSY),
            (1, _) => Answer::Refused(Refusal::NO_RECORDS),
            (2, _) => Answer::Refused(Refusal::DENIED),
            (3, _) => return self.core.handle_input(self.now, Input::Unanswered),
            (4, _) => return self.core.handle_input(self.now, Input::NotSent),
            (_, Question::ClassPortInfo) => {
                Answer::ClassPortInfo(ClassPortInfo { has_qos: how > 128 })
            }
            (_, Question::Known(_)) => Answer::Refused(Refusal::NO_RECORDS),
            (_, Question::Path(question) | Question::Paths(question, _)) => {
                Answer::Path(record(&question, how))
            }
        };
        let mut mad = request.answer(answer).emit().as_ref().to_vec();
        if let (Answer::Path(first), Question::Paths(..)) = (answer, request.question) {
            mad.truncate(120);
            let other = |n: u8| {
                let mut octets = first.octets();
                octets[usize::from(n.wrapping_mul(how)) % PathRecord::LEN] ^= n;
                octets[41] ^= n;
                octets
            };
            mad.extend((0..how).flat_map(other));
        }
        self.core.handle_input(self.now, Input::Mad { port, from, mad: &mad });
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.core.poll_timeout().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.drain();
        }
        self.now = end;
        self.drain();
    }

    fn drain(&mut self) {
        self.core.handle_timeout(self.now);
        while let Some(transmit) = self.core.poll_transmit() {
            self.sent.push(transmit);
        }
        if self.sent.len() > 64 {
            self.sent.drain(..32);
        }
        while let Some(Event::Answered(Answered { id, outcome, .. })) = self.core.poll_event() {
            let (question, _) = self.waiting.remove(&id).expect("answered once");
            if let Outcome::Found { record, .. } = outcome {
                assert_eq!(record.octets()[8..24], question.dgid.octets());
                assert_eq!(record.octets()[24..40], question.sgid.octets());
            }
        }
        let late = self.waiting.values().find(|(_, deadline)| *deadline <= self.now);
        assert_eq!(late, None);
        for entry in self.core.entries() {
            assert!(entry.others.len() < 8);
        }
        let load = self.core.load();
        assert_eq!(load.waiters, self.waiting.len());
        assert!(load.waiters <= 6 && load.cached <= 4, "{load:?}");
        for port in 0..PORTS {
            let load = self.core.client().load(PortIndex(port.into()));
            assert!(load.in_air <= 3 && load.window <= 3 && load.questions <= 5, "{load:?}");
        }
    }
}

fn name(port: u8) -> PortName {
    let port = PortNum::new(port + 1).expect("few");
    PortName { device: "mlx5_0".parse().expect("a name"), port }
}

fn gid(n: u8) -> Gid {
    Gid::new(((0xfe80_u128 << 112) | (u128::from(n) + 1)).to_be_bytes()).expect("a port's")
}

fn record(question: &PathQuestion, dlid: u8) -> PathRecord {
    let mut octets = [0; 64];
    octets[8..24].copy_from_slice(&question.dgid.octets());
    octets[24..40].copy_from_slice(&question.sgid.octets());
    octets[40..44].copy_from_slice(&[0, dlid | 1, 0, 8]);
    octets[49..52].copy_from_slice(&[0x80, 0xff, 0xff]);
    PathRecord::from_octets(octets)
}
