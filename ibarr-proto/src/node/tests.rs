// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Requests that pass several cores of a node.

mod kernel_paths;
mod rig;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{MsgId, Query, Reply, Version};
use ibarr_common::wire::ls::{Answer, PortId, Request, ResolveIp, Seq, messages};

use self::rig::{Rig, gid, ip, question};
use super::*;
use crate::health::Subsystem;
use crate::ip2gid::Question;
use crate::ip2gid::client::{Route, SocketEvent};
use crate::ip2gid::server::{Received, Silence};
use crate::local_service::{
    Counter, DEADLINE, FOLLOW_UPS, LATELY, Nudge, Nudged, RETRY, Sender, Transmit,
};
use crate::local_view::{
    AltNames, Bonding, Dad, HwAddr, Input as View, InterfaceAddress, InterfaceName, Link, LinkType,
    Subject,
};
use crate::places::Room as Places;
use crate::request::Source;
use crate::requests::{ADDRESSES, PATHS};
use crate::responder::Blocked;
use crate::shares::{self, User};

#[test]
fn own_address_is_answered_without_the_network() {
    let found = Outcome::Found { gid: gid("fe80::1"), source: Source::Local };
    for (target, egress, outcome) in [
        ("10.1.0.1", None, found),
        ("10.1.0.1", Some(9), found),
        ("192.0.2.1", None, Outcome::NotFound),
        ("fe80::5", Some(4), found),
    ] {
        let mut rig = Rig::new();
        rig.ask(7, target, egress);
        assert_eq!(rig.answered(), [(7, outcome)], "{target}");
        assert_eq!((rig.routes().as_str(), rig.sent().as_str()), ("", ""));
    }
}

#[test]
fn other_addresses_are_asked_for() {
    for (target, egress, asked) in [
        ("10.2.0.5", None, "10.2.0.5"),
        ("fe80::5", Some(5), "fe80::5%5"),
        ("fe80::5", None, "fe80::5"),
    ] {
        let mut rig = Rig::new();
        rig.ask(7, target, egress);
        assert_eq!(rig.answered(), []);
        assert_eq!(rig.routes(), asked);
    }
}

#[test]
fn fresh_question_asks_the_peer_whose_answer_is_remembered() {
    let mut rig = Rig::new();
    for (n, its_gid) in ["fe80::9", "fe80::a"].into_iter().enumerate() {
        let request = rig.request(n as u64, "10.2.0.5", None);
        rig.tell(Input::Resolve(request.with(Freshness::Fresh)));
        rig.drain();
        rig.route("10.2.0.5", None, Some((2, "10.1.0.254")));
        assert_eq!(rig.sent(), "10.2.0.5 by any");
        rig.reply(its_gid);
        let outcome = Outcome::Found { gid: gid(its_gid), source: Source::Peer };
        assert_eq!(rig.answered(), [(n as u64, outcome)]);
    }
    // The last answer is remembered.
    rig.ask(7, "10.2.0.5", None);
    let outcome = Outcome::Found { gid: gid("fe80::a"), source: Source::Cache };
    assert_eq!(rig.answered(), [(7, outcome)]);

    let request = rig.request(8, "10.1.0.1", None);
    rig.tell(Input::Resolve(request.with(Freshness::Fresh)));
    rig.drain();
    let own = Outcome::Found { gid: gid("fe80::1"), source: Source::Local };
    assert_eq!(rig.answered(), [(8, own)]);
}

#[test]
fn kernel_gets_own_addresses_at_once() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.1.0.1");
    assert_eq!(rig.told(), "1 is fe80::1, nudge");
    // An address of this node without a GID: no peer has one for it.
    rig.kernel_asks(2, "192.0.2.1");
    assert_eq!((rig.told().as_str(), rig.routes().as_str()), ("", ""));
}

#[test]
fn query_of_a_peer_is_judged_when_all_addresses_are_known() {
    let mut rig = Rig::unknown(4);
    let to = ip("10.1.0.1");
    let query = Query::new(Version::V1, MsgId(7), to).unwrap().emit();
    let (from, ingress) = ("10.1.0.9:4791".parse().unwrap(), IfIndex::new(4).unwrap());
    let received = Received { from, to, ingress, is_local: false, payload: query.as_ref() };
    assert_eq!(rig.node.answer(&received), Err(Silence::NotYet));
    rig.tell(Input::View(View::DumpStarted));
    assert_eq!(rig.node.answer(&received), Err(Silence::NotYet));
    assert!(rig.node.server().counters().iter().all(|(_, count)| count == 0));
    rig.knows_itself();
    let reply = rig.node.answer(&received).unwrap();
    assert_eq!(Reply::parse(reply.payload.as_ref()).unwrap().gid, Some(gid("fe80::1")));
}

