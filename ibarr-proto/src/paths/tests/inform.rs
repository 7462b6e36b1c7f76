// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reports of the SA about the subnet.

use ibarr_common::wire::inform::{InformInfo, Report, Trap};
use ibarr_common::wire::mad::Tid;

use super::*;

/// Long enough for a round to begin.
const ROUND: Duration = Duration::from_secs(6);

impl Rig {
    /// A rig whose port receives reports.
    fn told(config: Config) -> Self {
        let mut rig = Self::with(config);
        rig.paths.handle_input(rig.now, Input::Reports { port: PORT, taken: true });
        rig.drain();
        rig
    }

    /// A rig whose SA has confirmed all subscriptions.
    fn informed() -> Self {
        let mut rig = Self::told(Config { canary_every: Duration::ZERO, ..Config::default() });
        assert_eq!(rig.round().len(), 4);
        rig
    }

    /// The subscriptions requested within a round's time, each confirmed at once.
    fn round(&mut self) -> Vec<InformInfo> {
        let mut asked = Vec::new();
        let end = self.now + ROUND;
        while self.now < end {
            self.advance(ms(100));
            asked.extend(self.answer_informs());
        }
        asked
    }

    /// Answers all MADs, also those sent in reply. Returns the subscriptions among them.
    fn answer_informs(&mut self) -> Vec<InformInfo> {
        let mut asked = Vec::new();
        while !self.sent.is_empty() {
            asked.extend(self.informs());
            let sent = self.sent.drain(..).collect::<Vec<_>>();
            for sent in &sent {
                self.answer(sent, None);
            }
        }
        asked
    }

    /// Subscriptions among the MADs that are sent and not answered.
    fn informs(&self) -> Vec<InformInfo> {
        let requests = self.sent.iter().filter_map(|sent| {
            match wire::Request::parse(sent.mad.as_ref()).ok()?.question {
                Question::Inform(info) => Some(info),
                _ => None,
            }
        });
        requests.collect()
    }

    /// A report from the LID `from`. Returns the answers.
    fn report(&mut self, from: u16, report: &Report) -> Vec<sa::Transmit> {
        let (from, mad) = (Lid::new(from), report.emit());
        self.paths.handle_input(self.now, Input::Mad { port: PORT, from, mad: mad.as_ref() });
        self.drain();
        let is_answer = |sent: &mut sa::Transmit| sent.timeout.is_none();
        self.sent.extract_if(.., is_answer).collect()
    }

    /// The SA reports that a GID is, or is not, in service.
    fn says(&mut self, is_in_service: bool, n: u64) {
        let report = of_gid(1, is_in_service, n);
        assert_eq!(self.report(1, &report).len(), 1);
    }
}

fn of_gid(tid: u64, is_in_service: bool, n: u64) -> Report {
    Report::of_gid(Tid::new(tid), is_in_service, gid(n), Lid::new(1).unwrap())
}

fn subscriptions(subscribe: bool) -> Vec<InformInfo> {
    Trap::ALL.map(|trap| InformInfo { trap, subscribe }).to_vec()
}

#[test]
fn port_subscribes_to_four_traps_one_after_the_other() {
    let mut rig = Rig::told(Config::default());
    assert_eq!(rig.paths.is_informed(PORT), Some(false));
    assert_eq!(rig.round(), subscriptions(true));
    assert_eq!(rig.paths.is_informed(PORT), Some(true));
    assert_eq!((rig.count(Counter::Informs), rig.count(Counter::InformsFailed)), (4, 0));
    // Nothing more is sent until the renewal.
    rig.advance(Duration::from_mins(44));
    assert_eq!(rig.informs(), []);
    rig.advance(Duration::from_mins(32));
    assert_eq!(rig.informs()[0], subscriptions(true)[0]);
}

#[test]
fn port_without_reports_subscribes_to_nothing() {
    let mut rig = Rig::with(Config::default());
    rig.happened(PortEvent::ClientReregister);
    assert_eq!(rig.round(), []);
    assert_eq!(rig.paths.is_informed(PORT), None);
}

#[test]
fn subscriptions_are_renewed_at_an_event_and_at_another_sa() {
    let mut rig = Rig::informed();
    rig.happened(PortEvent::ClientReregister);
    assert_eq!(rig.paths.is_informed(PORT), Some(false));
    assert_eq!(rig.round(), subscriptions(true));
    rig.port(PortFacts { sm_lid: Lid::new(6), ..facts() });
    assert_eq!(rig.round(), subscriptions(true));
    rig.port(PortFacts { sm_lid: None, ..facts() });
    assert_eq!(rig.round(), []);
    rig.port(facts());
    assert_eq!(rig.round(), subscriptions(true));
    // Many events cause one round.
    (0..100).for_each(|_| rig.happened(PortEvent::PKeyChange));
    assert_eq!(rig.round(), subscriptions(true));
}

