// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Routes of replies.

use ibarr_common::map::octets;
use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::ip2gid::Family;
use crate::local_view::routing::{NoWayBack, Route, RouteBack, Via, Way, WayBack};
use crate::local_view::rules::{Action, Rule, Selects, Traffic};

fn is_host(prefix: IpNet) -> bool {
    prefix.prefix_len() == prefix.max_prefix_len()
}

/// `10.0.0.0/8 by 5 via 10.1.0.9 metric 10`, where `by` and the rest are optional.
pub(super) fn route(text: &str) -> Route {
    let words: Vec<_> = text.split_whitespace().collect();
    let after = |key| {
        let at = words.iter().position(|word| *word == key)?;
        words.get(at + 1).copied()
    };
    let by = after("by").map(|ifindex| index(ifindex.parse().unwrap()));
    Route {
        prefix: words[0].parse().unwrap(),
        metric: after("metric").map_or(0, |metric| metric.parse().unwrap()),
        way: by.map_or(Way::Unclear, |ifindex| Way::By { ifindex, gateway: after("via").map(ip) }),
        source: after("src").map(ip),
    }
}

impl Story {
    fn rules_and_routes(&mut self, rules: &[Rule], routes: &[&str]) -> &mut Self {
        self.say(Input::RoutesStarted);
        for rule in rules {
            self.say(Input::ListedRule(*rule));
        }
        for text in routes {
            self.say(Input::ListedRoute(route(text)));
        }
        self.say(Input::RoutesDone)
    }

    /// The ways back over IPv4 and IPv6.
    fn ways_back(&mut self) -> String {
        // Other tests check events: they do not depend on when this is called.
        self.view.decide_served();
        let name = |way_back| match way_back {
            WayBack::All => "all".to_owned(),
            WayBack::Routed => "routed".to_owned(),
            WayBack::None(NoWayBack::Unknown) => "unknown".to_owned(),
            WayBack::None(NoWayBack::TooMany) => "too-many".to_owned(),
            WayBack::None(NoWayBack::Rule(priority)) => format!("rule-{priority}"),
            WayBack::None(NoWayBack::Vrf) => "vrf".to_owned(),
            WayBack::None(NoWayBack::NoRoute) => "-".to_owned(),
        };
        let served = self.view.served();
        let ways: Vec<_> =
            served.map(|s| format!("{} {}/{}", s.name, name(s.ipv4), name(s.ipv6))).collect();
        ways.join(", ")
    }

    /// Checks changes of routes since the last call, in order, except for the first and last
    /// addresses of subnets.
    fn leads(&mut self, expected: &[&str]) -> &mut Self {
        self.leads_and_leaves_out(expected, |prefix| prefix.addr().is_ipv4() && is_host(prefix))
    }

    fn leads_and_leaves_out(
        &mut self,
        expected: &[&str],
        is_left_out: fn(IpNet) -> bool,
    ) -> &mut Self {
        let mut told = Vec::new();
        while let Some(event) = self.view.poll_event() {
            match event {
                Event::Route(RouteBack { prefix, .. }) | Event::NoRoute(_, prefix)
                    if is_left_out(prefix) => {}
                Event::Route(RouteBack { ifindex, prefix, via }) => told.push(match via {
                    Via::Link => format!("{ifindex}: {prefix}"),
                    Via::Gateway(gateway) => format!("{ifindex}: {prefix} via {gateway}"),
                    Via::Elsewhere => format!("{ifindex}: {prefix} elsewhere"),
                }),
                Event::NoRoute(ifindex, prefix) => told.push(format!("{ifindex}: no {prefix}")),
                _ => {}
            }
        }
        assert_eq!(told, expected);
        self
    }
}

/// Interfaces 1 and 2 are served; others exist.
fn story() -> Story {
    let mut story = Story::new(&["eth1", "eth2"], &[]);
    story.link(ether(1)).link(ether(2)).link(ether(3));
    story
}

fn rule(family: Family, priority: u32, selects: Selects, table: u32) -> Rule {
    let (only, action) = (Traffic::ALL, Action::Lookup { table, suppresses: false });
    Rule { family, priority, only, selects, inverted: false, action }
}

/// The rules of every kernel.
fn own_rules(family: Family) -> [Rule; 3] {
    let all = |priority, table| rule(family, priority, Selects::All, table);
    [all(0, 255), all(32_766, 254), all(32_767, 253)]
}

