// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! XDP: where the daemon refuses it, and where it works.

use std::path::PathBuf;

use ibarr_common::map::{Program, Reason};
use nix::sys::signal::Signal;

use super::rig::*;
use crate::machine::said;

#[test]
fn xdp_is_refused_where_it_would_be_wrong() {
    let mut rig = Rig::new();
    let inside = |namespace: &str, words: &str| {
        tool("ip", &format!("netns exec {namespace} {words}"));
    };
    let mut refused = |reason: &str| {
        rig.start("responder = \"xdp\"");
        let status = rig.status_of("eth0");
        assert!(status["responder"].is_null(), "{status}");
        let said = status["in-user-space"].as_str().unwrap();
        assert!(said.contains(reason) && said.contains("responder = \"tc\""), "{said}");
        assert_eq!(rig.asked("counters")["counters"]["responder.not-attached"], 1);
        assert_eq!(rig.hooks(), <[PathBuf; 0]>::default());
        let by_daemon = rig.answered_by_daemon();
        socket(V4).ask_all(5);
        rig.until_answered_by_daemon(by_daemon + 5);
        rig.end(Signal::SIGTERM);
    };
    refused("ethtool -K eth0 rxvlan off");
    inside(NODE, "ethtool -K eth0 rxvlan off");
    refused("unless the interface at its other end has an XDP program");
    let _peers_program = prepare_for_xdp();
    inside(PEER, "ip link set eth0 mtu 9000");
    refused("the MTU is too large");
    inside(PEER, "ip link set eth0 mtu 1500");
    let _theirs = gives_way(NODE);
    refused("another XDP program is there");
}

/// There is no program at the other end, and an MTU that is too large for a driver's XDP.
#[test]
fn generic_xdp_answers_where_native_xdp_is_refused() {
    let mut rig = Rig::new();
    let mut starts = |responder: &str| {
        rig.start(responder);
        let status = rig.status_of("eth0");
        rig.end(Signal::SIGTERM);
        status
    };
    let status = starts("responder = \"xdp-generic\"");
    assert!(status["in-user-space"].as_str().unwrap().contains("ethtool -K eth0 rxvlan off"));
    prepare_for_generic_xdp();
    tool("ip", &format!("-netns {NODE} link set eth0 mtu 9000"));
    let status = starts("responder = \"xdp\"");
    let said = status["in-user-space"].as_str().unwrap();
    assert!(status["responder"].is_null() && said.contains("\"xdp-generic\""), "{said}");
    let status = starts("responder = \"xdp-generic\"");
    assert_eq!(status["responder"], "xdp-generic");
    rig.start("responder = \"xdp-generic\"");
    let (was, by_daemon) = (answered(&rig), rig.answered_by_daemon());
    for target in [V4, V6] {
        socket(target).ask_all(200);
    }
    assert_eq!((answered(&rig), rig.answered_by_daemon()), (was + 400, by_daemon));
}

#[test]
fn xdp_answers_and_is_replaced_under_load_without_a_lost_query() {
    let mut rig = Rig::new();
    let links = || tool("ip", &format!("-netns {NODE} -details link show dev eth0"));
    let _peers_program = prepare_for_xdp();
    let before = links();
    rig.start("responder = \"xdp\"");
    assert_eq!(rig.status_of("eth0")["responder"], "xdp-native");
    let was = answered(&rig);
    for target in [V4, V6] {
        socket(target).ask_all(200);
    }
    assert_eq!(answered(&rig), was + 400);

    let link = link_id(&rig);
    assert!(link.is_some());
    let loads = [load(V4), load(V6)];
    for round in 0..rounds(20) {
        rig.end(if round % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
        rig.restart();
    }
    for load in loads {
        load.end_without_loss(100);
    }
    assert_eq!(link_id(&rig), link, "the link was updated, never made anew");
    assert_ne!(links(), before);
    rig.end(Signal::SIGTERM);
    let output = rig.detach();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(links(), before);
}

fn answered(rig: &Rig) -> u64 {
    rig.count(Program::Xdp, Reason::Answered)
}
