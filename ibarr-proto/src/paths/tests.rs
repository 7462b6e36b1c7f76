// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The paths as a whole; the test plays driver and SA. Long because it is the table of their behaviour;
//! each case stands alone.

mod moved;
pub(super) mod spread;

use std::collections::BTreeSet;
use std::time::Duration;

use ibarr_common::ib::{Gid, Lid, PKey, PortNum, QosClass, ServiceId};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::sa as wire;
use ibarr_common::wire::sa::{Answer, Refusal};
use ibarr_common::wire::umad::PKeyIndex;
use proptest::prelude::*;
use rand_chacha::ChaCha12Rng;

use super::*;
use crate::request::{Caller, UserRequest};

pub(super) const PORT: PortIndex = PortIndex(0);
const WAIT: Duration = Duration::from_millis(1_600);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn name(port: u8) -> PortName {
    PortName { device: "mlx5_0".parse().unwrap(), port: PortNum::new(port).unwrap() }
}

pub(super) fn gid(n: u64) -> Gid {
    Gid::new((0xfe80_u128 << 112 | u128::from(n + 1)).to_be_bytes()).unwrap()
}

pub(super) fn facts() -> PortFacts {
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

pub(super) fn question(n: u64) -> PathQuestion {
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

pub(super) fn record(question: &PathQuestion, dlid: u16) -> PathRecord {
    let mut octets = [0; 64];
    octets[8..24].copy_from_slice(&question.dgid.octets());
    octets[24..40].copy_from_slice(&question.sgid.octets());
    octets[40..42].copy_from_slice(&dlid.to_be_bytes());
    octets[42..44].copy_from_slice(&[0, 8]);
    octets[49..52].copy_from_slice(&[0x80, 0xff, 0xff]);
    PathRecord::from_octets(octets)
}

/// The core, and an SA that answers when the test tells it to.
pub(super) struct Rig {
    pub(super) now: Instant,
    pub(super) paths: Paths,
    next: u64,
    sent: Vec<sa::Transmit>,
    has_qos: bool,
    /// Path questions to the SA.
    pub(super) asked: Vec<PathQuestion>,
    pub(super) dlid: u16,
    /// Hop limit in its records.
    hop_limit: u8,
    /// The host that has LID 9 instead.
    moved: Option<Gid>,
    /// The records that a table has after its first one, if they are others than the SA's.
    others: Option<Vec<PathRecord>>,
}

/// The kernel asks.
fn asked(
    id: RequestId,
    port: PortName,
    question: PathQuestion,
    deadline: Instant,
) -> Input<'static> {
    let (caller, freshness) = (Caller::Kernel, Freshness::Any);
    Input::Resolve(Request { id, caller, port, question: question.into(), freshness, deadline })
}

impl Rig {
    pub(super) fn new() -> Self {
        // Canaries have tests of their own.
        Self::with(Config { canary_every: Duration::ZERO, ..Config::default() })
    }

    pub(super) fn with(config: Config) -> Self {
        Self::start(config, true)
    }

    pub(super) fn without_port() -> Self {
        Self::start(Config::default(), false)
    }

    fn start(config: Config, has_port: bool) -> Self {
        let sa = sa::Config { start_spread: Duration::ZERO, ..config.sa };
        let paths = Paths::new(Config { sa, ..config }, ChaCha12Rng::seed_from_u64(1));
        let now = Instant::from_nanos(1 << 40);
        let (sent, asked) = (Vec::new(), Vec::new());
        let mut this = Self {
            now,
            paths,
            next: 0,
            sent,
            has_qos: false,
            asked,
            dlid: 1,
            hop_limit: 0,
            moved: None,
            others: None,
        };
        if has_port {
            this.port(facts());
            this.answer_all();
        }
        this
    }

    pub(super) fn port(&mut self, facts: PortFacts) {
        let input = Input::Port { port: PORT, name: name(1), facts };
        self.paths.handle_input(self.now, input);
        self.drain();
    }

    pub(super) fn happened(&mut self, event: PortEvent) {
        self.paths.handle_input(self.now, Input::Happened { port: PORT, event });
        self.drain();
    }

    pub(super) fn resolve(&mut self, question: PathQuestion) -> RequestId {
        self.next += 1;
        let id = RequestId::User(UserRequest::Control(self.next));
        let deadline = self.now + WAIT;
        self.paths.handle_input(self.now, asked(id, name(1), question, deadline));
        self.drain();
        id
    }

    /// Asks, and lets the SA answer.
    pub(super) fn outcome(&mut self, question: PathQuestion) -> Outcome {
        let id = self.resolve(question);
        self.answer_all();
        let [answered] = &self.answered()[..] else { panic!() };
        assert_eq!(answered.id, id);
        answered.outcome
    }

    fn drain(&mut self) {
        self.paths.handle_timeout(self.now);
        while let Some(transmit) = self.paths.poll_transmit() {
            self.sent.push(transmit);
        }
    }

    pub(super) fn answered(&mut self) -> Vec<Answered> {
        let events = std::iter::from_fn(|| self.paths.poll_event());
        let answered = |event| match event {
            Event::Answered(answered) => answered,
            event => panic!("{event:?}"),
        };
        events.map(answered).collect()
    }

    pub(super) fn answer_all(&mut self) {
        while let Some(sent) = self.sent.pop() {
            self.answer(&sent, None);
        }
    }

    fn answer(&mut self, sent: &sa::Transmit, refusal: Option<Refusal>) {
        let request = wire::Request::parse(sent.mad.as_ref()).unwrap();
        let answer = match request.question {
            Question::Path(question) | Question::Paths(question, _) => {
                if !sent.is_probe {
                    self.asked.push(question);
                }
                match refusal {
                    Some(refusal) => Answer::Refused(refusal),
                    None => Answer::Path(self.record(&question)),
                }
            }
            Question::ClassPortInfo => {
                Answer::ClassPortInfo(ClassPortInfo { has_qos: self.has_qos })
            }
            Question::Known(_) => Answer::Refused(Refusal::NO_RECORDS),
        };
        let mut mad = request.answer(answer).emit().as_ref().to_vec();
        if let (Question::Paths(_, count), Answer::Path(first)) = (request.question, answer) {
            mad.truncate(120);
            let lids = || spread::by_lid(&first, 1..count.get());
            let others = self.others.clone().unwrap_or_else(lids);
            mad.extend(others.iter().flat_map(|other| other.octets()));
        }
        let from = Some(sent.sa.lid);
        self.paths.handle_input(self.now, Input::Mad { port: PORT, from, mad: &mad });
        self.drain();
    }

    fn record(&self, question: &PathQuestion) -> PathRecord {
        let has_moved = self.moved == Some(question.dgid);
        let mut octets = record(question, if has_moved { 9 } else { self.dlid }).octets();
        octets[47] = self.hop_limit;
        PathRecord::from_octets(octets)
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        let sent = self.sent.pop().unwrap();
        self.answer(&sent, Some(refusal));
    }

    pub(super) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(next) = self.paths.poll_timeout().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.drain();
        }
        self.now = end;
        self.drain();
    }

    /// Waits until paths in doubt may be asked for.
    pub(super) fn pass_spread(&mut self) {
        self.advance(DOUBT_SPREAD);
        self.answer_all();
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.paths.counters().get(counter)
    }
}