#[test]
fn default_route_elsewhere_leaves_only_routed_sources_to_the_kernel() {
    let mut story = story();
    story.routes([
        "10.1.0.0/16 by 1",
        "10.2.0.0/16 by 1 via 10.1.0.9",
        "192.0.2.0/24 by 3",
        "0.0.0.0/0 by 3 via 192.0.2.1",
    ]);
    story.leads(&["1: 10.1.0.0/16", "1: 10.2.0.0/16 via 10.1.0.9", "1: fe80::/10", "2: fe80::/10"]);
    assert_eq!(story.ways_back(), "eth1 routed/routed, eth2 -/routed");
}

#[test]
fn sole_interface_with_the_default_route_answers_all_sources() {
    let mut story = story();
    let here = ["10.1.0.0/16 by 1", "0.0.0.0/0 by 1 via 10.1.0.9", "::/0 by 2 via fd00::9"];
    story.routes(here);
    assert_eq!(story.ways_back(), "eth1 all/routed, eth2 -/all");
    story.routes(here.into_iter().chain(["192.0.2.0/24 by 3"]));
    assert_eq!(story.ways_back(), "eth1 routed/routed, eth2 -/all");
    story.leads(&[
        "1: 192.0.2.0/24 elsewhere",
        // It contains all IPv4 addresses in the form of the maps.
        "2: 0.0.0.0/0 elsewhere",
        "1: 0.0.0.0/0 via 10.1.0.9",
        "1: 10.1.0.0/16",
        "1: fe80::/10",
        "2: ::/0 via fd00::9",
        "2: fe80::/10",
    ]);
    // Without a default route, most sources cannot be answered.
    story.routes(["10.1.0.0/16 by 1"]);
    assert_eq!(story.ways_back(), "eth1 routed/routed, eth2 -/routed");
}

#[test]
fn subnet_on_two_interfaces_follows_the_lower_metric_or_none() {
    let mut story = story();
    story.routes(["10.1.0.0/16 by 1", "10.1.0.0/16 by 2"]);
    assert_eq!(story.ways_back(), "eth1 -/routed, eth2 -/routed");
    story.routes(["10.1.0.0/16 by 1 metric 200", "10.1.0.0/16 by 2 metric 100"]);
    assert_eq!(story.ways_back(), "eth1 -/routed, eth2 routed/routed");
    // Several gateways on one interface are one way back; the kernel selects one of them.
    story.routes(["10.1.0.0/16 by 1 via 10.9.0.1", "10.1.0.0/16 by 1 via 10.9.0.2"]);
    assert_eq!(story.ways_back(), "eth1 routed/routed, eth2 -/routed");
    // A prefix that is blackholed, or leaves by several interfaces, has no interface.
    story.routes(["10.1.0.0/16", "10.1.0.0/16 by 1 metric 1"]);
    assert_eq!(story.ways_back(), "eth1 -/routed, eth2 -/routed");
}

#[test]
fn first_and_last_address_of_a_subnet_have_no_route() {
    let mut story = story();
    // Not behind a gateway, and not where there are too few addresses.
    story.routes([
        "10.1.0.0/16 by 1",
        "10.2.0.0/16 by 1 via 10.1.0.9",
        "10.3.0.0/30 by 2",
        "10.3.1.0/31 by 2",
        "fd00::/64 by 2",
    ]);
    let shown = [
        "1: 10.1.0.0/32 elsewhere",
        "1: 10.1.255.255/32 elsewhere",
        "2: 10.3.0.0/32 elsewhere",
        "2: 10.3.0.3/32 elsewhere",
        "1: 10.1.0.0/16",
        "1: 10.2.0.0/16 via 10.1.0.9",
        "1: fe80::/10",
        "2: 10.3.0.0/30",
        "2: 10.3.1.0/31",
        "2: fd00::/64",
        "2: fe80::/10",
    ];
    story.leads_and_leaves_out(&shown, |_| false);
    // A route to such an address shows that a host has it.
    story.routes(["10.1.0.0/16 by 1", "10.1.0.0/32 by 1"]);
    assert_eq!(story.ways_back(), "eth1 routed/routed, eth2 -/routed");
    assert!(story.view.routes_back().any(|r| is_host(r.prefix) && r.via == Via::Link));
}

