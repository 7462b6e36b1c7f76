// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The service of ACM with clients and answers that the test plays.

mod whole;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use ibarr_common::ib::{PathRecord, PortNum};
use ibarr_common::wire::acm::{self as wire, MAX_REQUEST_LEN, Name, Tid};
use ibarr_common::wire::path_record::PathRecordWire;
use proptest::prelude::*;

use super::*;
use crate::places::Room;

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
const USER: User = User(1000);
const CLIENT: ClientId = ClientId(7);
const RECORD: PathRecord = PathRecord::from_octets([3; 64]);

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn name(text: &str) -> Address {
    Address::Name(Name::new(text).unwrap())
}

fn to(target: &str) -> Resolve {
    Resolve::to(None, Address::Ip(ip(target)))
}

/// A service with one client.
struct Rig {
    acm: Acm,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        let config = Config { clients: Room { all: 4, of_user: 2 }, ..Config::default() };
        let mut rig = Self { acm: Acm::new(config), now: NOW };
        rig.acm.handle_input(NOW, Input::Connected { client: CLIENT, user: USER });
        rig
    }

    fn ask(&mut self, client: ClientId, ask: wire::Ask) {
        let request = Request { tid: Tid([9; 8]), ask };
        let mut out = [0; MAX_REQUEST_LEN];
        let bytes = request.emit(&mut out);
        self.acm.handle_input(self.now, Input::Message { client, bytes });
    }

    fn answer(&mut self, id: ResolutionId, answer: &Answer) {
        self.acm.handle_input(self.now, Input::Answer { id, answer });
    }

    fn resolve(&mut self, resolve: Resolve) {
        self.ask(CLIENT, wire::Ask::Resolve(resolve));
    }

    /// The reply to [`CLIENT`], which is the only output.
    fn told(&mut self) -> Option<Reply<'static>> {
        let Some(Output::Reply(Transmit { client, bytes })) = self.acm.poll_output() else {
            return None;
        };
        assert_eq!((client, self.acm.poll_output()), (CLIENT, None));
        Some(match Reply::parse(&bytes).unwrap() {
            (Tid([9, ..]), Reply::Paths(paths, source)) => Reply::Paths(paths, source),
            (Tid([9, ..]), Reply::Refused(status)) => Reply::Refused(status),
            (Tid([9, ..]), Reply::Counters(counters)) => Reply::Counters(counters),
            other => panic!("{other:?}"),
        })
    }

    fn is_refused(&mut self, status: Status) -> bool {
        self.told() == Some(Reply::Refused(status))
    }

    /// Tells the source that routing chooses for the target, which the service asks for.
    fn routed(&mut self, source: Option<&str>) -> IpAddr {
        let Some(Output::Route(target)) = self.acm.poll_output() else { panic!() };
        self.acm.handle_input(self.now, Input::Source { target, source: source.map(ip) });
        target.target()
    }

    /// Asks for a path to an address, and gives the source that routing chooses and its GID.
    fn until_target(&mut self, resolve: Resolve) -> ResolutionId {
        self.acm.handle_input(self.now, Input::NetworkChanged);
        self.resolve(resolve);
        self.routed(Some("10.1.0.1"));
        let Some(Event::Ask { id, ask: Ask::Source(source) }) = self.acm.poll_event() else {
            panic!()
        };
        assert_eq!(source, ip("10.1.0.1"));
        self.acm.gid_of_source(id, Some(gid("fe80::1")));
        let Some(Event::Address(AddressRequest { request, .. })) = self.acm.poll_event() else {
            panic!()
        };
        let target = request.question.target();
        assert_eq!((request.caller, target), (request::Caller::Acm(USER), ip("10.2.0.5")));
        id
    }

    fn until_path(&mut self, resolve: Resolve) -> ResolutionId {
        let id = self.until_target(resolve);
        let outcome = Outcome::Found { gid: gid("fe80::5"), source: request::Source::Peer };
        self.acm.gid_of_target(id, outcome);
        let Some(Event::Ask { ask: Ask::Start { known, .. }, .. }) = self.acm.poll_event() else {
            panic!()
        };
        assert_eq!((known.sgid(), known.dgid()), (Some(gid("fe80::1")), Some(gid("fe80::5"))));
        id
    }
}

fn found() -> paths::Outcome {
    paths::Outcome::Found { record: RECORD, source: paths::Source::Sa }
}

