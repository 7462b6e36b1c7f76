// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The client as a whole; the test plays its driver. Long because it is the table of the client's
//! behaviour; each case stands alone.

mod candidates;
mod mirror;
mod on_link;
mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU16, NonZeroUsize};

use ibarr_common::ib::{Gid, SubnetPrefix};
use ibarr_common::wire::ip2gid::PORT;
use proptest::prelude::*;

use self::rig::{Rig, gid, ib0, ms, peer, question, secs, via};
use super::super::Family;
use super::*;
use crate::request::{Caller, Freshness, ResolutionId, UserRequest};

#[test]
fn question_goes_from_route_to_socket_to_wire_to_answer() {
    let mut rig = Rig::new(Settings::default());
    rig.answer_routes = false;
    let id = rig.resolve(5);
    assert_eq!(rig.routes_asked, [question(5).into()]);
    assert_eq!((rig.sent.len(), rig.open.len()), (0, 0), "nothing opens before there is a route");
    rig.route(5, Some(via(254)));
    assert_eq!(rig.open.len(), 32);
    let transmit = rig.sent[0].1.clone();
    assert_eq!(transmit.to, "10.2.0.5:4791".parse().unwrap());
    assert_eq!(transmit.egress, None);
    let query = Query::parse(transmit.payload.as_ref()).unwrap();
    assert_eq!((query.version(), query.target()), (Version::V1, question(5).target()));
    assert_eq!(rig.answers, BTreeMap::new());
    rig.reply(0, Some(gid(5)));
    let (answered_at, outcome) = rig.answers[&id];
    let found = Outcome::Found { gid: gid(5), source: Source::Peer };
    assert_eq!((answered_at, outcome), (rig.now, found));
    assert_eq!(rig.client.lookup(rig.now, question(5)).unwrap().expires_at, rig.now + secs(60));
    assert_eq!(rig.client.load(), Load { hops: 1, cached: 1, ..Load::default() });
}

#[test]
fn restored_answers_are_listed_until_they_expire_but_asked_for() {
    let mut first = Rig::new(Settings::default());
    first.resolve(5);
    first.reply(0, Some(gid(5)));
    let Some(Learned::Known { question: of, gid: learned, expires_at, source }) =
        first.client.poll_learned()
    else {
        panic!("nothing told")
    };
    assert_eq!((of, learned, source), (question(5), gid(5), Some(question(5).target())));
    assert_eq!(first.client.poll_learned(), None);

    let mut second = Rig::new(Settings::default());
    let now = second.now;
    let answer = |expires_at| Cached { gid: Some(learned), heard_at: None, expires_at };
    let latest = now + Settings::default().cache_ttl;
    // Answers that have expired, that are valid for too long, or that are negative.
    assert!(!second.client.restore(now, question(6), answer(now)));
    assert!(!second.client.restore(now, question(6), answer(latest + ms(1))));
    assert!(!second.client.restore(now, question(6), Cached { gid: None, ..answer(latest) }));
    assert!(second.client.restore(now, question(6), answer(latest)));
    assert!(second.client.restore(now, of, answer(expires_at)));
    let counters = second.client.counters();
    assert_eq!((counters.get(Counter::Restored), counters.get(Counter::NotRestored)), (2, 3));
    assert_eq!(second.client.lookup(now, of), Some(answer(expires_at)));
    assert_eq!(second.client.poll_learned(), None);
    let id = second.resolve(5);
    assert_eq!((second.answers.get(&id), second.count(Counter::Older)), (None, 1));
    second.reply(0, Some(gid(7)));
    assert_eq!(second.found(id), Some((gid(7), Source::Peer)));
}

#[test]
fn request_is_counted_once_whether_it_asks_or_only_recalls() {
    let mut rig = Rig::new(Settings::default());
    let id = RequestId::User(UserRequest::Acm(ResolutionId(7)));
    let request = Request { id, ..rig.of_user(question(5)) };
    rig.client.handle_input(rig.now, Input::Recall(request));
    assert_eq!(rig.client.poll_event(), Some(Event::NotRemembered(request)));
    rig.resolve(5);
    rig.reply(0, Some(gid(5)));
    rig.input(Input::Recall(request));
    assert_eq!(rig.found(id), Some((gid(5), Source::Cache)));
    let counted = [Counter::Requests, Counter::Found, Counter::CacheHits];
    assert_eq!(counted.map(|counter| rig.count(counter)), [2, 2, 1]);
}

#[test]
fn egress_is_set_only_for_scoped_questions() {
    let mut rig = Rig::new(Settings::default());
    let cases = [
        ("10.2.0.5", None, None),
        ("10.2.0.5", ib0(), ib0()),
        ("fd00:2::5", None, None),
        ("fe80::5", ib0(), ib0()),
        ("fe80::6", None, ib0()),
    ];
    for (target, egress, expected) in cases {
        rig.ask(Question::new(target.parse().unwrap(), egress).unwrap());
        let (_, transmit) = rig.sent.last().unwrap();
        assert_eq!((transmit.to.ip(), transmit.egress), (target.parse().unwrap(), expected));
        assert_eq!(transmit.socket.family(), Family::of(transmit.to.ip()));
        rig.reply(rig.sent.len() - 1, None);
    }
}

#[test]
fn unanswered_query_is_resent_on_schedule_until_its_deadline() {
    let mut rig = Rig::new(Settings::default());
    let start = rig.now;
    let id = rig.resolve(5);
    rig.run(secs(10));
    let times: Vec<_> = rig.sent.iter().map(|(at, _)| at.since(start).as_millis()).collect();
    assert_eq!(times.len(), 7);
    for (time, expected) in times.into_iter().zip([0, 20, 60, 180, 500, 1200, 2200]) {
        assert!(time.abs_diff(expected) <= expected / 10, "{time} for {expected}");
    }
    assert_eq!(rig.answers[&id], (start + secs(3), Outcome::TimedOut));
    assert_eq!(rig.client.load(), Load::default());
    let payloads: BTreeSet<_> = rig.sent.iter().map(|(_, t)| t.payload.as_ref().to_vec()).collect();
    assert_eq!(payloads.len(), 1, "resends do not change the query");
    let sockets: BTreeSet<_> = rig.sent.iter().map(|(_, transmit)| transmit.socket).collect();
    assert!(sockets.len() > 1, "each resend chooses a socket");
}

