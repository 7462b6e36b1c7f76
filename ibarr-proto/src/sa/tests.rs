// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The SA client as a whole; the test plays driver and SA. Long because it is the table of its behaviour;
//! each case stands alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PathRecord, Sl};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::mad::Transaction;
use ibarr_common::wire::sa::{Answer, PathCount, PathQuestion, Question, Refusal, Request};
use ibarr_common::wire::umad::PKeyIndex;
use proptest::prelude::*;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

use super::gate::LONGEST_PAUSE;
use super::*;

const PORT: PortIndex = PortIndex(1);
const WAIT: Duration = Duration::from_millis(1_600);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn sa(lid: u16) -> Sa {
    Sa { lid: Lid::new(lid).unwrap(), sl: Sl::default(), pkey_index: PKeyIndex(0) }
}

fn gid(n: u64) -> Gid {
    Gid::new((0xfe80_u128 << 112 | u128::from(n + 1)).to_be_bytes()).unwrap()
}

fn path(n: u64) -> Question {
    Question::Path(PathQuestion {
        dgid: gid(n),
        sgid: gid(0xffff),
        reversible: true,
        pkey: None,
        tclass: None,
        service_id: None,
        qos_class: None,
    })
}

fn record(n: u64) -> PathRecord {
    let mut octets = [0; 64];
    octets[8..24].copy_from_slice(&gid(n).octets());
    octets[24..40].copy_from_slice(&gid(0xffff).octets());
    octets[40..44].copy_from_slice(&[0, 2, 0, 1]);
    octets[49..52].copy_from_slice(&[0x80, 0xff, 0xff]);
    PathRecord::from_octets(octets)
}

/// The kernel's question by [`PORT`].
fn ask(id: QuestionId, question: Question, deadline: Instant) -> Input<'static> {
    Input::Ask(Ask { id, port: PORT, question, rank: Rank::Kernel, deadline })
}

/// The same, of a user.
fn ask_as_user(id: QuestionId, question: Question, deadline: Instant) -> Input<'static> {
    Input::Ask(Ask { id, port: PORT, question, rank: Rank::Other, deadline })
}

/// A client, its sent MADs, and the answers.
struct Rig {
    now: Instant,
    client: Client,
    sent: Vec<Transmit>,
    answered: Vec<Answered>,
}

impl Rig {
    fn new(config: Config) -> Self {
        let client = Client::new(config, ChaCha12Rng::seed_from_u64(1));
        let now = Instant::from_nanos(1_000_000_000);
        let mut this = Self { now, client, sent: Vec::new(), answered: Vec::new() };
        this.client.handle_input(this.now, Input::Sa { port: PORT, sa: Some(sa(1)) });
        this
    }

    /// A client whose SA appeared long ago.
    fn warm(config: Config) -> Self {
        Self::new(Config { start_spread: Duration::ZERO, ..config })
    }

    fn ask(&mut self, n: u64) {
        self.client.handle_input(self.now, ask(QuestionId(n), path(n), self.now + WAIT));
        self.drain();
    }

    fn answer(&mut self, mad: &Transmit, answer: Answer) {
        let (to, request) = (mad.sa.lid, Request::parse(mad.mad.as_ref()).unwrap());
        let mad = request.answer(answer).emit();
        self.client
            .handle_input(self.now, Input::Mad { port: PORT, from: Some(to), mad: mad.as_ref() });
        self.drain();
    }

    /// Advances by `by`, and stops at each timer.
    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(next) = self.client.poll_timeout().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.drain();
        }
        self.now = end;
        self.drain();
    }

    fn drain(&mut self) {
        self.client.handle_timeout(self.now);
        while let Some(transmit) = self.client.poll_transmit() {
            self.sent.push(transmit);
        }
        while let Some(answered) = self.client.poll_event() {
            self.answered.push(answered);
        }
    }

    fn take_sent(&mut self) -> Vec<Transmit> {
        std::mem::take(&mut self.sent)
    }

    /// Sent MADs without the client's own questions.
    fn take_paths_sent(&mut self) -> Vec<Transmit> {
        let is_path = |sent: &Transmit| {
            let request = Request::parse(sent.mad.as_ref()).unwrap();
            request.question != Question::ClassPortInfo
        };
        self.take_sent().into_iter().filter(is_path).collect()
    }

    fn outcomes(&mut self) -> Vec<(u64, Outcome)> {
        self.answered.drain(..).map(|Answered { id, outcome, .. }| (id.0, outcome)).collect()
    }

    fn count(&self, counter: Counter) -> u64 {
        self.client.counters().get(counter)
    }
}

#[test]
fn question_is_sent_and_answered() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(7);
    let [sent] = &rig.take_sent()[..] else { panic!() };
    assert_eq!((sent.port, sent.sa, sent.timeout), (PORT, sa(1), WAIT));
    rig.answer(sent, Answer::Path(record(7)));
    assert_eq!(rig.outcomes(), [(7, Outcome::Path(record(7)))]);
    rig.answer(sent, Answer::Path(record(7)));
    assert_eq!(rig.outcomes(), []);
    assert_eq!(rig.count(Counter::Unasked), 1);
    assert_eq!(rig.client.poll_timeout(), None);
}

#[test]
fn tally_adds_up_how_long_answers_took() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    rig.advance(ms(20));
    rig.ask(2);
    let sent = rig.take_paths_sent();
    rig.advance(ms(10));
    for (sent, n) in sent.iter().zip([1, 2]) {
        rig.answer(sent, Answer::Path(record(n)));
    }
    rig.answer(&sent[0], Answer::Path(record(1)));
    let tally = rig.client.tally(PORT);
    assert_eq!((tally.answers, tally.took), (2, ms(40)), "{tally:?}");
}

