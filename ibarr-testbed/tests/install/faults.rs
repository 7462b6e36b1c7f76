// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a machine can lack. Each fault is one sentence with its remedy in the journal, an exit status that
//! systemd takes rightly, and loses nothing that works without it.

use crate::machine::said;
use crate::node::{GID, Node};

#[test]
fn configuration_that_cannot_be_used_is_named_and_not_tried_again() {
    let node = Node::installed();
    let fails = |saying: &[&str], status: &str| {
        let journal = node.journal();
        assert!(!node.run("systemctl start ibarr").status.success());
        node.until("it fails", || node.show("ActiveState", "ibarr") == "failed");
        let now = node.journal();
        let now = &now[journal.len()..];
        for words in saying {
            assert!(now.contains(words), "{words:?} is not in: {now}");
        }
        assert_eq!(node.show("ExecMainStatus", "ibarr"), status);
        assert_eq!(node.show("NRestarts", "ibarr"), "0");
    };
    node.ok("mkdir -p /etc/ibarr/ibarr.d && echo 'lease = \"soon\"' > /etc/ibarr/ibarr.d/50.toml");
    fails(&["/etc/ibarr/ibarr.d/50.toml:1:9: lease \"soon\" is not a duration"], "78");
    node.ok("rm /etc/ibarr/ibarr.d/50.toml && chmod 600 /etc/ibarr/ibarr.toml");
    fails(&["/etc/ibarr/ibarr.toml", "Permission denied"], "78");

    node.ok("chmod 644 /etc/ibarr/ibarr.toml && systemctl start ibarr");
    let second = node.run("ibarr run");
    assert!(said(&second).contains("another ibarr"), "{}", said(&second));
    assert_eq!(second.status.code(), Some(75), "{}", said(&second));
    assert_eq!(node.ask(), Some(GID.parse().unwrap()), "the first goes on");
}

#[test]
fn service_without_a_writable_bpffs_answers_from_user_space() {
    let node = Node::installed();
    limit(&node, "BindPaths=\\nBindReadOnlyPaths=-/sys/fs/bpf/ibarr:/run/ibarr/bpf");
    node.ok("systemctl start ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    assert_eq!(node.counter("bpf.tc.answered"), 0);
    let status = node.ok("ibarr status");
    assert!(status.contains("Read-only file system"), "{status}");
    assert!(node.journal().contains("Read-only file system"), "{}", node.journal());
}

#[test]
fn service_needs_no_type_information_of_the_kernel() {
    let node = Node::installed();
    limit(&node, "InaccessiblePaths=-/sys/kernel/btf");
    node.ok("systemctl start ibarr");
    let pid = node.show("MainPID", "ibarr");
    assert!(
        !node
            .run(&format!("nsenter --target {pid} --mount cat /sys/kernel/btf/vmlinux"))
            .status
            .success()
    );
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    assert_eq!(node.counter("bpf.tc.answered"), 1);
}

/// Puts lines into a drop-in of the unit.
fn limit(node: &Node, lines: &str) {
    let drop_in = "/run/systemd/system/ibarr.service.d";
    node.ok(&format!("mkdir -p {drop_in} && printf '[Service]\n{lines}\n' > {drop_in}/test.conf"));
    node.ok("systemctl daemon-reload");
}