pub(super) fn found(question: PathQuestion, dlid: u16, source: Source) -> Outcome {
    Outcome::Found { record: record(&question, dlid), source }
}

#[test]
fn sa_is_asked_once_and_its_answer_remembered() {
    let mut rig = Rig::new();
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Sa));
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Cache));
    assert_eq!(rig.asked, [question(1)]);
    // Each difference that may change the answer makes another question.
    let others = [
        PathQuestion { sgid: gid(7), ..question(1) },
        PathQuestion { pkey: PKey::new(0x8001), ..question(1) },
        PathQuestion { tclass: Some(0), ..question(1) },
        PathQuestion { reversible: false, ..question(1) },
    ];
    for other in others {
        assert_eq!(rig.outcome(other), found(other, 1, Source::Sa));
    }
    assert_eq!(rig.asked.len(), 5);
}

#[test]
fn simultaneous_requests_share_one_question() {
    let mut rig = Rig::new();
    let ids: Vec<_> = (0..1_000).map(|_| rig.resolve(question(1))).collect();
    assert_eq!((rig.sent.len(), rig.paths.load().waiters), (1, 1_000));
    rig.answer_all();
    let answered = rig.answered();
    assert_eq!(answered.iter().map(|answered| answered.id).collect::<Vec<_>>(), ids);
    assert_eq!((rig.asked.len(), rig.count(Counter::Joined)), (1, 999));
    assert_eq!(rig.paths.load(), Load { questions: 0, waiters: 0, cached: 1 });
}