#[test]
fn early_kernel_requests_wait_for_the_local_view() {
    let mut rig = Rig::unknown(16_384);
    for (seq, target) in [(1, "10.1.0.1"), (2, "10.2.0.5")] {
        rig.kernel_asks(seq, target);
    }
    assert_eq!((rig.told().as_str(), rig.routes().as_str()), ("", ""));
    rig.knows_itself();
    assert_eq!((rig.told().as_str(), rig.routes().as_str()), ("1 is fe80::1, nudge", "10.2.0.5%2"));

    // They wait no longer than the kernel does.
    let mut rig = Rig::unknown(16_384);
    rig.kernel_asks(3, "10.2.0.6");
    rig.pass(DEADLINE);
    rig.knows_itself();
    assert_eq!(rig.routes(), "");
}

/// The rule for an interface that may belong to another network namespace.
#[test]
fn interface_of_a_kernel_request_counts_only_with_a_gateway() {
    let cases = [
        // Routing confirms it: through that interface, by a gateway.
        (Some((2, "10.1.0.254")), None, "10.2.0.5 by 2"),
        // On its link: the kernel would not have asked.
        (Some((2, "10.2.0.5")), Some((3, "10.1.0.254")), "10.2.0.5 by any"),
        // The route uses another interface.
        (Some((3, "10.1.0.254")), Some((3, "10.1.0.254")), "10.2.0.5 by any"),
        // There is no such interface here.
        (None, Some((3, "10.1.0.254")), "10.2.0.5 by any"),
    ];
    for (by_interface, free, sent) in cases {
        let mut rig = Rig::new();
        rig.kernel_asks(1, "10.2.0.5");
        assert_eq!(rig.routes(), "10.2.0.5%2");
        rig.route("10.2.0.5", Some(2), by_interface);
        if free.is_some() {
            assert_eq!(rig.routes(), "10.2.0.5");
            rig.route("10.2.0.5", None, free);
        }
        assert_eq!((rig.routes().as_str(), rig.sent().as_str()), ("", sent), "{by_interface:?}");
        rig.reply("fe80::5");
        assert_eq!(rig.told(), "1 is fe80::5, nudge");
    }
}

#[test]
fn answer_cached_for_the_interface_needs_no_route_look_up() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.2.0.5");
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    rig.reply("fe80::5");
    rig.told();
    rig.tell(Input::LocalService(local_service::Input::Nudged(Nudged::Done)));
    rig.pass(Duration::from_millis(400));
    rig.kernel_asks(2, "10.2.0.5");
    assert_eq!(rig.told(), "2 is fe80::5, nudge");
    assert_eq!((rig.sent().as_str(), rig.routes().as_str()), ("", ""));
    let counters = rig.node.local_service.counters();
    assert_eq!(counters.get(Counter::AnsweredPeer), 1);
    assert_eq!(counters.get(Counter::AnsweredCache), 1);
    let of_client = |counter| rig.node.client.counters().get(counter);
    let [requests, hits] = [client::Counter::Requests, client::Counter::CacheHits].map(of_client);
    assert_eq!((requests, hits), (2, 1));
}

#[test]
fn older_answer_is_asked_for_and_the_trace_says_so() {
    let mut rig = Rig::new();
    rig.node.trace.set(true);
    rig.kernel_asks(1, "10.2.0.5");
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    rig.reply("fe80::5");
    rig.told();
    rig.tell(Input::LocalService(local_service::Input::Nudged(Nudged::Done)));
    rig.now += Duration::from_secs(1);
    rig.kernel_asks(2, "10.2.0.5");
    // The nudge is the second one for the first answer.
    assert_eq!((rig.told().as_str(), rig.routes().as_str()), ("nudge", "10.2.0.5%2"));
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    rig.reply("fe80::6");
    assert_eq!(rig.told(), "2 is fe80::6");
    let steps = std::iter::from_fn(|| rig.node.trace.poll()).map(|event| event.step);
    let older = steps.filter(|step| *step == trace::Step::Older).count();
    assert_eq!((older, rig.node.client.counters().get(client::Counter::Older)), (1, 1));
    // What is remembered is known, however old it is.
    rig.now += Duration::from_secs(30);
    let remembered = Outcome::Found { gid: gid("fe80::6"), source: Source::Cache };
    let of = question("10.2.0.5", Some(2));
    assert_eq!(rig.node.lookup(rig.now, of), Some(remembered));
}