#[test]
fn silence_causes_growing_pauses_until_the_deadline() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    let mut pauses = Vec::new();
    let start = rig.now;
    let mut last = start;
    let mut sent = rig.take_paths_sent();
    while rig.outcomes().is_empty() {
        let next = rig.client.poll_timeout().unwrap();
        rig.advance(next.since(rig.now));
        sent.extend(rig.take_paths_sent());
        if sent.len() > pauses.len() + 1 {
            pauses.push(rig.now.since(last));
            last = rig.now;
        }
    }
    assert_eq!(rig.now, start + WAIT);
    let [first, second] = pauses[..] else { panic!("{pauses:?}") };
    assert!(first >= ms(250) && first <= ms(300), "{first:?}");
    assert!(second >= ms(500) && second <= ms(600), "{second:?}");
    let ids: BTreeSet<_> = sent.iter().map(|sent| sent.transaction).collect();
    assert_eq!(ids.len(), 3, "the kernel takes no transaction twice");
    assert_eq!((rig.count(Counter::Queries), rig.count(Counter::Resends)), (1, 2));
    assert_eq!(rig.count(Counter::Silent), 1);
}

#[test]
fn late_answer_to_an_earlier_mad_is_the_answer() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    rig.advance(ms(400));
    let sent = rig.take_paths_sent();
    assert_eq!(sent.len(), 2);
    rig.answer(&sent[0], Answer::Path(record(1)));
    assert_eq!(rig.outcomes(), [(1, Outcome::Path(record(1)))]);
    assert_eq!(rig.client.load(PORT).in_air, 2, "the SA still has it to answer, and the witness");
    rig.answer(&sent[1], Answer::Path(record(1)));
    assert_eq!(rig.count(Counter::Late), 1);
    assert_eq!(rig.client.load(PORT).in_air, 1);
}

#[test]
fn busy_sa_gets_a_pause_and_is_asked_again() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    let [sent] = &rig.take_sent()[..] else { panic!() };
    rig.answer(sent, Answer::Refused(Refusal::BUSY));
    rig.advance(ms(249));
    assert!(rig.sent.is_empty());
    rig.advance(ms(101));
    let [sent] = &rig.take_sent()[..] else { panic!() };
    rig.answer(sent, Answer::Path(record(1)));
    assert_eq!(rig.outcomes(), [(1, Outcome::Path(record(1)))]);
    assert_eq!((rig.count(Counter::ResendsBusy), rig.count(Counter::BusyAnswers)), (1, 1));
}

#[test]
fn busy_sa_gets_no_other_question_during_the_pause() {
    let mut rig = Rig::warm(Config::default());
    let mut sent = 0;
    for n in 0..100 {
        rig.ask(n);
        for mad in rig.take_sent() {
            sent += 1;
            rig.answer(&mad, Answer::Refused(Refusal::BUSY));
        }
    }
    assert_eq!(
        (sent, rig.client.load(PORT)),
        (2, Load { questions: 100, in_air: 2, window: 2, shut: None })
    );
}

#[test]
fn busy_sa_is_distinguished_from_a_silent_one() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    while rig.answered.is_empty() {
        for sent in rig.take_sent() {
            rig.answer(&sent, Answer::Refused(Refusal::NO_RESOURCES));
        }
        rig.advance(ms(10));
    }
    assert_eq!(rig.outcomes(), [(1, Outcome::Busy)]);
    assert_eq!(rig.count(Counter::ResendsBusy), 2, "pauses grow");
}

#[test]
fn refusals_end_the_question_at_once() {
    let mut rig = Rig::warm(Config::default());
    let cases = [
        (Refusal::NO_RECORDS, Counter::NoRecord),
        (Refusal::INVALID_GID, Counter::NoRecord),
        (Refusal::REQUEST_INVALID, Counter::Refused),
        (Refusal::REDIRECT, Counter::Refused),
    ];
    for (n, (refusal, counter)) in (0..).zip(cases) {
        let before = rig.count(counter);
        rig.ask(n);
        let sent = rig.take_sent().pop().unwrap();
        rig.answer(&sent, Answer::Refused(refusal));
        assert_eq!(rig.outcomes(), [(n, Outcome::Refused(refusal))]);
        assert_eq!(rig.count(counter), before + 1);
    }
    assert_eq!(rig.count(Counter::Redirects), 1);
}

#[test]
fn illegal_answer_ends_the_question_and_is_counted() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    let sent = rig.take_sent().pop().unwrap();
    rig.answer(&sent, Answer::Path(PathRecord::from_octets([0; 64])));
    assert_eq!(rig.outcomes(), [(1, Outcome::Unusable)]);
    assert_eq!(rig.count(Counter::MalformedValue), 1);

    // An answer of another kind, which would be right for another question.
    let one = path(1);
    let Question::Path(between) = one else { panic!() };
    let table = Question::Paths(between, PathCount::new(8).unwrap());
    let of_path = Answer::Path(record(1));
    let info = Answer::ClassPortInfo(ClassPortInfo::default());
    let kinds = [
        (one, Question::ClassPortInfo, info),
        (one, table, of_path),
        (table, one, of_path),
        (Question::ClassPortInfo, one, of_path),
    ];
    for (n, (asked, answered, answer)) in (2..).zip(kinds) {
        let before = rig.count(Counter::MalformedKind);
        rig.client.handle_input(rig.now, ask(QuestionId(n), asked, rig.now + WAIT));
        rig.drain();
        let sent = rig.take_sent().pop().unwrap();
        let other = Request { tid: sent.transaction.into(), question: answered };
        let mad = other.answer(answer).emit();
        let mad = Input::Mad { port: PORT, from: Some(sent.sa.lid), mad: mad.as_ref() };
        rig.client.handle_input(rig.now, mad);
        rig.drain();
        assert_eq!(rig.outcomes(), [(n, Outcome::Unusable)], "{asked:?}");
        assert_eq!(rig.count(Counter::MalformedKind), before + 1, "{asked:?}");
    }
}

