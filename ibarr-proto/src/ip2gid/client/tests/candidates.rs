// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The ways of a query: the test plays the kernel's rules and tables.

use std::net::IpAddr;

use super::rig::{Rig, gid, ib0, ms, secs};
use super::*;

const TARGETS: [&str; 2] = ["10.9.0.1", "fd00:9::1"];

/// A rail with these addresses, its link-local one and one of another family included.
fn rig(answered: usize) -> Rig {
    let mut rig = Rig::new(Settings { max_cached: at_least(answered), ..Settings::default() });
    rig.answer_routes = false;
    let addresses = ["10.1.0.1", "10.1.0.2", "fd00:1::1", "fd00:1::2", "fe80::1"];
    let addresses = addresses.map(|address| address.parse().unwrap()).into();
    let ipoib = Egress { is_on_fabric: true, ..Egress::default() };
    let egress = Egress { addresses, ..ipoib.clone() };
    let other = IfIndex::new(3).unwrap();
    rig.client
        .network_changed(BTreeMap::from([(ib0().unwrap(), Some(egress)), (other, Some(ipoib))]));
    rig
}

fn at_least(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn by_rail(target: &str) -> Question {
    Question::new(target.parse().unwrap(), ib0()).unwrap()
}

impl Rig {
    /// Answers the last look-up: the gateway with this number on an interface, or none. Returns what was
    /// looked up.
    fn gateway(&mut self, gateway: Option<(u32, u16)>) -> String {
        let candidate = self.routes_asked.pop().expect("a look-up");
        let route =
            gateway.map(|(ifindex, n)| Route { ifindex: IfIndex::new(ifindex).unwrap(), ..via(n) });
        self.input(Input::Route { candidate, route });
        candidate.to_string()
    }

    /// Until a look-up is wanted.
    fn until_look_up(&mut self) {
        while self.routes_asked.is_empty() {
            self.run(ms(1));
        }
    }

    /// Source and next hop's interface of the sent queries.
    fn sources(&self) -> Vec<String> {
        let source = |transmit: &Transmit| match (transmit.source, transmit.egress) {
            (Some(source), Some(egress)) => format!("{source} by {egress}"),
            (None, Some(egress)) => format!("by {egress}"),
            (None, None) => "free".to_owned(),
            other => panic!("{other:?}"),
        };
        self.sent.iter().map(|(_, transmit)| source(transmit)).collect()
    }
}

#[test]
fn source_that_a_rule_selects_gives_the_route_of_the_interface() {
    for (target, source) in TARGETS.into_iter().zip(["10.1.0.1", "fd00:1::1"]) {
        let mut rig = rig(9);
        let kernel = rig.ask(by_rail(target));
        assert_eq!(rig.gateway(None), format!("{target}%2"));
        assert_eq!(rig.gateway(Some((2, 254))), format!("{target}%2 from {source}"));
        assert_eq!(rig.sources(), [format!("{source} by 2")]);
        rig.reply(0, Some(gid(5)));
        assert!(matches!(rig.answers[&kernel].1, Outcome::Found { source: Source::Peer, .. }));
    }
}

#[test]
fn route_by_another_interface_or_to_a_neighbour_is_no_candidate() {
    let target = TARGETS[0];
    let on_link = |rig: &mut Rig| {
        let candidate = rig.routes_asked.pop().unwrap();
        let route = Route { next_hop: target.parse().unwrap(), ..via(0) };
        rig.input(Input::Route { candidate, route: Some(route) });
    };
    let mut rig = rig(9);
    rig.ask(by_rail(target));
    assert_eq!(rig.gateway(Some((3, 254))), "10.9.0.1%2");
    on_link(&mut rig);
    assert_eq!(rig.gateway(Some((3, 253))), "10.9.0.1%2 from 10.1.0.2");
    assert_eq!(rig.sent.len(), 0);
    // The ifindex may be that of another namespace.
    assert_eq!(rig.gateway(Some((3, 254))), "10.9.0.1");
    assert_eq!(rig.sources(), ["free"]);

    // A user may ask for a neighbour.
    rig.ask_as_user(by_rail("10.1.0.9"));
    let candidate = rig.routes_asked.pop().unwrap();
    let route = Some(Route { next_hop: candidate.question.target(), ..via(0) });
    rig.input(Input::Route { candidate, route });
    assert_eq!(rig.sources(), ["free", "by 2"]);
}

#[test]
fn user_gets_no_route_of_another_interface() {
    let mut rig = rig(9);
    let user = rig.ask_as_user(by_rail(TARGETS[0]));
    for _ in 0..3 {
        rig.gateway(None);
    }
    assert_eq!((rig.answers[&user].1, rig.sent.len()), (Outcome::Unreachable, 0));
}

#[test]
fn request_of_another_namespace_leaves_only_by_a_gateway_on_ipoib() {
    // An interface that is none here, and one that is no IPoIB interface here but has a gateway.
    let callers = [(77, None), (4, Some((4, 254)))];
    // A neighbour, the gateway of an interface that is no IPoIB interface, and one of a gateway on IPoIB.
    let rows = [(3, TARGETS[0], 0), (4, "10.3.0.254", 0), (3, "10.3.0.254", 1)];
    for ((caller, by_caller), (ifindex, next_hop, sent)) in
        callers.into_iter().flat_map(|caller| rows.map(|row| (caller, row)))
    {
        let question = Question::new(TARGETS[0].parse().unwrap(), IfIndex::new(caller)).unwrap();
        let mut rig = rig(9);
        let ethernet = BTreeMap::from([(IfIndex::new(4).unwrap(), Some(Egress::default()))]);
        rig.client.network_changed(ethernet);
        let kernel = rig.ask(question);
        assert_eq!(rig.gateway(by_caller), format!("10.9.0.1%{caller}"));
        let candidate = rig.routes_asked.pop().unwrap();
        assert_eq!(candidate.egress, None);
        let (ifindex, next_hop) = (IfIndex::new(ifindex).unwrap(), next_hop.parse().unwrap());
        rig.input(Input::Route { candidate, route: Some(Route { ifindex, next_hop }) });
        assert_eq!(rig.sent.len(), sent);
        let ended = rig.answers.get(&kernel).map(|(_, outcome)| *outcome);
        assert_eq!(ended, (sent == 0).then_some(Outcome::Unreachable));
    }
}

#[test]
fn dead_gateway_takes_one_send_and_each_resend_the_next_way() {
    for question in
        [by_rail(TARGETS[0]), Question::new(by_rail(TARGETS[0]).target(), None).unwrap()]
    {
        let mut rig = rig(9);
        rig.ask_for(question, secs(30));
        rig.gateway(Some((2, 253)));
        assert_eq!(rig.sent.len(), 1, "the first way needs no further look-up");
        rig.until_look_up();
        assert_eq!(rig.gateway(Some((2, 253))), "10.9.0.1%2 from 10.1.0.1");
        assert_eq!(rig.sent.len(), 1, "it is the same way");
        assert_eq!(rig.gateway(Some((2, 254))), "10.9.0.1%2 from 10.1.0.2");
        assert_eq!(rig.sent.len(), 2);
        rig.run(secs(1));
        assert_eq!(rig.routes_asked, [], "each candidate is looked up once a round");
        let first = if question.egress().is_some() { "by 2" } else { "free" };
        assert_eq!(rig.sources()[..4], [first, "10.1.0.2 by 2", first, "10.1.0.2 by 2"]);
        assert_eq!(rig.client.load().hops, 1, "it waits for one next hop at a time");
        rig.reply(1, Some(gid(5)));
        // What answered is the first way of the next question.
        let sent = rig.sent.len();
        rig.client.flush();
        rig.ask_for(question, secs(30));
        assert_eq!(rig.gateway(Some((2, 254))), "10.9.0.1%2 from 10.1.0.2");
        assert_eq!(rig.sources()[sent..], ["10.1.0.2 by 2"]);
        rig.reply(sent, Some(gid(5)));
        rig.client.network_changed(BTreeMap::new());
        rig.client.flush();
        rig.ask_for(question, secs(30));
        assert_eq!(rig.routes_asked, [question.into()], "a change of routes forgets it");
    }
}

#[test]
fn late_reply_by_the_first_way_makes_that_one_the_first_again() {
    let mut rig = rig(9);
    let question = by_rail(TARGETS[0]);
    for _ in 0..2 {
        rig.ask_for(question, secs(30));
        assert_eq!(rig.gateway(Some((2, 253))), "10.9.0.1%2");
        let first = rig.sent.len() - 1;
        rig.until_look_up();
        assert_eq!(rig.gateway(Some((2, 254))), "10.9.0.1%2 from 10.1.0.1");
        assert_eq!(rig.sent.len(), first + 2);
        rig.reply(first, Some(gid(5)));
        rig.client.flush();
    }
    assert_eq!(rig.count(Counter::Replies), 2);
}

#[test]
fn sources_that_answered_are_bounded_and_forgotten_together() {
    let mut rig = rig(2);
    let ask = |rig: &mut Rig, n: u8| {
        rig.ask(by_rail(&format!("10.9.0.{n}")));
        let first = rig.gateway(None);
        if !first.contains("from") {
            rig.gateway(Some((2, 254)));
        }
        rig.reply(rig.sent.len() - 1, Some(gid(5)));
        rig.client.flush();
        first
    };
    for n in 1..=4 {
        ask(&mut rig, n);
    }
    assert_eq!(rig.count(Counter::SourcesForgotten), 1);
    assert_eq!(ask(&mut rig, 1), "10.9.0.1%2");
}

#[test]
fn addresses_of_an_interface_are_tried_up_to_a_bound() {
    let mut rig = rig(9);
    let addresses = (1..=99).map(|n| IpAddr::from([10, 1, 0, n])).collect();
    let egress = Egress { addresses, ..Egress::default() };
    rig.client.network_changed(BTreeMap::from([(ib0().unwrap(), Some(egress))]));
    let user = rig.ask_as_user(by_rail(TARGETS[0]));
    let mut looked_up = 0;
    while !rig.answers.contains_key(&user) {
        rig.gateway(None);
        looked_up += 1;
    }
    assert_eq!(looked_up, 9);
}

#[test]
fn query_by_an_interface_in_a_vrf_leaves_from_a_socket_of_the_vrf() {
    let mut rig = rig(9);
    let blue = IfIndex::new(7);
    let egress = Egress { vrf: blue, is_on_fabric: true, ..Egress::default() };
    rig.client.network_changed(BTreeMap::from([(ib0().unwrap(), Some(egress))]));
    for egress in [ib0(), blue] {
        rig.ask(Question::new(by_rail(TARGETS[0]).target(), egress).unwrap());
        rig.gateway(Some((2, 254)));
        let sent = rig.sent.len() - 1;
        let transmit = &rig.sent[sent].1;
        assert_eq!((transmit.socket.vrf(), transmit.egress), (blue, ib0()));
        rig.reply(sent, Some(gid(5)));
    }
    rig.ask(Question::new(by_rail(TARGETS[0]).target(), None).unwrap());
    rig.gateway(Some((2, 254)));
    assert_eq!(rig.sent[2].1.socket.vrf(), None, "the main table leads into it");
    assert_eq!(rig.answers.len(), 2);
}

#[test]
fn vrfs_with_sockets_are_bounded_and_idle_ones_give_way() {
    let mut rig = rig(9);
    let vrfs = (100..200).map(|n| {
        let vrf = IfIndex::new(n + 1000);
        let egress = Egress { vrf, is_on_fabric: true, ..Egress::default() };
        (IfIndex::new(n).unwrap(), Some(egress))
    });
    rig.client.network_changed(vrfs.collect());
    let mut ids = BTreeSet::new();
    let ask = |rig: &mut Rig, n: u32| {
        let target = by_rail(TARGETS[0]).target();
        let id = rig.ask(Question::new(target, IfIndex::new(n)).unwrap());
        rig.gateway(Some((n, 254)));
        id
    };
    for n in 100..116 {
        ask(&mut rig, n);
    }
    let refused = ask(&mut rig, 116);
    assert_eq!(rig.answers[&refused].1, Outcome::Overloaded);
    assert_eq!(rig.count(Counter::DomainsFull), 1);
    ids.extend(rig.open.clone());
    rig.run(secs(200));
    assert_eq!(rig.open.len(), 0, "unused sockets are closed");
    let sent = rig.sent.len();
    for n in 116..132 {
        ask(&mut rig, n);
    }
    assert_eq!(rig.sent.len(), sent + 16);
    rig.run(secs(200));
    ask(&mut rig, 100);
    assert!(rig.open.is_disjoint(&ids), "no id is used again");
}

#[test]
fn query_that_was_not_sent_is_not_counted_and_the_next_way_follows() {
    let mut rig = rig(9);
    let kernel = rig.ask_for(by_rail(TARGETS[0]), secs(30));
    let refuse = |rig: &mut Rig| {
        let query = rig.sent.pop().unwrap().1.payload;
        rig.input(Input::NotSent { query: query.as_ref() });
    };
    rig.gateway(Some((2, 253)));
    refuse(&mut rig);
    assert_eq!((rig.count(Counter::Queries), rig.count(Counter::Resends)), (0, 0));
    rig.until_look_up();
    rig.gateway(Some((2, 254)));
    assert_eq!((rig.count(Counter::Queries), rig.count(Counter::Resends)), (1, 0));
    assert_eq!(rig.sources(), ["10.1.0.1 by 2"]);
    let send = |rig: &mut Rig| {
        let before = rig.sent.len();
        while rig.sent.len() == before {
            if !rig.routes_asked.is_empty() {
                rig.gateway(Some((2, 254)));
            }
            rig.run(ms(1));
        }
    };
    // Every second send is refused from now on, in several rounds.
    for _ in 0..9 {
        send(&mut rig);
        send(&mut rig);
        refuse(&mut rig);
    }
    send(&mut rig);
    let counted = rig.count(Counter::Queries) + rig.count(Counter::Resends);
    assert_eq!(counted, rig.sent.len() as u64);
    rig.reply(rig.sent.len() - 1, Some(gid(5)));
    assert!(matches!(rig.answers[&kernel].1, Outcome::Found { .. }));
}
