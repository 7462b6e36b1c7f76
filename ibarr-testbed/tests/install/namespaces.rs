// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr@NAME.service`: a daemon for each network namespace, beside the machine's own.

use std::fs;
use std::net::Ipv4Addr;

use crate::machine::said;
use crate::node::{ADDRESS, GID, Node, PEER};
use crate::package;

/// The GIDs of [`ADDRESS`] and of [`PEER`] in the namespaces.
const BLUE: &str = "fe80::2:c903:0:b1";
const RED: &str = "fe80::2:c903:0:2ed";

/// A name as container engines give it.
const CNI: &str = "cni-0a_1:2";

/// `blue` has the address of the container, and [`CNI`] that of its peer.
const BOTH: [(&str, &str, Ipv4Addr, &str); 2] =
    [("blue", "b0", ADDRESS, BLUE), (CNI, "r0", PEER, RED)];

/// Makes both, and a wire between them.
fn join(node: &Node) {
    node.ok(&format!("ip netns add blue && ip netns add {CNI}"));
    node.ok(&format!("ip link add b0 netns blue type veth peer name r0 netns {CNI}"));
    for (namespace, interface, address, _) in BOTH {
        let ip = format!("ip -n {namespace}");
        node.ok(&format!("{ip} address add {address}/24 dev {interface}"));
        node.ok(&format!("{ip} link set {interface} up && {ip} link set lo up"));
    }
}

/// Gives both daemons a configuration.
fn configure(node: &Node) {
    for (namespace, interface, address, gid) in BOTH {
        let config = format!(
            "interfaces = [\"{interface}\"]\n[[static-gid]]\nip = \"{address}\"\ngid = \"{gid}\"\n"
        );
        fs::write(node.path(&format!("/etc/ibarr/netns/{namespace}.toml")), config).unwrap();
    }
}

/// The GID that [`CNI`] gets for [`ADDRESS`] past its daemon's memory; `None` if there is no answer.
fn ask_blue(node: &Node) -> Option<String> {
    let said = node.run(&format!(
        "ibarr ping --count 1 --timeout 500ms --run-dir /run/ibarr-netns/{CNI} {ADDRESS}"
    ));
    let said = String::from_utf8(said.stdout).unwrap();
    [GID, BLUE].into_iter().find(|gid| said.contains(gid)).map(str::to_owned)
}

#[test]
fn daemons_of_namespaces_answer_for_their_own_addresses_only() {
    let node = Node::boot();
    join(&node);
    let before = package::files(&node);
    node.install();
    configure(&node);
    node.ok(&format!("systemctl start ibarr && systemctl enable --now ibarr@blue ibarr@{CNI}"));
    let both = || (node.ask().map(|gid| gid.to_string()), ask_blue(&node));
    let [own, blue] = [GID, BLUE].map(|gid| Some(gid.to_owned()));
    assert_eq!(both(), (own.clone(), blue.clone()));

    let status = node.ok("ibarr status --check --run-dir /run/ibarr-netns/blue");
    assert!(status.contains("IBARR OK"), "{status}");
    let status = node.ok("systemctl status --no-pager --lines=0 ibarr@blue");
    assert!(status.contains("kernel answers on b0"), "{status}");
    let pid = node.show("MainPID", "ibarr@blue");
    assert_eq!(node.ok(&format!("ip netns identify {pid}")), "blue");

    // Each one ends alone, and what it has left in the kernel, too.
    let detach =
        "nsenter --net=/run/netns/blue ibarr detach --bpf-dir /sys/fs/bpf/ibarr-netns/blue";
    node.ok(&format!("systemctl stop ibarr@blue && {detach}"));
    assert_eq!(both(), (own.clone(), None));
    node.ok("systemctl start ibarr@blue && systemctl stop ibarr ibarr.socket");
    assert_eq!(both(), (None, blue.clone()));
    node.ok("systemctl start ibarr");
    assert_eq!(both(), (own, blue));

    // Its configuration is its own, and none is needed.
    node.ok("mv /etc/ibarr/netns/blue.toml /etc/ibarr/netns/aside && systemctl reload ibarr@blue");
    let status = node.ok("ibarr status --json --run-dir /run/ibarr-netns/blue");
    assert!(status.contains("\"local-service\":{\"state\":\"off\""), "{status}");
    assert!(status.contains("no-gid") && !status.contains("kernel-silent"), "{status}");
    let missing = node.run("systemctl start ibarr@green");
    assert!(said(&missing).contains("Assertion failed"), "{}", said(&missing));

    node.ok("dpkg --purge ibarr");
    assert_eq!(node.ask(), None);
    assert_eq!(package::left(&node, &before), [""; 0]);
    for (namespace, interface, ..) in BOTH {
        let qdiscs = node.ok(&format!("tc -n {namespace} qdisc show dev {interface}"));
        assert!(!qdiscs.contains("clsact"), "{qdiscs}");
    }
}