#[test]
fn reply_counts_only_on_sockets_that_sent_its_query() {
    let mut rig = Rig::new(Settings::default());
    let id = rig.resolve(5);
    rig.run(ms(100));
    let used: BTreeSet<_> = rig.sent.iter().map(|(_, transmit)| transmit.socket).collect();
    let other = *rig.open.difference(&used).next().unwrap();
    rig.deliver(other, peer(5), ib0(), rig.reply_to(0, Some(gid(5))).as_ref());
    assert_eq!(rig.count(Counter::WrongSocket), 1);
    assert_eq!(rig.answers.get(&id), None);
    rig.reply(0, Some(gid(5)));
    assert!(rig.answers.contains_key(&id), "the first socket still counts after resends");
}

#[test]
fn refusal_ends_what_users_ask_and_slows_what_the_kernel_asks() {
    let mut rig = Rig::new(Settings::default());
    let start = rig.now;
    let kernel = rig.ask_for(question(5), secs(30));
    let user = rig.ask_as_user(question(5));
    rig.refuse(0);
    assert_eq!(rig.answers, BTreeMap::from([(user, (start, Outcome::Refused))]));
    assert_eq!((rig.count(Counter::Refusals), rig.count(Counter::Refused)), (1, 1));
    rig.run(ms(2500));
    let pauses: Vec<_> = rig.sent.windows(2).map(|pair| pair[1].0.since(pair[0].0)).collect();
    assert_eq!(pauses.len(), 2);
    assert!(pauses.iter().all(|pause| (ms(1000)..=ms(1100)).contains(pause)), "{pauses:?}");
    // The peer's daemon runs again.
    rig.reply(2, Some(gid(5)));
    assert!(matches!(rig.answers[&kernel], (_, Outcome::Found { source: Source::Peer, .. })));
    assert_ends_add_up(&rig.client);
}

#[test]
fn refusal_is_not_remembered_for_the_next_request() {
    let mut rig = Rig::new(Settings::default());
    for number in 0..3 {
        let user = rig.ask_as_user(question(5));
        rig.refuse(number);
        assert_eq!(rig.answers[&user], (rig.now, Outcome::Refused));
        assert_eq!(rig.client.load(), Load::default());
    }
    let user = rig.ask_as_user(question(5));
    rig.reply(3, Some(gid(5)));
    assert!(matches!(rig.answers[&user].1, Outcome::Found { .. }));
}

#[test]
fn refusal_that_quotes_no_query_of_ours_is_counted_and_ignored() {
    let mut rig = Rig::new(Settings::default());
    let user = rig.ask_as_user(question(5));
    let Transmit { socket, to, ref payload, .. } = rig.sent[0].1;
    let quote = payload.as_ref().to_vec();
    let other = *rig.open.iter().find(|&&open| open != socket).unwrap();
    let wrong_port = SocketAddr::new(to.ip(), PORT + 1);
    let unasked: [(SocketId, SocketAddr, &[u8]); 7] = [
        (SocketId::closed_for_tests(), to, &quote),
        (other, to, &quote),
        (socket, peer(6), &quote),
        (socket, wrong_port, &quote),
        (socket, to, &[]),
        // As much as RFC 792 requires, and the msg_id of another question.
        (socket, to, &quote[..8]),
        (socket, to, &with(&quote, 4, quote[4] ^ 1)),
    ];
    for (socket, to, quoted) in unasked {
        rig.input(Input::Refused { socket, to, quoted });
    }
    assert_eq!((rig.count(Counter::RefusalsUnasked), rig.count(Counter::Refusals)), (7, 0));
    assert_eq!(rig.answers, BTreeMap::new());
    rig.run(ms(30));
    assert_eq!(rig.sent.len(), 2, "the schedule is as before");
    rig.refuse(1);
    assert_eq!(rig.answers[&user].1, Outcome::Refused);
    rig.refuse(0);
    assert_eq!(rig.count(Counter::RefusalsUnasked), 8, "of a question that has ended");
}

#[test]
fn each_wrong_datagram_is_dropped_and_counted_by_reason() {
    let mut rig = Rig::new(Settings { source_check: SourceCheck::Strict, ..Settings::default() });
    let id = rig.resolve(5);
    let (socket, good) = (rig.sent[0].1.socket, rig.reply_to(0, Some(gid(5))));
    let good = good.as_ref();
    let closed = SocketId::closed_for_tests();
    let mut forged = good.to_vec();
    forged[4] ^= 1;
    let other_port = SocketAddr::new(peer(5).ip(), PORT - 1);
    let eth0 = IfIndex::new(9);
    let steps = [
        (Counter::ClosedSocket, closed, peer(5), ib0(), good),
        (Counter::SourcePort, socket, other_port, ib0(), good),
        (Counter::Unasked, socket, peer(5), ib0(), &forged),
        (Counter::SourceAddress, socket, peer(6), ib0(), good),
        (Counter::WrongIngress, socket, peer(5), eth0, good),
        (Counter::MalformedTruncated, socket, peer(5), ib0(), &good[..31]),
        (Counter::MalformedTrailingBytes, socket, peer(5), ib0(), &[good, &[0]].concat()),
        (Counter::MalformedVersion, socket, peer(5), ib0(), &[&[2], &good[1..]].concat()),
        (
            Counter::MalformedTlvCount,
            socket,
            peer(5),
            ib0(),
            &[&with(good, 9, 2), &good[12..]].concat(),
        ),
        (Counter::MalformedTlvType, socket, peer(5), ib0(), &with(good, 13, 2)),
        (Counter::MalformedTlvLength, socket, peer(5), ib0(), &with(good, 15, 21)),
        (Counter::MalformedGid, socket, peer(5), ib0(), &[&good[..16], &[0; 16]].concat()),
    ];
    for (counter, socket, from, ingress, payload) in steps {
        let before = rig.client.counters().clone();
        rig.deliver(socket, from, ingress, payload);
        let changed: Vec<_> = rig
            .client
            .counters()
            .iter()
            .filter(|&(counter, count)| before.get(counter) != count)
            .collect();
        assert_eq!(changed, [(counter, 1)]);
    }
    assert_eq!(rig.answers.get(&id), None);
    rig.deliver(socket, peer(5), ib0(), good);
    assert!(rig.answers.contains_key(&id));
    rig.deliver(socket, peer(5), ib0(), good);
    assert_eq!(rig.count(Counter::Unasked), 2, "a repeated reply matches no query");
}