/// rdma_cm puts the port number of a service into the service ID.
#[test]
fn service_and_class_matter_only_with_quality_of_service() {
    let with = |service: u64| PathQuestion {
        service_id: Some(ServiceId::new(0x0106_0000 + service)),
        qos_class: QosClass::new(service.try_into().unwrap()),
        ..question(1)
    };
    let ask = |rig: &mut Rig| {
        for service in 0..10 {
            rig.outcome(with(service));
        }
        std::mem::take(&mut rig.asked)
    };
    let mut rig = Rig::new();
    assert_eq!(ask(&mut rig), [question(1)]);
    // The SA, asked again after an hour, supports it now.
    rig.has_qos = true;
    for _ in 0..76 * 60 {
        rig.advance(Duration::from_secs(1));
        rig.answer_all();
    }
    assert_eq!(ask(&mut rig), (0..10).map(with).collect::<Vec<_>>());

    let mut rig = Rig::with(Config { qos: Qos::On, ..Config::default() });
    assert_eq!(ask(&mut rig).len(), 10);
    rig.paths.reconfigure(Config { qos: Qos::Off, ..Config::default() });
    assert_eq!(ask(&mut rig).len(), 1);
}

#[test]
fn answer_without_path_is_remembered_briefly() {
    let mut rig = Rig::new();
    for refusal in [Refusal::NO_RECORDS, Refusal::INVALID_GID] {
        rig.resolve(question(1));
        rig.refuse(refusal);
        let no_record = |source| Outcome::NoRecord { source };
        assert_eq!(rig.answered()[0].outcome, no_record(Source::Sa));
        assert_eq!(rig.outcome(question(1)), no_record(Source::Cache));
        rig.advance(Duration::from_secs(7));
    }
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Sa));
}

#[test]
fn other_refusals_are_not_remembered() {
    let mut rig = Rig::new();
    rig.resolve(question(1));
    rig.refuse(Refusal::DENIED);
    assert_eq!(rig.answered()[0].outcome, Outcome::Refused(Some(Refusal::DENIED)));
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Sa));
}

#[test]
fn record_of_another_path_is_refused_but_not_another_prefix() {
    let mut rig = Rig::new();
    let sent = |rig: &mut Rig| {
        rig.resolve(question(1));
        let sent = rig.sent.pop().unwrap();
        (Some(sent.sa.lid), wire::Request::parse(sent.mad.as_ref()).unwrap())
    };
    let mut answer = |of: PathQuestion| {
        let (from, request) = sent(&mut rig);
        let mad = request.answer(Answer::Path(record(&of, 1))).emit();
        rig.paths.handle_input(rig.now, Input::Mad { port: PORT, from, mad: mad.as_ref() });
        rig.answered()[0].outcome
    };
    assert_eq!(answer(question(2)), Outcome::Refused(None));
    let rewritten = Gid::new((0xfec0_u128 << 112 | 2).to_be_bytes()).unwrap();
    let rewritten = PathQuestion { dgid: rewritten, ..question(1) };
    assert_eq!(answer(rewritten), Outcome::Refused(None));
    assert_eq!(rig.count(Counter::WrongPath), 1);
    assert_eq!(rig.count(Counter::OtherGids), 1);
}

#[test]
fn silence_is_reported_in_time_and_not_remembered() {
    let mut rig = Rig::new();
    rig.resolve(question(1));
    rig.resolve(question(2));
    rig.advance(WAIT);
    let answered = rig.answered();
    assert_eq!(answered.iter().map(|it| it.outcome).collect::<Vec<_>>(), [Outcome::Silent; 2]);
    // The SA counts as silent until it answers anything.
    assert!(rig.paths.client().load(PORT).shut.is_some());
    rig.sent.clear();
    let id = rig.resolve(question(1));
    rig.advance(ms(1_000));
    rig.answer_all();
    let [Answered { id: answered, outcome, .. }] = rig.answered()[..] else { panic!() };
    assert_eq!((answered, outcome), (id, found(question(1), 1, Source::Sa)));
}