#[test]
fn answer_at_another_port_is_ignored() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    let sent = rig.take_sent().pop().unwrap();
    let request = Request::parse(sent.mad.as_ref()).unwrap();
    let mad = request.answer(Answer::Path(record(1))).emit();
    rig.client.handle_input(
        rig.now,
        Input::Mad { port: PortIndex(2), from: Some(sent.sa.lid), mad: mad.as_ref() },
    );
    rig.drain();
    assert_eq!(rig.outcomes(), []);
    assert_eq!(rig.count(Counter::Unasked), 1);
}

/// An SA may send anything.
#[test]
fn table_has_no_more_paths_than_were_asked_for() {
    let Question::Path(between) = path(1) else { panic!() };
    for (sent, count, kept) in [(0, 8, 0), (7, 8, 7), (10_000, 8, 7), (10_000, 1, 0)] {
        let mut rig = Rig::warm(Config::default());
        let question = Question::Paths(between, PathCount::new(count).unwrap());
        rig.client.handle_input(rig.now, ask(QuestionId(1), question, rig.now + WAIT));
        rig.drain();
        let asked = rig.take_sent().pop().unwrap();
        assert!(asked.is_for_table);
        let request = Request::parse(asked.mad.as_ref()).unwrap();
        let mut mad = request.answer(Answer::Path(record(1))).emit().as_ref()[..120].to_vec();
        mad.extend((0..sent).flat_map(|_| record(1).octets()));
        let from = Some(asked.sa.lid);
        rig.client.handle_input(rig.now, Input::Mad { port: PORT, from, mad: &mad });
        let answered = rig.client.poll_event().unwrap();
        assert_eq!(answered.outcome, Outcome::Path(record(1)));
        assert_eq!(answered.others, vec![record(1); kept]);
    }
}

#[test]
fn answer_counts_only_from_the_lid_that_was_asked() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    let sent = rig.take_sent().pop().unwrap();
    let request = Request::parse(sent.mad.as_ref()).unwrap();
    // All that another port may claim: a path, no path, a busy SA, an illegal value.
    let claims = [
        Answer::Path(record(1)),
        Answer::Refused(Refusal::NO_RECORDS),
        Answer::Refused(Refusal::BUSY),
        Answer::Path(PathRecord::from_octets([0; 64])),
    ];
    let load = rig.client.load(PORT);
    for claim in claims {
        for from in [None, Lid::new(2), Lid::new(0xffff)] {
            rig.client.handle_input(
                rig.now,
                Input::Mad { port: PORT, from, mad: request.answer(claim).emit().as_ref() },
            );
            rig.drain();
            assert_eq!((rig.outcomes(), rig.client.load(PORT)), (vec![], load));
        }
    }
    assert_eq!((rig.count(Counter::WrongLid), rig.count(Counter::BusyAnswers)), (12, 0));
    rig.answer(&sent, Answer::Path(record(1)));
    assert_eq!(rig.outcomes(), [(1, Outcome::Path(record(1)))]);
}

#[test]
fn after_a_move_each_sa_answers_its_own_questions() {
    for answers in [0, 1] {
        let mut rig = Rig::warm(Config::default());
        rig.ask(1);
        rig.client.handle_input(rig.now, Input::Sa { port: PORT, sa: Some(sa(6)) });
        rig.drain();
        let sent = rig.take_sent();
        assert_eq!(sent.iter().map(|mad| mad.sa).collect::<Vec<_>>(), [sa(1), sa(6)]);
        // Neither SA can answer for the other.
        let crossed = Transmit { sa: sent[1 - answers].sa, ..sent[answers].clone() };
        rig.answer(&crossed, Answer::Path(record(1)));
        assert_eq!((rig.outcomes(), rig.count(Counter::WrongLid)), (vec![], 1));
        rig.answer(&sent[answers], Answer::Path(record(1)));
        assert_eq!(rig.outcomes(), [(1, Outcome::Path(record(1)))]);
    }
}

#[test]
fn no_more_than_the_window_is_in_the_air() {
    let mut rig = Rig::warm(Config { outstanding: 8, ..Config::default() });
    for n in 0..50 {
        rig.ask(n);
    }
    assert_eq!(rig.sent.len(), 2, "few at first");
    let mut in_air = rig.take_sent();
    let mut most = in_air.len();
    while let Some(sent) = in_air.pop() {
        rig.answer(&sent, Answer::Refused(Refusal::NO_RECORDS));
        in_air.extend(rig.take_sent());
        most = most.max(in_air.len());
    }
    assert_eq!(most, 8);
    assert_eq!(rig.outcomes().len(), 50);

    // An answer of a minute ago shows nothing about the present.
    rig.advance(Duration::from_mins(1));
    for n in 50..60 {
        rig.ask(n);
    }
    assert_eq!(rig.sent.len(), 2);
}

#[test]
fn window_grows_only_if_it_is_used() {
    let mut rig = Rig::warm(Config::default());
    for n in 0..100 {
        rig.ask(n);
        let sent = rig.take_sent().pop().unwrap();
        rig.answer(&sent, Answer::Path(record(n)));
    }
    assert_eq!(rig.client.load(PORT).window, 2);
}