#[test]
fn address_is_answered_with_paths_and_the_source_that_routing_chose() {
    let mut rig = Rig::new();
    let id = rig.until_path(to("10.2.0.5"));
    rig.acm.path(id, found());
    let chosen = Some(Address::Ip(ip("10.1.0.1")));
    let expected = Reply::Paths(paths::records(PathUse::All, RECORD), chosen);
    assert_eq!(rig.told(), Some(expected));
    assert_eq!((rig.acm.load(), rig.acm.poll_timeout()), ((1, 0), None));
}

#[test]
fn records_of_a_floating_lid_are_contiguous_and_the_chosen_source_follows() {
    let mut rig = Rig::new();
    let id = rig.until_path(to("10.2.0.5"));
    let record = PathRecordWire {
        sgid: gid("fec0:0:1:1::1").octets(),
        dgid: gid("fec0:0:22:2::5").octets(),
        slid: 1.into(),
        dlid: 4.into(),
        pkey: 0xffff.into(),
        flow: 255.into(),
        ..PathRecord::from_octets([0; 64]).into()
    };
    let outcome = paths::Outcome::Found { record: record.into(), source: paths::Source::Sa };
    rig.acm.path(id, outcome);
    let Some(Output::Reply(Transmit { bytes, .. })) = rig.acm.poll_output() else { panic!() };
    let records = bytes[16..].chunks(72).map(|record| {
        let flags = u32::from_ne_bytes(record[..4].try_into().unwrap());
        (flags, u16::from_ne_bytes(record[4..6].try_into().unwrap()), record[8])
    });
    // librdmacm copies as many bytes from the first path on as there are paths.
    let expected = [(0x2b, 16, 0), (0x12, 16, 0), (0x0a, 16, 0), (1, 2, 10)];
    assert_eq!(records.collect::<Vec<_>>(), expected);
}

#[test]
fn source_of_the_client_is_kept_and_not_repeated() {
    let mut rig = Rig::new();
    let source = Some(Address::Ip(ip("10.1.0.2")));
    rig.resolve(Resolve::to(source, Address::Ip(ip("10.2.0.5"))));
    let Some(Event::Ask { id, ask: Ask::Source(source) }) = rig.acm.poll_event() else { panic!() };
    assert_eq!(source, ip("10.1.0.2"));
    rig.acm.gid_of_source(id, Some(gid("fe80::2")));
    let outcome = Outcome::Found { gid: gid("fe80::5"), source: request::Source::Local };
    rig.acm.gid_of_target(id, outcome);
    rig.acm.path(id, found());
    let expected = Reply::Paths(paths::records(PathUse::All, RECORD), None);
    assert_eq!(rig.told(), Some(expected));
}

#[test]
fn link_local_destination_is_refused_with_or_without_a_source() {
    let mut rig = Rig::new();
    for source in [None, Some(Address::Ip(ip("10.1.0.2"))), Some(Address::Ip(ip("fe80::1")))] {
        rig.resolve(Resolve::to(source, Address::Ip(ip("fe80::5"))));
        assert!(rig.is_refused(Status::DestinationAddress), "{source:?}");
        assert_eq!(rig.acm.poll_event(), None);
    }
    assert_eq!(rig.acm.counters().get(Counter::LinkLocal), 3);
}

#[test]
fn part_of_a_path_is_completed() {
    let mut rig = Rig::new();
    let path =
        PathRecordWire { dgid: gid("fe80::5").octets(), ..PathRecord::from_octets([0; 64]).into() };
    rig.resolve(Resolve::along(path.into()));
    let Some(Event::Ask { id, ask: Ask::Start { known, .. } }) = rig.acm.poll_event() else {
        panic!()
    };
    assert_eq!(Some(known), PathQuery::ANY.with_destination(gid("fe80::5")));
    rig.acm.path(id, found());
    assert!(matches!(rig.told(), Some(Reply::Paths(_, None))));
    // Without a GID there is nothing to ask for.
    rig.resolve(Resolve::along(PathRecord::from_octets([0; 64])));
    assert!(rig.is_refused(Status::DestinationAddress));
}