/// The first as soon as a MAD is lost; the next one at once, when one may be again.
#[test]
fn kernel_is_left_one_request_while_the_sa_shows_no_sign_of_life() {
    let mut rig = Rig::new();
    for n in 0..3 {
        rig.resolve(question(n));
    }
    rig.advance(ms(249));
    assert_eq!(rig.answered(), []);
    rig.advance(ms(101));
    let left = |answered: &Answered| (answered.outcome, answered.is_left_to_kernel);
    assert_eq!(rig.answered().iter().map(left).collect::<Vec<_>>(), [(Outcome::Silent, true)]);
    rig.advance(WAIT);
    let ended = rig.answered();
    assert_eq!(ended.iter().map(left).collect::<Vec<_>>(), [(Outcome::Silent, false); 2]);
    assert_eq!((rig.count(Counter::Fallbacks), rig.count(Counter::FallbacksSpared)), (1, 2));
    rig.advance(Duration::from_secs(7));
    rig.resolve(question(4));
    rig.resolve(question(5));
    assert_eq!(rig.answered().iter().map(left).collect::<Vec<_>>(), [(Outcome::Silent, true)]);
}

#[test]
fn request_is_not_left_to_the_kernel_while_the_sa_is_heard() {
    let mut rig = Rig::new();
    rig.resolve(question(1));
    rig.sent.clear();
    rig.advance(ms(10));
    rig.outcome(question(2));
    rig.advance(ms(500));
    assert_eq!(rig.answered(), []);
    // A busy SA is heard, and refuses the kernel as well.
    let mut rig = Rig::new();
    rig.resolve(question(1));
    for _ in 0..160 {
        while !rig.sent.is_empty() {
            rig.refuse(Refusal::BUSY);
        }
        rig.advance(ms(10));
    }
    let [Answered { outcome: Outcome::Busy, is_left_to_kernel: false, .. }] = rig.answered()[..]
    else {
        panic!()
    };
    assert_eq!(rig.count(Counter::Fallbacks), 0);
}

#[test]
fn request_that_joins_late_is_asked_until_its_own_deadline() {
    let mut rig = Rig::with(Config { on_sa_silent: NoPath::Final, ..Config::default() });
    rig.resolve(question(1));
    rig.advance(ms(1_500));
    let late = rig.resolve(question(1));
    rig.advance(ms(100));
    assert_eq!(rig.answered().len(), 1);
    rig.sent.clear();
    rig.advance(ms(1_400));
    rig.answer_all();
    let [Answered { id, outcome, .. }] = rig.answered()[..] else { panic!() };
    assert_eq!((id, outcome), (late, found(question(1), 1, Source::Sa)));
    // No request waits longer than that.
    rig.resolve(question(2));
    rig.advance(ms(1_500));
    rig.resolve(question(2));
    rig.advance(WAIT);
    assert_eq!(rig.answered().len(), 2);
    assert_eq!(rig.paths.load().waiters, 0);
}

#[test]
fn doubted_answer_is_given_at_once_while_the_sa_is_silent() {
    let mut rig = Rig::new();
    rig.outcome(question(1));
    rig.happened(PortEvent::ClientReregister);
    rig.resolve(question(2));
    rig.advance(WAIT);
    assert_eq!(rig.answered().len(), 1);
    rig.resolve(question(1));
    assert_eq!(rig.answered()[0].outcome, found(question(1), 1, Source::Doubted));
}

