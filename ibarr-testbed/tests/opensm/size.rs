// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Subnets of many hosts.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::ResolvePath;
use ibarr_sim::kernel::PathOutcome;

use crate::daemon::request;
use crate::rig::Rig;

const AT_A_LEAF: usize = 40;
const SPINES: usize = 4;

/// Leaf switches with 40 hosts each, each connected to each of four spines.
fn topology(hosts: usize) -> String {
    let leaves = hosts.div_ceil(AT_A_LEAF);
    let mut text = String::new();
    let mut host = 0;
    for leaf in 1..=leaves {
        writeln!(text, "Switch {} \"L{leaf}\"", AT_A_LEAF + SPINES).unwrap();
        for port in 1..=AT_A_LEAF.min(hosts - host) {
            host += 1;
            writeln!(text, "[{port}] \"H{host}\"[1]").unwrap();
        }
        for spine in 1..=SPINES {
            writeln!(text, "[{}] \"S{spine}\"[{leaf}]", AT_A_LEAF + spine).unwrap();
        }
        text.push('\n');
    }
    for spine in 1..=SPINES {
        writeln!(text, "Switch {leaves} \"S{spine}\"\n").unwrap();
    }
    for host in 1..=hosts {
        writeln!(text, "Ca 1 \"H{host}\"\n").unwrap();
    }
    text
}

fn guid(host: usize) -> u64 {
    0x10_0000 + 2 * u64::try_from(host - 1).unwrap() + 1
}

fn gid(host: usize) -> Gid {
    let guid = guid(host);
    format!("fe80::{:x}:{:x}", guid >> 16, guid & 0xffff).parse().unwrap()
}

#[test]
fn each_of_1000_hosts_has_the_lid_that_opensm_gave() {
    every_host_is_found(1000);
}

#[test]
fn each_of_5000_hosts_has_the_lid_that_opensm_gave() {
    every_host_is_found(5000);
}

fn every_host_is_found(hosts: usize) {
    let rig = Rig::new(&topology(hosts));
    let manager = rig.manager("H1", "");
    manager.until_says("SUBNET UP");
    let lids = manager.lids();
    let _port = rig.port(&format!("H{hosts}"));
    let mut daemon = rig.daemon("");
    let question = |host: usize| request(gid(hosts), gid(host), 1);
    let all: Vec<_> = (1..hosts).collect();
    // As many as have room in the socket between the kernel and the daemon.
    for some in all.chunks(200) {
        let requests: Vec<ResolvePath> = some.iter().map(|host| question(*host)).collect();
        for (host, (outcome, records)) in some.iter().zip(daemon.resolve_all(requests)) {
            assert_eq!(outcome, PathOutcome::Resolved(vec![0x2b]), "host {host}");
            let ends = (records[0].lid(42), records[0].lid(40));
            assert_eq!(ends, (lids[&guid(hosts)], lids[&guid(*host)]), "host {host}");
        }
    }
    let count = u64::try_from(hosts).unwrap();
    assert_eq!(lids.values().collect::<BTreeSet<_>>().len(), lids.len());
    // One question for each host, and one for the abilities of the SA.
    assert_eq!(daemon.count("sa.questions"), count);
    assert_eq!(daemon.count("sa.answered"), count);
}