#[test]
fn edges_of_subnets_take_only_the_remaining_room() {
    let mut story = story();
    let inside = (1..4096).map(|at| format!("10.{}.{}.0/24 by 2", at / 256, at % 256));
    let routes: Vec<_> = std::iter::once("10.0.0.0/8 by 1".to_owned()).chain(inside).collect();
    story.routes(routes.iter().map(String::as_str));
    assert_eq!(story.ways_back(), "eth1 routed/routed, eth2 routed/routed");
    assert_eq!(story.view.routes_back().count(), ibarr_common::map::max_entries::ROUTES);
}

#[test]
fn routes_elsewhere_are_added_first_and_removed_last() {
    let mut story = story();
    story.leads(&["1: fe80::/10", "2: fe80::/10"]);
    story.routes(["10.0.0.0/8 by 1", "10.2.0.0/16 by 2", "10.2.3.0/24 by 1", "10.4.0.0/16"]);
    story.leads(&[
        "1: 10.2.0.0/16 elsewhere",
        "1: 10.4.0.0/16 elsewhere",
        "2: 10.2.3.0/24 elsewhere",
        "1: 10.0.0.0/8",
        "1: 10.2.3.0/24",
        "2: 10.2.0.0/16",
    ]);
    story.routes(["10.4.0.0/16 by 1"]).leads(&[
        "1: no 10.0.0.0/8",
        "1: no 10.2.3.0/24",
        "1: 10.4.0.0/16",
        "2: no 10.2.0.0/16",
        "1: no 10.2.0.0/16",
        "2: no 10.2.3.0/24",
    ]);
    // Of two changes between two polls, only the last counts.
    story.routes(["10.5.0.0/16 by 1"]).routes(["10.4.0.0/16 by 1"]).leads(&[]);
    story.link(down(ether(1))).leads(&["1: no 10.4.0.0/16", "1: no fe80::/10"]);
}

#[test]
fn interface_in_a_vrf_is_left_to_the_daemon_whatever_the_main_table_says() {
    let mut story = Story::new(&["eth*"], &[]);
    let in_vrf = |vrf| Link { vrf, ..ether(1) };
    let vrf_of = |story: &Story| {
        let served = story.view.served().find(|served| served.ifindex == index(1)).unwrap();
        served.vrf.map(|name| name.to_string())
    };
    let vrf = Link { name: InterfaceName::new(b"blue").unwrap(), ..ether(9) };
    story.link(vrf).link(in_vrf(Some(index(9)))).link(ether(2));
    story.routes(["10.0.0.0/8 by 1", "10.2.0.0/16 by 2"]);
    assert_eq!(story.ways_back(), "eth1 vrf/vrf, eth2 routed/routed");
    assert_eq!(vrf_of(&story), Some("blue".to_owned()));
    assert_eq!(story.link(in_vrf(None)).ways_back(), "eth1 routed/routed, eth2 routed/routed");
    assert_eq!(vrf_of(&story), None);
}

#[test]
fn policy_rules_that_may_match_replies_leave_them_to_the_daemon() {
    use Family::{V4, V6};
    let routes = ["0.0.0.0/0 by 1", "::/0 by 1"];
    let ways_back = |more: &[Rule]| {
        let mut rules = [own_rules(V4), own_rules(V6)].concat();
        rules.extend(more);
        let mut story = Story::new(&["eth1"], &[]);
        story.link(ether(1)).rules_and_routes(&rules, &routes).ways_back()
    };
    assert_eq!(ways_back(&[]), "eth1 all/all");
    assert_eq!(ways_back(&[rule(V4, 100, Selects::Some, 7)]), "eth1 rule-100/all");
    assert_eq!(ways_back(&[rule(V6, 100, Selects::All, 7)]), "eth1 all/rule-100");
    // The last table, looked up first.
    assert_eq!(ways_back(&[rule(V4, 100, Selects::All, 253)]), "eth1 rule-32766/all");
    let main = rule(V4, 100, Selects::All, 254);
    let suppresses = Action::Lookup { table: 254, suppresses: true };
    for foreign in [
        Rule { action: Action::Goto(200), ..main },
        Rule { action: suppresses, ..main },
        Rule { only: Traffic([(0, 0); 4]), ..main },
        Rule { inverted: true, ..rule(V4, 100, Selects::NotOurs, 7) },
    ] {
        assert_eq!(ways_back(&[foreign]), "eth1 rule-100/all", "{foreign:?}");
    }
    // More rules than the limit.
    let many: Vec<_> = (40_000..42_000).map(|at| rule(V4, at, Selects::All, at)).collect();
    assert_eq!(ways_back(&many), "eth1 rule-40000/all");
    // None of them matches a reply.
    let mut harmless = vec![rule(V4, 100, Selects::NotOurs, 7); 2000];
    harmless.push(rule(V4, 1000, Selects::Vrf, 0));
    assert_eq!(ways_back(&harmless), "eth1 all/all");

    // A kernel without policy routing has no rules; with it, the rule for the main table can be
    // missing.
    let mut story = Story::new(&["eth1"], &[]);
    story.link(ether(1)).rules_and_routes(&own_rules(V6)[..1], &routes);
    assert_eq!(story.ways_back(), "eth1 all/rule-0");
}