#[test]
fn each_failure_has_its_status() {
    let cases = [
        (Outcome::NotFound, Status::DestinationAddress),
        (Outcome::Refused, Status::DestinationAddress),
        (Outcome::Unreachable, Status::DestinationAddress),
        (Outcome::TimedOut, Status::TimedOut),
        (Outcome::Overloaded, Status::NoMemory),
    ];
    let mut rig = Rig::new();
    for (outcome, status) in cases {
        let id = rig.until_target(to("10.2.0.5"));
        rig.acm.gid_of_target(id, outcome);
        assert!(rig.is_refused(status), "{outcome:?}");
    }
    let source = paths::Source::Sa;
    let cases = [
        (paths::Outcome::NoRecord { source }, Status::NoData),
        (paths::Outcome::Refused(None), Status::NoData),
        (paths::Outcome::Silent, Status::TimedOut),
        (paths::Outcome::Busy, Status::TimedOut),
        (paths::Outcome::NoSa, Status::NotConnected),
        (paths::Outcome::Overloaded, Status::NoMemory),
        (paths::Outcome::UnknownPort, Status::SourceAddress),
    ];
    for (outcome, status) in cases {
        let id = rig.until_path(to("10.2.0.5"));
        rig.acm.path(id, outcome);
        assert!(rig.is_refused(status), "{outcome:?}");
    }
    let cases = [
        (NoStart::NoSource, Status::SourceAddress),
        (NoStart::SeveralPorts, Status::DestinationType),
    ];
    for (why, status) in cases {
        let id = rig.until_path(to("10.2.0.5"));
        rig.answer(id, &Answer::Start(Err(why)));
        assert!(rig.is_refused(status), "{why:?}");
    }
    rig.acm.handle_input(NOW, Input::NetworkChanged);
    rig.resolve(to("10.2.0.5"));
    rig.routed(None);
    assert!(rig.is_refused(Status::DestinationAddress));
}

#[test]
fn source_is_searched_again_after_a_change_and_after_a_second() {
    let mut rig = Rig::new();
    let mut asks_kernel = |after: u64, changes: bool| {
        rig.now = NOW + Duration::from_millis(after);
        if changes {
            rig.acm.handle_input(rig.now, Input::NetworkChanged);
        }
        rig.resolve(to("10.2.0.5"));
        let asked = rig.acm.poll_output();
        if let Some(Output::Route(target)) = asked {
            let source = Some(ip("10.1.0.1"));
            rig.acm.handle_input(rig.now, Input::Source { target, source });
        }
        let Some(Event::Ask { id, .. }) = rig.acm.poll_event() else { panic!() };
        rig.acm.gid_of_source(id, None);
        assert!(rig.is_refused(Status::SourceAddress));
        asked.is_some()
    };
    let cases = [(0, false), (999, false), (1000, false), (1001, false), (1002, true)];
    let asked = cases.map(|(after, changes)| asks_kernel(after, changes));
    assert_eq!(asked, [true, false, true, false, true]);
}

#[test]
fn no_more_sources_are_remembered_than_the_limit() {
    let mut sources = Sources::default();
    let target = |n: u32| Question::new(Ipv4Addr::from_bits((10 << 24) + n).into(), None).unwrap();
    for n in 0..=4096 {
        sources.answered(NOW, target(n), Some(ip("10.1.0.1")));
    }
    let remembered = (0..=4096).filter(|&n| sources.to(NOW, target(n)).is_some());
    assert_eq!(remembered.count(), 1);
}

#[test]
fn client_that_does_not_wait_is_told_at_once_and_the_search_goes_on() {
    let mut rig = Rig::new();
    let id = rig.until_target(to("10.2.0.5").from_memory());
    rig.acm.not_remembered(id);
    assert!(rig.is_refused(Status::NoData));
    let outcome = Outcome::Found { gid: gid("fe80::5"), source: request::Source::Peer };
    rig.acm.gid_of_target(id, outcome);
    assert!(matches!(rig.acm.poll_event(), Some(Event::Ask { ask: Ask::Start { .. }, .. })));
    rig.acm.path(id, found());
    assert_eq!((rig.told(), rig.acm.poll_timeout()), (None, None));
}

#[test]
fn client_that_waits_is_not_told_that_nothing_is_remembered() {
    let mut rig = Rig::new();
    let id = rig.until_target(to("10.2.0.5"));
    rig.acm.not_remembered(id);
    assert_eq!(rig.told(), None);
}

#[test]
fn silence_of_all_others_ends_at_the_deadline() {
    let mut rig = Rig::new();
    rig.until_path(to("10.2.0.5"));
    let due = rig.acm.poll_timeout().unwrap();
    assert_eq!(due, NOW + Duration::from_secs(2));
    rig.acm.handle_timeout(due);
    assert!(rig.is_refused(Status::TimedOut));
    assert_eq!(rig.acm.poll_timeout(), None);
}