#[test]
fn request_by_a_port_without_sa_fails_at_once() {
    let mut rig = Rig::new();
    let mut outcome = |facts| {
        rig.port(facts);
        rig.outcome(question(1))
    };
    assert_eq!(outcome(PortFacts { is_active: false, ..facts() }), Outcome::NoSa);
    assert_eq!(outcome(PortFacts { has_umad: false, ..facts() }), Outcome::NoSa);
    assert_eq!(outcome(PortFacts { sm_lid: None, ..facts() }), Outcome::NoSa);
    assert_eq!(outcome(PortFacts { sm_lid: Lid::new(0xffff), ..facts() }), Outcome::NoSa);
    rig.paths.handle_input(rig.now, Input::PortGone { port: PORT });
    assert_eq!(rig.outcome(question(1)), Outcome::UnknownPort);
    assert_eq!(rig.asked, []);
}

#[test]
fn device_names_are_compared_as_a_whole() {
    let mut rig = Rig::new();
    let device = "mlx5_01".parse().unwrap();
    let port = PortName { device, ..name(1) };
    let deadline = rig.now + WAIT;
    let id = RequestId::User(UserRequest::Control(1));
    rig.paths.handle_input(rig.now, asked(id, port, question(1), deadline));
    assert_eq!(rig.answered()[0].outcome, Outcome::UnknownPort);
}

/// A change of a port, and its effect on the remembered answers.
#[test]
fn changes_of_a_port_leave_its_answers_in_doubt_or_void_them() {
    let sure = |rig: &mut Rig| rig.outcome(question(1)) == found(question(1), 1, Source::Cache);
    let cases: [(&str, PortFacts, bool, bool); 8] = [
        ("nothing", facts(), true, false),
        (
            "another GID more",
            PortFacts { gids: [gid(0xffff), gid(9)].into(), ..facts() },
            true,
            false,
        ),
        (
            "partition more",
            PortFacts {
                pkeys: vec![(PKeyIndex(0), PKey::DEFAULT), (PKeyIndex(1), PKey::new(1).unwrap())],
                ..facts()
            },
            true,
            false,
        ),
        ("SM moved", PortFacts { sm_lid: Lid::new(6), ..facts() }, false, false),
        ("another LID", PortFacts { lid: Lid::new(9), ..facts() }, false, true),
        ("another LMC", PortFacts { lmc: 1, ..facts() }, false, true),
        ("another GID", PortFacts { gids: [gid(5)].into(), ..facts() }, false, true),
        ("partition lost", PortFacts { pkeys: vec![], ..facts() }, false, true),
    ];
    for (what, changed, is_sure, is_void) in cases {
        let mut rig = Rig::new();
        rig.outcome(question(1));
        assert!(sure(&mut rig));
        rig.port(changed);
        rig.answer_all();
        rig.advance(Duration::from_secs(2));
        let entries: Vec<_> = rig.paths.entries().map(|entry| entry.is_doubted).collect();
        let expected = if is_void { vec![] } else { vec![!is_sure] };
        assert_eq!(entries, expected, "{what}");
        assert_eq!(sure(&mut rig), is_sure, "{what}");
        assert_eq!(rig.asked.len(), if is_sure { 1 } else { 2 }, "{what}");
    }
}

#[test]
fn port_that_was_down_leaves_its_answers_in_doubt() {
    let mut rig = Rig::new();
    rig.outcome(question(1));
    rig.port(PortFacts { is_active: false, sm_lid: None, lid: None, ..facts() });
    rig.port(facts());
    rig.answer_all();
    assert!(rig.paths.entries().all(|entry| entry.is_doubted));
    rig.outcome(question(1));
    rig.paths.handle_input(rig.now, Input::PortGone { port: PORT });
    rig.port(facts());
    rig.answer_all();
    assert_eq!(rig.count(Counter::Doubts), 2);
}

#[test]
fn only_requested_paths_in_doubt_are_asked_for() {
    let mut rig = Rig::new();
    for n in 0..100 {
        rig.outcome(question(n));
    }
    rig.asked.clear();
    rig.port(PortFacts { sm_lid: Lid::new(6), ..facts() });
    rig.answer_all();
    rig.dlid = 3;
    for n in 0..50 {
        assert_eq!(rig.outcome(question(n)), found(question(n), 3, Source::Sa));
        assert_eq!(rig.outcome(question(n)), found(question(n), 3, Source::Cache));
    }
    rig.pass_spread();
    assert_eq!((rig.asked.len(), rig.count(Counter::DoubtsAsked)), (50, 50));
}