#[test]
fn reply_before_its_query_was_sent_is_ignored() {
    let mut rig = Rig::new(Settings { sockets: 1, ..Settings::default() });
    rig.resolve(5);
    rig.reply(0, Some(gid(5)));
    rig.writable = false;
    rig.resolve(6);
    let id = rig.client.flights.of_question(question(6)).unwrap();
    let msg_id = rig.client.flights.flight(id).unwrap().msg_id;
    let reply = Reply { version: Version::V1, msg_id, gid: Some(gid(6)) }.emit();
    rig.deliver(rig.sent[0].1.socket, peer(6), ib0(), reply.as_ref());
    assert_eq!(rig.count(Counter::WrongSocket), 1);
}

#[test]
fn requests_for_one_question_share_one_flight() {
    let mut rig = Rig::new(Settings::default());
    let ids: Vec<_> = (0..10).map(|_| rig.resolve(5)).collect();
    assert_eq!((rig.sent.len(), rig.client.load().flights), (1, 1));
    assert_eq!(rig.count(Counter::Joined), 9);
    rig.reply(0, Some(gid(5)));
    assert_eq!(rig.answers.keys().copied().collect::<Vec<_>>(), ids);
}

#[test]
fn another_egress_is_another_question() {
    let mut rig = Rig::new(Settings::default());
    rig.ask(question(5));
    rig.ask(Question::new(question(5).target(), IfIndex::new(4)).unwrap());
    assert_eq!(rig.client.load().flights, 2);
}

#[test]
fn each_request_has_its_own_deadline_and_starts_a_round_if_late() {
    let mut rig = Rig::new(Settings::default());
    let start = rig.now;
    let first = rig.resolve(5);
    rig.run(ms(2900));
    let second = rig.resolve(5);
    assert_eq!(rig.sent.len(), 7);
    rig.run(ms(100));
    assert_eq!(rig.answers[&first], (start + secs(3), Outcome::TimedOut));
    assert_eq!(rig.sent.len(), 8, "asked again for the second");
    assert_ne!(rig.msg_id(7), rig.msg_id(6), "with a msg_id of its own");
    assert_eq!(rig.routes_asked.len(), 2, "and a route of its own");
    rig.reply(6, Some(gid(5)));
    assert_eq!(rig.count(Counter::Unasked), 1, "the first round is over");
    rig.run(ms(2800));
    assert_eq!(rig.answers.get(&second), None);
    rig.run(ms(100));
    assert_eq!(rig.answers[&second], (start + ms(5900), Outcome::TimedOut));
    assert_eq!(rig.client.load(), Load::default());
}

#[test]
fn query_is_resent_once_a_second_while_a_caller_waits() {
    let mut rig = Rig::new(Settings::default());
    let start = rig.now;
    let (short, long) = (rig.ask_for(question(5), secs(2)), rig.ask_for(question(5), secs(30)));
    rig.run(secs(40));
    assert_eq!(rig.answers[&short], (start + secs(2), Outcome::TimedOut));
    assert_eq!(rig.answers[&long], (start + secs(30), Outcome::TimedOut));
    // The second request came during the first round: the next round is not slow.
    let late: Vec<_> =
        rig.sent.iter().map(|&(at, _)| at.since(start)).filter(|t| *t > secs(6)).collect();
    assert!((23..=27).contains(&late.len()), "{late:?}");
    for pair in late.windows(2) {
        let pause = pair[1].saturating_sub(pair[0]);
        assert!((ms(500)..=ms(1101)).contains(&pause), "{late:?}");
    }
    assert_eq!(rig.client.load(), Load::default());
}

#[test]
fn peer_that_is_late_is_heard_in_every_round() {
    for silent in [4, 9, 28] {
        let mut rig = Rig::new(Settings::default());
        let id = rig.ask_for(question(5), secs(30));
        rig.run(secs(silent));
        let before = rig.sent.len();
        rig.run(ms(1101));
        assert!(rig.sent.len() > before, "asked within a second of {silent} s");
        rig.reply(before, Some(gid(5)));
        assert!(matches!(rig.answers[&id].1, Outcome::Found { .. }), "{silent}");
    }
}

#[test]
fn distant_gateway_is_resent_to_only_after_its_round_trip() {
    // Number of queries for successive questions to a gateway 100 ms away.
    let queries = |sockets| {
        let mut rig = Rig::new(Settings { sockets, ..Settings::default() });
        (0..50)
            .map(|n| {
                let first = rig.sent.len();
                rig.resolve(n);
                rig.run(ms(100));
                rig.reply(first, Some(gid(n)));
                rig.run(ms(1));
                rig.sent.len() - first
            })
            .collect::<Vec<_>>()
    };
    // The socket of the reply shows which of the queries it answers.
    let measured = queries(32);
    assert!(measured[2..].iter().all(|&queries| queries == 1), "{measured:?}");
    // With one socket it does not, and the time-out doubles until one query suffices.
    let backed_off = queries(1);
    assert!(backed_off[6..].iter().all(|&queries| queries == 1), "{backed_off:?}");
}

#[test]
fn caller_that_joins_a_slow_round_gets_a_quick_one_next() {
    let mut rig = Rig::new(Settings::default());
    rig.ask_for(question(5), secs(30));
    rig.run(secs(10));
    rig.resolve(5);
    let before = rig.sent.len();
    rig.run(secs(3));
    let sends = rig.sent.len() - before;
    assert!(sends > 4, "{sends}");
}

#[test]
fn full_flights_make_room_for_a_newer_question_after_a_second() {
    let max_flights = NonZeroUsize::new(2).unwrap();
    let mut rig = Rig::new(Settings { max_flights, ..Settings::default() });
    let first = rig.ask_for(question(1), secs(30));
    rig.run(ms(10));
    let second = rig.ask_for(question(2), secs(30));
    let asked_at = rig.now;
    rig.run(ms(900));
    let refused = rig.ask_for(question(3), secs(30));
    assert_eq!(rig.answers[&refused].1, Outcome::Overloaded, "they have not had their chance");
    rig.run(ms(100));
    rig.ask_for(question(4), secs(30));
    assert_eq!(rig.answers[&first], (rig.now, Outcome::Overloaded));
    assert_eq!(rig.answers.get(&second), None, "it came later");
    // The flights that gave way do not displace later ones.
    rig.run(secs(4));
    let deadline = asked_at + secs(30);
    let again = RequestId::User(UserRequest::Control(90));
    let early = Instant::BOOT + secs(1000);
    let (question, asked_at) = (question(1), early);
    let (id, caller, freshness) = (again, Caller::Kernel, Freshness::Any);
    rig.put(Request { id, caller, question, asked_at, deadline, freshness });
    assert_eq!(rig.answers[&again].1, Outcome::Overloaded);
    assert_eq!(rig.count(Counter::GaveWay), 1);
    rig.run(secs(30));
    assert_ends_add_up(&rig.client);
}

