// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An interface in a VRF, on kernels that have them: the level vm-responder alone runs these tests.

use std::time::Duration;

use ibarr_testbed::lab::netns;

use super::rig::*;

#[test]
fn peers_in_a_vrf_are_answered_whatever_unbound_sockets_accept() {
    let mut rig = Rig::new();
    ip(&format!("-netns {NODE} link add blue type vrf table 60"));
    ip(&format!("-netns {NODE} link set blue up"));
    let ask = |rig: &Rig| {
        let by_daemon = rig.answered_by_daemon();
        for target in [V4, V6] {
            rig.eventually("an answer", || socket(target).ask(Duration::from_millis(200)));
            socket(target).ask_all(10);
        }
        rig.answered_by_daemon() - by_daemon
    };
    for (accept, responder) in [("0", "user"), ("0", "auto"), ("1", "user"), ("1", "auto")] {
        netns::set(NODE, &[("ipv4/udp_l3mdev_accept", accept)]).unwrap();
        enslave("master blue");
        rig.start(&format!("responder = \"{responder}\""));
        assert!(ask(&rig) >= 22, "{responder}");
        let status = rig.asked("status");
        assert!(status["status"]["servers"].to_string().contains("\"vrf\":\"blue\""), "{status}");
        assert!(!status["status"]["health"].to_string().contains("not-serving"), "{status}");
        // Out of the VRF and into it again, at run time.
        enslave("nomaster");
        ask(&rig);
        enslave("master blue");
        ask(&rig);
        // Another user's socket gets neither port.
        let other = netns::inside(NODE, || Ok(std::net::UdpSocket::bind("0.0.0.0:4791")?));
        assert!(other.is_err());
        rig.end(nix::sys::signal::Signal::SIGTERM);
        assert!(rig.detach().status.success());
    }
}

/// Changes the master of the node's interface, which loses its IPv6 address each time.
fn enslave(master: &str) {
    ip(&format!("-netns {NODE} link set eth0 {master}"));
    ip(&format!("-netns {NODE} address replace {V6}/64 dev eth0 nodad"));
}