/// As after a restart of the subnet manager that has given other ports new LIDs.
#[test]
fn every_event_except_the_loss_of_a_port_causes_doubt() {
    let events = [
        (PortEvent::ClientReregister, true),
        (PortEvent::SmChange, true),
        (PortEvent::LidChange, true),
        (PortEvent::PKeyChange, true),
        (PortEvent::GidChange, true),
        (PortEvent::Active, true),
        (PortEvent::Error, false),
    ];
    for (event, is_doubted) in events {
        let mut rig = Rig::new();
        rig.outcome(question(1));
        rig.dlid = 3;
        rig.happened(event);
        assert_eq!(rig.paths.last_event(PORT), Some((rig.now, event)));
        assert_eq!(rig.paths.entries().next().unwrap().is_doubted, is_doubted, "{event}");
        let expected = if is_doubted { (3, Source::Sa) } else { (1, Source::Cache) };
        assert_eq!(rig.outcome(question(1)), found(question(1), expected.0, expected.1));
        assert_eq!(rig.count(Counter::Events), 1);
    }
}

#[test]
fn simultaneous_events_cause_one_doubt_and_later_ones_another() {
    let mut rig = Rig::new();
    rig.outcome(question(1));
    rig.happened(PortEvent::LidChange);
    rig.happened(PortEvent::ClientReregister);
    rig.happened(PortEvent::ClientReregister);
    // sysfs shows the change a moment later.
    rig.port(PortFacts { sm_lid: Lid::new(6), ..facts() });
    assert_eq!((rig.count(Counter::Events), rig.count(Counter::Doubts)), (3, 1));
    rig.answer_all();
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Sa));
    rig.happened(PortEvent::ClientReregister);
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Sa));
    assert_eq!(rig.count(Counter::Doubts), 2);
}

/// <https://github.com/linux-rdma/rdma-core/pull/424>
#[test]
fn event_before_its_port_is_active_counts() {
    let mut rig = Rig::without_port();
    rig.happened(PortEvent::ClientReregister);
    assert_eq!(rig.paths.last_event(PORT), None);
    rig.port(facts());
    rig.answer_all();
    rig.outcome(question(1));
    rig.port(PortFacts { is_active: false, ..facts() });
    rig.happened(PortEvent::ClientReregister);
    rig.port(facts());
    rig.happened(PortEvent::Active);
    rig.dlid = 3;
    assert_eq!(rig.outcome(question(1)), found(question(1), 3, Source::Sa));
    assert_eq!(rig.outcome(question(1)), found(question(1), 3, Source::Cache));
}

/// IPoIB gets the same events, and drops its paths.
#[test]
fn repeated_one_way_request_after_an_event_adds_no_doubt() {
    let one_way = PathQuestion { reversible: false, ..question(1) };
    let mut rig = Rig::new();
    rig.outcome(one_way);
    rig.happened(PortEvent::ClientReregister);
    rig.outcome(question(2));
    assert_eq!(rig.outcome(one_way), found(one_way, 1, Source::Sa));
    assert_eq!(rig.outcome(question(2)), found(question(2), 1, Source::Cache));
    assert_eq!(rig.count(Counter::AskedAgain), 0);
}

/// A subnet manager that restarts at the same place has given other ports new LIDs.
#[test]
fn repeated_one_way_request_asks_the_sa_and_causes_doubt() {
    let one_way = |n| PathQuestion { reversible: false, ..question(n) };
    let mut rig = Rig::new();
    for n in 0..100 {
        rig.outcome(one_way(n));
    }
    rig.outcome(question(100));
    rig.asked.clear();
    rig.dlid = 3;
    for n in 0..100 {
        assert_eq!(rig.outcome(one_way(n)), found(one_way(n), 3, Source::Sa));
    }
    assert_eq!((rig.asked.len(), rig.count(Counter::AskedAgain)), (100, 1));
    assert_eq!(rig.outcome(question(100)), found(question(100), 3, Source::Sa));
    // This caller too gets the old path in preference to none.
    rig.resolve(one_way(1));
    rig.sent.clear();
    rig.advance(WAIT);
    assert_eq!(rig.answered()[0].outcome, found(one_way(1), 3, Source::Doubted));
}