#[test]
fn cancelled_request_is_not_answered_and_the_last_one_ends_the_flight() {
    let mut rig = Rig::new(Settings::default());
    let (first, second) = (rig.resolve(5), rig.resolve(5));
    rig.input(Input::Cancel { id: first });
    rig.input(Input::Cancel { id: first });
    assert_eq!(rig.client.load().waiters, 1);
    rig.input(Input::Cancel { id: second });
    assert_eq!(rig.client.load(), Load::default());
    rig.run(secs(10));
    assert_eq!((rig.answers.len(), rig.sent.len()), (0, 1));
    assert_eq!(rig.count(Counter::Cancelled), 2);
}

#[test]
fn request_without_a_route_fails_at_once_and_sends_nothing() {
    let mut rig = Rig::new(Settings::default());
    rig.answer_routes = false;
    let (first, second) = (rig.resolve(5), rig.resolve(5));
    rig.route(5, None);
    assert_eq!(rig.answers[&first], (rig.now, Outcome::Unreachable));
    assert_eq!(rig.answers[&second], (rig.now, Outcome::Unreachable));
    assert_eq!((rig.sent.len(), rig.client.load()), (0, Load::default()));
    rig.route(5, None);
    assert_eq!(rig.count(Counter::UnaskedRoute), 1);
}

#[test]
fn request_without_a_route_answer_ends_at_its_deadline() {
    let mut rig = Rig::new(Settings::default());
    rig.answer_routes = false;
    let id = rig.resolve(5);
    rig.run(secs(10));
    assert_eq!(rig.answers[&id].1, Outcome::TimedOut);
    assert_eq!(rig.client.load(), Load::default());
}

#[test]
fn query_waits_for_a_socket_and_leaves_when_there_is_one() {
    let mut rig = Rig::new(Settings::default());
    rig.can_open = false;
    let id = rig.resolve(5);
    rig.run(ms(999));
    assert_eq!(rig.sent.len(), 0);
    rig.can_open = true;
    rig.run(ms(1));
    assert_eq!(rig.sent.len(), 1);
    rig.reply(0, Some(gid(5)));
    assert!(rig.answers.contains_key(&id));
    assert_eq!(rig.count(Counter::SocketsFailed), 32);
}

#[test]
fn family_without_sockets_does_not_hold_up_the_other() {
    let mut rig = Rig::new(Settings::default());
    rig.answer_routes = false;
    rig.can_open = false;
    let v6 = Question::new("fd00:2::5".parse().unwrap(), None).unwrap();
    rig.ask(v6);
    rig.input(Input::Route { candidate: v6.into(), route: Some(via(253)) });
    rig.can_open = true;
    rig.resolve(5);
    rig.route(5, Some(via(254)));
    assert_eq!(rig.sent.len(), 1);
    assert_eq!(rig.sent[0].1.to, peer(5));
}

#[test]
fn blocked_socket_holds_at_most_one_datagram_per_question() {
    let mut rig = Rig::new(Settings::default());
    rig.writable = false;
    rig.resolve(5);
    rig.run(secs(2));
    rig.writable = true;
    rig.client.handle_timeout(rig.now);
    rig.drain();
    assert_eq!(rig.sent.len(), 1);
    rig.run(ms(100));
    assert_eq!(rig.sent.len(), 3, "and the resends count from when it left");
}

#[test]
fn cancelled_unsent_question_delays_no_other() {
    let mut rig = Rig::new(Settings::default());
    rig.writable = false;
    let id = rig.resolve(5);
    rig.input(Input::Cancel { id });
    rig.writable = true;
    rig.run(ms(20));
    rig.resolve(6);
    assert_eq!(rig.sent.iter().map(|(_, transmit)| transmit.to).collect::<Vec<_>>(), [peer(6)]);
}

#[test]
fn queries_lost_before_the_path_existed_are_resent_once_it_does() {
    let mut rig = Rig::new(Settings::default());
    rig.resolve(1);
    rig.resolve(2);
    rig.run(ms(300));
    let before = rig.sent.len();
    // The third resend of each has been sent, the fourth is due at 500 ms.
    rig.reply(0, Some(gid(1)));
    rig.run(ms(1));
    assert_eq!(rig.sent.len(), before + 1);
    assert_eq!(rig.sent[before].1.to, peer(2));
    rig.run(ms(70));
    assert_eq!(rig.sent.len(), before + 3, "and by the schedule from there");
}

#[test]
fn query_uses_a_bounded_number_of_sockets_per_round() {
    let mut rig = Rig::new(Settings { sockets: 64, ..Settings::default() });
    rig.resolve(1);
    rig.resolve(2);
    rig.run(ms(1500));
    rig.reply(0, Some(gid(1)));
    rig.run(ms(1400));
    let sends = rig.sent.iter().filter(|(_, transmit)| transmit.to == peer(2)).count();
    assert_eq!(sends, 12);
    let id = rig.client.flights.of_question(question(2)).unwrap();
    assert!(rig.client.flights.flight(id).unwrap().sends.len() <= 12);
}

#[test]
fn one_question_probes_a_cold_gateway_and_its_answer_releases_the_rest() {
    let mut rig = Rig::new(Settings::default());
    for n in 1..=10 {
        rig.resolve(n);
    }
    assert_eq!(rig.sent.len(), 1);
    assert_eq!(rig.count(Counter::Queued), 9);
    rig.run(ms(5));
    rig.reply(0, None);
    assert_eq!(rig.sent.len(), 10);
    for n in 11..=20 {
        rig.resolve(n);
    }
    assert_eq!(rig.sent.len(), 20, "warm");
    rig.run(secs(60));
    rig.resolve(21);
    rig.resolve(22);
    assert_eq!(rig.count(Counter::Queued), 10, "silent for a minute, and cold again");
}

#[test]
fn gateways_do_not_wait_for_each_other() {
    let mut rig = Rig::new(Settings::default());
    rig.answer_routes = false;
    for n in 1..=20 {
        rig.resolve(n);
        rig.route(n, Some(via(n)));
    }
    assert_eq!(rig.sent.len(), 20);
}

#[test]
fn negative_answer_is_kept_for_its_ttl_and_not_refreshed() {
    let mut rig = Rig::new(Settings::default());
    let id = rig.resolve(5);
    rig.reply(0, None);
    assert_eq!(rig.answers[&id].1, Outcome::NotFound);
    rig.run(ms(999));
    let id = rig.resolve(5);
    assert_eq!(rig.answers[&id].1, Outcome::NotFound);
    assert_eq!(rig.sent.len(), 1);
    rig.run(ms(1));
    rig.resolve(5);
    assert_eq!(rig.sent.len(), 2);
}