#[test]
fn early_question_is_asked_again_and_forgotten_with_its_client() {
    let mut rig = Rig::new();
    rig.resolve(to("10.2.0.5"));
    rig.routed(Some("10.1.0.1"));
    let Some(Event::Ask { id, ask }) = rig.acm.poll_event() else { panic!() };
    for _ in 0..3 {
        rig.answer(id, &Answer::NotYet(ask));
        assert_eq!(rig.acm.poll_event(), None);
        rig.acm.handle_input(NOW, Input::NodeChanged);
        assert_eq!(rig.acm.poll_event(), Some(Event::Ask { id, ask }));
    }
    rig.answer(id, &Answer::NotYet(ask));
    rig.acm.handle_timeout(NOW + Duration::from_secs(2));
    assert!(rig.is_refused(Status::TimedOut));
    rig.answer(id, &Answer::NotYet(ask));
    rig.acm.handle_input(NOW, Input::NodeChanged);
    assert_eq!(rig.acm.poll_event(), None);
}

#[test]
fn user_with_too_many_clients_leaves_room_for_others() {
    let mut rig = Rig::new();
    let connect = |rig: &mut Rig, client, user| {
        rig.acm.handle_input(NOW, Input::Connected { client: ClientId(client), user });
        rig.acm.poll_output()
    };
    let close = |client| Some(Output::Close(ClientId(client)));
    assert_eq!(connect(&mut rig, 1, USER), None);
    assert_eq!(connect(&mut rig, 2, USER), close(2));
    assert_eq!(connect(&mut rig, 3, User(1001)), None);
    // Another one takes the oldest of the user with most, which is not the one that has asked since.
    rig.ask(CLIENT, wire::Ask::Counters(Of::Service));
    rig.acm.poll_output();
    assert_eq!(connect(&mut rig, 4, User(1002)), close(1));
    assert_eq!(connect(&mut rig, 5, User::ROOT), None);
    for gone in [4, 5] {
        rig.acm.handle_input(NOW, Input::Gone { client: ClientId(gone) });
    }
    assert_eq!(connect(&mut rig, 6, USER), None);
    assert_eq!(rig.acm.load().0, 3);
    let counters = rig.acm.counters();
    let counts = [Counter::ClientsRefused, Counter::ClientsGaveWay].map(|it| counters.get(it));
    assert_eq!(counts, [1, 1]);
}

#[test]
fn half_a_message_is_waited_for_as_long_as_an_answer() {
    let mut rig = Rig::new();
    rig.acm.handle_input(NOW, Input::Part { client: CLIENT });
    let due = NOW + Duration::from_secs(2);
    // Another byte gives no more time.
    rig.acm.handle_input(NOW + Duration::from_secs(1), Input::Part { client: CLIENT });
    assert_eq!(rig.acm.poll_timeout(), Some(due));
    rig.ask(CLIENT, wire::Ask::Counters(Of::Service));
    assert!(rig.told().is_some() && rig.acm.poll_timeout().is_none());
    rig.acm.handle_input(NOW, Input::Part { client: CLIENT });
    rig.acm.handle_timeout(due);
    assert_eq!(rig.acm.poll_output(), Some(Output::Close(CLIENT)));
    assert_eq!((rig.acm.load().0, rig.acm.counters().get(Counter::Unfinished)), (0, 1));
    // It has gone meanwhile.
    rig.acm.handle_input(NOW, Input::Part { client: CLIENT });
    assert_eq!(rig.acm.poll_timeout(), None);
}

#[test]
fn bytes_that_are_no_request_end_the_connection_and_wrong_requests_do_not() {
    let mut rig = Rig::new();
    let bytes = [7; 16];
    rig.acm.handle_input(NOW, Input::Message { client: CLIENT, bytes: &bytes });
    assert_eq!(rig.acm.poll_output(), Some(Output::Close(CLIENT)));
    rig.acm.handle_input(NOW, Input::Connected { client: CLIENT, user: USER });
    let request = Request { tid: Tid([9; 8]), ask: wire::Ask::Resolve(to("10.2.0.5")) };
    let mut out = [0; MAX_REQUEST_LEN];
    let len = request.emit(&mut out).len();
    // The group 224.0.0.0 has no GID.
    out[24..28].copy_from_slice(&[224, 0, 0, 0]);
    rig.acm.handle_input(NOW, Input::Message { client: CLIENT, bytes: &out[..len] });
    assert!(rig.is_refused(Status::Invalid));
    rig.resolve(to("10.2.0.5"));
    assert!(matches!(rig.acm.poll_output(), Some(Output::Route(_))));
    // The client must wait.
    rig.resolve(to("10.2.0.5"));
    assert_eq!(rig.acm.poll_output(), Some(Output::Close(CLIENT)));
    assert_eq!((rig.acm.load(), rig.acm.poll_timeout()), ((0, 0), None));
}

