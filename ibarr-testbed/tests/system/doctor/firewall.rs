// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr doctor` finds each rule that keeps queries or replies from passing, and claims nothing that it has not tried.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use serde_json::Value;

use super::{ANSWERING, ITS_GID, examine, nft};
use crate::responder::learned::answer_with;
use crate::responder::rig::*;

/// Each firewall, the beginning of what is found, and the part of the rule that is shown.
const HOSTILE: [(&[&str], &str, &str); 7] = [
    (&["rule inet wall in udp dport 4791 drop"], "in: ", "udp dport 4791 drop"),
    (&["rule inet wall in udp sport 4791 drop"], "out: ", "udp sport 4791 drop"),
    (&["rule inet wall in ip saddr 10.7.0.2 drop"], "out: ", "ip saddr 10.7.0.2 drop"),
    (&["rule inet wall out udp dport 4791 drop"], "out: ", "udp dport 4791 drop"),
    (&["rule inet wall raw udp dport 4791 drop"], "in: ", "udp dport 4791 drop"),
    // No peer is live then, so only this way is tried.
    (&["chain inet wall in { policy drop ; }"], "out: ", "policy drop"),
    // It lets replies through, and no query.
    (
        &[
            "rule inet wall in ct state established,related accept",
            "chain inet wall in { policy drop ; }",
        ],
        "in: ",
        "policy drop",
    ),
];

/// What only a query of a peer finds, because the programs leave it to the daemon: the first drops its reply, the second
/// drops queries, which are shorter than replies.
const ASKED: [(&[&str], &str, &str); 2] = [
    (&["rule inet wall out udp sport 4791 drop"], "in: ", "udp sport 4791 drop"),
    (&["rule inet wall in udp length 28 drop"], "in: ", "udp length 28 drop"),
];

/// A firewall that lets the loopback interface through, as most do.
fn build_wall() {
    nft("add table inet wall");
    for (chain, hook, field) in
        [("in", "input", "iifname"), ("out", "output", "oifname"), ("raw", "prerouting", "iifname")]
    {
        let priority = if chain == "raw" { "-300" } else { "0" };
        nft(&format!(
            "add chain inet wall {chain} {{ type filter hook {hook} priority {priority} ; }}"
        ));
        nft(&format!("add rule inet wall {chain} {field} lo accept"));
    }
}

fn firewall(rig: &Rig) -> Vec<(String, String, String)> {
    let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    let checks = examine(rig, ANSWERING);
    let named = checks.iter().filter(|check| check["check"] == "firewall");
    named.map(|check| (text(check, "state"), text(check, "found"), text(check, "remedy"))).collect()
}

/// Queries of the peer that the programs pass on to the daemon, until it is dropped.
struct Asking(Arc<AtomicBool>);

impl Asking {
    fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let asker = socket(V4);
        std::thread::spawn(move || {
            // Another address than that of the node.
            let query = Query::new(Version::V1, MsgId(1), [10, 7, 0, 200].into()).unwrap().emit();
            while !over.load(Ordering::Relaxed) {
                asker.send(query.as_ref());
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self(is_over)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn each_rule_that_drops_queries_or_replies_is_found_and_shown() {
    let mut rig = Rig::new();
    for peer in [ANSWERING, "fd00:7::2"] {
        answer_with(ITS_GID, peer, &Arc::default());
    }
    rig.start("");
    let is_well = |rig: &Rig| {
        // The daemon remembers the peers.
        rig.asked(&format!("resolve {ANSWERING} fd00:7::2"));
        let checks = firewall(rig);
        // No peer has asked.
        checks.iter().map(|(state, ..)| state.as_str()).eq(["ok", "ok"])
            && checks[1].1.starts_with("in: 6 of 6 datagrams from ")
    };
    rig.eventually("queries pass in both directions", || is_well(&rig));
    let is_found = |(rules, found, shown): (&[&str], &str, &str)| {
        build_wall();
        for rule in rules {
            nft(&format!("add {rule}"));
        }
        let checks = firewall(&rig);
        let is_it = |(state, text, remedy): &(String, String, String)| {
            state == "fail"
                && text.starts_with(found)
                && text.contains(shown)
                && remedy.contains("4791")
        };
        assert!(checks.iter().any(is_it), "{rules:?}: {checks:#?}");
        nft("delete table inet wall");
    };
    HOSTILE.into_iter().for_each(is_found);
    rig.eventually("queries pass again", || is_well(&rig));
    let _asking = Asking::start();
    ASKED.into_iter().for_each(is_found);
}

#[test]
fn firewall_that_could_not_be_tried_is_not_said_to_be_well() {
    let mut rig = Rig::new();
    rig.start("");
    let states = |rig: &Rig| {
        firewall(rig).into_iter().map(|(state, found, _)| (state, found)).collect::<Vec<_>>()
    };
    let checks = states(&rig);
    assert_eq!(checks.len(), 2);
    for (state, found) in checks {
        assert!(state == "skipped" && found.contains("not proven"), "{state}: {found}");
    }
    // The node asks itself, so some rules are found all the same.
    nft("add table inet wall");
    nft("add chain inet wall in { type filter hook input priority 0 ; }");
    nft("add rule inet wall in udp dport 4791 drop");
    let found = states(&rig);
    let is_found = |(state, found): &(String, String)| {
        state == "fail" && found.contains("udp dport 4791 drop")
    };
    assert!(found.iter().any(is_found), "{found:?}");
}