/// Each answer arrives after its time-out, or is read late.
#[test]
fn window_grows_even_if_all_answers_are_late() {
    let mut rig = Rig::warm(Config::default());
    let late = Config::default().longest_patience() + ms(50);
    let mut on_the_way = VecDeque::new();
    let mut widest = 0;
    for n in 0..1_000 {
        rig.ask(n);
        rig.advance(ms(10));
        let now = rig.now;
        on_the_way.extend(rig.take_sent().into_iter().map(|mad| (now + late, mad)));
        while on_the_way.front().is_some_and(|&(due, _)| due <= now) {
            let (_, mad) = on_the_way.pop_front().unwrap();
            let Question::Path(PathQuestion { dgid, .. }) =
                Request::parse(mad.mad.as_ref()).unwrap().question
            else {
                continue;
            };
            let n = u64::from_be_bytes(dgid.octets()[8..].try_into().unwrap()) - 1;
            rig.answer(&mad, Answer::Path(record(n)));
        }
        widest = widest.max(rig.client.load(PORT).window);
    }
    assert!(widest > 2, "{widest}");
}

#[test]
fn further_questions_are_refused_at_once() {
    let mut rig = Rig::warm(Config { flights: 3, ..Config::default() });
    for n in 0..5 {
        rig.ask(n);
    }
    assert_eq!(rig.outcomes(), [(3, Outcome::Overloaded), (4, Outcome::Overloaded)]);
    assert_eq!(rig.count(Counter::Overloaded), 2);
    let sent = rig.take_sent();
    rig.answer(&sent[0], Answer::Refused(Refusal::NO_RECORDS));
    rig.answered.clear();
    rig.ask(6);
    assert_eq!(rig.outcomes(), []);
}

#[test]
fn silent_sa_gets_two_mads_at_once_and_all_questions_end() {
    let mut rig = Rig::warm(Config::default());
    let mut asked_at = BTreeMap::new();
    let mut sent = 0;
    // Ten minutes of silence with 20 questions a second.
    for n in 0..12_000 {
        asked_at.insert(n, rig.now);
        rig.ask(n);
        rig.advance(ms(50));
        if n > 200 {
            sent += rig.sent.len();
        }
        rig.sent.clear();
        for (id, outcome) in rig.outcomes() {
            assert_eq!(outcome, Outcome::Silent);
            assert!(rig.now.since(asked_at.remove(&id).unwrap()) <= WAIT + ms(50));
        }
    }
    assert!(sent <= 590 * 5 / 2, "{sent} MADs in 590 s");
    assert_eq!(rig.client.load(PORT).window, 2);

    // The SA is back: when the MADs in the air count as lost, each pending question is answered
    // after at most one more MAD.
    let pending = asked_at.len();
    let mut sent = 0;
    let mut most = 0;
    let mut in_air = Vec::new();
    let end = rig.now + Config::default().longest_patience();
    while rig.now < end {
        rig.advance(ms(1));
        in_air.extend(rig.take_sent());
        most = most.max(in_air.len());
        sent += in_air.len();
        for mad in in_air.drain(..) {
            rig.answer(&mad, Answer::Refused(Refusal::NO_RECORDS));
        }
    }
    assert!(sent <= pending + 1, "{sent} MADs for {pending} questions");
    assert!(most <= 64);
    assert_eq!(rig.client.load(PORT).questions, 0);
}

/// Applies `answer` to all MADs sent within `time`. Returns the number of MADs.
fn serve(
    rig: &mut Rig,
    time: Duration,
    mut answer: impl FnMut(&Question) -> Option<Answer>,
) -> usize {
    let end = rig.now + time;
    let mut count = 0;
    while rig.now < end {
        for sent in rig.take_sent() {
            count += 1;
            let request = Request::parse(sent.mad.as_ref()).unwrap();
            if let Some(answer) = answer(&request.question) {
                rig.answer(&sent, answer);
            }
        }
        rig.advance(ms(10));
    }
    count
}

#[test]
fn users_question_to_a_silent_sa_costs_neither_time_nor_a_mad() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(0);
    let sent = serve(&mut rig, WAIT, |_| None);
    assert_eq!((rig.outcomes(), sent), (vec![(0, Outcome::Silent)], 5), "two are the witness's");
    assert!(rig.client.load(PORT).shut.is_some_and(|shut| !shut.busy));
    for n in 1..=1_000 {
        rig.client.handle_input(rig.now, ask_as_user(QuestionId(n), path(n), rig.now + WAIT));
        rig.drain();
        assert_eq!(rig.outcomes(), [(n, Outcome::Silent)], "at once");
        assert!(rig.sent.is_empty());
    }
    assert_eq!(rig.count(Counter::AtOnce), 1_000);
    // In the end one probe at a time, every 5 s varied by a quarter.
    let sent = serve(&mut rig, Duration::from_mins(10), |_| None);
    assert!((600 / 7..600 / 3).contains(&sent), "{sent} probes in 10 min");
    assert!(rig.client.load(PORT).in_air <= 1);
}

/// The SA has answered the witness of the first loss, and nothing since.
#[test]
fn question_that_was_lost_before_finds_an_sa_silent() {
    let mut rig = Rig::warm(Config::default());
    let deadline = rig.now + Duration::from_mins(1);
    rig.client.handle_input(rig.now, ask(QuestionId(0), path(0), deadline));
    serve(&mut rig, ms(1_000), |question| {
        (*question != path(0)).then_some(Answer::Refused(Refusal::NO_RECORDS))
    });
    assert_eq!(rig.client.load(PORT).shut, None);
    serve(&mut rig, Duration::from_secs(9), |_| None);
    assert!(rig.client.load(PORT).shut.is_some_and(|shut| !shut.busy));
}

