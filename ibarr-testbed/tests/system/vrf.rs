// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Nodes whose interface is in a VRF. A guest that sets `IBARR_TEST_VRF` must have VRFs; elsewhere a
//! kernel without them is reported.

use std::sync::Arc;

use ibarr_testbed::lab::netns;
use ibarr_testbed::start::program;

use crate::machine::said;
use crate::responder::learned::answer;
use crate::responder::rig::*;

/// Puts eth0 of a namespace into a VRF with a table of its own. Returns whether this kernel has VRFs.
pub(crate) fn enslave(namespace: &str) -> bool {
    let add = format!("-netns {namespace} link add blue type vrf table 60");
    let made = program("ip").args(add.split(' ')).output().unwrap();
    if !made.status.success() {
        assert!(std::env::var_os("IBARR_TEST_VRF").is_none(), "{}", said(&made));
        eprintln!("NOT RUN: this kernel has no VRFs (modprobe vrf)");
        return false;
    }
    ip(&format!("-netns {namespace} link set blue up"));
    // IPv6 addresses go with a change of the master.
    netns::set(namespace, &[("ipv6/conf/eth0/keep_addr_on_down", "1")]).unwrap();
    ip(&format!("-netns {namespace} link set eth0 master blue"));
    true
}

#[test]
fn node_in_a_vrf_asks_peers_by_its_interface() {
    let mut rig = Rig::new();
    let peers = [("10.99.0.1", "10.7.0.2"), ("fd00:99::1", "fd00:7::2")];
    for (target, _) in peers {
        let nodad = if target.contains(':') { "nodad" } else { "" };
        ip(&format!("-netns {PEER} address add {target} dev lo {nodad}"));
        answer(target, &Arc::default());
    }
    if !enslave(NODE) {
        return;
    }
    for (target, gateway) in peers {
        ip(&format!("-netns {NODE} route add {target} via {gateway} dev eth0 table 60"));
    }
    rig.start("responder = \"user\"\nsource-check = \"strict\"");
    for accept in ["0", "1"] {
        netns::set(NODE, &[("ipv4/udp_l3mdev_accept", accept)]).unwrap();
        for (target, _) in peers {
            for by in ["eth0", "blue"] {
                let run_dir = rig.run_dir();
                let ask = format!(
                    "resolve {target}%{by} --fresh --timeout 2s --run-dir {}",
                    run_dir.display()
                );
                let answered = said(&ibarr_on_node(&ask));
                assert!(answered.contains(GID), "{by}, accept {accept}: {answered}");
            }
        }
    }
}
