// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The boot of a node that mounts file systems over RDMA, and of a node without disk.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::node::{GID, Node};

/// In place of mount.nfs and mount.lustre: says whether the daemon answers, and mounts something.
const MOUNT: &str = "#!/bin/sh
if ibarr status > /dev/null 2>&1; then state=answers; else state=silent; fi
echo \"$0 $state\" >> /run/mounts
exec mount -t tmpfs none \"$2\"
";
const FSTAB: &str = "10.2.0.9:/export /mnt/nfs nfs defaults 0 0
10.2.0.9@o2ib:/scratch /mnt/lustre lustre defaults 0 0
";

#[test]
fn remote_file_systems_are_mounted_once_the_daemon_is_ready_or_failed() {
    let mut node = Node::installed();
    for name in ["nfs", "lustre"] {
        let helper = node.path(&format!("/sbin/mount.{name}"));
        fs::write(&helper, MOUNT).unwrap();
        fs::set_permissions(&helper, Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(node.path("/etc/fstab"), FSTAB).unwrap();
    // Without an order the mounts would come first.
    let drop_in = "/etc/systemd/system/ibarr.service.d";
    node.ok(&format!(
        "mkdir -p {drop_in} && printf '[Service]\\nExecStartPre=/bin/sleep 2\\n' > {drop_in}/slow.conf"
    ));
    node.ok("systemctl enable ibarr remote-fs.target");
    let config = node.ok("cat /etc/ibarr/ibarr.toml");
    for (config, state) in [(config.as_str(), "answers"), ("udp-prot = 4791\n", "silent")] {
        node.configure(config);
        node.reboot(&[]);
        let mounts = node.ok("sort /run/mounts");
        assert_eq!(mounts, format!("/sbin/mount.lustre {state}\n/sbin/mount.nfs {state}"));
        for unit in ["mnt-nfs.mount", "mnt-lustre.mount", "remote-fs.target"] {
            assert_eq!(node.show("ActiveState", unit), "active");
        }
        let log = node.ok("journalctl --boot --no-pager --output=cat");
        assert!(!log.contains("ordering cycle"), "{log}");
    }
}

#[test]
fn node_without_disk_serves_with_read_only_etc_and_empty_var() {
    let mut node = Node::installed();
    let config = node.ok("cat /etc/ibarr/ibarr.toml");
    node.configure(&format!("{config}\n[paths]\nsnapshot = \"/var/lib/ibarr/paths\"\n"));
    node.ok("systemctl enable ibarr");
    node.reboot(&["--volatile=state"]);
    assert!(!node.run("touch /etc/ibarr/ibarr.toml").status.success(), "/etc is read-only");
    assert_eq!(node.show("ActiveState", "ibarr"), "active");
    assert_eq!(node.ok("stat --format=%U:%a /var/lib/ibarr"), "ibarr:750");
    assert_eq!(node.ok("ls -A /var/lib/ibarr"), "");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("systemctl reload ibarr && systemctl restart ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("test -s /var/lib/ibarr/paths");
}

#[test]
fn node_with_a_read_only_var_serves_after_the_pages_command() {
    let page = include_str!("../../../docs/boot.md");
    let mut commands = page.lines().filter_map(|line| line.strip_prefix("$ sudo "));
    let make = commands.find(|command| command.ends_with("/var/lib/ibarr # prints nothing"));
    let mut node = Node::installed();
    node.ok(make.unwrap());
    node.ok("systemctl enable ibarr");
    node.reboot(&["--read-only"]);
    assert!(!node.run("touch /var/lib/ibarr/file").status.success(), "/var is read-only");
    assert_eq!(node.show("ActiveState", "ibarr"), "active");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("systemctl reload ibarr && systemctl restart ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
}