/// For ten minutes, however many there are.
#[test]
fn question_of_the_kernel_waits_for_a_probe_of_a_silent_sa() {
    for answer in [None, Some(Answer::Refused(Refusal::BUSY))] {
        let mut rig = Rig::warm(Config { patient: 100, ..Config::default() });
        rig.ask(0);
        serve(&mut rig, WAIT, |_| answer);
        let lack = if answer.is_some() { Outcome::Busy } else { Outcome::Silent };
        assert_eq!(rig.outcomes(), [(0, lack)]);
        let (mut probes, mut last, mut longest) = (0, rig.now, Duration::ZERO);
        for round in 1..=400 {
            for n in 0..105 {
                rig.ask(round * 1_000 + n);
            }
            let at_once = rig.outcomes();
            assert!(at_once.iter().all(|(_, outcome)| *outcome == lack));
            assert_eq!(at_once.len(), 5, "there is room for a hundred");
            for _ in 0..150 {
                let sent = serve(&mut rig, ms(10), |_| answer);
                if sent > 0 {
                    (probes, longest) = (probes + sent, longest.max(rig.now.since(last)));
                    last = rig.now;
                }
            }
            rig.advance(WAIT.saturating_sub(ms(1_500)));
            assert_eq!(
                rig.outcomes(),
                (0..100).map(|n| (round * 1_000 + n, lack)).collect::<Vec<_>>()
            );
        }
        assert!((400 * 3..=400 * 5).contains(&probes), "{probes} probes in 640 s");
        assert!(longest <= Duration::from_secs(1), "{longest:?} without a probe");
        // The SA is back: all are answered.
        for n in 0..100 {
            rig.ask(n);
        }
        serve(&mut rig, ms(500), |_| Some(Answer::Refused(Refusal::NO_RECORDS)));
        assert_eq!(rig.outcomes().len(), 100);
    }
}

/// A question that an SA never answers must not be the only probe.
#[test]
fn unanswerable_question_of_the_kernel_does_not_keep_the_gate_shut() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(0);
    serve(&mut rig, Duration::from_secs(10), |_| None);
    assert!(rig.client.load(PORT).shut.is_some());
    rig.ask(0);
    serve(&mut rig, ms(900), |question| {
        (*question != path(0)).then_some(Answer::Refused(Refusal::DENIED))
    });
    assert_eq!(rig.client.load(PORT).shut, None);
}

#[test]
fn question_is_overdue_if_nothing_is_heard_since_its_lost_mad() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    rig.advance(ms(249));
    assert!(!rig.client.is_overdue(QuestionId(1)));
    assert_eq!(rig.client.poll_overdue(), None);
    rig.advance(ms(101));
    assert!(rig.client.is_overdue(QuestionId(1)));
    assert_eq!(rig.client.poll_overdue(), Some(QuestionId(1)));
    // Any answer is a sign of life, and so is BUSY.
    for answer in [Answer::Refused(Refusal::DENIED), Answer::Refused(Refusal::BUSY)] {
        let mut rig = Rig::warm(Config::default());
        rig.ask(1);
        rig.take_sent();
        rig.advance(ms(10));
        rig.ask(2);
        let sent = rig.take_sent().pop().unwrap();
        rig.answer(&sent, answer);
        rig.advance(ms(340));
        assert!(!rig.client.is_overdue(QuestionId(1)));
    }
}

#[test]
fn first_answer_opens_the_gate_for_waiting_questions() {
    for answer in [Answer::Refused(Refusal::DENIED), Answer::Path(record(1))] {
        let mut rig = Rig::warm(Config::default());
        let deadline = rig.now + Duration::from_mins(1);
        for n in 0..10 {
            rig.client.handle_input(rig.now, ask(QuestionId(n), path(n), deadline));
        }
        serve(&mut rig, Duration::from_secs(10), |_| None);
        assert!(rig.client.load(PORT).shut.is_some() && rig.answered.is_empty());
        while rig.sent.is_empty() {
            rig.advance(ms(10));
        }
        let probe = rig.take_sent().pop().unwrap();
        rig.answer(&probe, answer);
        assert_eq!((rig.client.load(PORT).shut, rig.count(Counter::Opened)), (None, 1));
        serve(&mut rig, ms(100), |_| Some(Answer::Refused(Refusal::NO_RECORDS)));
        assert_eq!(rig.outcomes().len(), 10);
    }
}

#[test]
fn always_busy_sa_gets_only_probes_and_questions_end_at_once() {
    let mut rig = Rig::warm(Config::default());
    let busy = |_: &Question| Some(Answer::Refused(Refusal::BUSY));
    rig.ask(0);
    serve(&mut rig, WAIT, busy);
    assert_eq!(rig.outcomes(), [(0, Outcome::Busy)]);
    rig.client.handle_input(rig.now, ask_as_user(QuestionId(1), path(1), rig.now + WAIT));
    rig.drain();
    assert_eq!(rig.outcomes(), [(1, Outcome::Busy)]);
    let sent = serve(&mut rig, Duration::from_mins(10), busy);
    assert!((600 / 7..600 / 3).contains(&sent), "{sent} probes in 10 min");
    serve(&mut rig, LONGEST_PAUSE * 2, |_| Some(Answer::Refused(Refusal::DENIED)));
    rig.ask(2);
    assert_eq!(rig.outcomes(), []);
}

