// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The service under systemd.

use crate::machine::said;
use crate::node::{GID, Node};

/// A node whose service runs.
fn started() -> Node {
    let node = Node::installed();
    node.ok("systemctl start ibarr");
    node
}

#[test]
fn service_runs_as_its_user_with_three_capabilities() {
    let node = started();
    assert_eq!(node.show("ActiveState", "ibarr"), "active");
    assert_eq!(node.show("SubState", "ibarr"), "running");
    let pid = node.show("MainPID", "ibarr");
    assert_eq!(node.ok(&format!("stat --format=%U:%G /proc/{pid}")), "ibarr:ibarr");
    let status = node.ok(&format!("cat /proc/{pid}/status"));
    // CAP_NET_ADMIN (12), CAP_PERFMON (38), CAP_BPF (39).
    let expected = format!("{:016x}", 1_u64 << 12 | 1 << 38 | 1 << 39);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{set}:\t")));
        assert_eq!(line, Some(expected.as_str()), "{set}");
    }
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
}

#[test]
fn peers_are_answered_in_the_kernel() {
    let node = started();
    for _ in 0..10 {
        assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    }
    let maps = node.ok("ibarr cache --kernel");
    assert!(maps.contains(GID), "{maps}");
    assert_eq!(node.counter("bpf.tc.answered"), 10, "{}", node.ok("ibarr counters"));
    assert!(node.bpffs().join("ibarr").is_dir(), "root sees the pins where they always are");
}

#[test]
fn peers_are_answered_by_xdp_where_the_configuration_says_so() {
    let node = Node::installed();
    let config = node.ok("cat /etc/ibarr/ibarr.toml");
    node.configure(&format!("responder = \"xdp-generic\"\n{config}"));
    node.send_whole_frames();
    node.ok("systemctl start ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    assert_eq!(node.counter("bpf.xdp.answered"), 1, "{}", node.ok("ibarr counters"));
    node.ok("systemctl stop ibarr.socket ibarr.service && ibarr detach");
    assert_eq!(node.ask(), None);
}

#[test]
fn exposure_of_each_unit_is_at_most_what_was_reached() {
    let node = Node::installed();
    // In tenths. Those without rights have a network, or none.
    for (unit, most) in [("ibarr", 20), ("ibarr-exporter", 11), ("ibarr-metrics", 5)] {
        let unit = format!("/usr/lib/systemd/system/{unit}.service");
        node.ok(&format!("systemd-analyze security --offline=true --threshold={most} {unit}"));
    }
}

#[test]
fn units_of_the_package_have_no_mistakes() {
    let node = Node::installed();
    let units = node.ok("dpkg --listfiles ibarr | grep ^/usr/lib/systemd/system/");
    assert_eq!(units.lines().count(), 9, "{units}");
    let units = units.replace('\n', " ");
    let verified = node.run(&format!("systemd-analyze verify --man=no {units}"));
    assert!(verified.status.success() && verified.stderr.is_empty(), "{}", said(&verified));
}

/// `contrib/systemd/root.conf`.
#[test]
fn daemon_runs_as_root_by_the_drop_in_of_contrib() {
    let node = Node::installed();
    let drop_in = include_str!("../../../contrib/systemd/root.conf");
    let lines: Vec<_> = drop_in.lines().filter(|line| !line.starts_with(['#', '['])).collect();
    node.limit(&lines.join("\\n"));
    node.ok("systemctl start ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    assert_eq!(node.counter("bpf.tc.answered"), 1);
    let pid = node.show("MainPID", "ibarr");
    assert_eq!(node.ok(&format!("stat --format=%U /proc/{pid}")), "root");
}

#[test]
fn reload_takes_effect_or_fails_with_the_reason() {
    let node = started();
    let pid = node.show("MainPID", "ibarr");
    let config = node.ok("cat /etc/ibarr/ibarr.toml");

    node.configure("udp-prot = 4791\n");
    assert!(!node.run("systemctl reload ibarr").status.success());
    assert!(node.journal().contains("udp-prot"), "{}", node.journal());
    assert_eq!(node.ask(), Some(GID.parse().unwrap()), "the old configuration still holds");

    let other = "fe80::2:c903:0:202";
    node.configure(&config.replace(GID, other));
    node.ok("systemctl reload ibarr");
    assert_eq!(node.ask(), Some(other.parse().unwrap()));
    assert_eq!(node.show("MainPID", "ibarr"), pid);
}

#[test]
fn wrong_configuration_stops_a_start_for_good() {
    let node = Node::installed();
    node.configure("udp-prot = 4791\n");
    assert!(!node.run("systemctl start ibarr.service").status.success());
    node.until("it fails", || node.show("ActiveState", "ibarr") == "failed");
    assert_eq!(node.show("ExecMainStatus", "ibarr"), "78");
    assert_eq!(node.show("NRestarts", "ibarr"), "0");
}

#[test]
fn killed_daemon_is_started_again_and_the_kernel_answers_meanwhile() {
    let node = started();
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    let pid = node.show("MainPID", "ibarr");
    node.ok(&format!("kill -KILL {pid}"));
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.until("another daemon is ready", || {
        let now = node.show("MainPID", "ibarr");
        now != pid && now != "0" && node.show("ActiveState", "ibarr") == "active"
    });
    assert_eq!(node.show("NRestarts", "ibarr"), "1");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
}

#[test]
fn stuck_daemon_is_killed_and_started_again() {
    let node = Node::installed();
    node.ok("mkdir -p /run/systemd/system/ibarr.service.d");
    node.ok(
        "printf '[Service]\\nWatchdogSec=2s\\n' > /run/systemd/system/ibarr.service.d/test.conf",
    );
    node.ok("systemctl daemon-reload && systemctl start ibarr");
    let pid = node.show("MainPID", "ibarr");
    node.until("a beat says what the state is", || {
        node.show("StatusText", "ibarr").contains("kernel answers on eth0")
    });
    // It lives for several of the watchdog's times.
    node.ok("sleep 5");
    assert_eq!(node.show("MainPID", "ibarr"), pid);

    node.ok(&format!("kill -STOP {pid}"));
    node.until("systemd starts another one", || {
        let now = node.show("MainPID", "ibarr");
        now != pid && now != "0" && node.show("ActiveState", "ibarr") == "active"
    });
    assert!(node.journal().contains("Watchdog timeout"), "{}", node.journal());
}

#[test]
fn stopped_service_leaves_no_process_and_no_run_directory() {
    let node = started();
    node.ok("systemctl stop ibarr.service");
    assert_eq!(node.show("ActiveState", "ibarr"), "inactive");
    assert_eq!(node.show("Result", "ibarr"), "success");
    assert!(!node.run("pidof ibarr").status.success());
    node.ok("test ! -e /run/ibarr");
    // The kernel answers until the lease ends, or the port is given back.
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("systemctl stop ibarr.socket");
    assert_eq!(node.ask(), None);
}