/// Tells the service the addresses of the name that it asks for.
fn named(rig: &mut Rig, expected: &str, addresses: &[&str]) {
    let Some(Output::Resolve(asked)) = rig.acm.poll_output() else { panic!() };
    assert_eq!(Address::Name(asked), name(expected));
    let addresses: Vec<_> = addresses.iter().map(|text| ip(text)).collect();
    rig.acm.handle_input(rig.now, Input::Addresses { name: asked, addresses: &addresses });
}

#[test]
fn name_is_looked_up_once_and_then_remembered() {
    let mut rig = Rig::new();
    let other = ClientId(8);
    rig.acm.handle_input(NOW, Input::Connected { client: other, user: USER });
    rig.resolve(Resolve::to(None, name("node5")));
    rig.ask(other, wire::Ask::Resolve(Resolve::to(None, name("NODE5"))));
    named(&mut rig, "node5", &["127.0.1.1", "10.2.0.5", "fd00::5"]);
    assert_eq!(rig.routed(Some("10.1.0.1")), ip("10.2.0.5"));
    let asks = || rig.acm.poll_event();
    assert_eq!(std::iter::from_fn(asks).count(), 2);
    rig.acm.handle_input(NOW, Input::Gone { client: other });
    rig.acm.handle_timeout(NOW + Duration::from_secs(2));
    assert!(rig.is_refused(Status::TimedOut));
    rig.resolve(Resolve::to(None, name("node5")).from_memory());
    assert!(matches!(rig.acm.poll_event(), Some(Event::Ask { ask: Ask::Source(_), .. })));
    assert_eq!(rig.acm.counters().get(Counter::NamesAsked), 1);
    assert_eq!(rig.acm.counters().get(Counter::NamesFromMemory), 1);
}

#[test]
fn names_of_both_ends_get_addresses_of_one_family() {
    let mut rig = Rig::new();
    rig.resolve(Resolve::to(Some(name("here")), name("there")));
    named(&mut rig, "here", &["10.1.0.2"]);
    named(&mut rig, "there", &["fd00::5", "10.2.0.5"]);
    let Some(Event::Ask { id, ask: Ask::Source(source) }) = rig.acm.poll_event() else { panic!() };
    assert_eq!(source, ip("10.1.0.2"));
    rig.acm.gid_of_source(id, Some(gid("fe80::2")));
    let Some(Event::Address(AddressRequest { request, .. })) = rig.acm.poll_event() else {
        panic!()
    };
    assert_eq!(request.question.target(), ip("10.2.0.5"));
}

#[test]
fn path_leads_from_one_family_to_the_other() {
    let mut rig = Rig::new();
    rig.resolve(Resolve::to(Some(Address::Ip(ip("fd00::2"))), Address::Ip(ip("10.2.0.5"))));
    let Some(Event::Ask { id, ask: Ask::Source(source) }) = rig.acm.poll_event() else { panic!() };
    assert_eq!(source, ip("fd00::2"));
    rig.acm.gid_of_source(id, Some(gid("fe80::2")));
    let Some(Event::Address(AddressRequest { request, .. })) = rig.acm.poll_event() else {
        panic!()
    };
    assert_eq!(request.question.target(), ip("10.2.0.5"));
}

#[test]
fn name_without_addresses_is_refused_as_the_end_that_it_is() {
    let mut rig = Rig::new();
    for (addresses, source, status) in [
        (&[][..], None, Status::DestinationAddress),
        (&["127.0.1.1"], None, Status::DestinationAddress),
        (&[], Some(name("here")), Status::SourceAddress),
    ] {
        let target = if source.is_some() { Address::Ip(ip("10.2.0.5")) } else { name("here") };
        rig.resolve(Resolve::to(source, target));
        named(&mut rig, "here", addresses);
        assert!(rig.is_refused(status), "{addresses:?}");
    }
}

