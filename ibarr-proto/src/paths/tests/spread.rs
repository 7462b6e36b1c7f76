// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Several paths to a destination, given in turn.

use std::ops::Range;

use ibarr_common::wire::sa::PathCount;

use super::*;
use crate::places::User;

/// Paths by the following LIDs, at both ends.
pub(super) fn by_lid(first: &PathRecord, range: Range<u8>) -> Vec<PathRecord> {
    let by = |n: u8| {
        let mut octets = first.octets();
        octets[41] += n;
        octets[43] += n;
        PathRecord::from_octets(octets)
    };
    range.map(by).collect()
}

pub(in super::super) fn config() -> Config {
    let spread = PathCount::new(8).unwrap();
    Config { spread, canary_every: Duration::ZERO, ..Config::default() }
}

/// Ports have four LIDs each.
pub(in super::super) fn rig(config: Config) -> Rig {
    let mut rig = Rig::start(config, false);
    rig.port(PortFacts { lmc: 2, ..facts() });
    rig.answer_all();
    rig.dlid = 0x10;
    rig
}

/// The LIDs and the origins of so many answers.
pub(in super::super) fn given(rig: &mut Rig, count: usize) -> Vec<(u16, Source)> {
    let given = (0..count).map(|_| match rig.outcome(question(1)) {
        Outcome::Found { record, source } => (Fields::parse(&record).unwrap().dlid.get(), source),
        outcome => panic!("{outcome:?}"),
    });
    given.collect()
}

fn lids(given: &[(u16, Source)]) -> Vec<u16> {
    let mut lids: Vec<_> = given.iter().map(|(lid, _)| *lid).collect();
    lids.sort_unstable();
    lids
}

#[test]
fn requests_get_each_path_in_turn_from_one_question() {
    let mut rig = rig(config());
    let given = given(&mut rig, 8);
    assert_eq!(
        given[..4].iter().map(|it| it.0).collect::<Vec<_>>(),
        given[4..].iter().map(|it| it.0).collect::<Vec<_>>()
    );
    assert_eq!(lids(&given[..4]), [0x10, 0x11, 0x12, 0x13]);
    assert_eq!(given[0].1, Source::Sa);
    assert!(given[1..].iter().all(|(_, source)| *source == Source::Cache));
    assert_eq!((rig.asked.len(), rig.count(Counter::Contradicted)), (1, 0));
    let entry = rig.paths.entries().next().unwrap();
    assert_eq!(entry.others, by_lid(&record(&question(1), 0x10), 1..4));
    assert_eq!(rig.paths.several(&name(1), question(1)).len(), 4);
}

#[test]
fn callers_that_wait_for_one_question_get_paths_in_turn() {
    let mut rig = rig(config());
    for _ in 0..4 {
        rig.resolve(question(1));
    }
    rig.answer_all();
    let given: Vec<_> = rig.answered().into_iter().map(|it| it.outcome).collect();
    let given: Vec<_> = given
        .iter()
        .filter_map(|outcome| outcome.parts().1)
        .map(|record| (Fields::parse(&record).unwrap().dlid.get(), Source::Sa))
        .collect();
    assert_eq!((lids(&given), rig.asked.len()), (vec![0x10, 0x11, 0x12, 0x13], 1));
}

#[test]
fn question_is_for_one_path_if_lmc_is_0_or_spread_off() {
    let sent = |config, lmc| {
        let mut rig = Rig::with(config);
        rig.port(PortFacts { lmc, ..facts() });
        rig.answer_all();
        rig.resolve(question(1));
        (rig.sent[0].mad, rig.sent[0].is_for_table)
    };
    let off = Config { spread: PathCount::ONE, ..config() };
    let [one, two, three] = [sent(off, 0), sent(config(), 0), sent(off, 2)];
    assert!(!one.1 && one.0.as_ref()[3] == 1);
    // The transaction differs by what each has asked before.
    for other in [two, three] {
        assert_eq!((&one.0.as_ref()[16..], one.1), (&other.0.as_ref()[16..], other.1));
    }
    assert!(sent(config(), 1).1);
}

/// An answer may have anything in it.
#[test]
fn records_that_lead_elsewhere_than_the_first_are_dropped() {
    let first = record(&question(1), 0x10);
    let with = |at: usize, value: u8| {
        let mut octets = by_lid(&first, 1..2)[0].octets();
        octets[at] = value;
        PathRecord::from_octets(octets)
    };
    let mut rig = rig(config());
    let [other_sl, other_rate] = [with(53, 3), {
        let mut octets = by_lid(&first, 2..3)[0].octets();
        octets[55] = 0x83;
        PathRecord::from_octets(octets)
    }];
    rig.others = Some(vec![
        first,
        with(23, 9),
        with(39, 9),
        with(41, 0x14),
        with(43, 4),
        with(47, 2),
        with(48, 1),
        with(49, 0),
        with(50, 0),
        other_sl,
        by_lid(&first, 1..2)[0],
        other_rate,
    ]);
    // No more than were asked for are looked at.
    given(&mut rig, 1);
    assert_eq!(rig.paths.several(&name(1), question(1)), []);
    rig.paths.flush();
    let all = rig.others.take().unwrap();
    rig.others = Some(all[all.len() - 3..].to_vec());
    given(&mut rig, 1);
    assert_eq!(rig.paths.several(&name(1), question(1)), [first, other_sl, other_rate]);
}

