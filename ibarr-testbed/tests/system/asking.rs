// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Queries to peers go the way that the kernel would go, if it needs more than the interface for that.

use std::sync::Arc;

use ibarr_testbed::lab::netns;
use serde_json::Value;

use crate::doctor::nft;
use crate::machine::said;
use crate::responder::learned::answer;
use crate::responder::rig::*;

/// Addresses of the peer, behind it as the node sees it, and the addresses of the peer and of the node on
/// the wire.
const FAR: [(&str, &str, &str); 2] =
    [("10.99.0.1", "10.7.0.2", V4), ("fd00:99::1", "fd00:7::2", V6)];

/// A node with a daemon, and the far addresses.
fn far() -> Rig {
    let rig = Rig::new();
    for (target, ..) in FAR {
        let nodad = if target.contains(':') { "nodad" } else { "" };
        ip(&format!("-netns {PEER} address add {target} dev lo {nodad}"));
        answer(target, &Arc::default());
    }
    rig
}

fn resolve(rig: &Rig, target: &str) -> String {
    ask(rig, &format!("resolve {target} --fresh --timeout 2s"))
}

fn ask(rig: &Rig, command: &str) -> String {
    said(&ibarr_on_node(&format!("{command} --run-dir {}", rig.run_dir().display())))
}

#[test]
fn rule_by_source_gives_an_interface_its_route() {
    let mut rig = far();
    rig.start("responder = \"user\"");
    for (target, gateway, source) in FAR {
        let by_eth0 = format!("{target}%eth0");
        let refused = resolve(&rig, &by_eth0);
        assert!(refused.contains("unreachable"), "no route: {refused}");
        ip(&format!("-netns {NODE} route add default via {gateway} dev eth0 table 10"));
        let rule = if target.contains(':') { "-6 rule" } else { "rule" };
        ip(&format!("-netns {NODE} {rule} add from {source} lookup 10"));
        let found = resolve(&rig, &by_eth0);
        assert!(found.contains(GID), "{found}");
        let unbound = resolve(&rig, target);
        assert!(unbound.contains("unreachable"), "the kernel has no route either: {unbound}");
        let doctor = ask(&rig, &format!("doctor --peer {target}"));
        assert!(doctor.contains("no route"), "{doctor}");
    }
}

#[test]
fn dead_gateway_of_a_rule_swallows_no_query() {
    let mut rig = far();
    rig.start("responder = \"user\"");
    for (target, gateway, source) in FAR {
        let (rule, dead) =
            if target.contains(':') { ("-6 rule", "fd00:7::dead") } else { ("rule", "10.7.0.99") };
        ip(&format!("-netns {NODE} route add {target} via {dead} dev eth0"));
        ip(&format!("-netns {NODE} route add default via {gateway} dev eth0 table 11"));
        ip(&format!("-netns {NODE} {rule} add from {source} lookup 11"));
        let found = resolve(&rig, &format!("{target}%eth0"));
        assert!(found.contains(GID), "{found}");
    }
}

#[test]
fn interface_is_named_by_each_of_its_names() {
    let mut rig = far();
    let long = "altname-of-more-than-fifteen-bytes";
    for name in [long, "rail0"] {
        ip(&format!("-netns {NODE} link property add dev eth0 altname {name}"));
    }
    rig.start("responder = \"user\"");
    for (target, gateway, _) in FAR {
        ip(&format!("-netns {NODE} route add {target} via {gateway} dev eth0"));
        for name in ["eth0", "rail0", long] {
            let by = format!("{target}%{name}");
            assert!(resolve(&rig, &by).contains(GID), "{by}");
            let pinged = ask(&rig, &format!("ping {by} --count 1"));
            assert!(pinged.contains(GID), "{pinged}");
            let doctor = ask(&rig, &format!("doctor --peer {by}"));
            assert!(doctor.contains(GID) && !doctor.contains("no route"), "{doctor}");
        }
        let absent = resolve(&rig, &format!("{target}%{long}-too"));
        assert!(absent.contains("no interface"), "{absent}");
    }
}

/// How often the daemon has read all rules and routes.
fn dumps(rig: &Rig) -> u64 {
    rig.asked("counters --all")["counters"]["local-view.route-dumps-done"].as_u64().unwrap()
}

/// What `ibarr status` says of a cause, if the health of the node has it.
fn reason(rig: &Rig, cause: &str) -> Option<Value> {
    let status = rig.asked("status");
    let health = status["status"]["health"].as_array().unwrap().clone();
    let mut reasons =
        health.into_iter().flat_map(|of| of["reasons"].as_array().cloned().unwrap_or_default());
    reasons.find(|reason| reason["cause"] == cause)
}

