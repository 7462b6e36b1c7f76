// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! After a daemon has ended, the programs answer until the lease ends, and no longer.

use std::time::Duration;

use ibarr_common::map::{Program, Reason};
use ibarr_testbed::start::program;
use nix::sys::signal::Signal;

use super::rig::*;
use crate::machine::ibarr;

#[test]
fn nothing_is_answered_when_the_lease_is_over() {
    let mut rig = Rig::new();
    rig.start("lease = \"2s\"");
    // After the address is removed, the link layer finds no host for it.
    pin_neighbour(V4);
    rig.end(Signal::SIGKILL);
    // The programs answer what the daemon knew, although the address has changed since.
    ip(&format!("-netns {NODE} address delete 10.7.0.1/24 dev eth0"));
    ip(&format!("-netns {NODE} address add 10.7.0.200/24 dev eth0"));
    socket(V4).ask_all(10);
    rig.eventually("the lease is over", || lease_ms(&rig) == 0);
    let (answered, over) = (rig.answered_in_kernel(), lease_over(&rig));
    let mut asker = socket(V4);
    for _ in 0..20 {
        assert!(!asker.ask(Duration::from_millis(5)));
    }
    assert_eq!(rig.answered_in_kernel(), answered);
    rig.eventually("all have come", || lease_over(&rig) == over + 20);

    // The next daemon removes the old entry before its lease begins.
    rig.restart();
    assert!(lease_ms(&rig) > 0);
    assert!(!asker.ask(Duration::from_millis(50)));
    assert_eq!(rig.answered_in_kernel(), answered);
    ip(&format!("-netns {NODE} address add 10.7.0.1/24 dev eth0"));
    rig.eventually("the address is answered again", || asker.ask(Duration::from_millis(50)));
}

#[test]
fn programs_answer_for_a_stopped_daemon_until_the_lease_ends() {
    for target in [V4, V6] {
        let mut rig = Rig::new();
        rig.start("lease = \"2s\"");
        let mut asker = socket(target);
        asker.ask_all(1);
        rig.signal(Signal::SIGSTOP);
        let (mut answered, mut lost) = (0, 0);
        while lost < 50 {
            let is_over = lease_over(&rig) > 0;
            if asker.ask(Duration::from_millis(if is_over { 5 } else { 1000 })) {
                assert!(!is_over, "{answered} answered, {lost} not, and then one");
                answered += 1;
            } else {
                lost += 1;
                rig.eventually("only the last query came too late", || lease_over(&rig) == lost);
            }
        }
        assert!(answered > 100, "{answered}");
        rig.signal(Signal::SIGCONT);
    }
}

#[test]
fn daemon_answers_queries_after_the_lease_when_it_wakes() {
    let mut rig = Rig::new();
    rig.start("lease = \"1s\"");
    let before = rig.answered_by_daemon();
    rig.signal(Signal::SIGSTOP);
    rig.eventually("the lease is over", || lease_ms(&rig) == 0);
    let mut asker = socket(V4);
    assert!(!asker.ask(Duration::from_millis(50)));
    rig.signal(Signal::SIGCONT);
    let reply = asker.receive(Duration::from_secs(5)).expect("the daemon's answer");
    assert_eq!(reply.0.len(), 32);
    rig.until_answered_by_daemon(before + 1);
    rig.eventually("a new lease", || lease_ms(&rig) > 0);
}

/// The programs read the clock of the machine, and a daemon in a time namespace is shown another one.
#[test]
fn lease_of_a_daemon_in_a_time_namespace_ends_in_time() {
    for offset in ["100000", "-1"] {
        let mut rig = Rig::new();
        rig.configure("lease = \"1s\"");
        let mut command = program("unshare");
        // Before Linux 6.2 a program enters its time namespace by a fork, not by exec.
        command.args(["--fork", "--kill-child", "--time"]);
        command.args(["--boottime", offset, "--monotonic", offset]).arg(ibarr());
        rig.spawn(command);
        pin_neighbour(V4);
        let before = rig.answered_in_kernel();
        socket(V4).ask_all(20);
        assert_eq!(rig.answered_in_kernel(), before + 20);
        rig.end(Signal::SIGKILL);
        rig.eventually("the lease is over", || lease_ms(&rig) == 0);
        let answered = rig.answered_in_kernel();
        for _ in 0..20 {
            assert!(!socket(V4).ask(Duration::from_millis(5)));
        }
        assert_eq!(rig.answered_in_kernel(), answered);
    }
}

#[test]
fn a_live_daemon_renews_its_lease() {
    let mut rig = Rig::new();
    rig.start("lease = \"2s\"");
    let load = load(V4);
    // Several times the length of the lease.
    std::thread::sleep(Duration::from_secs(5));
    load.end_without_loss(1000);
    assert_eq!(lease_over(&rig), 0);
    let counters = rig.asked("counters");
    let renewals = counters["counters"]["responder.lease-renewals"].as_u64().unwrap();
    assert!(renewals >= 6, "{renewals}");
}

fn lease_over(rig: &Rig) -> u64 {
    rig.count(Program::Tc, Reason::LeaseOver)
}

fn lease_ms(rig: &Rig) -> u64 {
    let output =
        ibarr_on_node(&format!("cache --kernel --json --bpf-dir {}", rig.bpf_dir().display()));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    document["kernel"]["lease-ends-in-ms"].as_u64().unwrap()
}