/// Each for an hour: a question that an SA never answers, and the loss of one MAD in three.
#[test]
fn unanswerable_path_and_lost_mads_never_shut_the_gate() {
    let answers: [fn(&Question, usize) -> bool; 3] = [
        |question, _| *question != path(0),
        |question, _| *question != path(0) && *question != Question::ClassPortInfo,
        |_, count| count % 3 != 0,
    ];
    for (n, is_answered) in answers.into_iter().enumerate() {
        let mut rig = Rig::warm(Config::default());
        rig.ask(1);
        serve(&mut rig, ms(10), |_| Some(Answer::Path(record(1))));
        let mut count = 0;
        let mut ask_the_witness = |rig: &mut Rig| {
            let (id, deadline) = (QuestionId(rig.now.as_nanos()), rig.now + WAIT);
            rig.client.handle_input(rig.now, ask(id, path(0), deadline));
            serve(rig, Duration::from_secs(6), |question| {
                count += 1;
                let is_answered = is_answered(question, count);
                is_answered.then_some(Answer::Refused(Refusal::NO_RECORDS))
            });
        };
        for _ in 0..600 {
            rig.ask(1_000 + rig.count(Counter::Questions));
            ask_the_witness(&mut rig);
        }
        assert_eq!(rig.count(Counter::Shut), 0, "{n}");
        // Only the witness can answer.
        for _ in 0..100 {
            ask_the_witness(&mut rig);
        }
        assert_eq!(rig.count(Counter::Shut), 0, "{n}, alone");
    }
}

#[test]
fn news_of_the_subnet_manager_probes_a_silent_sa_at_once() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(0);
    serve(&mut rig, Duration::from_mins(1), |_| None);
    serve(&mut rig, ms(1_500), |_| None);
    rig.client.handle_input(rig.now, Input::MayBeBack { port: PORT });
    serve(&mut rig, ms(20), |_| Some(Answer::Refused(Refusal::DENIED)));
    assert_eq!(rig.client.load(PORT).shut, None);
    // The state of another SA is unknown.
    serve(&mut rig, Duration::from_mins(1), |_| None);
    rig.ask(1);
    serve(&mut rig, Duration::from_mins(1), |_| None);
    assert!(rig.client.load(PORT).shut.is_some());
    rig.client.handle_input(rig.now, Input::Sa { port: PORT, sa: Some(sa(2)) });
    assert_eq!(rig.client.load(PORT).shut, None);
}

#[test]
fn silence_lasts_through_changes_of_the_port_until_an_answer() {
    for answers in [false, true] {
        let mut rig = Rig::warm(Config::default());
        rig.ask(0);
        serve(&mut rig, Duration::from_mins(1), |_| None);
        let silence = rig.client.tally(PORT).silence;
        assert!(silence.is_some());
        // The port gets another SA, goes down and comes back.
        for sa in [Some(sa(2)), None, Some(sa(3))] {
            rig.client.handle_input(rig.now, Input::Sa { port: PORT, sa });
            assert_eq!(rig.client.load(PORT).shut, None);
            assert_eq!(rig.client.tally(PORT).silence, silence);
        }
        // No caller asks: the client finds out by itself.
        let answer = Answer::Refused(Refusal::DENIED);
        serve(&mut rig, Duration::from_mins(1), |_| answers.then_some(answer));
        assert_eq!(rig.client.tally(PORT).silence, silence.filter(|_| !answers));
        assert_eq!(rig.client.load(PORT).shut.is_some(), !answers);
    }
}

/// Such as the ClassPortInfo of an SA that does not support it, and a path that it never answers:
/// they fill the window.
#[test]
fn unanswerable_questions_delay_others_only_briefly() {
    let config = Config::default();
    let mut rig = Rig::warm(config);
    rig.ask(2_000);
    let sent = rig.take_sent().pop().unwrap();
    rig.answer(&sent, Answer::Path(record(2_000)));
    rig.answered.clear();
    let deadline = rig.now + Duration::from_mins(1);
    rig.client.handle_input(rig.now, ask(QuestionId(0), Question::ClassPortInfo, deadline));
    rig.client.handle_input(rig.now, ask(QuestionId(1_000), path(1_000), deadline));
    for n in 1..=20 {
        let asked_at = rig.now;
        rig.ask(n);
        while rig.answered.is_empty() {
            rig.advance(ms(1));
            for sent in rig.take_sent() {
                let request = Request::parse(sent.mad.as_ref()).unwrap();
                let is_answered = request.question != path(1_000);
                if is_answered && request.question != Question::ClassPortInfo {
                    rig.answer(&sent, Answer::Path(record(n)));
                }
            }
        }
        assert_eq!(rig.outcomes(), [(n, Outcome::Path(record(n)))]);
        let waited = rig.now.since(asked_at);
        assert!(waited <= config.longest_patience() + ms(1), "{n}: {waited:?}");
        rig.advance(ms(700));
    }
}

#[test]
fn first_questions_wait_a_random_time_after_the_sa_appeared() {
    let waits: Vec<_> = (0..50)
        .map(|seed| {
            let rng = ChaCha12Rng::seed_from_u64(seed);
            let mut client = Client::new(Config::default(), rng);
            client.handle_input(Instant::BOOT, Input::Sa { port: PORT, sa: Some(sa(1)) });
            client.handle_input(Instant::BOOT, ask(QuestionId(1), path(1), Instant::BOOT + WAIT));
            assert_eq!(client.poll_transmit(), None);
            let at = client.poll_timeout().unwrap();
            client.handle_timeout(at);
            assert!(client.poll_transmit().is_some());
            at.since(Instant::BOOT)
        })
        .collect();
    assert!(waits.iter().max().unwrap() > &ms(400) && waits.iter().max().unwrap() <= &ms(500));
    assert!(waits.iter().min().unwrap() < &ms(100));
}