/// Another host may have the address there.
#[test]
fn answer_learned_on_another_route_is_not_used_for_this_one() {
    let mut rig = Rig::new();
    rig.ask(7, "10.2.0.5", None);
    rig.route("10.2.0.5", None, Some((3, "10.1.0.254")));
    rig.reply("fe80::5");
    rig.kernel_asks(1, "10.2.0.5");
    assert_eq!((rig.routes().as_str(), rig.told().as_str()), ("10.2.0.5%2", ""));
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    assert_eq!((rig.sent().as_str(), rig.told().as_str()), ("10.2.0.5 by 2", ""));
}

#[test]
fn requests_for_one_address_share_route_and_query() {
    let mut rig = Rig::new();
    for seq in 1..=3 {
        rig.kernel_asks(seq, "10.2.0.5");
    }
    rig.ask(0, "10.2.0.5", Some(2));
    assert_eq!(rig.routes(), "10.2.0.5%2");
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    assert_eq!(rig.sent(), "10.2.0.5 by 2");
    rig.reply("fe80::5");
    assert_eq!(rig.told(), "1 is fe80::5, 2 is fe80::5, 3 is fe80::5, nudge");
    let found = Outcome::Found { gid: gid("fe80::5"), source: Source::Peer };
    assert_eq!(rig.answered(), [(0, found)]);
}

#[test]
fn refusal_is_an_answer_to_users_and_not_to_the_kernel() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.2.0.5");
    rig.ask(0, "10.2.0.5", Some(2));
    rig.answer_routes();
    let query = rig.transmits[0].clone();
    let (socket, to, quoted) = (query.socket, query.to, query.payload.as_ref());
    rig.tell(Input::Client(client::Input::Refused { socket, to, quoted }));
    rig.drain();
    assert_eq!(rig.answered(), [(0, Outcome::Refused)]);
    assert_eq!((rig.told().as_str(), rig.node.client.load().waiters), ("", 1));
    rig.reply("fe80::5");
    assert_eq!(rig.told(), "1 is fe80::5, nudge");
}

#[test]
fn question_ends_when_the_kernel_drops_its_request() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.2.0.5");
    rig.kernel_asks(2, "10.2.0.6");
    rig.route("10.2.0.6", Some(2), Some((2, "10.1.0.254")));
    assert_eq!(rig.node.client.load().waiters, 2);
    assert_eq!(rig.routes(), "10.2.0.5%2");
    rig.kernel_request(3, "10.2.0.7");
    rig.pass(DEADLINE);
    assert_eq!(rig.routes(), "", "no request waits for the route to 10.2.0.7");
    assert_eq!(rig.node.client.load().waiters, 0);
    assert_eq!(rig.told(), "");
    // No request waits for the result of the route look-up any more.
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    assert_eq!((rig.sent().as_str(), rig.told().as_str()), ("10.2.0.6 by 2", ""));
}

#[test]
fn address_without_a_route_is_looked_up_again() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.2.0.5");
    for _ in 0..2 {
        assert_eq!(rig.routes(), "10.2.0.5%2");
        rig.route("10.2.0.5", Some(2), None);
        assert_eq!(rig.routes(), "10.2.0.5");
        rig.route("10.2.0.5", None, None);
        rig.pass(RETRY);
    }
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    rig.reply("fe80::5");
    assert_eq!(rig.told(), "1 is fe80::5, nudge");
}