#[test]
fn without_known_routes_the_kernel_answers_no_query() {
    let mut view = LocalView::new(config(&["eth1"], &[]));
    view.handle_timeout(NOW);
    let mut story = Story { view };
    story.dump([ether(1)], []);
    story.serves("");
    assert_eq!(story.view.confirmed_at(), None, "it may yet be told");
    // The dump does not arrive.
    let overdue = NOW + Reread::PATIENCE;
    story.view.handle_timeout(overdue);
    assert!(story.view.confirmed_at().is_some());
    story.serves("+eth1 unknown/unknown");
    assert_eq!(story.view.counters().get(Counter::RouteDumpsOverdue), 1);
    story.routes(["0.0.0.0/0 by 1"]);
    assert_eq!(story.ways_back(), "eth1 all/routed");
    story.view.handle_timeout(NOW + Reread::INTERVAL);
    story.view.handle_timeout(NOW + Reread::INTERVAL + Reread::PATIENCE);
    assert_eq!(story.ways_back(), "eth1 unknown/unknown");
}

#[test]
fn routes_are_part_of_the_confirmation() {
    let mut story = story();
    let later = NOW + Reread::INTERVAL;
    for input in [Input::DumpStarted, Input::DumpDone] {
        story.view.handle_input(later, input);
    }
    assert_eq!(story.view.confirmed_at(), Some(NOW));
    for input in [Input::RoutesStarted, Input::RoutesDone] {
        story.view.handle_input(later, input);
    }
    assert_eq!(story.view.confirmed_at(), Some(later));
}

#[test]
fn too_many_routes_are_all_dropped_and_requested_after_a_rest() {
    let limits = Limits { routes: 2, ..Limits::default() };
    let mut story = Story::with_limits(&["eth1"], &[], limits);
    let fit = ["0.0.0.0/0 by 1", "10.0.0.0/8 by 1", "10.0.0.0/8 by 1 metric 1", "fe80::/64 by 1"];
    story.link(ether(1)).routes(fit);
    assert_eq!(story.ways_back(), "eth1 all/routed");
    story.leads(&["1: 0.0.0.0/0", "1: 10.0.0.0/8", "1: fe80::/10"]);
    let never = |story: &mut Story| {
        assert_eq!(story.ways_back(), "eth1 too-many/too-many");
        assert!(story.view.confirmed_at().is_some());
        story.dump([ether(1)], []).say(Input::RoutesChanged).link(ether(1)).dump([ether(1)], []);
        let mut asked = Vec::new();
        let mut now = NOW;
        while !asked.contains(&Request::Dump(Subject::Routes)) {
            now = story.view.poll_timeout().unwrap();
            story.view.handle_timeout(now);
            asked.extend(story.view.poll_transmit());
        }
        assert_eq!(now, NOW + Reread::PAUSE);
    };
    story.routes(fit.into_iter().chain(["10.0.0.0/9 by 1"]));
    never(&mut story);
    story.leads(&["1: no 0.0.0.0/0", "1: no 10.0.0.0/8", "1: no fe80::/10"]);
    assert_eq!(story.view.counters().get(Counter::RoutesTooMany), 1);
    story.routes(fit);
    assert_eq!(story.ways_back(), "eth1 all/routed");
    // So many that the driver stops reading.
    story.say(Input::RoutesStarted).say(Input::ListedRoute(route("10.0.0.0/8 by 1")));
    story.say(Input::RoutesTooMany).say(Input::ListedRoute(route("10.0.0.0/8 by 1")));
    assert_eq!(story.view.counters().get(Counter::ListedOutsideDump), 1);
    never(&mut story);
}

