// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Compares the stand-in for a subnet administrator with answers of OpenSM, and tests its
//! misbehaviour.

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Guid, Lid, PKey, ServiceId, Sl, SubnetPrefix};
use ibarr_common::wire::mad::{Mad, Tid};
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa::{Answer, PathQuestion, Question, Refusal, Request, Response};
use ibarr_sim::sa::{AddressedPort, ClientId, Reply, Route, StandIn, Subnet};

const CLIENT: ClientId = ClientId(7);
const NOW: Instant = Instant::from_nanos(1);

fn lid(lid: u16) -> Lid {
    Lid::new(lid).unwrap()
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

fn port(number: u16, pkeys: &[u16]) -> AddressedPort {
    AddressedPort {
        lid: lid(number),
        pkeys: pkeys.iter().map(|&pkey| PKey::new(pkey).unwrap()).collect(),
    }
}

/// Two hosts of the simulated subnet from which the bytes were recorded.
fn stand_in() -> StandIn {
    let mut subnet = Subnet::new(SubnetPrefix::DEFAULT);
    subnet.ports.insert(Guid::new(0x10_0001), port(1, &[0xffff]));
    subnet.ports.insert(Guid::new(0x10_0009), port(7, &[0xffff]));
    StandIn::new(subnet, lid(1), 1)
}

fn path(sgid: &str, dgid: &str) -> PathQuestion {
    PathQuestion {
        dgid: gid(dgid),
        sgid: gid(sgid),
        reversible: true,
        pkey: None,
        tclass: None,
        service_id: None,
        qos_class: None,
    }
}

fn request(tid: u64, question: PathQuestion) -> Mad {
    Request { tid: Tid::new(tid), question: Question::Path(question) }.emit()
}

fn answers(sa: &mut StandIn) -> Vec<Response> {
    let replies = std::iter::from_fn(|| sa.poll_transmit());
    replies.map(|reply| Response::parse(reply.mad.as_ref()).unwrap()).collect()
}

/// The only answer to a question.
fn ask(sa: &mut StandIn, question: PathQuestion) -> Answer {
    sa.handle_input(NOW, CLIENT, lid(1), request(1, question).as_ref());
    let mut answers = answers(sa);
    assert_eq!(answers.len(), 1);
    answers.remove(0).answer
}

fn fields(answer: &Answer) -> Fields {
    let Answer::Path(record) = answer else { panic!("{answer:?}") };
    Fields::parse(record).unwrap()
}

const HERE: &str = "fe80::10:9";
const THERE: &str = "fe80::10:1";

#[test]
fn recorded_question_gets_the_record_that_opensm_gave() {
    let question = golden(include_str!("../../ibarr-common/tests/golden/sa-path-get-ibsim.hex"));
    let recorded =
        golden(include_str!("../../ibarr-common/tests/golden/sa-path-get-resp-ibsim.hex"));
    let mut sa = stand_in();
    sa.handle_input(NOW, CLIENT, lid(1), &question);
    let Some(Reply { to, from, mad }) = sa.poll_transmit() else { panic!("no answer") };
    assert_eq!((to, from), (CLIENT, lid(1)));
    // Version, class, method, status; then the attribute. Between them are the transaction id,
    // which the simulator rewrote, and the component mask, which OpenSM repeats though no client
    // reads it.
    assert_eq!(mad.as_ref()[..8], recorded[..8]);
    assert_eq!(mad.as_ref()[16..48], recorded[16..48]);
    assert_eq!(mad.as_ref()[56..recorded.len()], recorded[56..]);
    assert!(sa.poll_transmit().is_none());
}

#[test]
fn unknown_port_has_no_records() {
    let mut sa = stand_in();
    let no_records = Answer::Refused(Refusal::NO_RECORDS);
    assert_eq!(ask(&mut sa, path(HERE, "fe80::dead")), no_records);
    assert_eq!(ask(&mut sa, path("fe80::dead", THERE)), no_records);
    assert_eq!(ask(&mut sa, path(HERE, "fec0:0:22:2::1")), no_records);
}

#[test]
fn default_prefix_means_the_subnet_and_the_answer_has_its_prefix() {
    let mut sa = stand_in();
    sa.subnet_mut().prefix = SubnetPrefix::new(0xfec0_0000_0001_0001);
    let answer = fields(&ask(&mut sa, path(HERE, THERE)));
    assert_eq!(answer.dgid, gid("fec0:0:1:1::10:1"));
    assert_eq!(answer.sgid, gid("fec0:0:1:1::10:9"));
    assert_eq!(answer.hop_limit, 0);
}

#[test]
fn path_to_another_subnet_leads_to_its_router() {
    let mut sa = stand_in();
    sa.subnet_mut().prefix = SubnetPrefix::new(0xfec0_0000_0001_0001);
    sa.subnet_mut().routes = vec![
        Route { prefix: Some(SubnetPrefix::new(0xfec0_0000_0022_0002)), lid: lid(4), hop_limit: 2 },
        Route { prefix: None, lid: lid(5), hop_limit: 255 },
    ];
    for (dgid, router, hop_limit) in
        [("fec0:0:22:2::beef:1", 4, 2), ("fec0:0:33:3::beef:1", 5, 255)]
    {
        let answer = fields(&ask(&mut sa, path("fec0:0:1:1::10:9", dgid)));
        assert_eq!((answer.dlid, answer.slid), (lid(router), lid(7)));
        assert_eq!((answer.dgid, answer.hop_limit), (gid(dgid), hop_limit));
    }
}

#[test]
fn partition_is_shared_and_has_a_full_member() {
    let pkeys = |sa: &mut StandIn, here: &[u16], there: &[u16]| {
        sa.subnet_mut().ports.insert(Guid::new(0x10_0009), port(7, here));
        sa.subnet_mut().ports.insert(Guid::new(0x10_0001), port(1, there));
    };
    let wanting = |pkey| PathQuestion { pkey: PKey::new(pkey), ..path(HERE, THERE) };
    let mut sa = stand_in();
    let no_records = Answer::Refused(Refusal::NO_RECORDS);

    pkeys(&mut sa, &[0xffff, 0x8001], &[0x7fff, 0x8001]);
    assert_eq!(fields(&ask(&mut sa, wanting(0x8001))).pkey.get(), 0x8001);
    assert_eq!(fields(&ask(&mut sa, path(HERE, THERE))).pkey.get(), 0xffff);
    assert_eq!(ask(&mut sa, wanting(0x8002)), no_records);
    pkeys(&mut sa, &[0x7fff], &[0x7fff]);
    assert_eq!(ask(&mut sa, path(HERE, THERE)), no_records);
}

#[test]
fn service_level_of_a_service_needs_quality_of_service() {
    let mut sa = stand_in();
    let service = ServiceId::new(0x1234);
    sa.subnet_mut().service_levels.insert(service, Sl::new(3).unwrap());
    let question = PathQuestion { service_id: Some(service), ..path(HERE, THERE) };
    assert_eq!(fields(&ask(&mut sa, question)).sl, Sl::default());
    sa.behaviour_mut().has_qos = true;
    assert_eq!(fields(&ask(&mut sa, question)).sl.get(), 3);

    let tid = Tid::new(2);
    let request = Request { tid, question: Question::ClassPortInfo };
    sa.handle_input(NOW, CLIENT, lid(1), request.emit().as_ref());
    let answered = answers(&mut sa);
    let [Response { answer: Answer::ClassPortInfo(info), .. }] = &answered[..] else {
        panic!("{answered:?}")
    };
    assert!(info.has_qos);
}

#[test]
fn misbehaviour_hits_the_configured_number_of_questions() {
    let mut sa = stand_in();
    let ask_all = |sa: &mut StandIn| {
        for tid in 0..4 {
            sa.handle_input(NOW, CLIENT, lid(1), request(tid, path(HERE, THERE)).as_ref());
        }
        answers(sa).iter().map(|answer| (answer.tid.get(), answer.answer)).collect::<Vec<_>>()
    };
    let path = ask(&mut sa, path(HERE, THERE));
    let [busy, redirect] = [Refusal::BUSY, Refusal::REDIRECT].map(Answer::Refused);

    sa.behaviour_mut().busy = 2;
    assert_eq!(ask_all(&mut sa), [(0, busy), (1, busy), (2, path), (3, path)]);
    sa.behaviour_mut().redirect = 1;
    assert_eq!(ask_all(&mut sa), [(0, redirect), (1, path), (2, path), (3, path)]);
    sa.behaviour_mut().lose = 3;
    assert_eq!(ask_all(&mut sa), [(3, path)]);
    sa.behaviour_mut().wrong_tid = 1;
    assert_eq!(ask_all(&mut sa), [(1, path), (1, path), (2, path), (3, path)]);
    sa.behaviour_mut().repeat = 1;
    assert_eq!(ask_all(&mut sa), [(0, path), (0, path), (1, path), (2, path), (3, path)]);
    sa.behaviour_mut().silent = true;
    assert_eq!(ask_all(&mut sa), []);
    sa.behaviour_mut().silent = false;
    assert_eq!(ask_all(&mut sa).len(), 4);
}

#[test]
fn answers_are_delayed_as_configured() {
    let mut sa = stand_in();
    sa.behaviour_mut().delay = Duration::from_millis(300);
    sa.handle_input(NOW, CLIENT, lid(1), request(1, path(HERE, THERE)).as_ref());
    let due = NOW + Duration::from_millis(300);
    assert!(sa.poll_transmit().is_none());
    assert_eq!(sa.poll_timeout(), Some(due));
    sa.handle_timeout(due);
    assert!(sa.poll_transmit().is_some());
    assert_eq!(sa.poll_timeout(), None);
}

#[test]
fn after_a_takeover_only_the_new_lid_answers() {
    let mut sa = stand_in();
    sa.behaviour_mut().delay = Duration::from_millis(1);
    let question = request(1, path(HERE, THERE));
    sa.handle_input(NOW, CLIENT, lid(1), question.as_ref());
    sa.move_to(Some(lid(6)));
    sa.handle_input(NOW, CLIENT, lid(1), question.as_ref());
    sa.handle_input(NOW, CLIENT, lid(6), question.as_ref());
    sa.handle_timeout(NOW + Duration::from_secs(1));
    let replies: Vec<_> = std::iter::from_fn(|| sa.poll_transmit()).collect();
    let [reply] = &replies[..] else { panic!("{} answers", replies.len()) };
    assert_eq!(reply.from, lid(6));
    assert_eq!((sa.counts().misdirected, sa.counts().unanswered), (1, 1));
}

#[test]
fn malformed_question_is_counted_and_not_answered() {
    let mut sa = stand_in();
    let question = request(1, path(HERE, THERE));
    sa.handle_input(NOW, CLIENT, lid(1), &question.as_ref()[..40]);
    sa.handle_input(NOW, CLIENT, lid(1), &[]);
    sa.handle_input(NOW, CLIENT, lid(1), &[0xff; 256]);
    assert!(sa.poll_transmit().is_none());
    assert_eq!((sa.counts().asked, sa.counts().malformed), (3, 3));
}

#[test]
fn pending_answers_are_bounded() {
    let mut sa = stand_in();
    sa.behaviour_mut().delay = Duration::from_secs(1);
    let too_many = ibarr_sim::sa::MAX_PENDING as u64 + 5;
    for tid in 0..too_many {
        sa.handle_input(NOW, CLIENT, lid(1), request(tid, path(HERE, THERE)).as_ref());
    }
    sa.handle_timeout(NOW + Duration::from_secs(1));
    assert_eq!(answers(&mut sa).len(), ibarr_sim::sa::MAX_PENDING);
    assert_eq!(sa.counts().unanswered, 5);
}

/// Parses hexadecimal, without white space and comments.
fn golden(text: &str) -> Vec<u8> {
    let digits: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| line.chars().filter(char::is_ascii_hexdigit))
        .collect();
    let pairs = (0..digits.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}