#[test]
fn negative_answer_with_zero_ttl_only_removes_the_gid() {
    let mut rig = Rig::new(Settings { negative_ttl: Duration::ZERO, ..Settings::default() });
    rig.resolve(5);
    rig.reply(0, Some(gid(5)));
    rig.run(ms(500));
    rig.resolve(5);
    rig.reply(1, None);
    assert_eq!(rig.client.load().cached, 0);
    rig.resolve(5);
    assert_eq!(rig.sent.len(), 3);
}

#[test]
fn lookup_never_uses_the_network() {
    let mut rig = Rig::new(Settings::default());
    assert_eq!(rig.client.lookup(rig.now, question(5)), None);
    rig.drain();
    assert_eq!((rig.routes_asked.len(), rig.sent.len()), (0, 0));
    rig.resolve(5);
    rig.reply(0, Some(gid(5)));
    rig.run(secs(59));
    let cached = rig.client.lookup(rig.now, question(5)).unwrap();
    assert_eq!(cached.gid, Some(gid(5)));
    assert_eq!(rig.client.entries().collect::<Vec<_>>(), [(question(5), cached)]);
    rig.drain();
    assert_eq!((rig.routes_asked.len(), rig.sent.len()), (1, 1));
}

#[test]
fn caller_that_asks_every_300_ms_never_waits() {
    let mut rig = Rig::new(Settings::default());
    rig.resolve(5);
    rig.reply(0, Some(gid(5)));
    let mut gids = BTreeSet::new();
    for n in 0..200 {
        rig.run(ms(300));
        let id = rig.resolve(5);
        let (found, source) = rig.found(id).unwrap();
        assert_eq!((source, rig.count(Counter::Older)), (Source::Cache, 0));
        gids.insert(found);
        // The peer is asked behind the answer; in the middle of the time the address moves.
        let asked = rig.sent.last().unwrap().0 == rig.now;
        assert_eq!(asked, n % 2 == 1, "{n}");
        if asked {
            rig.reply(rig.sent.len() - 1, Some(gid(if n < 100 { 5 } else { 6 })));
        }
    }
    assert_eq!((gids, rig.count(Counter::Refreshes)), ([5, 6].map(gid).into(), 100));
    let id = rig.resolve(5);
    assert_eq!(rig.found(id), Some((gid(6), Source::Cache)));
}

#[test]
fn answer_is_given_for_less_than_fresh_for() {
    for fresh_for in [ms(0), ms(1), ms(1000), ms(5000)] {
        let mut rig = Rig::new(Settings { fresh_for, ..Settings::default() });
        rig.resolve(5);
        rig.reply(0, Some(gid(5)));
        if let Some(almost) = fresh_for.checked_sub(Duration::from_nanos(2)) {
            rig.run(almost);
            let id = rig.resolve(5);
            assert_eq!(rig.found(id), Some((gid(5), Source::Cache)));
            rig.run(Duration::from_nanos(2));
        }
        assert_eq!(rig.count(Counter::Older), 0);
        let id = rig.resolve(5);
        assert_eq!((rig.found(id), rig.count(Counter::Older)), (None, 1), "{fresh_for:?}");
        rig.reply(rig.sent.len() - 1, Some(gid(6)));
        assert_eq!(rig.found(id), Some((gid(6), Source::Peer)));
    }
}

/// The address may have moved, so no request gets the old GID, however long it waits.
#[test]
fn silence_never_yields_the_remembered_gid() {
    let mut rig = Rig::new(Settings::default());
    rig.resolve(5);
    rig.reply(0, Some(gid(5)));
    rig.run(ms(1000));
    let (begun, sent) = (rig.now, rig.sent.len());
    let ids = [rig.ask_for(question(5), secs(10)), rig.ask_as_user(question(5))];
    rig.run(secs(9));
    assert!(rig.client.lookup(rig.now, question(5)).is_some(), "it is remembered");
    let times: Vec<_> =
        rig.sent[sent..].iter().map(|(at, _)| at.since(begun).as_millis()).collect();
    for (time, expected) in times.iter().zip([0, 20, 60, 180, 500, 1200, 2200]) {
        assert!(time.abs_diff(expected) <= expected / 10, "{times:?}: the normal schedule");
    }
    rig.run(secs(9));
    assert_eq!(ids.map(|id| rig.answers[&id].1), [Outcome::TimedOut; 2]);
}

#[test]
fn refusal_yields_the_remembered_gid_until_it_expires() {
    let mut rig = Rig::new(Settings::default());
    rig.resolve(5);
    rig.reply(0, Some(gid(5)));
    let expires_at = rig.now + secs(60);
    rig.run(ms(1000));
    while rig.now < expires_at {
        let sent = rig.sent.len();
        let (kernel, user) = (rig.ask_for(question(5), secs(30)), rig.ask_as_user(question(5)));
        let fresh = rig.ask_fresh(question(5));
        assert_eq!((rig.sent.len(), rig.found(kernel)), (sent + 1, None), "each question asks");
        rig.refuse(sent);
        assert_eq!([kernel, user].map(|id| rig.found(id)), [Some((gid(5), Source::Cache)); 2]);
        assert_eq!(rig.answers[&fresh].1, Outcome::Refused, "it wants the peer's own word");
        // The same report again answers nothing.
        let before = rig.answers.len();
        rig.refuse(sent);
        assert_eq!((rig.answers.len(), rig.client.load().flights), (before, 0));
        rig.run(ms(700));
    }
    assert_eq!(rig.count(Counter::Refusals), rig.count(Counter::RefusalsUnasked));
    let (kernel, user) = (rig.ask_for(question(5), secs(2)), rig.ask_as_user(question(5)));
    rig.refuse(rig.sent.len() - 1);
    assert_eq!((rig.found(kernel), rig.answers[&user].1), (None, Outcome::Refused));
    rig.run(secs(2));
    assert_eq!(rig.answers[&kernel].1, Outcome::TimedOut);
    assert_ends_add_up(&rig.client);
}

