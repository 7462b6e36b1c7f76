// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Traces of requests whose steps the test reports.

use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::MsgId;
use ibarr_common::wire::ls::Seq;

use super::*;
use crate::local_service::Counter;
use crate::request::{KernelRequest, Outcome, RequestId, Source, UserRequest};
use crate::shares::User;

/// A trace, and a clock that goes on by a millisecond with each report.
struct Rig {
    trace: Trace,
    now: Instant,
}

impl Rig {
    fn with(limits: Limits) -> Self {
        let mut trace = Trace::default();
        trace.set_with_limits(true, limits);
        Self { trace, now: Instant::from_nanos(1_000_000_000) }
    }

    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn tick(&mut self) -> Instant {
        self.now += Duration::from_millis(1);
        self.now
    }

    fn kernel_asks(&mut self, flight: u64, n: u8) {
        let now = self.tick();
        self.trace.asked(now, kernel(flight), Caller::Kernel, address(n), now);
    }

    fn user_asks(&mut self, number: u64, n: u8) {
        let now = self.tick();
        self.trace.asked(now, user(number), Caller::Control(User(7)), address(n), now);
    }

    fn query(&mut self, id: u32, n: u8) {
        let now = self.tick();
        let to = (ip(n), 4791).into();
        let step = |number| Step::Query { to, number };
        self.trace.sent(now, Tie::Query(MsgId(id)), address(n), step);
    }

    fn reply(&mut self, id: u32, from: u8) {
        let now = self.tick();
        let from_peer = (ip(from), 4791).into();
        let step = |is_asked: bool| Step::Reply { from: from_peer, gid: None, unasked: !is_asked };
        self.trace.came(now, Tie::Query(MsgId(id)), Some(address(from)), step);
    }

    fn answered(&mut self, id: Id, outcome: Outcome) {
        let now = self.tick();
        self.trace.answered(now, answered(id, outcome));
    }

    /// What was recorded: chain, milliseconds since it began, last byte of the address, step.
    #[track_caller]
    fn says(&mut self, expected: &[&str]) {
        let mut said = Vec::new();
        while let Some(Event { chain, since, subject, step, .. }) = self.trace.poll() {
            let Subject::Address { ip: IpAddr::V4(ip) } = subject else { panic!("{subject:?}") };
            let step = match step {
                Step::Asked(Caller::Kernel) => "kernel asks".to_owned(),
                Step::Asked(_) => "user asks".to_owned(),
                Step::Query { number, .. } => format!("query {number}"),
                Step::Reply { unasked: false, .. } => "reply".to_owned(),
                Step::Reply { unasked: true, .. } => "late reply".to_owned(),
                Step::Failed { .. } => "failed".to_owned(),
                Step::AddressAnswered { took_ms, .. } => {
                    format!("answered in {}", took_ms.0.as_millis())
                }
                Step::Dropped { cause, took_ms } => {
                    format!("{cause} after {}", took_ms.0.as_millis())
                }
                step => format!("{step:?}"),
            };
            said.push(format!("#{chain} {} .{} {step}", since.as_millis(), ip.octets()[3]));
        }
        assert_eq!(said, expected);
    }
}

fn ip(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn address(n: u8) -> Subject {
    ip(n).into()
}

fn answered(id: Id, outcome: Outcome) -> Answered {
    let Id::Address(id) = id else { panic!("{id:?}") };
    Answered::Address(id, outcome)
}

fn kernel(flight: u64) -> Id {
    Id::Address(RequestId::Kernel(KernelRequest { number: flight, seq: Seq(0) }))
}

fn user(number: u64) -> Id {
    Id::Address(RequestId::User(UserRequest::Control(number)))
}

fn gid() -> Gid {
    "fe80::1".parse().unwrap()
}

fn found() -> Outcome {
    Outcome::Found { gid: gid(), source: Source::Peer }
}

#[test]
fn requests_for_one_address_form_a_chain_until_their_answers() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, 1);
    rig.query(5, 1);
    rig.user_asks(1, 1);
    rig.kernel_asks(2, 2);
    // From another address of the peer.
    rig.reply(5, 9);
    rig.answered(kernel(1), found());
    rig.answered(user(1), found());
    rig.user_asks(2, 1);
    rig.says(&[
        "#1 0 .1 kernel asks",
        "#1 1 .1 query 1",
        "#1 2 .1 user asks",
        "#2 0 .2 kernel asks",
        "#1 4 .1 reply",
        "#1 5 .1 answered in 5",
        "#1 6 .1 answered in 4",
        "#3 0 .1 user asks",
    ]);
    assert_eq!(rig.trace.take_lost(), 0);
}

#[test]
fn nudge_belongs_to_the_answers_before_it() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, 1);
    rig.answered(kernel(1), found());
    let now = rig.tick();
    rig.trace.nudge(now);
    rig.kernel_asks(2, 2);
    rig.answered(kernel(2), found());
    let now = rig.tick();
    rig.trace.nudged(now, Nudged::Postponed);
    rig.trace.nudge(now);
    rig.trace.nudged(now, Nudged::Done);
    // A repetition is for nothing new.
    rig.trace.nudge(now);
    rig.trace.nudged(now, Nudged::Done);
    rig.says(&[
        "#1 0 .1 kernel asks",
        "#1 1 .1 answered in 1",
        "#1 2 .1 Nudge",
        "#2 0 .2 kernel asks",
        "#2 1 .2 answered in 1",
        "#1 5 .1 Nudged { outcome: Postponed }",
        "#1 5 .1 Nudge",
        "#2 2 .2 Nudge",
        "#1 5 .1 Nudged { outcome: Done }",
        "#2 2 .2 Nudged { outcome: Done }",
    ]);
}

