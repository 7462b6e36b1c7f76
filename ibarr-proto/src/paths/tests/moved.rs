// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A port of the subnet gets another LID without an event.

use super::*;

fn one_way(n: u64) -> PathQuestion {
    PathQuestion { reversible: false, ..question(n) }
}

fn is_doubted(rig: &Rig, question: PathQuestion) -> bool {
    rig.paths.entries().find(|entry| entry.question == question).unwrap().is_doubted
}

/// rdma_cm has got a path, and IPoIB asks for the first time.
#[test]
fn new_lid_of_a_gid_puts_the_port_in_doubt() {
    let mut rig = Rig::with(Config { repeat_rate: 0, ..Config::default() });
    for n in 0..3 {
        rig.outcome(question(n));
    }
    rig.dlid = 3;
    assert_eq!(rig.outcome(one_way(1)), found(one_way(1), 3, Source::Sa));
    assert_eq!(rig.count(Counter::Contradicted), 1);
    assert_eq!(rig.outcome(question(1)), found(question(1), 3, Source::Sa));
    assert_eq!(rig.outcome(question(1)), found(question(1), 3, Source::Cache));
    // The SA has not contradicted the others.
    assert!(is_doubted(&rig, question(0)) && is_doubted(&rig, question(2)));
    assert_eq!(rig.outcome(question(2)), found(question(2), 3, Source::Sa));
    assert_eq!(rig.count(Counter::Contradicted), 1);
}

#[test]
fn contradicted_path_is_not_given_even_if_the_sa_is_silent() {
    let mut rig = Rig::new();
    rig.outcome(question(1));
    rig.dlid = 3;
    rig.outcome(one_way(1));
    rig.resolve(question(1));
    rig.advance(WAIT);
    assert_eq!(rig.answered()[0].outcome, Outcome::Silent);
}

/// While a path in doubt is asked for, the SA gives another LID for the same GID.
#[test]
fn path_contradicted_while_the_sa_is_asked_is_not_given() {
    let mut rig = Rig::new();
    rig.outcome(question(1));
    rig.port(PortFacts { sm_lid: Lid::new(6), ..facts() });
    rig.answer_all();
    rig.pass_spread();
    rig.resolve(question(1));
    rig.sent.clear();
    rig.dlid = 3;
    rig.outcome(one_way(1));
    rig.advance(WAIT);
    assert_eq!(rig.answered()[0].outcome, Outcome::Silent);
}

#[test]
fn lids_of_one_lmc_range_belong_to_one_port() {
    for (dlid, contradictions) in [(7, 0), (8, 1)] {
        let mut rig = Rig::new();
        rig.port(PortFacts { lmc: 2, ..facts() });
        rig.answer_all();
        rig.dlid = 4;
        rig.outcome(question(1));
        rig.dlid = dlid;
        rig.outcome(one_way(1));
        assert_eq!(rig.count(Counter::Contradicted), contradictions);
    }
}

#[test]
fn several_routers_may_lead_to_one_gid() {
    let mut rig = Rig::new();
    for (n, question) in [question(1), one_way(1)].into_iter().enumerate() {
        rig.resolve(question);
        let sent = rig.sent.pop().unwrap();
        let request = wire::Request::parse(sent.mad.as_ref()).unwrap();
        let mut octets = record(&question, u16::try_from(n).unwrap() + 1).octets();
        octets[47] = 64;
        let mad = request.answer(Answer::Path(PathRecord::from_octets(octets))).emit();
        let from = Some(sent.sa.lid);
        rig.paths.handle_input(rig.now, Input::Mad { port: PORT, from, mad: mad.as_ref() });
    }
    assert_eq!((rig.answered().len(), rig.count(Counter::Contradicted)), (2, 0));
}

/// IPoIB still has the paths that it got before the cache was flushed.
#[test]
fn repeated_one_way_request_after_a_flush_causes_doubt() {
    let mut rig = Rig::new();
    rig.outcome(one_way(1));
    rig.outcome(question(1));
    assert_eq!((rig.paths.flush(), rig.paths.entries().count()), (2, 0));
    assert_eq!((rig.paths.flush(), rig.paths.load().cached), (0, 1));
    assert_eq!(rig.outcome(question(2)), found(question(2), 1, Source::Sa));
    assert!(!is_doubted(&rig, question(2)));
    assert_eq!(rig.outcome(one_way(1)), found(one_way(1), 1, Source::Sa));
    assert!(is_doubted(&rig, question(2)));
    assert_eq!(rig.count(Counter::AskedAgain), 1);
}

#[test]
fn flush_drops_answers_in_transit() {
    let mut rig = Rig::new();
    rig.resolve(question(1));
    rig.paths.flush();
    rig.answer_all();
    assert_eq!(rig.answered()[0].outcome, found(question(1), 1, Source::Sa));
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Sa));
}