#[test]
fn request_that_joins_a_question_behind_is_asked_for_at_once() {
    let mut rig = Rig::new(Settings::default());
    rig.resolve(5);
    rig.reply(0, Some(gid(5)));
    rig.run(ms(900));
    rig.resolve(5);
    rig.run(ms(700));
    let (begun, sent) = (rig.now, rig.sent.len());
    let id = rig.resolve(5);
    assert_eq!((rig.count(Counter::Joined), rig.found(id)), (1, None));
    rig.run(ms(190));
    let times: Vec<_> =
        rig.sent[sent..].iter().map(|(at, _)| at.since(begun).as_millis()).collect();
    assert_eq!(times.len(), 3, "{times:?}");
    assert_eq!(times[0], 0);
    // The query behind the answer counts, too.
    rig.reply(1, Some(gid(6)));
    assert_eq!(rig.found(id), Some((gid(6), Source::Peer)));
    assert_eq!((rig.client.refreshing, rig.client.load().flights), (0, 0));
}

#[test]
fn request_joins_the_question_behind_an_answer_that_is_now_older() {
    let mut rig = Rig::new(Settings { cache_ttl: secs(4), ..Settings::default() });
    rig.resolve(5);
    rig.reply(0, Some(gid(5)));
    rig.run(ms(500));
    rig.resolve(5);
    assert_eq!(rig.client.refreshing, 1);
    rig.run(ms(500));
    let id = rig.resolve(5);
    assert_eq!(rig.count(Counter::Joined), 1);
    rig.run(secs(3));
    assert_eq!(rig.answers[&id].1, Outcome::TimedOut);
    assert_eq!(
        (rig.client.refreshing, rig.client.load()),
        (0, Load { hops: 1, ..Load::default() })
    );
}

#[test]
fn questions_behind_answers_leave_room_for_requests() {
    let max_flights = NonZeroUsize::new(40).unwrap();
    let mut rig = Rig::new(Settings { max_flights, ..Settings::default() });
    for n in 1..=200 {
        rig.resolve(n);
        rig.reply(rig.sent.len() - 1, Some(gid(n)));
    }
    rig.run(ms(500));
    for n in 1..=200 {
        let id = rig.resolve(n);
        assert_eq!(rig.found(id), Some((gid(n), Source::Cache)));
    }
    assert_eq!(rig.client.refreshing, 10, "a quarter of 40");
    let counts = [Counter::Refreshes, Counter::RefreshesSkipped].map(|counter| rig.count(counter));
    assert_eq!(counts, [10, 190]);
    let id = rig.resolve(201);
    rig.reply(rig.sent.len() - 1, Some(gid(201)));
    assert!(rig.answers.contains_key(&id));
    rig.run(secs(20));
    assert_eq!((rig.client.refreshing, rig.client.load().flights), (0, 0));
}

#[test]
fn full_tables_refuse_at_once_and_count_by_name() {
    let at_most = |n| NonZeroUsize::new(n).unwrap();
    let settings = Settings {
        max_flights: at_most(3),
        max_waiters_per_flight: at_most(2),
        max_waiters: at_most(5),
        ..Settings::default()
    };
    let mut rig = Rig::new(settings);
    let waiting: Vec<_> = [1, 1, 2, 2, 3].map(|n| rig.resolve(n)).into();
    let cases = [(1, Counter::WaitersFull), (4, Counter::FlightsFull)];
    for (n, counter) in cases {
        let id = rig.resolve(n);
        assert_eq!(rig.answers[&id], (rig.now, Outcome::Overloaded));
        assert_eq!(rig.count(counter), 1, "{counter}");
    }
    rig.input(Input::Cancel { id: waiting[4] });
    let id = rig.resolve(1);
    assert_eq!(rig.answers[&id], (rig.now, Outcome::Overloaded));
    assert_eq!(rig.count(Counter::WaitersOfFlightFull), 1);
    assert_eq!(rig.count(Counter::Overloaded), 3);
    assert_eq!(rig.client.load(), Load { flights: 2, waiters: 4, hops: 1, cached: 0 });
    rig.run(secs(3));
    assert!(waiting[..4].iter().all(|id| rig.answers[id].1 == Outcome::TimedOut));
}

#[test]
fn full_cache_evicts_and_counts() {
    let mut rig =
        Rig::new(Settings { max_cached: NonZeroUsize::new(2).unwrap(), ..Settings::default() });
    for n in 1..=3 {
        rig.resolve(n);
        rig.reply(rig.sent.len() - 1, Some(gid(n)));
        rig.run(secs(7));
    }
    assert_eq!(rig.count(Counter::CacheEvicted), 1);
    assert_eq!(rig.client.lookup(rig.now, question(1)), None);
    assert!(rig.client.lookup(rig.now, question(3)).is_some());
}

#[test]
fn pages_contain_each_answer_once_while_others_are_learned() {
    let mut rig = Rig::new(Settings::default());
    let learn = |rig: &mut Rig, n| {
        rig.resolve(n);
        rig.reply(rig.sent.len() - 1, Some(gid(n)));
    };
    (1..=7).for_each(|n| learn(&mut rig, n));
    let (mut seen, mut after, mut lens) = (Vec::new(), None, Vec::new());
    for n in 8.. {
        let (page, next) = rig.client.page(after, 2);
        lens.push(page.len());
        seen.extend(page.into_iter().map(|(question, _)| question));
        after = next;
        if after.is_none() {
            break;
        }
        if n < 12 {
            learn(&mut rig, n);
        }
    }
    assert!(lens.iter().all(|&len| len <= 2), "{lens:?}");
    for n in 1..=7 {
        assert_eq!(seen.iter().filter(|&&seen| seen == question(n)).count(), 1, "{n}");
    }
    rig.client.flush();
    assert_eq!(rig.client.page(after, 2), (Vec::new(), None));
}

#[test]
fn full_hop_table_drops_the_hop_silent_the_longest() {
    let one = NonZeroUsize::MIN;
    let settings = Settings { max_hops: one, max_flights: one, ..Settings::default() };
    let mut rig = Rig::new(settings);
    rig.answer_routes = false;
    for n in 1..=3 {
        rig.resolve(n);
        rig.route(n, Some(via(n)));
        rig.reply(rig.sent.len() - 1, Some(gid(n)));
    }
    assert_eq!(rig.count(Counter::HopsEvicted), 2);
    assert_eq!(rig.client.load().hops, 1);
}

#[test]
fn request_with_the_number_of_a_waiting_one_is_ignored() {
    let mut rig = Rig::new(Settings::default());
    let id = rig.resolve(5);
    let (question, asked_at, deadline) = (question(6), rig.now, rig.now + secs(3));
    let (caller, freshness) = (Caller::Kernel, Freshness::Any);
    rig.put(Request { id, caller, question, asked_at, deadline, freshness });
    assert_eq!(rig.count(Counter::RepeatedRequest), 1);
    assert_eq!(rig.client.load().flights, 1);
    rig.reply(0, Some(gid(5)));
    assert_eq!(rig.answers.len(), 1);
}