#[test]
fn doubted_answer_is_given_if_the_sa_is_silent() {
    let mut rig = Rig::new();
    rig.outcome(question(1));
    rig.port(PortFacts { sm_lid: Lid::new(6), ..facts() });
    rig.answer_all();
    rig.pass_spread();
    rig.resolve(question(1));
    assert_eq!(rig.sent.len(), 1);
    rig.advance(WAIT);
    assert_eq!(rig.answered()[0].outcome, found(question(1), 1, Source::Doubted));
}

#[test]
fn doubted_answer_that_becomes_wrong_meanwhile_is_not_given() {
    let mut rig = Rig::new();
    rig.outcome(question(1));
    rig.port(PortFacts { sm_lid: Lid::new(6), ..facts() });
    rig.pass_spread();
    rig.resolve(question(1));
    rig.port(PortFacts { sm_lid: Lid::new(6), lid: Lid::new(9), ..facts() });
    assert_eq!(rig.answered()[0].outcome, Outcome::NoSa);
}

#[test]
fn answer_in_transit_when_the_port_changed_is_not_given() {
    let mut rig = Rig::new();
    rig.resolve(question(1));
    let sent = rig.sent.pop().unwrap();
    rig.port(PortFacts { lid: Lid::new(9), ..facts() });
    assert_eq!(rig.answered()[0].outcome, Outcome::NoSa);
    rig.answer(&sent, None);
    assert_eq!(rig.paths.entries().count(), 0);
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Sa));
}

#[test]
fn only_answers_used_near_their_end_are_refreshed() {
    let mut rig = Rig::new();
    rig.outcome(question(1));
    rig.outcome(question(2));
    let ends_in = |rig: &Rig, n| {
        let entry = rig.paths.entries().find(|entry| entry.question == question(n));
        entry.map(|entry| entry.expires_at.since(rig.now)).unwrap_or_default()
    };
    let first = ends_in(&rig, 1);
    assert!(first >= Duration::from_mins(45) && first <= Duration::from_mins(75), "{first:?}");
    assert_ne!(first, ends_in(&rig, 2));
    rig.advance(first.saturating_sub(Duration::from_mins(1)));
    rig.answer_all();
    rig.asked.clear();
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Cache));
    assert_eq!(rig.asked, [question(1)]);
    assert!(ends_in(&rig, 1) > Duration::from_mins(44));
    rig.advance(Duration::from_mins(40));
    rig.answer_all();
    assert_eq!(rig.asked, [question(1)], "unused paths are not asked for");
    assert_eq!(rig.count(Counter::Refreshes), 1);
}

#[test]
fn full_tables_refuse_at_once_or_forget() {
    let mut rig = Rig::with(Config { max_waiters: 3, max_cached: 2, ..Config::default() });
    for n in 0..4 {
        rig.resolve(question(n % 2));
    }
    assert_eq!(rig.answered()[0].outcome, Outcome::Overloaded);
    rig.answer_all();
    assert_eq!(rig.answered().len(), 3);
    rig.outcome(question(2));
    assert_eq!((rig.paths.load().cached, rig.count(Counter::Evicted)), (2, 1));
    assert_eq!(rig.paths.flush(), 2);
    assert_eq!(rig.paths.entries().count(), 0);
    assert_eq!(rig.outcome(question(2)), found(question(2), 1, Source::Sa));
}

#[derive(Clone, Debug)]
enum Op {
    Resolve { n: u8, wait: u16 },
    Answer { which: u8, how: u8 },
    Port { sm: u8, lid: u8, active: bool },
    Happened { how: u8 },
    Gone,
    Wait { ms: u32 },
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..6_u8, 1..3_000_u16).prop_map(|(n, wait)| Op::Resolve { n, wait }),
        6 => (any::<u8>(), any::<u8>()).prop_map(|(which, how)| Op::Answer { which, how }),
        1 => (1..3_u8, 1..3_u8, any::<bool>())
            .prop_map(|(sm, lid, active)| Op::Port { sm, lid, active }),
        1 => (0..3_u8).prop_map(|how| Op::Happened { how }),
        1 => Just(Op::Gone),
        3 => (0..3_000_u32).prop_map(|ms| Op::Wait { ms }),
        1 => (0..3_000_000_u32).prop_map(|ms| Op::Wait { ms }),
        1 => Just(Op::Flush),
    ]
}