/// Uses paths for `time`, and lets the SA answer.
fn use_paths(rig: &mut Rig, questions: &[PathQuestion], time: Duration) {
    let end = rig.now + time;
    while rig.now < end {
        for question in questions {
            rig.outcome(*question);
        }
        rig.advance(Duration::from_secs(1));
        rig.answer_all();
    }
}

#[test]
fn only_paths_in_use_are_asked_for_from_time_to_time() {
    let mut rig = Rig::with(Config::default());
    rig.outcome(question(1));
    use_paths(&mut rig, &[question(1)], Duration::from_mins(10));
    let deaf = rig.count(Counter::Canaries);
    assert!((60..150).contains(&deaf), "{deaf}");
    rig.pass_spread();
    rig.pass_spread();
    let idle = rig.count(Counter::Canaries);
    rig.advance(Duration::from_mins(5));
    assert_eq!(rig.count(Counter::Canaries), idle, "it is not in use");
    // Less often if events are received.
    rig.paths.handle_input(rig.now, Input::Hearing { port: PORT, heard: true });
    use_paths(&mut rig, &[question(1)], Duration::from_mins(10));
    let heard = rig.count(Counter::Canaries) - idle;
    assert!((5..15).contains(&heard), "{heard}");
}

/// One of the paths in use has moved, and there is no event.
#[test]
fn canaries_find_one_moved_path_of_six_within_a_minute() {
    let mut rig = Rig::with(Config::default());
    let questions: Vec<_> = (0..6).map(question).collect();
    for question in &questions {
        rig.outcome(*question);
    }
    use_paths(&mut rig, &questions, Duration::from_secs(20));
    rig.moved = Some(question(3).dgid);
    use_paths(&mut rig, &questions, Duration::from_mins(1));
    assert_eq!(rig.count(Counter::Contradicted), 1);
    assert_eq!(rig.outcome(question(3)), found(question(3), 9, Source::Cache));
}

/// The path leads to another subnet, through another router than before.
#[test]
fn canary_through_another_router_puts_the_port_in_doubt() {
    let mut rig = Rig::with(Config::default());
    rig.hop_limit = 64;
    rig.outcome(question(1));
    rig.outcome(question(2));
    rig.dlid = 3;
    use_paths(&mut rig, &[question(1)], Duration::from_secs(10));
    assert_eq!(rig.count(Counter::Contradicted), 1);
    assert!(is_doubted(&rig, question(2)));
}

/// No event tells of it. The other path, which is not by a router, has begun a minute.
#[test]
fn router_that_the_sa_replaces_is_noticed_although_events_are_heard() {
    let mut rig = Rig::with(Config::default());
    rig.paths.handle_input(rig.now, Input::Hearing { port: PORT, heard: true });
    rig.outcome(question(3));
    rig.outcome(question(3));
    rig.hop_limit = 64;
    rig.outcome(question(1));
    rig.outcome(question(2));
    rig.dlid = 3;
    // At most one and a half times 15 s, for each of both paths in use.
    use_paths(&mut rig, &[question(3), question(1)], Duration::from_secs(45));
    assert_eq!(rig.count(Counter::Contradicted), 1);
    assert!(is_doubted(&rig, question(2)));
    let canaries = rig.count(Counter::Canaries);
    assert!((1..=3).contains(&canaries), "{canaries}");
}

/// Two routers lead to the other subnet, and the SA names them alternately.
#[test]
fn alternating_routers_put_the_port_in_doubt_once() {
    let mut rig = Rig::with(Config::default());
    rig.hop_limit = 64;
    rig.outcome(question(1));
    rig.outcome(question(2));
    for round in 0..20 {
        rig.dlid = if round % 2 == 0 { 3 } else { 1 };
        use_paths(&mut rig, &[question(1)], Duration::from_secs(10));
    }
    assert!(rig.count(Counter::Canaries) >= 20);
    assert_eq!(rig.count(Counter::Contradicted), 1);
}

#[test]
fn canary_that_is_not_answered_changes_nothing() {
    let mut rig = Rig::with(Config::default());
    rig.outcome(question(1));
    rig.outcome(question(1));
    rig.advance(Duration::from_secs(20));
    assert_eq!((rig.count(Counter::Canaries), rig.answered().len()), (1, 0));
    rig.sent.clear();
    assert_eq!(rig.outcome(question(1)), found(question(1), 1, Source::Cache));
}

#[derive(Clone, Debug)]
enum Op {
    Resolve {
        host: u8,
        how: u8,
    },
    /// The SA answers a question, and the answer is in transit.
    Say {
        which: u8,
    },
    Deliver {
        which: u8,
    },
    Move {
        host: u8,
    },
    SmMoved {
        sm: u8,
    },
    Happened,
    Wait {
        ms: u32,
    },
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..3_u8, any::<u8>()).prop_map(|(host, how)| Op::Resolve { host, how }),
        4 => any::<u8>().prop_map(|which| Op::Say { which }),
        4 => any::<u8>().prop_map(|which| Op::Deliver { which }),
        2 => (0..3_u8).prop_map(|host| Op::Move { host }),
        1 => (1..3_u8).prop_map(|sm| Op::SmMoved { sm }),
        1 => Just(Op::Happened),
        1 => (0..2_000_u32).prop_map(|ms| Op::Wait { ms }),
        1 => (0..2_000_000_u32).prop_map(|ms| Op::Wait { ms }),
        1 => Just(Op::Flush),
    ]
}