#[test]
fn every_event_that_may_change_routes_causes_a_dump() {
    let mut story = story();
    // A link that goes down loses its IPv4 routes without an event.
    for event in [Input::RoutesChanged, Input::Link(down(ether(1)))] {
        story.dump([], []).routes([]);
        let quiet = story.view.poll_timeout();
        story.say(event);
        assert_eq!(story.view.poll_timeout(), Some(NOW + Reread::GAP));
        assert_ne!(quiet, Some(NOW + Reread::GAP));
        story.view.handle_timeout(NOW + Reread::GAP);
        let asked: Vec<_> = std::iter::from_fn(|| story.view.poll_transmit()).collect();
        assert!(asked.contains(&Request::Dump(Subject::Routes)), "{asked:?}");
    }
}

#[test]
fn address_has_routes_read_again_if_one_may_go_silently() {
    let mut story = story();
    let rereads = |story: &mut Story, events: &[Input]| {
        story.routes(["10.0.0.0/8 by 1 src 10.9.0.1", "10.1.0.0/16 by 1"]);
        for event in events {
            story.say(*event);
        }
        story.view.reread_routes.due() == NOW + Reread::GAP
    };
    let gone = |address| match ip(address) {
        IpAddr::V4(address) => Input::OwnRouteGone(address),
        IpAddr::V6(_) => Input::OwnRoute,
    };
    let comes = |address| [Input::Address(on(1, address)), Input::OwnRoute];
    let goes = |address| [gone(address), Input::AddressGone(on(1, address).id)];
    // The first one revives next hops; the last one takes the interface's routes with it.
    assert!(rereads(&mut story, &comes("10.9.0.2")));
    assert!(!rereads(&mut story, &comes("10.9.0.1")));
    assert!(!rereads(&mut story, &comes("10.9.0.3")));
    assert!(!rereads(&mut story, &goes("10.9.0.3")));
    assert!(rereads(&mut story, &goes("10.9.0.1")), "a route has it as its source");
    assert!(rereads(&mut story, &goes("10.9.0.2")));
    for address in ["fd00::1", "fd00::2"] {
        assert!(!rereads(&mut story, &comes(address)));
        assert!(!rereads(&mut story, &goes(address)));
    }
    // A dump has listed routes that are not known yet; and a dump of addresses has news.
    let [comes, _] = comes("10.9.0.2");
    story
        .say(comes)
        .routes([])
        .say(Input::RoutesStarted)
        .say(gone("10.9.0.9"))
        .say(Input::RoutesDone);
    assert_eq!(story.view.reread_routes.due(), NOW + Reread::GAP);
    story.routes([]).dump([ether(1)], [(1, "10.9.0.2"), (1, "10.9.0.3")]);
    assert_eq!(story.view.reread_routes.due(), NOW + Reread::GAP);
}

/// The result of a program's look-up in `held`, with both families as 128 bits.
fn leads_back(held: &BTreeMap<(IfIndex, IpNet), Via>, by: IfIndex, source: IpAddr) -> bool {
    let bits = |address| u128::from_be_bytes(octets(address));
    let longest = held
        .iter()
        .filter(|((on, _), _)| *on == by)
        .map(|((_, prefix), via)| {
            let len = u32::from(prefix.prefix_len()) + if prefix.addr().is_ipv4() { 96 } else { 0 };
            (bits(prefix.addr()), len, *via)
        })
        .filter(|&(first, len, _)| {
            (bits(source) ^ first).checked_shr(128 - len).is_none_or(|differs| differs == 0)
        })
        .max_by_key(|&(_, len, _)| len);
    longest.is_some_and(|(_, _, via)| via != Via::Elsewhere)
}

/// The route of a source, computed naively.
fn is_routed(routes: &[Route], by: IfIndex, source: IpAddr) -> bool {
    let around = || routes.iter().filter(|route| route.prefix.contains(&source));
    let Some(len) = around().map(|route| route.prefix.prefix_len()).max() else { return false };
    let longest = || around().filter(|route| route.prefix.prefix_len() == len);
    let metric = longest().map(|route| route.metric).min();
    longest().filter(|route| Some(route.metric) == metric).all(|route| match route.way {
        Way::By { ifindex, .. } => ifindex == by,
        Way::Unclear => false,
    })
}

