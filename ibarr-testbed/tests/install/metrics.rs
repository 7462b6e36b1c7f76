// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The two ways by which metrics leave a node (docs/metrics.md).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::node::{ADDRESS, Node};

/// What the peer gets from the exporter, or nothing.
fn scraped() -> Option<String> {
    let mut stream =
        TcpStream::connect_timeout(&(ADDRESS, 9792).into(), Duration::from_secs(1)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn exporter_without_rights_serves_other_machines() {
    let node = Node::installed();
    node.ok("systemctl start ibarr ibarr-exporter");
    let answer = scraped().unwrap();
    assert!(answer.contains("\nibarr_up 1.0\n"), "{answer}");
    let pid = node.show("MainPID", "ibarr-exporter");
    let status = node.ok(&format!("cat /proc/{pid}/status"));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
    // That of a dynamic user.
    let uid: u32 = node.ok(&format!("stat --format=%u /proc/{pid}")).parse().unwrap();
    assert!((61184..=65519).contains(&uid), "{uid}");

    node.ok("systemctl stop ibarr");
    let is_said = || scraped().is_some_and(|answer| answer.contains("\nibarr_up 0.0\n"));
    node.until("the exporter says that the daemon is gone", is_said);
    // As docs/metrics.md says, with an address that is not the peer's.
    node.ok("mkdir -p /etc/systemd/system/ibarr-exporter.service.d");
    let local = |peer: &str| {
        node.ok(&format!(
            "printf '[Service]\\nEnvironment=LISTEN=10.9.0.1:9792\\nIPAddressDeny=any\\nIPAddressAllow={peer}\\n' \
             > /etc/systemd/system/ibarr-exporter.service.d/local.conf"
        ));
        node.ok("systemctl daemon-reload && systemctl restart ibarr-exporter");
        scraped()
    };
    assert!(local("10.9.0.2").is_some());
    assert_eq!(local("10.9.0.3"), None);
}

#[test]
fn timer_writes_metrics_for_node_exporter_as_a_user_without_rights() {
    const FILE: &str = "/var/lib/prometheus/node-exporter/ibarr.prom";
    let node = Node::installed();
    node.ok("mkdir -p /var/lib/prometheus/node-exporter && systemctl start ibarr");
    node.ok("ln -s /run/ibarr-metrics/ibarr.prom /var/lib/prometheus/node-exporter/");
    node.ok("systemctl enable --now ibarr-metrics.timer");
    node.until("the file is there", || node.run(&format!("test -s {FILE}")).status.success());
    let of_file = node.ok(&format!("stat --dereference --format='%U %a' {FILE}"));
    assert_eq!(of_file, "ibarr-metrics 644");
    assert!(node.ok(&format!("cat {FILE}")).contains("\nibarr_up 1.0\n"));
    node.ok("systemctl stop ibarr ibarr.socket && systemctl start ibarr-metrics");
    assert!(node.ok(&format!("cat {FILE}")).contains("\nibarr_up 0.0\n"));
    // A process whose end is no failure, and each of whose runs is no line.
    assert_eq!(node.show("Result", "ibarr-metrics"), "success");
    assert_eq!(node.ok("journalctl --quiet --unit=ibarr-metrics.service"), "");
}