proptest! {
    /// Whatever SA and port do: one answer for each request, in time, and only answers that the SA
    /// gave.
    #[test]
    fn every_request_is_answered_once_in_time_as_the_sa_said(
        ops in proptest::collection::vec(op(), 0..150),
    ) {
        let config = Config { max_waiters: 5, max_cached: 3, ..Config::default() };
        let mut rig = Rig::with(config);
        let mut waiting: BTreeMap<RequestId, (u8, Instant)> = BTreeMap::new();
        // The SA's answers to each question, since its answers were last void.
        let mut said: BTreeSet<(u8, Option<PathRecord>)> = BTreeSet::new();
        let mut lid = 8;
        for op in ops {
            match op {
                Op::Resolve { n, wait } => {
                    rig.next += 1;
                    let id = RequestId::User(UserRequest::Control(rig.next));
                    let deadline = rig.now + ms(wait.into());
                    let reversible = n % 2 == 0;
                    let question = PathQuestion { reversible, ..question(n.into()) };
                    rig.paths.handle_input(rig.now, asked(id, name(1), question, deadline));
                    waiting.insert(id, (n, deadline));
                }
                Op::Answer { which, how } if !rig.sent.is_empty() => {
                    let sent = rig.sent.remove(usize::from(which) % rig.sent.len());
                    let refusal = match how % 8 {
                        0 => Some(Refusal::BUSY),
                        1 | 2 => Some(Refusal::NO_RECORDS),
                        3 => Some(Refusal::DENIED),
                        _ => None,
                    };
                    let request = wire::Request::parse(sent.mad.as_ref()).unwrap();
                    if let Question::Path(question) = request.question {
                        rig.dlid = u16::from(how) + 1;
                        let n = question.dgid.octets()[15] - 1;
                        let is_said = refusal.is_none_or(Refusal::is_final);
                        if is_said {
                            let record = record(&question, rig.dlid);
                            said.insert((n, refusal.is_none().then_some(record)));
                        }
                    }
                    rig.answer(&sent, refusal);
                }
                Op::Answer { .. } => {}
                Op::Port { sm, lid: new, active } => {
                    let facts = PortFacts {
                        is_active: active,
                        sm_lid: Lid::new(sm.into()),
                        lid: Lid::new(new.into()),
                        ..facts()
                    };
                    rig.port(facts);
                    if active && new != lid {
                        lid = new;
                        said.clear();
                    }
                }
                Op::Happened { how } => {
                    let events =
                        [PortEvent::Error, PortEvent::ClientReregister, PortEvent::LidChange];
                    rig.happened(events[usize::from(how)]);
                }
                Op::Gone => rig.paths.handle_input(rig.now, Input::PortGone { port: PORT }),
                Op::Wait { ms } => rig.advance(Duration::from_millis(ms.into())),
                Op::Flush => drop(rig.paths.flush()),
            }
            rig.drain();
            for Answered { id, outcome, .. } in rig.answered() {
                let answered = waiting.remove(&id);
                prop_assert!(answered.is_some(), "answered twice");
                let (n, _) = answered.unwrap();
                match outcome {
                    Outcome::Found { record, .. } => {
                        prop_assert!(said.contains(&(n, Some(record))), "{n} {record:?}");
                    }
                    Outcome::NoRecord { .. } => prop_assert!(said.contains(&(n, None))),
                    _ => {}
                }
            }
            let late = waiting.values().find(|(_, deadline)| *deadline <= rig.now);
            prop_assert_eq!(late, None);
            let load = rig.paths.load();
            prop_assert_eq!(load.waiters, waiting.len());
            prop_assert!(load.waiters <= 5 && load.cached <= 3);
            prop_assert_eq!(rig.paths.by_key.len(), load.questions);
            let of_flights = rig.paths.flights.values().map(|flight| flight.waiters.len());
            prop_assert_eq!(of_flights.sum::<usize>(), load.waiters);
        }
    }
}
