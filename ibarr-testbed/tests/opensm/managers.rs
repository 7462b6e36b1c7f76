// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An OpenSM that is stopped, killed, or replaced by another.

use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::ResolvePath;
use ibarr_sim::kernel::{PathOutcome, Reason};
use nix::sys::signal::Signal;

use crate::daemon::{Daemon, request};
use crate::rig::Rig;

/// A switch and three hosts.
const TOPOLOGY: &str = "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"H3\"[1]\n\n\
    Ca 1 \"H1\"\n\nCa 1 \"H2\"\n\nCa 1 \"H3\"\n";

fn gid(guid: u64) -> Gid {
    format!("fe80::{:x}:{:x}", guid >> 16, guid & 0xffff).parse().unwrap()
}

const H1: u64 = 0x10_0001;
const H3: u64 = 0x10_0005;

/// New requests for ports that do not exist.
fn questions(from: u64, count: u64) -> Vec<ResolvePath> {
    let numbers = from << 8..(from << 8) + count;
    numbers.map(|number| request(gid(H3), gid(0xdead_0000 + number), 1)).collect()
}

/// Number of MADs that were sent to the SA.
fn queries(daemon: &Daemon) -> u64 {
    ["queries", "resends", "resends-busy", "resends-moved"]
        .map(|counter| daemon.count(&format!("sa.{counter}")))
        .iter()
        .sum()
}

const TOLD: PathOutcome = PathOutcome::AsksSa(Reason::Told);

#[test]
fn stopped_opensm_is_probed_while_routes_wait_for_it() {
    let rig = Rig::new(TOPOLOGY);
    let manager = rig.manager("H1", "");
    manager.until_says("SUBNET UP");
    let _port = rig.port("H3");
    let mut daemon = rig.daemon("");
    for (outcome, _) in daemon.resolve_all(questions(1, 100)) {
        assert_eq!(outcome, PathOutcome::Failed);
    }
    let to_the_manager = request(gid(H3), gid(H1), 1);
    let known = daemon.resolve(to_the_manager).0;
    assert!(matches!(known, PathOutcome::Resolved(_)), "{known:?}");

    manager.signal(Signal::SIGSTOP);
    assert_eq!(daemon.resolve(questions(2, 1)[0]).0, TOLD);
    daemon.until(|daemon| (daemon.port()["probing"]["because"] == "silent").then_some(()));
    let told = daemon.ask(&["status"]).map(|status| status["status"]["ports"][0].clone());
    assert_eq!(told.unwrap()["probing"]["because"], "silent");
    // Now the daemon does not ask for each of them, and they wait.
    let before = (queries(&daemon), daemon.count("sa.at-once"));
    let outcomes = daemon.resolve_all(questions(3, 100));
    assert_eq!(daemon.count("sa.at-once"), before.1);
    assert!(queries(&daemon) - before.0 < 50, "{} MADs", queries(&daemon) - before.0);
    // Not all of them are left to the kernel either.
    let left = outcomes.iter().filter(|(outcome, _)| *outcome == TOLD).count();
    assert!(left <= 3, "{left} left to the kernel");
    assert_eq!(daemon.count("local-service.paths-spared"), 100 - left as u64);
    // A remembered path is still given.
    assert_eq!(daemon.resolve(to_the_manager).0, known);

    manager.signal(Signal::SIGCONT);
    daemon.until(|daemon| daemon.port()["probing"].is_null().then_some(()));
    let before = daemon.count("paths.no-record-sa");
    for (outcome, _) in daemon.resolve_all(questions(4, 40)) {
        assert_eq!(outcome, PathOutcome::Failed);
    }
    assert_eq!(daemon.count("paths.no-record-sa"), before + 40);
}

#[test]
fn killed_opensm_counts_as_silent_and_the_next_is_asked() {
    let rig = Rig::new(TOPOLOGY);
    let manager = rig.manager("H1", "");
    manager.until_says("SUBNET UP");
    let _port = rig.port("H3");
    let mut daemon = rig.daemon("");
    assert_eq!(daemon.path(gid(H1))["status"], "found");
    drop(manager);
    // One is left to the kernel, which would ask the SA up to eleven times.
    let outcomes = daemon.resolve_all(questions(1, 20));
    let left = outcomes.iter().filter(|(outcome, _)| *outcome == TOLD).count();
    assert!((1..=2).contains(&left), "{left} left to the kernel");
    assert_eq!(daemon.count("local-service.paths-spared"), 20 - left as u64);
    assert_eq!(daemon.path(gid(H1))["status"], "found", "the remembered path is given");
    let manager = rig.manager("H1", "");
    manager.until_says("SUBNET UP");
    daemon.until(|daemon| (daemon.path(gid(0xdead_0000))["status"] == "no-record").then_some(()));
}

#[test]
fn opensm_that_takes_over_is_asked_at_its_lid() {
    const QUICK: &str = "sminfo_polling_timeout 200\npolling_retry_number 2\n";
    let rig = Rig::new(TOPOLOGY);
    let first = rig.manager("H1", &format!("{QUICK}sm_priority 5\n"));
    first.until_says("SUBNET UP");
    let lids = first.lids();
    let second = rig.manager("H2", &format!("{QUICK}sm_priority 1\n"));
    second.until_says("Entering STANDBY state");
    let _port = rig.port("H3");
    let daemon = rig.daemon("");
    assert_eq!(daemon.port()["sm-lid"], lids[&H1]);
    assert_eq!(daemon.path(gid(H1))["status"], "found");
    drop(first);
    second.until_says("SUBNET UP");
    let lid = second.lids()[&0x10_0003];
    daemon.until(|daemon| (daemon.port()["sm-lid"] == lid).then_some(()));
    // The new SA answers. Paths from the other SA are in doubt, and asked for again when used.
    daemon.until(|daemon| (daemon.path(gid(0xdead_0000))["status"] == "no-record").then_some(()));
    assert!(daemon.count("paths.doubts") >= 1);
    daemon.until(|daemon| (daemon.path(gid(H1))["source"] == "sa").then_some(()));
    assert_eq!(daemon.count("paths.voided"), 0);
}