#[test]
fn flush_drops_the_answers_of_every_egress() {
    let mut rig = Rig::new(Settings::default());
    for (n, egress) in [(1, None), (1, IfIndex::new(4)), (2, None)] {
        rig.ask(Question::new(question(n).target(), egress).unwrap());
        rig.reply(rig.sent.len() - 1, Some(gid(n)));
    }
    assert_eq!(rig.client.flush(), 3);
    assert_eq!(rig.client.entries().count(), 0);
}

/// Peers notice the new prefix of their subnet, but not all at once.
#[test]
fn no_remembered_gid_of_a_left_subnet_is_used() {
    let mut rig = Rig::new(Settings::default());
    let [old, new, other] = ["fe80::", "fec0:0:0:7:", "fec0:0:0:8:"]
        .map(|prefix| move |n: u16| format!("{prefix}2:c903:0:{n:x}").parse::<Gid>().unwrap());
    let ask = |rig: &mut Rig, n: u16, gid: Gid| {
        let (id, sent) = (rig.resolve(n), rig.sent.len());
        if !rig.answers.contains_key(&id) {
            rig.reply(sent - 1, Some(gid));
        }
        let Outcome::Found { gid: found, source, .. } = rig.answers[&id].1 else { panic!() };
        (found, source)
    };
    // The last one is in another InfiniBand subnet.
    assert_eq!(ask(&mut rig, 1, old(1)), (old(1), Source::Peer));
    assert_eq!(ask(&mut rig, 2, old(2)), (old(2), Source::Peer));
    assert_eq!(ask(&mut rig, 3, other(3)), (other(3), Source::Peer));
    while rig.client.poll_learned().is_some() {}

    rig.renumber(old(1).subnet_prefix(), new(1).subnet_prefix());
    assert_eq!(rig.client.poll_learned(), Some(Learned::Everything));
    let listed: Vec<_> = rig.client.entries().map(|(question, _)| question).collect();
    assert_eq!(listed, [question(3)]);
    assert_eq!(rig.client.lookup(rig.now, question(1)), None);
    assert_eq!(ask(&mut rig, 1, new(1)), (new(1), Source::Peer));
    assert_eq!(ask(&mut rig, 1, new(1)), (new(1), Source::Cache));
    assert_eq!(ask(&mut rig, 3, other(3)), (other(3), Source::Cache));
    // The answer of a peer that has not noticed yet is used, and asked for again.
    for _ in 0..2 {
        assert_eq!(ask(&mut rig, 2, old(2)), (old(2), Source::Peer));
    }
    while let Some(learned) = rig.client.poll_learned() {
        assert!(
            !matches!(learned, Learned::Known { gid, .. } if gid == old(2)),
            "left for the next daemon: {learned:?}"
        );
    }
    assert_eq!(ask(&mut rig, 2, new(2)), (new(2), Source::Peer));
    assert_eq!(ask(&mut rig, 2, new(2)), (new(2), Source::Cache));
    let counts = [Counter::SubnetsLeft, Counter::Doubted].map(|counter| rig.count(counter));
    assert_eq!(counts, [1, 4]);

    // Later the prefix may belong to another subnet.
    rig.run(memory::SETTLING + ms(1));
    assert_eq!(ask(&mut rig, 4, old(4)), (old(4), Source::Peer));
    assert_eq!(ask(&mut rig, 4, old(4)), (old(4), Source::Cache));
}

#[test]
fn prefix_that_a_port_gets_back_is_used_again() {
    let mut rig = Rig::new(Settings::default());
    let (old, new) = (gid(1).subnet_prefix(), SubnetPrefix::new(0xfec0_0000_0000_0007));
    rig.resolve(1);
    rig.reply(0, Some(gid(1)));
    rig.renumber(old, new);
    assert_eq!(rig.client.lookup(rig.now, question(1)), None);
    rig.renumber(new, old);
    assert!(rig.client.lookup(rig.now, question(1)).is_some());
}

#[test]
fn too_many_left_subnets_flush_the_cache() {
    let mut rig = Rig::new(Settings::default());
    let prefix = |n| SubnetPrefix::new(0xfec0_0000_0000_0000 + n);
    rig.resolve(1);
    rig.reply(0, Some(gid(1)));
    for n in 0..=OldPrefixes::MAX as u64 {
        assert!(rig.client.lookup(rig.now, question(1)).is_some(), "{n}");
        rig.renumber(prefix(n), prefix(100 + n));
    }
    assert_eq!(rig.client.lookup(rig.now, question(1)), None);
    assert_eq!(rig.client.load().cached, 0);
}

/// Also with answers remembered for longer than is configured now, or will be.
#[test]
fn change_of_cache_ttl_ends_no_doubt_early() {
    let lives = |cache_ttl| Config::new(Settings { cache_ttl, ..Settings::default() }).unwrap();
    let ttl = Settings::default().cache_ttl;
    for (before, then, after) in [(4 * ttl, ttl, ttl), (ttl, ttl, 4 * ttl)] {
        let mut rig = Rig::new(Settings::default());
        rig.client.reconfigure(rig.now, lives(before));
        rig.resolve(1);
        rig.reply(0, Some(gid(1)));
        rig.client.reconfigure(rig.now, lives(then));
        let new = SubnetPrefix::new(0xfec0_0000_0000_0007);
        rig.renumber(gid(1).subnet_prefix(), new);
        rig.client.reconfigure(rig.now, lives(after));
        for _ in 0..2 {
            let id = rig.resolve(1);
            rig.reply(rig.sent.len() - 1, Some(gid(1)));
            assert!(matches!(rig.answers[&id].1, Outcome::Found { source: Source::Peer, .. }));
        }
    }
}

#[test]
fn new_configuration_applies_at_once_and_loses_no_request() {
    let mut rig = Rig::new(Settings::default());
    let waiting: Vec<_> = (1..=20).map(|n| rig.resolve(n)).collect();
    let small = Settings {
        udp_port: NonZeroU16::new(4000).unwrap(),
        max_flights: NonZeroUsize::MIN,
        max_hops: NonZeroUsize::MIN,
        sockets: 1,
        ..Settings::default()
    };
    rig.client.reconfigure(rig.now, Config::new(small).unwrap());
    rig.drain();
    let id = rig.resolve(30);
    assert_eq!(rig.answers[&id].1, Outcome::Overloaded);
    let before = rig.sent.len();
    rig.run(secs(3));
    assert!(waiting.iter().all(|id| rig.answers[id].1 == Outcome::TimedOut));
    assert!(rig.sent[before..].iter().all(|(_, transmit)| transmit.to.port() == 4000));
    rig.run(secs(1));
    assert_eq!(rig.open.len(), 1);
    assert_eq!(rig.client.load(), Load::default());
}

