// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What is left of ibarr on a node that gives it up: its files, and nothing in the kernel.

use crate::kernel::Kernel;
use crate::node::{GID, Node};

/// The command line of docs/boot.md.
fn way_out() -> String {
    let page = include_str!("../../../docs/boot.md");
    let mut commands = page.lines().filter_map(|line| line.strip_prefix("$ sudo "));
    commands.find(|command| command.starts_with("systemctl disable")).unwrap().replace("sudo ", "")
}

#[test]
fn one_command_leaves_nothing_of_ibarr_in_the_kernel() {
    let mut node = Node::installed();
    let config = node.ok("cat /etc/ibarr/ibarr.toml");
    node.send_whole_frames();
    node.until("the link-local address is no longer tentative", || {
        !node.ok("ip -6 address show dev eth0 scope link -tentative").is_empty()
    });
    // Fills the neighbour tables.
    assert_eq!(node.ask(), None);
    let before = kernel_state(&node);
    let kernel = Kernel::start(&node);
    for responder in ["tc", "clsact", "xdp-generic"] {
        node.configure(&format!("responder = \"{responder}\"\n{config}"));
        node.ok("systemctl enable --now ibarr ibarr-exporter ibarr-metrics.timer && ibarr reload");
        node.until("there are metrics", || {
            node.inner_path("/run/ibarr-metrics/ibarr.prom").exists()
        });
        assert_eq!(node.ask(), Some(GID.parse().unwrap()), "{responder}");
        assert_ne!(kernel_state(&node), before, "{responder}");
        let maps = maps(&node);
        assert!(!maps.is_empty(), "{responder}: {}", kernel_state(&node));

        node.ok(&way_out());
        assert_eq!(kernel_state(&node), before, "{responder}");
        assert_eq!(node.ask(), None, "{responder}");
        // A program holds its maps, so no program is there either. The kernel frees both a moment later.
        for map in &maps {
            let is_there = || node.with_its_network(&["bpftool", "map", "show", "id", map]).is_ok();
            node.until(&format!("{responder}: map {map} is gone"), || !is_there());
        }
        if responder == "tc" {
            assert_eq!(kernel.timeouts_until_its_end().last(), Some(&KERNELS_DEFAULT));
        }
    }

    // The same after a boot, with other links and addresses.
    node.reboot(&[]);
    assert_eq!(node.ask(), None);
    let left = kernel_state(&node);
    for nothing in ["4791", "/ibarr/", "clsact", "prog/xdp", "eth0(2)"] {
        assert!(!left.contains(nothing), "{nothing} in {left}");
    }
    for unit in ["ibarr.service", "ibarr.socket", "ibarr-acm.socket", "ibarr-port.service"] {
        assert_eq!(node.show("ActiveState", unit), "inactive");
    }
}

/// The initial `sa_local_svc_timeout_ms` of drivers/infiniband/core/sa_query.c.
const KERNELS_DEFAULT: u32 = 2000;

/// What a program can leave in the kernel.
fn kernel_state(node: &Node) -> String {
    let inside = node.ok("find /sys/fs/bpf
        tc qdisc show
        tc filter show dev eth0 ingress
        tc filter show dev eth0 egress
        ip -details link show dev eth0
        ip neighbour show | cut --delimiter=' ' --fields=1 | sort
        ip rule show; ip -6 rule show
        ip route show table all; ip -6 route show table all
        ss --udp --tcp --numeric --all --no-header
        ls -d /run/ibarr* /run/ibacm* 2> /dev/null
        pgrep --uid ibarr --list-name
        grep -r . /proc/sys/net 2> /dev/null | grep -v conntrack_count | sort");
    let attached = node.with_its_network(&["bpftool", "net", "show"]).unwrap();
    format!("{inside}\n{attached}")
}

/// The numbers of all pinned maps.
fn maps(node: &Node) -> Vec<String> {
    let pins = node.ok("find /sys/fs/bpf/ibarr -type f");
    let numbers = pins.lines().filter_map(|pin| {
        let pin = node.bpffs().join(pin.trim_start_matches("/sys/fs/bpf/"));
        let shown = node.with_its_network(&["bpftool", "map", "show", "pinned", pin.to_str()?]);
        Some(shown.ok()?.split_once(':')?.0.to_owned())
    });
    numbers.collect()
}
