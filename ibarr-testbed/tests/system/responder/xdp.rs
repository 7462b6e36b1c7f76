// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! XDP: where it would be wrong, and where it is not.

use ibarr_common::map::{Program, Reason};
use nix::sys::signal::Signal;

use super::rig::*;
use crate::machine::said;

#[test]
fn xdp_is_refused_where_it_would_be_wrong_and_answers_where_not() {
    let mut rig = Rig::new();
    let links = || tool("ip", &format!("-netns {NODE} -details link show dev eth0"));
    let ethtool = |words: &str| tool("ip", &format!("netns exec {words}"));
    rig.start("responder = \"xdp\"");
    let refused = |rig: &Rig, reason: &str| {
        let status = rig.status_of("eth0");
        assert!(status["responder"].is_null(), "{status}");
        let said = status["in-user-space"].as_str().unwrap();
        assert!(said.contains(reason) && said.contains("responder = \"tc\""), "{said}");
        let by_daemon = rig.answered_by_daemon();
        socket(V4).ask_all(5);
        assert_eq!(rig.answered_by_daemon(), by_daemon + 5);
    };
    refused(&rig, "ethtool -K eth0 rxvlan off");
    ethtool(&format!("{NODE} ethtool -K eth0 rxvlan off"));
    rig.end(Signal::SIGTERM);
    rig.restart();
    refused(&rig, "only if the interface at its other end has an XDP program");
    assert_eq!(rig.asked("counters")["counters"]["responder.not-attached"], 1);

    let _peers_program = prepare_for_xdp();
    let before = links();
    rig.end(Signal::SIGTERM);
    rig.restart();
    assert_eq!(rig.status_of("eth0")["responder"], "xdp-native");
    let was = answered(&rig);
    for target in [V4, V6] {
        socket(target).ask_all(200);
    }
    assert_eq!(answered(&rig), was + 400);

    let load = load(V4);
    for round in 0..10 {
        rig.end(if round % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
        rig.restart();
    }
    load.end_without_loss(100);
    assert_ne!(links(), before);
    rig.end(Signal::SIGTERM);
    let output = rig.detach();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(links(), before);
}

fn answered(rig: &Rig) -> u64 {
    rig.count(Program::Xdp, Reason::Answered)
}