#[test]
fn slow_name_costs_only_its_own_client_the_deadline() {
    let mut rig = Rig::new();
    rig.resolve(Resolve::to(None, name("slow")));
    let Some(Output::Resolve(slow)) = rig.acm.poll_output() else { panic!() };
    let deadline = NOW + Duration::from_secs(2);
    rig.acm.handle_timeout(deadline);
    assert!(rig.is_refused(Status::TimedOut));
    // The resolver is not asked again before it has answered; others are answered meanwhile.
    rig.now = deadline;
    rig.resolve(Resolve::to(None, name("slow")));
    assert_eq!(rig.acm.poll_output(), None);
    let other = ClientId(8);
    rig.acm.handle_input(rig.now, Input::Connected { client: other, user: USER });
    rig.ask(other, wire::Ask::Resolve(to("10.2.0.5")));
    assert!(matches!(rig.acm.poll_output(), Some(Output::Route(_))));
    // Too late for the first, but not for the second.
    let addresses = &[ip("10.2.0.6")];
    rig.acm.handle_input(rig.now, Input::Addresses { name: slow, addresses });
    assert_eq!(rig.routed(None), ip("10.2.0.6"));
}

/// The client of a user asks for `count` names, each on a connection. Returns those that the resolver is asked for.
fn ask_names(acm: &mut Acm, now: Instant, user: User, names: &str, count: u64) -> Vec<String> {
    let mut out = [0; MAX_REQUEST_LEN];
    for n in 0..count {
        let client = ClientId(user.0 * 1000 + n);
        acm.handle_input(now, Input::Connected { client, user });
        let ask = wire::Ask::Resolve(Resolve::to(None, name(&format!("{names}{n}"))));
        let bytes = Request { tid: Tid([9; 8]), ask }.emit(&mut out);
        acm.handle_input(now, Input::Message { client, bytes });
    }
    asked_names(acm)
}

fn asked_names(acm: &mut Acm) -> Vec<String> {
    let next = || acm.poll_output();
    let asked = std::iter::from_fn(next).filter_map(|output| match output {
        Output::Resolve(name) => Some(name.as_str().to_owned()),
        _ => None,
    });
    asked.collect()
}

#[test]
fn names_that_hang_keep_neither_another_user_nor_root_waiting() {
    let mut acm = Acm::new(Config::default());
    let mut now = NOW;
    // Any number of users, for as long as they like.
    for user in 1..200 {
        ask_names(&mut acm, now, User(user), &format!("hang{user}-"), 20);
        now += Duration::from_secs(2);
        acm.handle_timeout(now);
        assert_eq!(acm.load().1, 0);
        if user == 1 {
            assert_eq!(acm.names.hanging(), NAMES.under_way.of_user);
        }
        // First as many as it has a share, then one at a time.
        let (newcomer, expected) = (User(1000 + user), [3, 1][usize::from(user == 20)]);
        if user == 10 || user == 20 {
            let names = ask_names(&mut acm, now, newcomer, "node", 3);
            assert_eq!(names.len(), expected);
            for name in names {
                let name = Name::new(&name).unwrap();
                acm.handle_input(now, Input::Addresses { name, addresses: &[] });
            }
            while !asked_names(&mut acm).is_empty() {}
        }
    }
    assert_eq!(acm.names.hanging(), NAMES.under_way.all / 8 * 7);
    assert_eq!(ask_names(&mut acm, now, User::ROOT, "node", 12).len(), 8);
}

#[test]
fn name_that_waits_behind_a_users_slow_ones_keeps_no_other_user_waiting() {
    let mut acm = Acm::new(Config::default());
    let asked = ask_names(&mut acm, NOW, USER, "slow", 20);
    assert_eq!(asked.len(), NAMES.under_way.of_user);
    // The same names: those that are under way are joined, the others asked for.
    let others = ask_names(&mut acm, NOW, User(1001), "slow", 20);
    assert_eq!(others.len(), NAMES.under_way.of_user);
    assert!(asked.iter().all(|name| !others.contains(name)), "{asked:?} {others:?}");
    let addresses = &[ip("10.2.0.6")];
    for slow in [&asked[0], &others[0]] {
        let name = Name::new(slow).unwrap();
        acm.handle_input(NOW, Input::Addresses { name, addresses });
    }
    // Each user goes on with the next name that no thread resolves yet.
    assert_eq!(acm.names.hanging(), 16);
}