#[test]
fn open_questions_are_asked_of_the_new_sa() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    rig.take_sent();
    rig.client.handle_input(rig.now, Input::Sa { port: PORT, sa: Some(sa(6)) });
    rig.drain();
    let [sent] = &rig.take_sent()[..] else { panic!() };
    assert_eq!(sent.sa, sa(6));
    assert_eq!(rig.count(Counter::ResendsMoved), 1);
    rig.answer(sent, Answer::Path(record(1)));
    assert_eq!(rig.outcomes(), [(1, Outcome::Path(record(1)))]);
}

#[test]
fn question_without_an_sa_fails_at_once() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    rig.client.handle_input(rig.now, Input::Sa { port: PORT, sa: None });
    rig.drain();
    rig.ask(2);
    assert_eq!(rig.outcomes(), [(1, Outcome::NoSa), (2, Outcome::NoSa)]);
    assert_eq!(rig.client.poll_timeout(), None);
}

#[test]
fn mads_returned_by_the_kernel_are_resent_after_pauses() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    let mut sent = 0;
    while rig.answered.is_empty() {
        for _ in rig.take_paths_sent() {
            sent += 1;
            rig.client.handle_input(rig.now, Input::Unanswered);
            rig.drain();
        }
        rig.advance(ms(1));
    }
    assert_eq!(rig.outcomes(), [(1, Outcome::Silent)]);
    assert_eq!(sent, 3);
}

#[derive(Clone, Debug)]
enum Op {
    Ask { n: u8, wait: u16 },
    Join { which: u8, wait: u16 },
    Answer { which: u8, how: u8 },
    Unanswered,
    NotSent,
    Garbage { bytes: Vec<u8> },
    MayBeBack,
    Sa { lid: u8 },
    Wait { ms: u16 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<u8>(), 0..3_000_u16).prop_map(|(n, wait)| Op::Ask { n, wait }),
        1 => (any::<u8>(), 0..3_000_u16).prop_map(|(which, wait)| Op::Join { which, wait }),
        4 => (any::<u8>(), any::<u8>()).prop_map(|(which, how)| Op::Answer { which, how }),
        1 => Just(Op::Unanswered),
        1 => Just(Op::NotSent),
        1 => proptest::collection::vec(any::<u8>(), 0..100).prop_map(|bytes| Op::Garbage { bytes }),
        1 => Just(Op::MayBeBack),
        1 => (0..4_u8).prop_map(|lid| Op::Sa { lid }),
        4 => (0..900_u16).prop_map(|ms| Op::Wait { ms }),
    ]
}

proptest! {
    /// Whatever the SA, the kernel and the fabric do.
    #[test]
    fn every_question_is_answered_once_and_in_time(
        ops in proptest::collection::vec(op(), 0..200),
        outstanding in 1..6_u32,
    ) {
        let config = Config { outstanding, flights: 12, ..Config::default() };
        let mut rig = Rig::new(config);
        let mut waiting: BTreeMap<u64, Instant> = BTreeMap::new();
        let mut all_sent: Vec<Transmit> = Vec::new();
        let mut seen: BTreeSet<Transaction> = BTreeSet::new();
        let mut next = 0;
        let (mut heard_at, mut was_silent) = (None, false);
        for op in ops {
            let pick = |which: u8| all_sent.get(usize::from(which) % all_sent.len().max(1)).cloned();
            match op {
                Op::Ask { n, wait } => {
                    let deadline = rig.now + ms(wait.into());
                    let question = if n == 0 { Question::ClassPortInfo } else { path(n.into()) };
                    rig.client.handle_input(rig.now, ask(QuestionId(next), question, deadline));
                    waiting.insert(next, deadline);
                    next += 1;
                }
                Op::Join { which, wait } => {
                    let joined = waiting.iter_mut().nth(which.into());
                    if let Some((&id, deadline)) = joined {
                        *deadline = (*deadline).max(rig.now + ms(wait.into()));
                        let (id, rank, deadline) = (QuestionId(id), Rank::Kernel, *deadline);
                        rig.client.handle_input(rig.now, Input::Join { id, rank, deadline });
                    }
                }
                Op::Answer { which, how } => {
                    if let Some(sent) = pick(which) {
                        let before = rig.count(Counter::Unasked) + rig.count(Counter::WrongLid);
                        rig.answer(&sent, match how % 6 {
                            0 => Answer::Refused(Refusal::BUSY),
                            1 => Answer::Refused(Refusal::NO_RECORDS),
                            2 => Answer::Refused(Refusal::DENIED),
                            3 => Answer::Path(PathRecord::from_octets([how; 64])),
                            _ => Answer::Path(record(how.into())),
                        });
                        let after = rig.count(Counter::Unasked) + rig.count(Counter::WrongLid);
                        let is_there = |lane: &Lane| lane.sa.lid == sent.sa.lid;
                        let is_there = rig.client.lanes.values().any(is_there);
                        if how % 6 != 0 && after == before && is_there {
                            heard_at = Some(rig.now);
                        }
                    }
                }
                Op::Unanswered => rig.client.handle_input(rig.now, Input::Unanswered),
                Op::NotSent => rig.client.handle_input(rig.now, Input::NotSent),
                Op::Garbage { bytes } => rig.client.handle_input(rig.now, Input::Mad { port: PORT, from: Lid::new(1), mad: &bytes }),
                Op::MayBeBack => rig.client.handle_input(rig.now, Input::MayBeBack { port: PORT }),
                Op::Sa { lid } => {
                    let sa = Lid::new(lid.into()).map(|lid| sa(lid.get()));
                    rig.client.handle_input(rig.now, Input::Sa { port: PORT, sa });
                }
                Op::Wait { ms } => rig.advance(Duration::from_millis(ms.into())),
            }
            rig.drain();
            for sent in rig.take_sent() {
                prop_assert!(seen.insert(sent.transaction));
                all_sent.push(sent);
            }
            for (id, _) in rig.outcomes() {
                prop_assert!(waiting.remove(&id).is_some(), "answered twice");
            }
            prop_assert!(waiting.values().all(|&deadline| deadline > rig.now), "answered late");
            let load = rig.client.load(PORT);
            prop_assert_eq!(load.questions, waiting.len());
            prop_assert!(load.questions <= 12);
            prop_assert!(load.in_air <= outstanding);
            prop_assert!(load.window <= outstanding);
            let in_air = rig.client.mads.values().filter(|sent| sent.in_air);
            let oldest = in_air.clone().map(|sent| rig.now.since(sent.at)).max();
            prop_assert!(oldest <= Some(config.longest_patience()), "{oldest:?} in the air");
            let in_air = in_air.count();
            prop_assert_eq!(load.in_air, u32::try_from(in_air).unwrap());
            prop_assert_eq!(rig.client.losses.len(), in_air);
            let held = rig.client.mads.iter().all(|(transaction, sent)| {
                let flight = rig.client.flights.get(&sent.id);
                sent.in_air || flight.is_some_and(|flight| flight.sent.contains(transaction))
            });
            prop_assert!(held, "a MAD without a question");
            let own = rig.client.lanes.values().filter(|lane| lane.own.is_some()).count();
            prop_assert_eq!(rig.client.deadlines.len(), waiting.len() + own);
            let silence = rig.client.tally(PORT).silence;
            prop_assert!(silence.is_some() || load.shut.is_none(), "a silence is not told");
            prop_assert!(silence.is_none_or(|silence| Some(silence.since) >= heard_at));
            if heard_at < Some(rig.now) {
                prop_assert!(silence.is_some() || !was_silent, "a silence ends with an answer");
            }
            was_silent = silence.is_some();
            let heard_at = heard_at.filter(|_| load.shut.is_some());
            prop_assert!(load.shut.is_none_or(|shut| Some(shut.since) >= heard_at));
        }
        rig.advance(Duration::from_mins(1));
        for (id, _) in rig.outcomes() {
            prop_assert!(waiting.remove(&id).is_some());
        }
        prop_assert!(waiting.is_empty());
        // A silent SA is probed forever; the client of any other port goes idle.
        serve(&mut rig, Duration::from_secs(20), |_| Some(Answer::Refused(Refusal::DENIED)));
        prop_assert_eq!(rig.client.load(PORT).shut, None);
        prop_assert_eq!(rig.client.poll_timeout(), None);
        prop_assert!(rig.client.mads.is_empty());
        let ended = [
            Counter::Answered, Counter::NoRecord, Counter::Refused, Counter::Unusable,
            Counter::Busy, Counter::Silent, Counter::NoSa, Counter::Overloaded,
        ];
        let ended: u64 = ended.into_iter().map(|counter| rig.count(counter)).sum();
        prop_assert_eq!(rig.count(Counter::Questions), ended);
    }
}