#[test]
fn repeated_search_for_the_kernel_stays_one_chain_until_it_is_dropped() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, 1);
    let asked_at = rig.now;
    rig.answered(kernel(1), Outcome::TimedOut);
    rig.user_asks(1, 1);
    let now = rig.tick();
    rig.trace.asked(now, kernel(2), Caller::Kernel, address(1), asked_at);
    rig.answered(user(1), Outcome::TimedOut);
    rig.answered(kernel(2), Outcome::Unreachable);
    let now = rig.tick();
    rig.trace.dropped(now, address(1), asked_at, Counter::Unreachable);
    rig.kernel_asks(3, 1);
    rig.says(&[
        "#1 0 .1 kernel asks",
        "#1 1 .1 failed",
        "#1 2 .1 user asks",
        "#1 3 .1 SearchedAgain",
        "#1 4 .1 answered in 2",
        "#1 5 .1 failed",
        "#1 6 .1 given-up-unreachable after 6",
        "#2 0 .1 kernel asks",
    ]);
}

#[test]
fn request_that_joins_a_refresh_begins_a_chain_and_gets_its_reply() {
    let mut rig = Rig::new();
    rig.query(5, 1);
    rig.user_asks(1, 1);
    rig.reply(5, 9);
    rig.answered(user(1), found());
    // Its question is forgotten with the chain.
    rig.reply(5, 9);
    rig.says(&[
        "#1 0 .1 query 1",
        "#2 0 .1 user asks",
        "#2 1 .1 reply",
        "#2 2 .1 answered in 2",
        "#3 0 .9 late reply",
    ]);
}

#[test]
fn every_table_of_a_trace_is_bounded_and_losses_are_counted() {
    let limits = Limits { requests: 2, chains: 3, ties: 2, events: 100 };
    let mut rig = Rig::with(limits);
    for n in 1..=3 {
        rig.user_asks(n.into(), n);
    }
    assert_eq!(rig.trace.take_lost(), 1, "the third request");
    for n in 1..=200 {
        rig.query(n.into(), n);
    }
    let recorder = rig.trace.0.as_ref().unwrap();
    assert_eq!((recorder.requests.len(), recorder.chains.len()), (2, 3));
    assert_eq!((recorder.ages.len(), recorder.events.len()), (3, 100));
    assert!(recorder.ties.len() <= 2);
    // 202 events with room for 100; and each third query finds no room for its tie.
    assert_eq!(rig.trace.take_lost(), 102 + 66);
    while rig.trace.poll().is_some() {}
    let now = rig.tick();
    for n in 0..10 {
        rig.trace.answered(now, answered(user(1), found()));
        rig.trace.asked(now, kernel(n), Caller::Kernel, address(5), now);
        rig.trace.answered(now, answered(kernel(n), found()));
    }
    assert_eq!(rig.trace.0.as_ref().unwrap().unnudged.len(), 3);
    let chain = |rig: &Rig| rig.trace.0.as_ref().unwrap().chains[&address(6)].ties.len();
    rig.trace.set(false);
    rig.trace.set(true);
    for n in 0..100 {
        rig.query(n, 6);
    }
    assert_eq!(chain(&rig), TIES_OF_CHAIN);
    assert_eq!(rig.trace.0.as_ref().unwrap().ties.len(), TIES_OF_CHAIN);
}

#[test]
fn nothing_is_recorded_while_the_trace_is_off() {
    let mut rig = Rig::new();
    rig.trace.set(false);
    rig.kernel_asks(1, 1);
    rig.query(5, 1);
    rig.reply(5, 1);
    rig.answered(kernel(1), found());
    let now = rig.tick();
    rig.trace.nudge(now);
    assert_eq!((rig.trace.poll(), rig.trace.take_lost()), (None, 0));
    assert!(rig.trace.0.is_none());
}

#[test]
fn filter_admits_address_asking_peer_and_both_ends_of_a_path() {
    let (since, at) = (Duration::ZERO, Instant::BOOT);
    let event = |subject, step| Event { chain: 1, since, at, subject, lost: 0, step };
    let of_address = event(address(1), Step::RouteSought);
    let from_peer =
        event(address(1), Step::Peer { from: (ip(2), 9).into(), gid: Some(gid()), cause: None });
    let (sgid, other) = (gid(), "fe80::2".parse().unwrap());
    let path = Subject::Path { sgid: Some(sgid), dgid: Some(other) };
    let of_path = event(path, Step::RouteSought);
    for (filter, admitted) in [
        (Filter::Ip(ip(1)), [true, true, false]),
        (Filter::Ip(ip(2)), [false, true, false]),
        (Filter::Ip(ip(3)), [false, false, false]),
        (Filter::Gid(sgid), [false, false, true]),
        (Filter::Gid(other), [false, false, true]),
        (Filter::Gid("fe80::3".parse().unwrap()), [false, false, false]),
    ] {
        let events = [&of_address, &from_peer, &of_path];
        assert_eq!(events.map(|event| filter.admits(event)), admitted, "{filter:?}");
    }
}