#[test]
fn sa_that_refuses_is_asked_once_in_half_a_minute() {
    let mut rig = Rig::told(Config::default());
    for _ in 0..6_000 {
        rig.advance(ms(100));
        while !rig.sent.is_empty() {
            rig.refuse(Refusal::DENIED);
        }
    }
    let asked = rig.count(Counter::Informs);
    assert!((16..=28).contains(&asked), "{asked} in 10 minutes");
    assert_eq!(rig.count(Counter::InformsFailed), asked);
}

#[test]
fn report_about_a_gid_puts_only_its_path_in_doubt() {
    let mut rig = Rig::informed();
    let [one, another] = [question(1), question(2)];
    for question in [one, another] {
        assert_eq!(rig.outcome(question), found(question, 1, Source::Sa));
    }
    for is_in_service in [false, true] {
        rig.says(is_in_service, 1);
        let doubted = rig.paths.entries().filter(|entry| entry.is_doubted);
        assert_eq!(doubted.map(|entry| entry.question).collect::<Vec<_>>(), [one]);
        assert_eq!(rig.outcome(another), found(another, 1, Source::Cache));
        // The SA is asked at once, and once.
        assert_eq!(rig.outcome(one), found(one, 1, Source::Sa));
        assert_eq!(rig.outcome(one), found(one, 1, Source::Cache));
    }
    assert_eq!(rig.count(Counter::ReportsDoubted), 2);
    assert_eq!(rig.count(Counter::Doubts), 0);
}

#[test]
fn gid_that_returns_with_another_lid_is_asked_for() {
    let mut rig = Rig::informed();
    rig.outcome(question(1));
    rig.says(false, 1);
    rig.resolve(question(1));
    rig.refuse(Refusal::NO_RECORDS);
    assert_eq!(rig.answered()[0].outcome, Outcome::NoRecord { source: Source::Sa });
    rig.dlid = 9;
    // An answer without path would be remembered for seconds.
    let remembered = Outcome::NoRecord { source: Source::Cache };
    assert_eq!(rig.outcome(question(1)), remembered);
    rig.says(true, 1);
    assert_eq!(rig.outcome(question(1)), found(question(1), 9, Source::Sa));
    assert_eq!(rig.outcome(question(1)), found(question(1), 9, Source::Cache));
}

#[test]
fn reported_path_in_doubt_is_given_while_the_sa_is_silent() {
    let mut rig = Rig::informed();
    rig.outcome(question(1));
    rig.says(false, 1);
    rig.resolve(question(1));
    rig.advance(WAIT);
    assert_eq!(rig.answered()[0].outcome, found(question(1), 1, Source::Doubted));
}

#[test]
fn each_report_of_the_sa_is_answered_by_its_notice() {
    let mut rig = Rig::informed();
    let report = of_gid(0x0123_4567_89ab_cdef, true, 1);
    for _ in 0..2 {
        let answers = rig.report(1, &report);
        let [answer] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((answer.port, answer.sa.lid), (PORT, Lid::new(1).unwrap()));
        assert_eq!(answer.mad, report.emit_answer());
    }
    assert_eq!((rig.count(Counter::Reports), rig.count(Counter::ReportsUnknown)), (2, 2));
}

#[test]
fn report_from_another_lid_is_ignored() {
    let mut rig = Rig::informed();
    rig.outcome(question(1));
    assert_eq!(rig.report(2, &of_gid(1, false, 1)), []);
    let mad = of_gid(1, false, 1).emit();
    let input = Input::Mad { port: PORT, from: None, mad: mad.as_ref() };
    rig.paths.handle_input(rig.now, input);
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Cache));
    assert_eq!((rig.count(Counter::ReportsWrongLid), rig.count(Counter::Reports)), (2, 0));
}

#[test]
fn waiting_answers_are_bounded_and_further_reports_are_dropped() {
    let mut rig = Rig::informed();
    rig.outcome(question(1));
    let mad = of_gid(1, false, 1).emit();
    for n in 0..100 {
        let mad = if n < 64 { of_gid(n, true, 2).emit() } else { mad };
        let from = Lid::new(1);
        rig.paths.handle_input(rig.now, Input::Mad { port: PORT, from, mad: mad.as_ref() });
    }
    assert_eq!(rig.count(Counter::ReportsDropped), 36);
    // A report that is not answered has no effect either: the SA sends it again.
    assert_eq!(rig.count(Counter::ReportsDoubted), 0);
    rig.drain();
    assert_eq!(rig.sent.extract_if(.., |sent| sent.timeout.is_none()).count(), 64);
    rig.says(false, 1);
    assert_eq!(rig.count(Counter::ReportsDoubted), 1);
}