/// The SA does not answer any question of a user, and the kernel asks every 50 ms.
#[test]
fn users_questions_delay_no_question_of_the_kernel() {
    let mut rig = Rig::warm(Config::default());
    for round in 0..40 {
        let deadline = rig.now + WAIT;
        for n in 0..4 {
            let n = 1_000 + 4 * round + n;
            rig.client.handle_input(rig.now, ask_as_user(QuestionId(n), path(n), deadline));
        }
        rig.drain();
        assert!(rig.client.load(PORT).in_air <= rig.client.load(PORT).window.div_ceil(2));
        rig.ask(round);
        let sent = rig.take_sent();
        let question = |sent: &Transmit| Request::parse(sent.mad.as_ref()).unwrap().question;
        let [of_kernel] =
            &sent.iter().filter(|it| question(it) == path(round)).collect::<Vec<_>>()[..]
        else {
            panic!("{round}: not sent at once")
        };
        rig.answer(of_kernel, Answer::Path(record(round)));
        assert!(rig.outcomes().contains(&(round, Outcome::Path(record(round)))));
        rig.advance(ms(50));
    }
    assert_eq!(rig.count(Counter::Shut), 0);
}

/// For an hour, as of an SA that never answers it; what is remembered of it does not grow.
#[test]
fn question_that_is_joined_again_and_again_is_asked_until_the_last_deadline() {
    let mut rig = Rig::warm(Config::default());
    rig.ask(1);
    for _ in 0..3_600 {
        rig.advance(Duration::from_secs(1));
        let (id, rank, deadline) = (QuestionId(1), Rank::Other, rig.now + WAIT);
        rig.client.handle_input(rig.now, Input::Join { id, rank, deadline });
        assert!(rig.answered.is_empty() && rig.client.mads.len() <= MOST_REMEMBERED + 4);
    }
    assert!(rig.take_paths_sent().len() > 1_000);
    rig.advance(WAIT);
    assert_eq!(rig.outcomes(), [(1, Outcome::Silent)]);
}

#[test]
fn question_joined_by_the_kernel_gets_its_rank() {
    let mut rig = Rig::warm(Config { outstanding: 1, ..Config::default() });
    rig.ask(1);
    for n in [2, 3] {
        rig.client.handle_input(rig.now, ask_as_user(QuestionId(n), path(n), rig.now + WAIT));
    }
    let (id, rank, deadline) = (QuestionId(2), Rank::Kernel, rig.now);
    rig.client.handle_input(rig.now, Input::Join { id, rank, deadline });
    let [first] = &rig.take_sent()[..] else { panic!() };
    rig.answer(first, Answer::Path(record(1)));
    let [next] = &rig.take_sent()[..] else { panic!() };
    assert_eq!(Request::parse(next.mad.as_ref()).unwrap().question, path(2));
}