proptest! {
    /// Whatever moves, and in whichever order answers arrive.
    #[test]
    fn path_with_a_contradicted_destination_is_never_sure(
        max_cached in 1..12_usize,
        ops in proptest::collection::vec(op(), 0..200),
    ) {
        let mut rig = Rig::with(Config { max_cached, ..Config::default() });
        let mut lids = [1_u16, 2, 3];
        let mut next_lid = 10;
        let mut on_the_way = Vec::new();
        let mut last_said = BTreeMap::new();
        let host = |question: &PathQuestion| question.dgid.octets()[15];
        let dlid = |record: &PathRecord| Fields::parse(record).unwrap().dlid.get();
        for op in ops {
            match op {
                Op::Resolve { host, how } => {
                    let (reversible, pkey) = (how & 1 == 0, PKey::new(0x8001 + u16::from(how & 2)));
                    rig.resolve(PathQuestion { reversible, pkey, ..question(host.into()) });
                }
                Op::Say { which } if !rig.sent.is_empty() => {
                    let sent = rig.sent.remove(usize::from(which) % rig.sent.len());
                    let request = wire::Request::parse(sent.mad.as_ref()).unwrap();
                    let (mad, said) = match request.question {
                        Question::Path(question) => {
                            let lid = lids[usize::from(host(&question) - 1)];
                            let answer = Answer::Path(record(&question, lid));
                            (request.answer(answer).emit(), Some((host(&question), lid)))
                        }
                        Question::ClassPortInfo => {
                            let info = ClassPortInfo { has_qos: false };
                            (request.answer(Answer::ClassPortInfo(info)).emit(), None)
                        }
                        Question::Known(_) | Question::Paths(..) => panic!("not asked here"),
                    };
                    on_the_way.push((Some(sent.sa.lid), mad, said));
                }
                Op::Deliver { which } if !on_the_way.is_empty() => {
                    let which = usize::from(which) % on_the_way.len();
                    let (from, mad, said) = on_the_way.remove(which);
                    let asked = rig.paths.load().questions;
                    rig.paths.handle_input(rig.now, Input::Mad { port: PORT, from, mad: mad.as_ref() });
                    // The question may have ended.
                    if rig.paths.load().questions < asked {
                        last_said.extend(said);
                    }
                    rig.drain();
                }
                Op::Say { .. } | Op::Deliver { .. } => {}
                Op::Move { host } => {
                    lids[usize::from(host)] = next_lid;
                    next_lid += 1;
                }
                Op::SmMoved { sm } => rig.port(PortFacts { sm_lid: Lid::new(sm.into()), ..facts() }),
                Op::Happened => rig.happened(PortEvent::ClientReregister),
                Op::Wait { ms } => rig.advance(Duration::from_millis(ms.into())),
                Op::Flush => drop(rig.paths.flush()),
            }
            for Answered { outcome, .. } in rig.answered() {
                if let Outcome::Found { record, source: Source::Cache } = outcome {
                    let host = Fields::parse(&record).unwrap().dgid.octets()[15];
                    prop_assert_eq!(last_said.get(&host), Some(&dlid(&record)));
                }
            }
            let sure = rig.paths.entries().filter(|entry| !entry.is_doubted);
            for entry in sure {
                let said = last_said.get(&host(&entry.question)).copied();
                prop_assert_eq!(entry.record.as_ref().map(dlid), said);
            }
        }
        rig.sent.clear();
        rig.advance(Duration::from_hours(2));
        prop_assert!(rig.paths.cache.lids().is_empty(), "dropped answers leave no trace");
    }
}

#[test]
fn event_makes_a_silent_sa_be_probed_at_once() {
    let mut rig = Rig::new();
    rig.resolve(question(1));
    rig.advance(Duration::from_mins(1));
    assert!(rig.paths.client().load(PORT).shut.is_some());
    // Just after a probe, when the next one is some seconds away.
    rig.sent.clear();
    while rig.sent.is_empty() {
        rig.advance(Duration::from_millis(100));
    }
    rig.sent.clear();
    rig.advance(Duration::from_secs(2));
    assert!(rig.sent.is_empty());
    rig.happened(PortEvent::ClientReregister);
    let [probe] = &rig.sent[..] else { panic!("{:?}", rig.sent) };
    assert!(probe.is_probe);
    rig.answer_all();
    assert_eq!(rig.paths.client().load(PORT).shut, None);
}