#[test]
fn too_many_gids_in_doubt_leave_the_port_in_doubt() {
    let mut rig = Rig::informed();
    for n in 0..=1_026 {
        rig.outcome(question(n));
    }
    // GIDs without a remembered path take no room.
    (2_000..4_000).for_each(|n| rig.says(true, n));
    (0..1_024).for_each(|n| rig.says(false, n));
    assert_eq!(rig.outcome(question(1_026)), found(question(1_026), 1, Source::Cache));
    rig.says(false, 0);
    assert_eq!(rig.count(Counter::Doubts), 0, "it was in doubt before");
    rig.says(false, 1_024);
    assert_eq!(rig.count(Counter::Doubts), 1);
    assert!(rig.paths.entries().all(|entry| entry.is_doubted));
    assert_eq!(rig.outcome(question(1_026)), found(question(1_026), 1, Source::Sa));
}

#[test]
fn report_about_a_link_makes_a_canary_due_soon() {
    for is_told in [false, true] {
        let mut rig = Rig::told(Config::default());
        rig.paths.handle_input(rig.now, Input::Hearing { port: PORT, heard: true });
        rig.round();
        rig.outcome(question(1));
        rig.outcome(question(1));
        if is_told {
            let report = Report::of_link(Tid::new(1), Lid::new(2).unwrap());
            assert_eq!(rig.report(1, &report).len(), 1);
        }
        rig.advance(ms(7_600));
        assert_eq!(rig.count(Counter::Canaries), u64::from(is_told));
    }
}

#[test]
fn constant_link_changes_cost_one_canary_in_five_seconds() {
    let mut rig = Rig::told(Config::default());
    rig.paths.handle_input(rig.now, Input::Hearing { port: PORT, heard: true });
    rig.round();
    rig.outcome(question(1));
    let report = Report::of_link(Tid::new(1), Lid::new(2).unwrap());
    for _ in 0..1_000 {
        rig.report(1, &report);
        rig.outcome(question(1));
        rig.advance(ms(100));
    }
    let canaries = rig.count(Counter::Canaries);
    assert!((10..=20).contains(&canaries), "{canaries} in 100 s");
}

#[test]
fn every_subscription_is_ended_at_the_end() {
    let mut rig = Rig::informed();
    rig.paths.give_back(rig.now, rig.now + ms(1_000));
    rig.drain();
    assert!(rig.paths.is_giving_back());
    // As many as the window allows, then the others.
    let mut ended = rig.answer_informs();
    ended.sort_by_key(|info| info.trap);
    assert_eq!(ended, subscriptions(false));
    assert!(!rig.paths.is_giving_back());
    assert_eq!(rig.round(), []);
}

#[test]
fn subscription_in_progress_is_ended_when_it_is_confirmed() {
    let mut rig = Rig::told(Config::default());
    while rig.informs().is_empty() {
        rig.advance(ms(100));
    }
    rig.paths.give_back(rig.now, rig.now + ms(1_000));
    rig.drain();
    assert_eq!(rig.informs(), subscriptions(true)[..1]);
    assert!(rig.paths.is_giving_back());
    rig.answer_all();
    assert_eq!(rig.count(Counter::Informs), 2);
    assert!(!rig.paths.is_giving_back());
}

/// A configuration is reverted while its effect is still in progress.
#[test]
fn subscriptions_wanted_again_begin_after_they_ended() {
    let mut rig = Rig::informed();
    rig.paths.give_back(rig.now, rig.now + ms(5_000));
    rig.drain();
    let ending: Vec<_> = rig.sent.drain(..).collect();
    rig.paths.handle_input(rig.now, Input::Reports { port: PORT, taken: true });
    assert!(!rig.paths.is_giving_back());
    let mut asked = rig.round();
    for sent in &ending {
        rig.answer(sent, None);
    }
    asked.extend(rig.round());
    let last = asked.iter().rposition(|info| !info.subscribe);
    let last = last.map_or(0, |last| last + 1);
    assert_eq!(asked[last..last + 4], subscriptions(true), "{asked:?}");
    assert_eq!(rig.paths.is_informed(PORT), Some(true));
}

#[test]
fn silent_sa_does_not_delay_the_end_beyond_its_deadline() {
    let mut rig = Rig::informed();
    rig.paths.give_back(rig.now, rig.now + ms(1_000));
    rig.advance(ms(1_000));
    assert!(!rig.paths.is_giving_back());
}

#[test]
fn silent_sa_is_never_probed_with_a_subscription() {
    let mut rig = Rig::informed();
    rig.happened(PortEvent::ClientReregister);
    for n in 0..600 {
        rig.resolve(question(n));
        rig.advance(ms(100));
    }
    assert!(rig.paths.client().load(PORT).shut.is_some());
    let is_inform = |sent: &sa::Transmit| {
        let request = wire::Request::parse(sent.mad.as_ref()).unwrap();
        sent.is_probe && matches!(request.question, Question::Inform(_))
    };
    assert_eq!(rig.sent.iter().filter(|sent| is_inform(sent)).count(), 0);
}
