// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests about routes and policy rules.

use ibarr_proto::ip2gid::Family;
use ibarr_proto::local_view::routing::{MAX_LISTED_ROUTES, Route, Way};
use ibarr_proto::local_view::rules::{Action, Rule, Selects, Traffic};

use super::super::fib::{Fib, change};
use super::story::{Story, done};
use super::*;

const FIB: &str = include_str!("../../../../tests/golden/rtnetlink-fib.hex");

/// A line for each label and each message.
fn tell_fib(datagrams: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Vec<String> {
    let mut told = Vec::new();
    for (label, datagram) in datagrams {
        if label != "..." && !told.iter().any(|line| line == label) {
            told.push(label.to_owned());
        }
        for frame in frames(&datagram) {
            told.extend(Fib::parse(&frame.unwrap()).unwrap().map(|said| match said {
                Fib::Route(Route { prefix, metric, way, .. }) => match way {
                    Way::By { ifindex, gateway: None } => format!("{prefix} {metric} by {ifindex}"),
                    Way::By { ifindex, gateway: Some(gateway) } => {
                        format!("{prefix} {metric} by {ifindex} via {gateway}")
                    }
                    Way::Unclear => format!("{prefix} {metric} unclear"),
                },
                Fib::Rule(Rule { family, priority, only, selects, inverted, action }) => {
                    let not = if inverted { " not" } else { "" };
                    let spans: Vec<_> =
                        only.0.into_iter().filter(|span| *span != (0, u32::MAX)).collect();
                    let only = if spans.is_empty() { String::new() } else { format!(" {spans:?}") };
                    let action = match action {
                        Action::Lookup { table, suppresses: false } => table.to_string(),
                        action => format!("{action:?}"),
                    };
                    format!("{family} rule {priority}{not} {selects:?}{only} {action}")
                }
            }));
        }
    }
    told
}

#[test]
fn recorded_rules_and_routes_are_read() {
    let dumps = recorded(FIB).into_iter().take_while(|(label, _)| !label.starts_with("ip "));
    let told = tell_fib(dumps);
    let expected = [
        "rules",
        "IPv4 rule 0 All 255",
        "IPv4 rule 100 Some 300",
        "IPv4 rule 101 Some 300",
        // For forwarded packets, and for marked ones.
        "IPv4 rule 102 NotOurs 300",
        "IPv4 rule 103 NotOurs 300",
        // For packets without mark, such as replies; and for any mark but one.
        "IPv4 rule 104 All 300",
        "IPv4 rule 105 not NotOurs 300",
        "IPv4 rule 106 All Lookup { table: 254, suppresses: true }",
        "IPv4 rule 107 All [(1, 2)] 300",
        // A blackhole, and a jump.
        "IPv4 rule 108 All Refuse",
        "IPv4 rule 109 All Goto(32766)",
        "IPv4 rule 110 Some 300",
        "IPv4 rule 111 All [(17, 17), (4791, 4791)] 300",
        // For packets that this machine sends.
        "IPv4 rule 112 All 300",
        "IPv4 rule 113 All 300",
        "IPv4 rule 1000 Vrf 0",
        "IPv4 rule 32766 All 254",
        "IPv4 rule 32767 All 253",
        "IPv6 rule 0 All 255",
        "IPv6 rule 100 Some 300",
        "IPv6 rule 32766 All 254",
        "routes of IPv4",
        "0.0.0.0/0 0 by 5 via 10.2.0.254",
        "10.1.0.0/24 0 by 3",
        "10.2.0.0/24 0 by 5",
        "10.3.0.0/16 0 by 3 via 10.1.0.254",
        "10.3.0.0/16 100 by 5 via 10.2.0.254",
        "10.4.0.0/16 0 by 3 via fe80::254",
        // Two gateways, two interfaces, a blackhole, unreachable.
        "10.5.0.0/16 0 by 3 via 10.1.0.253",
        "10.6.0.0/16 0 unclear",
        "10.7.0.0/16 0 unclear",
        "10.8.0.0/16 0 unclear",
        // Not the route of 10.9.0.0/16 with a TOS. Then through a nexthop object, through a tunnel.
        "10.10.0.0/16 0 by 3 via 10.1.0.254",
        "10.11.0.0/16 0 unclear",
        "routes of IPv6",
        "fd00:1::/64 256 by 3",
        "fd00:3::/64 1024 by 3 via fd00:1::fd",
        "fd00:4::/64 10 by 3 via fd00:1::fe",
        // For some sources only.
        "fd00:5::/64 1024 unclear",
        "fd00:7::/64 1024 unclear",
        "fe80::/64 256 by 3",
        "fe80::/64 256 by 2",
        "fe80::/64 256 by 5",
        "fe80::/64 256 by 4",
        "::/0 1024 by 3 via fd00:1::fe",
    ];
    assert_eq!(told, expected);
}

#[test]
fn recorded_changes_of_routes_and_rules_are_noticed() {
    let events = recorded(FIB).into_iter().skip_while(|(label, _)| !label.starts_with("ip "));
    let is_change =
        |datagram: &[u8]| frames(datagram).all(|it| matches!(change(&it.unwrap()), Ok(Some(_))));
    assert!(events.clone().all(|(label, datagram)| is_change(&datagram) || label == "..."));
    let changes = events.clone().flat_map(|(_, datagram)| {
        frames(&datagram).map(|it| change(&it.unwrap()).unwrap()).collect::<Vec<_>>()
    });
    let own: Vec<_> = changes.flatten().filter(|it| *it != Input::RoutesChanged).collect();
    assert_eq!(own, [const { Input::OwnRoute }; 6]);
    let told = tell_fib(events);
    let expected = [
        "ip route add 10.20.0.0/16 via 10.1.0.254",
        "10.20.0.0/16 0 by 3 via 10.1.0.254",
        "ip route del 10.20.0.0/16",
        "10.20.0.0/16 0 by 3 via 10.1.0.254",
        "ip addr add 10.21.0.1/24 dev d0",
        "10.21.0.0/24 0 by 3",
        // Nothing about another table, nor about addresses.
        "ip route add 10.22.0.0/16 via 10.1.0.254 table 300",
        "ip rule add pref 200 from 10.1.0.2 lookup 300",
        "IPv4 rule 200 Some 300",
        "ip rule del pref 200",
        "IPv4 rule 200 Some 300",
        "ip -6 rule add pref 200 from fd00:1::2 lookup 300",
        "IPv6 rule 200 Some 300",
        "ip -6 route add fd00:20::/64 via fd00:1::fe",
        "fd00:20::/64 1024 by 3 via fd00:1::fe",
        // No event about the IPv4 routes that are removed with it.
        "ip link set d1 down",
        "fe80::/64 256 by 5",
    ];
    assert_eq!(told, expected);
}

/// `struct rtmsg` of a route of the main table.
fn rtmsg(family: u8, bits: u8, kind: u8) -> Message {
    Message::new(24, &[family, bits, 0, 0, 254, 0, 0, kind, 0, 0, 0, 0])
}

fn hop(len: u16, flags: u8, ifindex: u32) -> Vec<u8> {
    [&len.to_ne_bytes()[..], &[flags, 0], &ifindex.to_ne_bytes()].concat()
}

fn parse(message: &Message) -> Result<Option<Fib>, Malformed> {
    let bytes = message.bytes();
    let frames: Vec<_> = frames(&bytes).collect();
    let [Ok(frame)] = frames.as_slice() else { panic!("{frames:?}") };
    Fib::parse(frame)
}

#[test]
fn malformed_route_is_rejected_with_its_reason() {
    let oif = || Attr::u32(4, 5);
    let multipath = |hops: &[u8]| rtmsg(2, 0, 1).with(Attr::new(9, hops));
    let rule = || Message::new(32, &[2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0]);
    let cases = [
        (Message::new(24, &[2, 0, 0, 0, 254, 0, 0, 1]), Malformed::Attributes),
        (rtmsg(2, 33, 1).with(oif()), Malformed::PrefixLen),
        (rtmsg(2, 8, 1).with(Attr::new(1, &[10, 0, 0])), Malformed::AttributeLength),
        (rtmsg(2, 0, 1).with(Attr::u32(4, 0)), Malformed::IfIndex),
        (rtmsg(2, 0, 1).with(oif()).with(Attr::new(5, &[10])), Malformed::AttributeLength),
        (rtmsg(2, 0, 1).with(oif()).with(Attr::new(18, &[0])), Malformed::AttributeLength),
        (rtmsg(2, 0, 1).with(oif()).with(Attr::new(6, &[0])), Malformed::AttributeLength),
        (rtmsg(2, 0, 1).with(oif()).cut(1), Malformed::Attributes),
        (multipath(&hop(8, 0, 5)[..7]), Malformed::Attributes),
        // Next hops whose stated length is too short or too long.
        (multipath(&hop(0, 0, 5)), Malformed::Attributes),
        (multipath(&hop(9, 0, 5)), Malformed::Attributes),
        (multipath(&hop(8, 0, 0)), Malformed::IfIndex),
        (Message::new(32, &[2; 11]), Malformed::Attributes),
        (rule().with(Attr::new(6, &[0])), Malformed::AttributeLength),
        (rule().with(Attr::new(20, &[0; 3])), Malformed::AttributeLength),
        (rule().with(Attr::new(20, &[0; 9])), Malformed::AttributeLength),
        (rule().with(Attr::new(22, &[17, 0])), Malformed::AttributeLength),
        (rule().with(Attr::new(23, &[0; 2])), Malformed::AttributeLength),
        (rule().with(Attr::new(24, &[0; 5])), Malformed::AttributeLength),
    ];
    for (message, reason) in cases {
        assert_eq!(parse(&message), Err(reason), "{message:?}");
    }
    // Messages of multicast routing, and of MPLS.
    for family in [128, 129, 28] {
        assert_eq!(parse(&rtmsg(family, 0, 1)), Ok(None));
    }
    // A nexthop object that the kernel does not expand; next hops, of which none is alive.
    let unclear = |message: &Message| match parse(message) {
        Ok(Some(Fib::Route(route))) => route.way == Way::Unclear,
        other => panic!("{other:?}"),
    };
    assert!(unclear(&rtmsg(2, 0, 1).with(Attr::u32(30, 7))));
    assert!(unclear(&multipath(&hop(8, 1, 5))));
    assert!(!unclear(&multipath(&[hop(8, 1, 6), hop(8, 0, 5)].concat())));
    assert!(unclear(&multipath(&[hop(8, 0, 6), hop(8, 0, 5)].concat())));
    // A selector that is newer than this code, and a part of a port.
    let selects = |message: &Message| match parse(message) {
        Ok(Some(Fib::Rule(rule))) => rule.selects,
        other => panic!("{other:?}"),
    };
    assert_eq!(selects(&rule()), Selects::All);
    assert_eq!(selects(&rule().with(Attr::u32(99, 1))), Selects::Some);
    assert_eq!(selects(&rule().with(Attr::new(28, &[0xf0, 0xff]))), Selects::Some);
    assert_eq!(selects(&rule().with(Attr::new(19, &[1]))), Selects::Vrf);
}

proptest! {
    #[test]
    fn no_bytes_about_routes_cause_a_panic(
        message: prop::sample::Index, at: prop::sample::Index, byte: u8,
        cut: prop::sample::Index, noise: Vec<u8>
    ) {
        let recorded = recorded(FIB);
        let mut near_miss = message.get(&recorded).1.clone();
        *at.get_mut(&mut near_miss) = byte;
        let short = near_miss[..cut.index(near_miss.len())].to_vec();
        for bytes in [near_miss, short, noise] {
            for frame in frames(&bytes).flatten() {
                let _ = Fib::parse(&frame);
            }
        }
    }
}

impl Story {
    /// The session sends this request: the type, and the first bytes of its header.
    fn asks_table(&mut self, kind: u16, family: u8, table: u8) -> &mut Self {
        assert_eq!(self.asks_by(kind), [family, 0, 0, 0, table, 0, 0, 0, 0, 0, 0, 0]);
        self
    }
}

fn default_route() -> (Message, Route) {
    let way = Way::By { ifindex: index(5), gateway: None };
    let prefix = "0.0.0.0/0".parse().unwrap();
    (rtmsg(2, 0, 1).with(Attr::u32(4, 5)), Route { prefix, metric: 0, way, source: None })
}

#[test]
fn dump_lists_rules_then_the_routes_of_each_family() {
    let (message, route) = default_route();
    let rule = Message::new(32, &[10, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0]);
    let listed = Rule {
        family: Family::V6,
        priority: 0,
        only: Traffic::ALL,
        selects: Selects::All,
        inverted: false,
        action: Action::Lookup { table: 254, suppresses: false },
    };
    let mut story = Story::about(Subject::Routes);
    story.session.handle_request(Extent::All);
    story.asks_table(34, 0, 0).answers(&[rule, done()]);
    story.asks_table(26, 2, 254).answers(std::slice::from_ref(&message));
    // Many events give one input. One of a cached route, and of multicast routing, gives none.
    let other = Message::new(24, &[2, 0, 0, 0, 253, 0, 0, 1, 0, 0, 0, 0]);
    story.hears(&[message.clone(), other.clone(), message]).hears(&[other]);
    let cached = Message::new(24, &[10, 0, 0, 0, 253, 0, 0, 1, 0, 2, 0, 0]);
    story.hears(&[cached, rtmsg(128, 0, 1)]);
    story.answers(&[done()]).asks_table(26, 10, 254).answers(&[done()]);
    story.says(&[
        Input::RoutesStarted,
        Input::ListedRule(listed),
        Input::ListedRoute(route),
        Input::RoutesChanged,
        Input::RoutesDone,
    ]);
    assert_eq!(story.session.poll_transmit(&mut story.said), None);
    assert_eq!(story.counted(Counter::RtnetlinkEvent), 4);
    // Of a nexthop object.
    for kind in [104, 105] {
        story.hears(&[Message::new(kind, &[2, 0, 0, 0, 0, 0, 0, 0])]).says(&[Input::RoutesChanged]);
    }
}

#[test]
fn only_the_kernels_own_route_of_an_address_is_told_apart() {
    let address = [10, 1, 0, 9];
    let event = |kind, header: [u8; 12]| {
        let octets = if header[0] == 2 { address.to_vec() } else { vec![0xfd; 16] };
        let bytes = Message::new(kind, &header).with(Attr::new(1, &octets)).bytes();
        let frame = frames(&bytes).next().unwrap().unwrap();
        change(&frame).unwrap().unwrap()
    };
    let of_ipv4 = [2, 32, 0, 0, 255, 2, 254, 2, 0, 0, 0, 0];
    let of_ipv6 = [10, 128, 0, 0, 255, 2, 0, 2, 0, 0, 0, 0];
    assert_eq!(event(24, of_ipv4), Input::OwnRoute);
    assert_eq!(event(25, of_ipv4), Input::OwnRouteGone(address.into()));
    assert_eq!([24, 25].map(|kind| event(kind, of_ipv6)), [Input::OwnRoute, Input::OwnRoute]);
    // Of another length, table, maker or type.
    for (at, other) in [(1, 24), (4, 254), (5, 3), (7, 3)] {
        for (kind, mut header) in [(24, of_ipv4), (25, of_ipv4), (24, of_ipv6)] {
            header[at] = other;
            assert_eq!(event(kind, header), Input::RoutesChanged, "{header:?}");
        }
    }
    // The table of the attribute counts.
    let table = Message::new(24, &of_ipv4).with(Attr::u32(15, 300));
    let bytes = table.with(Attr::new(1, &address)).bytes();
    let frame = frames(&bytes).next().unwrap().unwrap();
    assert_eq!(change(&frame), Ok(Some(Input::RoutesChanged)));
}

#[test]
fn kernel_without_policy_routing_or_routes_lists_none() {
    let mut story = Story::about(Subject::Routes);
    story.session.handle_request(Extent::All);
    let refused = |errno: i32| [Message::new(2, &[&(-errno).to_ne_bytes()[..], &[0; 16]].concat())];
    story.asks_table(34, 0, 0).answers(&refused(libc::EOPNOTSUPP));
    let no_table = Message::new(3, &(-libc::ENOENT).to_ne_bytes());
    story.asks_table(26, 2, 254).answers(&[no_table]).asks_table(26, 10, 254);
    // Any other error is a failed dump.
    story.answers(&refused(libc::EBUSY));
    assert_eq!(story.said.last(), Some(&Input::DumpFailed(Subject::Routes)));
    assert_eq!(story.counted(Counter::RtnetlinkDumpRefused), 1);
}

#[test]
fn dump_with_too_many_entries_is_given_up_for_good() {
    let mut story = Story::about(Subject::Routes);
    let (message, route) = default_route();
    story.session.handle_request(Extent::All);
    story.asks_table(34, 0, 0).answers(&[done()]).asks_table(26, 2, 254);
    story.answers(&vec![message.clone(); MAX_LISTED_ROUTES]);
    assert_eq!(story.said.len(), 1 + MAX_LISTED_ROUTES);
    assert!(!story.session.is_too_much() && story.said.last() == Some(&Input::ListedRoute(route)));
    story.said.clear();
    story.answers(&[message.clone(), message]).says(&[Input::RoutesTooMany]);
    assert!(story.session.is_too_much());
    assert_eq!(story.session.poll_transmit(&mut story.said), None);
}