#[test]
fn dead_targets_do_not_lock_out_live_ones() {
    let mut rig = Rig::with(4096);
    let dead = 4200;
    for seq in 0..u32::try_from(dead).unwrap() {
        rig.kernel_asks(seq, &format!("10.3.{}.{}", seq / 250, seq % 250));
        rig.answer_routes();
    }
    for _ in 0..40 {
        rig.pass(Duration::from_millis(100));
        rig.answer_routes();
    }
    rig.transmits.clear();
    rig.kernel_asks(9999, "10.2.0.5");
    let mut waited = 0;
    while !rig.transmits.iter().any(|query| query.to.ip() == ip("10.2.0.5")) {
        rig.answer_routes();
        rig.pass(Duration::from_millis(10));
        waited += 10;
        assert!(waited <= 510, "longer than a turn at the cold gateway");
    }
    rig.transmits.retain(|query| query.to.ip() == ip("10.2.0.5"));
    rig.reply("fe80::5");
    assert_eq!(rig.told(), "9999 is fe80::5, nudge");
    let load = rig.node.client.load();
    assert!(load.flights >= 4095, "the others are still asked for: {load:?}");
}

/// 20 connections of a user; each asks for 256 dead targets again as soon as it is answered.
#[test]
fn users_dead_targets_delay_no_kernel_request() {
    const ASKED: u64 = 20 * 256;
    let mut rig = Rig::with(2048);
    let target = |n: u64| format!("10.{}.{}.{}", 3 + n / 62_500, n / 250 % 250, n % 250);
    let mut asked = 0;
    let mut live = BTreeSet::new();
    for step in 0..800_u64 {
        let again = rig.answered().len() as u64;
        let more = if step == 0 { ASKED } else { again };
        for _ in 0..more {
            rig.ask(asked, &target(asked), None);
            asked += 1;
        }
        if step % 40 == 20 {
            let target = format!("10.2.0.{}", step / 40);
            rig.kernel_asks(u32::try_from(step).unwrap(), &target);
            live.insert(ip(&target));
        }
        rig.answer_routes();
        rig.pass(Duration::from_millis(10));
        rig.answer_routes();
        let flights = rig.node.client.load().flights;
        assert!(flights <= ADDRESSES.under_way.of_user + live.len(), "{flights}");
    }
    assert_eq!(live.len(), 20);
    let sent: BTreeSet<_> = rig.transmits.iter().map(|query| query.to.ip()).collect();
    assert!(live.is_subset(&sent), "{:?}", live.difference(&sent));
    // In 8 s, with a wait of 3 s each time.
    assert!(asked <= 3 * ASKED, "refusals spin: {asked}");
    let [(_, counters, (under_way, waiting)), ..] = rig.node.users();
    assert!(counters.get(shares::Counter::Refused) > ASKED);
    assert_eq!((under_way + waiting) as u64, ASKED);
}

#[test]
fn tables_hold_only_what_local_service_and_shares_admit() {
    let limits = local_service::Limits { requests: 3, ..local_service::Limits::default() };
    let mut rig = Rig::unknown(16_384);
    rig.node.local_service =
        LocalService::new(local_service::Config { limits, ..local_service::Config::default() });
    let opened = local_service::Input::Opened { port_id: PortId(180), is_member: true };
    rig.tell(Input::LocalService(opened));
    let early = |rig: &Rig| rig.node.requests.early();
    for seq in 0..10 {
        rig.kernel_request(seq, &format!("10.2.0.{seq}"));
    }
    let first = early(&rig);
    // Each new request replaces one whose caller may be gone.
    rig.now += LATELY;
    for seq in 10..20 {
        rig.kernel_request(seq, &format!("10.2.0.{seq}"));
    }
    assert_eq!((first.len(), early(&rig).len()), (3, 3));
    assert!(first.iter().all(|flight| !early(&rig).contains(flight)));
    rig.now += LATELY;
    rig.knows_itself();
    for seq in 20..30 {
        rig.kernel_request(seq, &format!("10.2.0.{seq}"));
    }
    assert!(rig.node.requests.early().is_empty());
    assert_eq!(rig.node.client.load().waiters, 3);
    assert_eq!(rig.node.local_service.counters().get(Counter::RequestsFull), 27);

    let Places { all: limit, of_user } = ADDRESSES.under_way;
    // Seven users end where the room for newcomers begins; root goes on.
    let most = limit / 8 * 5 - limit / 8 * 5 / 8 + of_user;
    for n in 0..2 * limit {
        let id = UserRequest::Control(n as u64);
        let user = User(u64::try_from(n % 8).unwrap());
        let question = question(&format!("10.3.{}.{}", n / 250, n % 250), None);
        let deadline = rig.now + Duration::from_secs(3);
        rig.tell(Input::Resolve(AddressRequest::of_user(id, user, question, deadline)));
    }
    assert_eq!(
        (rig.node.requests.admitted(), rig.node.users()[0].2),
        (most, (most, 2 * limit - most))
    );
    for _ in 0..2 {
        rig.pass(Duration::from_secs(3));
    }
    let asked: BTreeSet<_> = rig.answered.iter().map(|&(id, _)| id).collect();
    assert_eq!((asked.len(), rig.answered.len()), (2 * limit, 2 * limit));
    assert!(rig.node.requests.admitted() == 0);
}

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
const EGRESS: IfIndex = IfIndex::MIN;