/// Only a few bits differ, so that prefixes meet and nest.
fn routes() -> impl Strategy<Value = Vec<Route>> {
    let prefix = prop_oneof![
        (0..8u8, 28..=32u8)
            .prop_map(|(low, len)| IpNet::new_assert([10, 0, 0, low].into(), len).trunc()),
        (0..8u16, 124..=128u8).prop_map(|(low, len)| IpNet::new_assert(
            [0xfd00, 0, 0, 0, 0, 0, 0, low].into(),
            len
        )
        .trunc()),
        Just("0.0.0.0/0".parse().unwrap()),
        Just("::/0".parse().unwrap()),
    ];
    let way = prop_oneof![
        1 => Just(Way::Unclear),
        8 => (1..=3u32, prop::option::of(Just(ip("10.0.0.9"))))
            .prop_map(|(by, gateway)| Way::By { ifindex: index(by), gateway }),
    ];
    let route = (prefix, 0..3u32, way).prop_map(|(prefix, metric, way)| Route {
        prefix,
        metric,
        way,
        source: None,
    });
    prop::collection::vec(route, 0..12)
}

proptest! {
    /// Whatever the routes, an interface answers a source exactly if routing sends packets for the
    /// source through it. In the transition between two sets of routes, no source is answered that
    /// neither set answers.
    #[test]
    fn sources_are_answered_by_the_interface_that_routing_selects(
        sets in prop::collection::vec(routes(), 1..4), limit in 6..13usize
    ) {
        let limits = Limits { routes: limit, ..Limits::default() };
        let mut story = Story::with_limits(&["eth1", "eth2"], &[], limits);
        story.link(ether(1)).link(ether(2)).link(ether(3));
        let sources: Vec<IpAddr> = (0..10)
            .map(|low| [10, 0, 0, low].into())
            .chain((0..10).map(|low| IpAddr::from([0xfd00u16, 0, 0, 0, 0, 0, 0, low])))
            .chain([ip("192.0.2.1"), ip("2001:db8::1")])
            .collect();
        let served = [1, 2].map(index);
        let mut held = BTreeMap::new();
        let mut before: &[Route] = &[];
        for routes in &sets {
            story.say(Input::RoutesStarted);
            for route in routes {
                story.say(Input::ListedRoute(*route));
            }
            story.say(Input::RoutesDone);
            let prefixes: BTreeSet<_> = routes.iter().map(|route| route.prefix).collect();
            let routes: &[Route] = if prefixes.len() > limit { &[] } else { routes };
            while let Some(event) = story.view.poll_event() {
                match event {
                    Event::Route(RouteBack { ifindex, prefix, via }) => {
                        prop_assert_ne!(held.insert((ifindex, prefix), via), Some(via));
                    }
                    Event::NoRoute(ifindex, prefix) => {
                        prop_assert!(held.remove(&(ifindex, prefix)).is_some());
                    }
                    _ => {}
                }
                for (&by, &source) in served.iter().flat_map(|by| sources.iter().map(move |s| (by, s))) {
                    let was = is_routed(before, by, source) || is_routed(routes, by, source);
                    prop_assert!(was || !leads_back(&held, by, source), "{source} by {by}: {event:?}");
                }
            }
            let listed = story.view.routes_back().map(|r| ((r.ifindex, r.prefix), r.via));
            prop_assert_eq!(&listed.collect::<BTreeMap<_, _>>(), &held);
            for interface in story.view.served() {
                let is_edge = |source: IpAddr| {
                    let prefix = IpNet::from(source);
                    source.is_ipv4() && held.get(&(interface.ifindex, prefix)) == Some(&Via::Elsewhere)
                };
                for &source in sources.iter().filter(|&&source| !is_edge(source)) {
                    let way_back = if source.is_ipv4() { interface.ipv4 } else { interface.ipv6 };
                    let led = match way_back {
                        WayBack::All => true,
                        WayBack::Routed => leads_back(&held, interface.ifindex, source),
                        WayBack::None(_) => false,
                    };
                    prop_assert_eq!(led, is_routed(routes, interface.ifindex, source), "{}", source);
                }
            }
            before = routes;
        }
    }
}