#[test]
fn early_or_repeated_timers_do_nothing() {
    let mut rig = Rig::new(Settings::default());
    rig.resolve(5);
    let due = rig.client.poll_timeout();
    for _ in 0..3 {
        rig.client.handle_timeout(rig.now);
        rig.drain();
    }
    assert_eq!((rig.client.poll_timeout(), rig.sent.len()), (due, 1));
    rig.client.handle_timeout(Instant::BOOT);
    assert_eq!(rig.client.now, rig.now, "time does not go back");
}

#[test]
fn counters_of_requests_add_up() {
    let mut rig =
        Rig::new(Settings { max_flights: NonZeroUsize::new(6).unwrap(), ..Settings::default() });
    for n in 1..=9 {
        rig.resolve(n);
        rig.resolve(n);
    }
    rig.reply(0, Some(gid(1)));
    rig.input(Input::Cancel { id: RequestId::User(UserRequest::Control(3)) });
    let (asked_at, deadline) = (rig.now, rig.now + secs(3));
    let (id, question) = (RequestId::User(UserRequest::Control(4)), question(1));
    let (caller, freshness) = (Caller::Kernel, Freshness::Any);
    rig.put(Request { id, caller, question, asked_at, deadline, freshness });
    rig.run(secs(10));
    assert_ends_add_up(&rig.client);
    assert_eq!(rig.count(Counter::Overloaded), 6);
}

proptest! {
    /// Whatever the driver and the network do, each request is answered once and in time, and no
    /// bound is exceeded.
    #[test]
    fn every_request_is_answered_once_and_in_time(
        seed: u64,
        strict: bool,
        ops in prop::collection::vec((0_u8..16, any::<u8>(), any::<u8>()), 0..300),
    ) {
        let at_most = |n| NonZeroUsize::new(n).unwrap();
        let settings = Settings {
            source_check: if strict { SourceCheck::Strict } else { SourceCheck::MsgId },
            max_flights: at_most(6),
            max_waiters_per_flight: at_most(3),
            max_waiters: at_most(10),
            max_hops: at_most(6),
            max_cached: at_most(4),
            sockets: 3,
            cache_ttl: secs(2),
            ..Settings::default()
        };
        let mut rig = Rig::seeded(settings, seed);
        rig.answer_routes = false;
        let mut cancelled = BTreeSet::new();
        let mut asked_at = BTreeMap::new();
        for (op, n, time) in ops {
            match op {
                0..=3 => {
                    let patience = if time % 4 == 0 { secs(30) } else { secs(3) };
                    let id = rig.ask_for(question(u16::from(n % 12)), patience);
                    asked_at.insert(id, (rig.now, patience));
                }
                4 => {
                    let id = RequestId::User(UserRequest::Control(u64::from(n) % (rig.requests + 1)));
                    if asked_at.contains_key(&id) && !rig.answers.contains_key(&id) {
                        cancelled.insert(id);
                    }
                    rig.input(Input::Cancel { id });
                }
                5..=7 => {
                    let route = (time % 8 != 0).then(|| via(u16::from(n % 3) + 250));
                    if let Some(candidate) = rig.routes_asked.pop() {
                        rig.input(Input::Route { candidate, route });
                    } else {
                        rig.route(u16::from(n % 12), route);
                    }
                }
                8..=10 if !rig.sent.is_empty() => {
                    let which = rig.sent.len() - 1 - usize::from(n) % rig.sent.len().min(8);
                    rig.reply(which, (time % 4 != 0).then(|| gid(n.into())));
                }
                11 if !rig.open.is_empty() => {
                    let socket = *rig.open.iter().nth(usize::from(n) % rig.open.len()).unwrap();
                    rig.deliver(socket, peer(n.into()), ib0(), &[n; 32][..usize::from(time % 33)]);
                }
                12 => rig.can_open = n % 4 != 0,
                13 => rig.writable = n % 4 != 0,
                _ => rig.run(Duration::from_millis(u64::from(time) * u64::from(n % 8))),
            }
            rig.drain();
            let load = rig.client.load();
            prop_assert!(load.flights <= 6 && load.waiters <= 10, "{:?}", load);
            prop_assert!(load.hops <= 6 && load.cached <= 4, "{:?}", load);
            prop_assert!(rig.client.refreshing <= 2);
            prop_assert_eq!(rig.client.timers.len(), load.flights, "each flight has its timer");
            prop_assert!(rig.client.outlets.ready() <= load.flights);
            prop_assert!(rig.client.unrouted.len() <= load.flights);
            prop_assert_eq!(load.flights > 0, rig.client.timers.next().is_some());
            let waiting = asked_at.len() - rig.answers.len() - cancelled.len();
            prop_assert_eq!(load.waiters, waiting, "each request waits or has its answer");
        }
        rig.run(secs(600));
        for (id, (asked_at, patience)) in &asked_at {
            prop_assert_eq!(rig.answers.contains_key(id), !cancelled.contains(id));
            if let Some((at, _)) = rig.answers.get(id) {
                prop_assert!(at.since(*asked_at) <= *patience);
            }
        }
        assert_ends_add_up(&rig.client);
        let Load { flights, waiters, cached, .. } = rig.client.load();
        prop_assert_eq!((flights, waiters, cached), (0, 0, 0));
        prop_assert_eq!(rig.client.poll_timeout(), None, "nothing is left to do");
    }
}

fn assert_ends_add_up(client: &Client) {
    let ends = [
        Counter::Found,
        Counter::NotFound,
        Counter::TimedOut,
        Counter::Refused,
        Counter::Unreachable,
        Counter::Overloaded,
        Counter::Cancelled,
        Counter::RepeatedRequest,
    ];
    let ended: u64 = ends.iter().map(|&end| client.counters().get(end)).sum();
    assert_eq!(ended, client.counters().get(Counter::Requests));
    let full = [
        Counter::FlightsFull,
        Counter::WaitersFull,
        Counter::WaitersOfFlightFull,
        Counter::GaveWay,
    ];
    let full: u64 = full.iter().map(|&full| client.counters().get(full)).sum();
    assert_eq!(full, client.counters().get(Counter::Overloaded));
}

fn with(bytes: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] = byte;
    bytes
}