#[test]
fn listed_names_need_neither_resolver_nor_peer() {
    let mut rig = Rig::new();
    let listed = |host: &str, n: &str| (name(host), gid(n));
    let (hosts, _) = Hosts::new(&[listed("Here", "fe80::1"), listed("There", "fe80::5")]);
    rig.acm.set_hosts(hosts);
    for (source, sgid) in [(None, None), (Some(name("here")), Some(gid("fe80::1")))] {
        rig.resolve(Resolve::to(source, name("there")).from_memory());
        let Some(Event::Ask { id, ask: Ask::Start { known, .. } }) = rig.acm.poll_event() else {
            panic!()
        };
        assert_eq!((known.sgid(), known.dgid()), (sgid, Some(gid("fe80::5"))));
        rig.acm.path(id, found());
        assert!(matches!(rig.told(), Some(Reply::Paths(_, None))));
    }
    // Each end may be given in another way.
    rig.resolve(Resolve::to(Some(name("here")), Address::Ip(ip("10.2.0.5"))));
    let Some(Event::Address(_)) = rig.acm.poll_event() else { panic!() };
    rig.acm.handle_timeout(NOW + Duration::from_secs(2));
    assert!(rig.is_refused(Status::TimedOut));
    rig.resolve(Resolve::to(Some(Address::Ip(ip("10.1.0.1"))), name("there")));
    let Some(Event::Ask { id, ask: Ask::Source(_) }) = rig.acm.poll_event() else { panic!() };
    rig.acm.gid_of_source(id, Some(gid("fe80::1")));
    let Some(Event::Ask { ask: Ask::Start { known, .. }, .. }) = rig.acm.poll_event() else {
        panic!()
    };
    assert_eq!((known.sgid(), known.dgid()), (Some(gid("fe80::1")), Some(gid("fe80::5"))));
}

#[test]
fn search_without_a_client_is_not_kept_for_a_name_under_way() {
    let mut rig = Rig::new();
    for _ in 0..1000 {
        rig.resolve(Resolve::to(None, name("node5")).from_memory());
        if let Some(Output::Resolve(_)) = rig.acm.poll_output() {
            rig.resolve(Resolve::to(None, name("node5")).from_memory());
        }
        while rig.acm.poll_output().is_some() {}
    }
    assert!(rig.acm.resolutions.len() <= 2, "{}", rig.acm.resolutions.len());
}

#[test]
fn counters_are_those_of_the_requests() {
    let mut rig = Rig::new();
    let id = rig.until_path(to("10.2.0.5"));
    rig.acm.path(id, found());
    rig.told();
    rig.ask(CLIENT, wire::Ask::Counters(Of::Service));
    let expected = wire::Counters {
        errors: 0.into(),
        resolved: 1.into(),
        no_data: 0.into(),
        address_queries: 1.into(),
        address_cache: 0.into(),
        route_queries: 1.into(),
        route_cache: 0.into(),
    };
    assert_eq!(rig.told(), Some(Reply::Counters(expected)));
}

