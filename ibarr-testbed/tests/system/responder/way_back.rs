// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which peers the kernel answers by the interface of their query, and which the daemon answers by routing.

use std::time::Duration;

use ibarr_common::map::{Program, Reason};

use super::rig::*;

#[test]
fn peers_routed_by_another_interface_are_answered_by_that_one() {
    let mut rig = Rig::new();
    // A second wire, and addresses of the peer behind each.
    ip(&format!("link add away0 netns {NODE} type veth peer name away0 netns {PEER}"));
    for (namespace, host) in [(NODE, 1), (PEER, 2)] {
        ip(&format!("-netns {namespace} link set away0 up"));
        ip(&format!("-netns {namespace} address add 10.9.0.{host}/24 dev away0"));
        ip(&format!("-netns {namespace} address add fd00:9::{host}/64 dev away0 nodad"));
    }
    ip(&format!("-netns {PEER} address add 10.8.0.2/32 dev lo"));
    ip(&format!("-netns {PEER} address add fd00:8::2/128 dev lo"));
    ip(&format!("-netns {NODE} route add default via 10.9.0.2"));
    ip(&format!("-netns {NODE} route add default via fd00:9::2"));
    rig.start("");

    // As on a machine that is managed over Ethernet: the default route leaves by another interface.
    let (elsewhere, elsewhere_v6) = ("10.8.0.2", "fd00:8::2");
    answered_by(&rig, "10.7.0.2", V4, Way::Kernel);
    answered_by(&rig, "fd00:7::2", V6, Way::Kernel);
    answered_by(&rig, elsewhere, V4, Way::Routing);
    answered_by(&rig, elsewhere_v6, V6, Way::Routing);
    // A route by a gateway of this interface.
    ip(&format!("-netns {NODE} route add 10.8.0.0/16 via 10.7.0.2"));
    ip(&format!("-netns {NODE} route add fd00:8::/32 via fd00:7::2"));
    answered_by(&rig, elsewhere, V4, Way::Kernel);
    answered_by(&rig, elsewhere_v6, V6, Way::Kernel);
    // A part of it by the other interface.
    ip(&format!("-netns {NODE} route add 10.8.0.0/24 via 10.9.0.2"));
    answered_by(&rig, elsewhere, V4, Way::Routing);
    answered_by(&rig, "10.7.0.2", V4, Way::Kernel);
    // The kernel removes the route with the other wire, without an event.
    ip(&format!("-netns {NODE} link set away0 down"));
    answered_by(&rig, elsewhere, V4, Way::Kernel);

    let in_user_space = |rig: &Rig| {
        let said = rig.status_of("eth0")["in-user-space"].clone();
        said.as_str().unwrap_or_default().to_owned()
    };
    assert!(in_user_space(&rig).contains("IPv4 sources that no route on this interface covers"));
    ip(&format!("-netns {NODE} rule add pref 77 from 10.7.0.1 lookup 77"));
    answered_by(&rig, "10.7.0.2", V4, Way::Routing);
    let said = in_user_space(&rig);
    assert!(said.contains("IPv4: the policy rule with priority 77"), "{said}");
    answered_by(&rig, "fd00:7::2", V6, Way::Kernel);
    ip(&format!("-netns {NODE} rule delete pref 77"));
    answered_by(&rig, "10.7.0.2", V4, Way::Kernel);
    // All routes, also the default one, leave by this interface: no peer is left to the daemon.
    ip(&format!("-netns {NODE} route add default via 10.7.0.2"));
    ip(&format!("-netns {NODE} -6 route replace default via fd00:7::2"));
    rig.eventually("the kernel answers all sources", || in_user_space(&rig).is_empty());
    answered_by(&rig, elsewhere, V4, Way::Kernel);
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Kernel,
    Routing,
}

/// Checks that queries from `source` are answered, and soon only in this way.
fn answered_by(rig: &Rig, source: &str, target: &str, way: Way) {
    let mut asker = socket_from(source, target);
    let counts = || (rig.answered_in_kernel(), rig.answered_by_daemon());
    rig.eventually(&format!("{source} is answered by {way:?}"), || {
        let before = counts();
        let no_route = rig.count(Program::Tc, Reason::NoRoute);
        assert!(asker.ask(Duration::from_secs(5)), "{source} is not answered by anyone");
        rig.eventually("the answer is counted", || counts() != before);
        let after = counts();
        let passed = rig.count(Program::Tc, Reason::NoRoute) - no_route;
        match (after.0 - before.0, after.1 - before.1) {
            (1, 0) => way == Way::Kernel,
            (0, 1) => way == Way::Routing && passed <= 1,
            other => panic!("{other:?}"),
        }
    });
}