#[test]
fn new_lids_of_a_destination_end_all_its_paths() {
    let mut rig = rig(config());
    given(&mut rig, 3);
    rig.dlid = 0x20;
    rig.outcome(PathQuestion { reversible: false, ..question(1) });
    assert_eq!(rig.count(Counter::Contradicted), 1);
    // Not even if the SA is silent.
    rig.resolve(question(1));
    rig.advance(WAIT);
    assert_eq!(rig.answered()[0].outcome, Outcome::Silent);
    assert_eq!(lids(&given(&mut rig, 4)), [0x20, 0x21, 0x22, 0x23]);
}

#[test]
fn in_doubt_the_first_path_is_given_until_the_sa_confirms_them() {
    let mut rig = rig(config());
    given(&mut rig, 4);
    rig.happened(PortEvent::ClientReregister);
    rig.answer_all();
    for _ in 0..2 {
        rig.resolve(question(1));
        rig.advance(WAIT);
        let doubted = found(question(1), 0x10, Source::Doubted);
        assert_eq!(rig.answered()[0].outcome, doubted);
    }
    // It answers again.
    rig.answer_all();
    rig.pass_spread();
    assert_eq!(lids(&given(&mut rig, 4)), [0x10, 0x11, 0x12, 0x13]);
}

/// The SA then writes the GIDs with another prefix, and its answer is not remembered.
#[test]
fn turns_of_an_older_answer_are_not_those_of_a_newer_one() {
    let mut rig = rig(config());
    given(&mut rig, 2);
    let gids = PathQuestion { dgid: "fec0::2".parse().unwrap(), ..question(1) };
    let (id, deadline) = (UserRequest::Control(1 << 32), rig.now + WAIT);
    let request = Request::of_user(id, User(7), name(1), question(1), deadline);
    let request = Request { freshness: Freshness::Fresh, ..request };
    for fresh in [question(1), gids] {
        rig.paths.handle_input(rig.now, Input::Resolve(request));
        rig.drain();
        let sent = rig.sent.pop().unwrap();
        let mad = wire::Request::parse(sent.mad.as_ref()).unwrap();
        let first = record(&fresh, 0x10);
        let mad = mad.answer(Answer::Path(first)).emit_table(&by_lid(&first, 1..3));
        let from = Some(sent.sa.lid);
        rig.paths.handle_input(rig.now, Input::Mad { port: PORT, from, mad: mad.as_ref() });
        let Outcome::Found { record, .. } = rig.answered()[0].outcome else { panic!() };
        let is_of_it = [first, by_lid(&first, 1..2)[0], by_lid(&first, 2..3)[0]].contains(&record);
        assert!(is_of_it, "{record:?}");
    }
}

#[test]
fn turns_end_with_their_answer() {
    let mut rig = rig(Config { max_cached: 2, ..config() });
    for n in 0..4 {
        rig.outcome(question(n));
    }
    assert_eq!(rig.paths.cache.spread.slots().count(), 2);
    // The SA has one path now.
    rig.others = Some(Vec::new());
    rig.outcome(question(4));
    assert_eq!(rig.paths.cache.spread.slots().count(), 1);
    rig.advance(Duration::from_hours(2));
    assert_eq!((rig.paths.load().cached, rig.paths.cache.spread.slots().count()), (0, 0));
}

/// The question that the SA is asked for this path.
fn asked_for(rig: &mut Rig, n: u64, refusal: Option<Refusal>) -> Question {
    rig.resolve(question(n));
    let sent = rig.sent.pop().unwrap();
    rig.answer(&sent, refusal);
    wire::Request::parse(sent.mad.as_ref()).unwrap().question
}

#[test]
fn sa_that_refuses_tables_is_asked_for_one_path_until_it_changes() {
    let mut rig = rig(config());
    // A path that does not exist says nothing about tables.
    for refusal in [Refusal::NO_RECORDS, Refusal::REQUEST_INVALID] {
        let asked = asked_for(&mut rig, 1, Some(refusal));
        assert!(matches!(asked, Question::Paths(..)), "{asked:?}");
        rig.paths.flush();
    }
    let asked = asked_for(&mut rig, 1, None);
    assert_eq!(asked, Question::Path(question(1)));
    let [.., last] = &rig.answered()[..] else { panic!() };
    assert!(matches!(last.outcome, Outcome::Found { .. }), "{last:?}");

    rig.port(PortFacts { lmc: 2, sm_lid: Lid::new(6), ..facts() });
    rig.pass_spread();
    rig.answer_all();
    // Meanwhile it changes once more, so the refusal is an earlier one's.
    rig.resolve(question(2));
    let sent = rig.sent.pop().unwrap();
    rig.port(PortFacts { lmc: 2, sm_lid: Lid::new(7), ..facts() });
    rig.answer(&sent, Some(Refusal::REQUEST_INVALID));
    rig.pass_spread();
    rig.answer_all();
    let asked = asked_for(&mut rig, 3, None);
    assert!(matches!(asked, Question::Paths(..)), "{asked:?}");
}
