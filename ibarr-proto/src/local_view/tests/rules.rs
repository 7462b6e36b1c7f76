// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Policy rules that divert datagrams.

use std::num::NonZeroU16;

use crate::ip2gid::Family;
use crate::local_view::rules::{Action, Datagrams, Diverted, Rule, Selects, Traffic, diverted};

const DAEMON: u32 = 990;
const PORT: NonZeroU16 = NonZeroU16::new(4791).unwrap();

/// A rule like `100 not from proto 17 dport 4791 lookup 7 suppress`; the address after `from` is left out.
fn rule(text: &str) -> Rule {
    fn span(text: &str) -> (u32, u32) {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        (first.parse().unwrap(), last.parse().unwrap())
    }
    let mut words = text.split(' ');
    let priority = words.next().unwrap().parse().unwrap();
    let (only, selects) = (Traffic::ALL, Selects::All);
    let (inverted, action) = (false, Action::Nothing);
    let mut rule = Rule { family: Family::V4, priority, only, selects, inverted, action };
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap();
        match word {
            "not" => rule.inverted = true,
            "from" => rule.selects = Selects::Some,
            "fwmark" => rule.selects = Selects::NotOurs,
            "uids" => rule.only.0[0] = span(value()),
            "proto" => rule.only.0[1] = span(value()),
            "sport" => rule.only.0[2] = span(value()),
            "dport" => rule.only.0[3] = span(value()),
            "lookup" => {
                let table = value().parse().unwrap();
                rule.action = Action::Lookup { table, suppresses: false };
            }
            "suppress" => match &mut rule.action {
                Action::Lookup { suppresses, .. } => *suppresses = true,
                action => panic!("{action:?}"),
            },
            "goto" => rule.action = Action::Goto(value().parse().unwrap()),
            "blackhole" => rule.action = Action::Refuse,
            "nop" => {}
            _ => panic!("{word}"),
        }
    }
    rule
}

/// What diverts, among these rules and the kernel's own.
fn diversions(rules: &str) -> String {
    let own = ["0 lookup 255", "32766 lookup 254", "32767 lookup 253"].into_iter().map(rule);
    let mut rules: Vec<_> = rules.split(", ").filter(|text| !text.is_empty()).map(rule).collect();
    rules.extend(own);
    rules.sort_by_key(|rule| rule.priority);
    let diverted = diverted(&rules, DAEMON, PORT).into_iter().map(|diverted| {
        let Diverted { datagrams, rule, instead, .. } = diverted;
        let what = match datagrams {
            Datagrams::Queries => "queries",
            Datagrams::Replies => "replies",
        };
        let instead = instead.map_or("-".to_owned(), |rule| rule.to_string());
        format!("{what} {rule} {instead}")
    });
    diverted.collect::<Vec<_>>().join(", ")
}

#[test]
fn rule_for_our_user_protocol_or_port_may_divert() {
    let both = "queries 100 32766, replies 100 32766";
    for (rules, expected) in [
        ("100 proto 17 lookup 7", both),
        ("100 uids 990 lookup 7", both),
        ("100 uids 1-4294967295 proto 17 lookup 7", both),
        ("100 proto 17 sport 1024-65535 lookup 7", both),
        ("100 from uids 990 lookup 7", both),
        ("100 uids 900-999 blackhole", both),
        ("100 proto 17 dport 4791 lookup 7", "queries 100 32766"),
        ("100 dport 4000-5000 lookup 7", "queries 100 32766"),
        ("100 from proto 17 sport 4791 lookup 7", "replies 100 32766"),
        // A part of the main table, then another; and main before a rule by source.
        ("100 proto 17 lookup 254 suppress, 101 proto 17 lookup 7", both),
        ("100 proto 17 lookup 254, 200 from lookup 7", "queries 100 200, replies 100 200"),
        ("100 proto 17 goto 300, 200 lookup 7, 300 nop", "queries 100 200, replies 100 200"),
        // Two rules, and the rule of VRFs after them.
        (
            "90 uids 990 lookup 7, 100 proto 17 lookup 8, 1000 from lookup 0",
            "queries 90 1000, replies 90 1000",
        ),
        // Only connections take another way.
        ("100 uids 0 lookup 7", "queries 100 -, replies 100 -"),
        ("100 not proto 17 lookup 7", "queries 100 -, replies 100 -"),
        ("100 not from proto 17 lookup 7", "queries 100 -, replies 100 -"),
    ] {
        assert_eq!(diversions(rules), expected, "{rules}");
    }
}

#[test]
fn rules_that_decide_alike_about_connections_divert_nothing() {
    for rules in [
        "",
        "100 lookup 7",
        "100 from lookup 7, 200 not from lookup 8",
        "100 proto 6 lookup 7",
        "100 uids 0-4294967295 lookup 7",
        "100 uids 1000-1999 lookup 7",
        "100 proto 17 dport 53 lookup 7",
        "100 proto 17 sport 53 lookup 7",
        "100 proto 17 dport 4790 lookup 7, 101 dport 4792-4800 lookup 7",
        // One port of those that a query may have.
        "100 proto 17 sport 40000 lookup 7",
        "100 fwmark proto 17 lookup 7",
        "100 not fwmark proto 17 lookup 7",
        "100 not proto 6 lookup 7",
        "100 proto 17 nop",
        "100 uids 990 goto 101, 101 lookup 7",
        // What is after it decides nothing.
        "100 blackhole, 200 proto 17 lookup 7",
        "100 goto 300, 200 proto 17 lookup 7, 300 nop",
    ] {
        assert_eq!(diversions(rules), "", "{rules}");
    }
}

#[test]
fn datagrams_that_jump_over_the_rule_are_not_diverted() {
    let rule = "100 proto 17 lookup 7, 110 from uids 990 lookup 8, 1000 from lookup 0";
    assert_eq!(diversions(rule), "queries 100 1000, replies 100 1000");
    let queries = "99 proto 17 dport 4791 goto 1000";
    assert_eq!(diversions(&format!("{rule}, {queries}")), "replies 100 1000");
    let replies = "99 proto 17 sport 4791 goto 1000";
    assert_eq!(diversions(&format!("{rule}, {queries}, {replies}")), "");
    // A jump to a rule that is not there does nothing.
    assert_eq!(
        diversions(&format!("{rule}, 99 proto 17 goto 500")),
        "queries 100 1000, replies 100 1000"
    );
}

#[test]
fn more_rules_than_the_limit_are_not_compared() {
    let rules = |count: u32| {
        let others = (1..count).map(|at| rule(&format!("{at} lookup {at}")));
        let rules: Vec<_> = others.chain([rule("9999 proto 17 lookup 9999")]).collect();
        diverted(&rules, DAEMON, PORT).len()
    };
    assert_eq!((rules(1023), rules(1024)), (2, 0));
}