/// What may happen to a service with three clients.
#[derive(Clone, Debug)]
enum Step {
    Ask { client: u64, by_name: bool, from_memory: bool },
    Named(bool),
    Gone(u64),
    Source(bool),
    Gid(Outcome),
    Path(bool),
    NotRemembered,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let gid = Outcome::Found { gid: gid("fe80::5"), source: request::Source::Peer };
    prop_oneof![
        4 => (0..3u64, any::<bool>(), any::<bool>()).prop_map(|(client, by_name, from_memory)| {
            Step::Ask { client, by_name, from_memory }
        }),
        2 => prop::bool::weighted(0.6).prop_map(Step::Named),
        1 => (0..3u64).prop_map(Step::Gone),
        3 => any::<bool>().prop_map(Step::Source),
        3 => prop_oneof![Just(gid), Just(Outcome::TimedOut)].prop_map(Step::Gid),
        3 => any::<bool>().prop_map(Step::Path),
        1 => Just(Step::NotRemembered),
        1 => (0..1500u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn every_request_has_one_reply_by_its_deadline(steps in prop::collection::vec(step(), 0..80)) {
        let mut acm = Acm::new(Config::default());
        let mut now = NOW;
        for client in 0..3 {
            let client = ClientId(client);
            acm.handle_input(now, Input::Connected { client, user: USER });
        }
        // The clients that wait, and until when.
        let mut waiting = BTreeMap::new();
        let mut gone = BTreeSet::new();
        let (mut routes, mut ends) = (VecDeque::new(), VecDeque::new());
        let mut names = VecDeque::new();
        for step in steps {
            match step {
                Step::Ask { client, by_name, from_memory }
                    if !waiting.contains_key(&client) && !gone.contains(&client) =>
                {
                    let resolve = if by_name {
                        let [source, target] = ["node1", "node2"].map(name);
                        Resolve::to((client == 0).then_some(source), target)
                    } else {
                        to("10.2.0.5")
                    };
                    let resolve = if from_memory { resolve.from_memory() } else { resolve };
                    let ask = wire::Ask::Resolve(resolve);
                    let mut out = [0; MAX_REQUEST_LEN];
                    let bytes = Request { tid: Tid::default(), ask }.emit(&mut out);
                    waiting.insert(client, now + Duration::from_secs(2));
                    let client = ClientId(client);
                    acm.handle_input(now, Input::Message { client, bytes });
                }
                Step::Ask { .. } => {}
                Step::Named(is_known) => if let Some(name) = names.pop_front() {
                    let list = [ip("10.2.0.5"), ip("fd00::5")];
                    let addresses = if is_known { &list[..] } else { &[] };
                    acm.handle_input(now, Input::Addresses { name, addresses });
                },
                Step::Gone(client) => {
                    gone.insert(client);
                    waiting.remove(&client);
                    acm.handle_input(now, Input::Gone { client: ClientId(client) });
                }
                Step::Source(is_known) => if let Some(target) = routes.pop_front() {
                    let source = is_known.then(|| ip("10.1.0.1"));
                    acm.handle_input(now, Input::Source { target, source });
                },
                Step::Gid(outcome) => if let Some(event) = ends.pop_front() {
                    reply(&mut acm, now, event, outcome, true);
                },
                Step::Path(is_found) => if let Some(event) = ends.pop_back() {
                    reply(&mut acm, now, event, Outcome::NotFound, is_found);
                },
                Step::NotRemembered => if let Some(Event::Address(request)) = ends.front() {
                    acm.handle_input(now, Input::NotRemembered(search(request.request.id)));
                },
                Step::Wait(ms) => {
                    now += Duration::from_millis(ms);
                    acm.handle_timeout(now);
                }
            }
            while let Some(event) = acm.poll_event() {
                ends.push_back(event);
            }
            while let Some(output) = acm.poll_output() {
                match output {
                    Output::Route(target) => {
                        prop_assert!(!routes.contains(&target));
                        routes.push_back(target);
                    }
                    Output::Resolve(name) => {
                        prop_assert!(!names.contains(&name));
                        names.push_back(name);
                    }
                    Output::Reply(Transmit { client, bytes }) => {
                        prop_assert!(Reply::parse(&bytes).is_ok());
                        prop_assert!(waiting.remove(&client.0).is_some());
                    }
                    Output::Close(client) => prop_assert!(false, "{client:?} has done no wrong"),
                }
            }
            prop_assert!(waiting.values().all(|&due| due > now));
            prop_assert_eq!(acm.load(), (3 - gone.len(), waiting.len()));
        }
    }
}

fn search(id: request::RequestId) -> ResolutionId {
    let request::RequestId::User(UserRequest::Acm(id)) = id else { panic!("{id:?}") };
    id
}

fn reply(acm: &mut Acm, now: Instant, event: Event, outcome: Outcome, is_found: bool) {
    match event {
        Event::Ask { id, ask } => {
            let answer = match ask {
                Ask::Source(_) => {
                    Answer::Source { gid: is_found.then(|| gid("fe80::1")), pkey: None }
                }
                Ask::Start { known, .. } if is_found => {
                    let device = "mlx5_0".parse().unwrap();
                    let port = PortName { device, port: PortNum::new(1).unwrap() };
                    Answer::Start(Ok((port, known.into())))
                }
                Ask::Start { .. } => Answer::Start(Err(NoStart::NoSource)),
                Ask::Endpoint { .. } => Answer::Endpoint(None),
            };
            acm.handle_input(now, Input::Answer { id, answer: &answer });
        }
        Event::Address(request) => {
            acm.handle_input(now, Input::Address { id: search(request.request.id), outcome });
        }
        Event::Path(request) => {
            let outcome = if is_found { found() } else { paths::Outcome::NoSa };
            acm.handle_input(now, Input::Path { id: search(request.id), outcome });
        }
    }
}
