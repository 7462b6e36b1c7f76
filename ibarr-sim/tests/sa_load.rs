// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A small subnet of the kind that `cargo xtask sim --sa-load` simulates, and nodes that exceed the
//! bounds.

use std::time::Duration;

use ibarr_common::wire::sa::PathCount;
use ibarr_proto::paths;
use ibarr_sim::sa_load::{Plan, PortEvents, run};

#[test]
fn nodes_put_no_more_load_on_an_sa_than_allowed() {
    for port_events in [PortEvents::Received, PortEvents::Absent] {
        let report = run(Plan { port_events, ..Plan::new(60) }, |_, _| ());
        println!("{report}");
        assert_eq!(report.bounds.len(), 19);
        assert_eq!(report.exceeded().count(), 0);
    }
}

/// Without the option all use the first LID; with it, those in doubt.
#[test]
fn paths_spread_evenly_over_lids_and_the_sa_gets_the_same_mads() {
    let plan = |count| {
        let spread = PathCount::new(count).expect("1 to 127");
        let config = paths::Config { spread, ..paths::Config::default() };
        Plan { lmc: 2, config, ..Plan::new(60) }
    };
    let [off, on] = [1, 3].map(|count| run(plan(count), |_, _| ()));
    assert_eq!(on.exceeded().count(), 0);
    assert!(off.mads().eq(on.mads()));
    let all: u64 = off.given_by_lid().iter().sum();
    assert_eq!(off.given_by_lid(), [all, 0, 0, 0]);
    let &[first, second, third, 0] = on.given_by_lid() else { panic!("{:?}", on.given_by_lid()) };
    let sure = all - on.given_in_doubt();
    let shares = [first - on.given_in_doubt(), second, third].map(|share| 100 * share / sure);
    assert_eq!(shares, [33; 3]);
}

#[test]
fn more_nodes_than_lids_are_subnets_with_their_own_sa() {
    let subnets = |nodes| -> Vec<_> { Plan::new(nodes).subnets().map(|it| it.nodes).collect() };
    assert_eq!(subnets(Plan::MOST), [Plan::MOST]);
    assert_eq!(subnets(Plan::MOST + 1), [22_500, 22_501]);
    assert_eq!(subnets(100_000), [33_333, 33_333, 33_334]);
    let rates: u32 = Plan::new(100_000).subnets().map(|it| it.sa_rate).sum();
    assert_eq!(rates, Plan::new(100_000).sa_rate);
}

#[test]
fn nodes_that_break_a_rule_exceed_its_bound() {
    let design = paths::Config::default();
    // A slow SA would slow the nodes down.
    let quick = Plan { sa_rate: 100_000, ..Plan::new(300) };
    let unbounded = Duration::from_millis(10);
    let broken = [
        (
            Plan {
                config: paths::Config { fallback_interval: unbounded, ..design },
                ..Plan::new(40)
            },
            ["power-on of all at once: requests left", "takes over: requests left"],
        ),
        (
            Plan { config: paths::Config { ttl: Duration::from_mins(5), ..design }, ..quick },
            ["MADs a second, mean", "questions in a second"],
        ),
    ];
    for (plan, rules) in broken.into_iter().chain(stale(Plan { nodes: 40, ..quick })) {
        let report = run(plan, |_, _| ());
        for rule in rules {
            let is_found = report.exceeded().any(|bound| bound.what.contains(rule));
            assert!(is_found, "{rule}:\n{report}");
        }
    }
}

/// Plans whose nodes get paths that lead nowhere: they ignore an event, or send no canary.
fn stale(plan: Plan) -> [(Plan, [&'static str; 2]); 2] {
    let rules = ["nodes with a wrong path", "nodes with a wrong path"];
    let forgetful = paths::Config { canary_every: Duration::ZERO, ..plan.config };
    [
        (Plan { port_events: PortEvents::Ignored, ..plan }, rules),
        (Plan { port_events: PortEvents::Absent, config: forgetful, ..plan }, rules),
    ]
}
