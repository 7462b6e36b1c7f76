// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A daemon that subscribes to OpenSM's reports.

use ibarr_common::ib::Gid;

use crate::daemon::configure;
use crate::rig::Rig;

/// A switch and three hosts.
const TOPOLOGY: &str = "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"H3\"[1]\n\n\
    Ca 1 \"H1\"\n\nCa 1 \"H2\"\n\nCa 1 \"H3\"\n";

const INFORM: &str = "[paths]\ninform = true\n";

fn gid(guid: u64) -> Gid {
    format!("fe80::{:x}:{:x}", guid >> 16, guid & 0xffff).parse().unwrap()
}

const H2: u64 = 0x10_0003;

/// Number of H3's subscriptions at OpenSM. `libumad2sim.so` truncates the answer after the third.
fn subscriptions(rig: &Rig) -> usize {
    let printed = rig.diagnose("H1", &["saquery", "IIR"]);
    printed.matches("SubscriberGID...........fe80::10:5\n").count()
}

#[test]
fn opensm_has_the_subscriptions_while_they_are_configured() {
    let rig = Rig::new(TOPOLOGY);
    let manager = rig.manager("H1", "");
    manager.until_says("SUBNET UP");
    let _port = rig.port("H3");
    let daemon = rig.daemon("");
    assert!(daemon.port()["informed"].is_null());
    daemon.end();
    assert_eq!(subscriptions(&rig), 0, "nothing is subscribed unless it is configured");

    let daemon = rig.daemon(INFORM);
    daemon.until(|daemon| (daemon.port()["informed"] == "yes").then_some(()));
    assert_eq!([daemon.count("paths.informs"), daemon.count("paths.informs-failed")], [4, 0]);
    assert_eq!(subscriptions(&rig), 3);
    // Without `inform`, and with it again.
    configure(&rig.machine, "");
    assert!(daemon.ask(&["reload"]).is_some());
    daemon.until(|_| (subscriptions(&rig) == 0).then_some(()));
    assert!(daemon.port()["informed"].is_null());
    configure(&rig.machine, INFORM);
    assert!(daemon.ask(&["reload"]).is_some());
    daemon.until(|_| (subscriptions(&rig) == 3).then_some(()));

    daemon.until(|daemon| (daemon.port()["informed"] == "yes").then_some(()));
    daemon.end();
    assert_eq!(subscriptions(&rig), 0);
}

#[test]
fn report_of_opensm_makes_the_daemon_ask_for_the_path_again() {
    let rig = Rig::new(TOPOLOGY);
    let manager = rig.manager("H1", "");
    manager.until_says("SUBNET UP");
    let _port = rig.port("H3");
    let daemon = rig.daemon(INFORM);
    daemon.until(|daemon| (daemon.port()["informed"] == "yes").then_some(()));
    let doubted = |count| {
        daemon.until(|daemon| (daemon.count("paths.reports-doubted") == count).then_some(()));
    };
    assert_eq!(daemon.path(gid(H2))["source"], "sa");
    assert_eq!(daemon.path(gid(H2))["source"], "cache");
    rig.ibfab(&["fault", "cable", "S1/2", "off"]);
    doubted(1);
    assert_eq!(daemon.path(gid(H2))["status"], "no-record");
    assert_eq!(daemon.path(gid(H2))["source"], "cache");
    rig.ibfab(&["fault", "cable", "S1/2", "on"]);
    doubted(2);
    assert_eq!(daemon.path(gid(H2))["source"], "sa");
    // OpenSM sent each report once, because each was answered: 64, 65, and 128 twice.
    assert_eq!(daemon.count("paths.reports"), 4);
    assert_eq!(daemon.count("paths.doubts"), 0, "no other path was in doubt");
}