/// Waits until the health of the node has a cause, and returns what `ibarr status` says of it.
fn cause(rig: &Rig, cause: &str) -> String {
    rig.eventually(cause, || reason(rig, cause).is_some());
    reason(rig, cause).unwrap().to_string()
}

#[test]
fn rule_that_diverts_datagrams_is_named_until_its_remedy_is_run() {
    const CAUSE: &str = "diverted-by-rule";
    let mut rig = far();
    for (target, gateway, _) in FAR {
        ip(&format!("-netns {NODE} route add {target} via {gateway} dev eth0"));
    }
    rig.start("responder = \"user\"");
    ip(&format!("-netns {NODE} rule add pref 90 ipproto tcp dport 4791 lookup 9"));
    for (target, gateway, source) in FAR {
        let six = if target.contains(':') { "-6 " } else { "" };
        ip(&format!("-netns {NODE} {six}rule add pref 90 from {source} dport 53 lookup 9"));
        assert!(resolve(&rig, target).contains(GID));
        assert_eq!(reason(&rig, CAUSE), None);
        // A rule without a route, with one to others, and with the one that connections take.
        let other = if target.contains(':') { "2001:db8::/32" } else { "192.0.2.0/24" };
        let same = format!("{target} via {gateway} dev eth0 table 9");
        for change in [
            "rule add pref 100 ipproto udp lookup 9".to_owned(),
            format!("route add blackhole {other} table 9"),
            format!("route add {same}"),
        ] {
            let before = dumps(&rig);
            ip(&format!("-netns {NODE} {six}{change}"));
            rig.eventually(&change, || dumps(&rig) > before);
            assert!(resolve(&rig, target).contains(GID));
            assert_eq!(reason(&rig, CAUSE), None);
        }
        ip(&format!("-netns {NODE} {six}route del {same}"));
        ip(&format!("-netns {NODE} {six}route add blackhole default table 9"));
        let found = cause(&rig, CAUSE);
        assert!(found.contains("the policy rule with priority 100 sends queries"), "{found}");
        let doctor = ask(&rig, "doctor");
        assert!(doctor.contains("priority 100 sends queries"), "{doctor}");
        assert!(!resolve(&rig, target).contains(GID));
        // One for queries, one for replies.
        for selector in ["dport 4791", "sport 4791"] {
            rig.eventually(selector, || {
                reason(&rig, CAUSE).is_some_and(|it| it["remedy"].to_string().contains(selector))
            });
            let remedy = reason(&rig, CAUSE).unwrap()["remedy"].as_str().unwrap().to_owned();
            let (_, command) = remedy.split_once("like: ip ").unwrap();
            ip(&format!("-netns {NODE} {command}"));
        }
        rig.eventually("the remedy", || reason(&rig, CAUSE).is_none());
        let found = resolve(&rig, target);
        assert!(found.contains(GID), "{found}");
    }
}

#[test]
fn refusals_of_this_machine_are_named_until_queries_leave_again() {
    let mut rig = far();
    ip(&format!("-netns {NODE} route add 10.99.0.1 via 10.7.0.2"));
    rig.start("responder = \"user\"");
    nft("add table inet wall");
    nft("add chain inet wall out { type filter hook output priority 0 ; }");
    nft("add rule inet wall out udp dport 4791 drop");
    let refused = resolve(&rig, "10.99.0.1");
    assert!(refused.contains("timed-out"), "{refused}");
    assert!(cause(&rig, "queries-forbidden").contains("nft list ruleset"));
    let counters = rig.asked("counters --all")["counters"].clone();
    assert!(counters["transport.query-not-sent-forbidden"].as_u64().unwrap() > 1);
    assert_eq!(
        (&counters["ip2gid.client.queries"], &counters["ip2gid.client.resends"]),
        (&0.into(), &0.into())
    );
    nft("delete table inet wall");
    assert!(resolve(&rig, "10.99.0.1").contains(GID));
}

#[test]
fn node_without_a_free_udp_port_says_so() {
    let mut rig = far();
    ip(&format!("-netns {NODE} route add 10.99.0.1 via 10.7.0.2"));
    let ports = [
        ("ipv4/ip_local_port_range", "50000 50009"),
        ("ipv4/ip_local_reserved_ports", "50000-50009"),
    ];
    netns::set(NODE, &ports).unwrap();
    rig.start("responder = \"user\"");
    assert!(resolve(&rig, "10.99.0.1").contains("timed-out"));
    assert!(cause(&rig, "no-free-port").contains("ip_local_port_range"));
    netns::set(NODE, &[("ipv4/ip_local_reserved_ports", "50000")]).unwrap();
    assert!(resolve(&rig, "10.99.0.1").contains(GID), "nine ports are enough");
}
