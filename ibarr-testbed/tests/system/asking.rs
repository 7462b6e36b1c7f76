// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Queries to peers go the way that the kernel would go, if it needs more than the interface for that.

use std::sync::Arc;

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
        ip(&format!("-netns {PEER} address add {target} dev lo"));
        answer(target, &Arc::default());
    }
    rig
}

fn resolve(rig: &Rig, target: &str) -> String {
    let run_dir = rig.run_dir();
    let ask = format!("resolve {target} --fresh --timeout 2s --run-dir {}", run_dir.display());
    said(&ibarr_on_node(&ask))
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
