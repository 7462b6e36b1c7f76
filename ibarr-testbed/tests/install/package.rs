// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The package itself: what it installs, and what its removal leaves.

use std::fs;

use crate::node::{GID, Node};

#[test]
fn purged_package_leaves_nothing_but_its_user() {
    let node = Node::boot();
    let list = "cd / && find etc usr var/lib run sys/fs/bpf -xdev | LC_ALL=C sort";
    let before = node.ok(list);
    node.install();
    node.ok("systemctl enable --now ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("touch /etc/ibarr/ibarr.d/site.toml /var/lib/ibarr/paths");
    node.ok("dpkg --purge ibarr");
    assert_eq!(node.ask(), None, "no program and no filter is left");
    let after = node.ok(list);
    let left: Vec<_> =
        after.lines().filter(|name| !before.lines().any(|was| was == *name)).collect();
    let left: Vec<_> = left.into_iter().filter(|name| !is_of_others(name)).collect();
    assert_eq!(left, [""; 0]);
    let pins = fs::read_dir(node.bpffs()).unwrap().map(|entry| entry.unwrap().file_name());
    // The kernel has files of its own there.
    let pins: Vec<_> = pins.filter(|name| !name.to_string_lossy().ends_with(".debug")).collect();
    assert_eq!(pins, [""; 0]);
}

/// What dpkg, systemd and the user database keep for themselves.
fn is_of_others(name: &str) -> bool {
    ["var/lib/dpkg", "run/systemd", "run/udev", "run/log", "run/dbus", "var/lib/systemd"]
        .iter()
        .any(|directory| name.starts_with(directory))
        || ["etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/.pwd.lock"]
            .contains(&name)
}

#[test]
fn package_takes_the_place_of_the_c_original() {
    let node = Node::installed();
    let version = node.ok("dpkg-query --show --showformat='${Version}' ibarr");
    node.ok(&format!("dpkg --compare-versions {version} gt 0.1.5"));
    assert_eq!(node.ok("ibarr --version"), format!("ibarr {version}"));
}