/// Performs the actions for which there is `room`; routes, sockets and an IPoIB interface exist, addresses do not.
fn done(node: &mut Node, local_service: bool) -> Vec<Output> {
    let mut done = Vec::new();
    node.handle_timeout(NOW);
    while let Some(output) = node.poll(Room { local_service }) {
        match output {
            Output::View(local_view::Request::Dump(Subject::Node)) => {
                let egress = rig::link(EGRESS.get(), LinkType::INFINIBAND, &[0; 20]);
                for input in [View::DumpStarted, View::ListedLink(egress), View::DumpDone] {
                    node.handle_input(NOW, Input::View(input));
                }
                node.handle_timeout(NOW);
            }
            Output::Client(client::Output::Socket(SocketEvent::Open(socket))) => {
                let input = client::Input::SocketOpened { socket };
                node.handle_input(NOW, Input::Client(input));
            }
            Output::Client(client::Output::Route(candidate)) => {
                let next_hop = "10.1.0.254".parse().unwrap();
                let route = Some(Route { ifindex: EGRESS, next_hop });
                let input = client::Input::Route { candidate, route };
                node.handle_input(NOW, Input::Client(input));
            }
            Output::Responder(_) => {}
            output => done.push(output),
        }
    }
    done
}

#[test]
fn nudge_without_an_interface_is_postponed_until_the_interfaces_are_known() {
    let mut node = Node::new(Config::default(), ChaCha12Rng::seed_from_u64(1));
    assert_eq!(node.nudge_without_place(), Nudged::Postponed);
    for input in [local_view::Input::DumpStarted, local_view::Input::DumpDone] {
        node.handle_input(NOW, Input::View(input));
    }
    assert_eq!(node.nudge_without_place(), Nudged::Failed);
}

#[test]
fn full_kernel_socket_holds_back_only_outputs_for_the_kernel() {
    let mut node = Node::new(Config::default(), ChaCha12Rng::seed_from_u64(1));
    let opened = local_service::Input::Opened { port_id: PortId(180), is_member: true };
    node.handle_input(NOW, Input::LocalService(opened));
    let target = "10.2.0.5".parse().unwrap();
    let request = Request::ResolveIp(ResolveIp { ifindex: EGRESS, target }).emit(Seq(1));
    let bytes = request.as_ref();
    let input = local_service::Input::Datagram { sender: Sender::Kernel, bytes, cut: false };
    node.handle_input(NOW, Input::LocalService(input));
    node.handle_input(NOW, Input::LocalService(local_service::Input::Drained));
    let without_room = done(&mut node, false);
    let [Output::View(_), Output::Client(client::Output::Query(query))] = without_room.as_slice()
    else {
        panic!("{without_room:?}")
    };
    assert_eq!(query.to.ip(), target);
    let with_room = done(&mut node, true);
    let told = with_room.as_slice();
    let [Output::LocalService(Transmit::Message(_)), last] = told else { panic!("{told:?}") };
    assert_eq!(last, &Output::LocalService(Transmit::Nudge(Nudge::IfQuiet)));
}

#[test]
fn interface_has_no_verdict_while_programs_are_being_loaded() {
    let mut rig = Rig::new();
    assert_eq!(rig.node.responder().blocked(), Some(Blocked::Loading));
    rig.tell(Input::View(View::RoutesTooMany));
    while rig.node.poll(Room { local_service: false }).is_some() {}
    let on_interface = Subsystem::ResponderOn(InterfaceName::new(b"if4").unwrap());
    rig.tell(Input::Health(health::Input::Start));
    rig.node.assess(rig.now);
    assert!(rig.node.health().unknown().any(|(subsystem, _)| subsystem == on_interface));
    assert!(rig.node.health().report().all(|report| report.subsystem != on_interface));
}
