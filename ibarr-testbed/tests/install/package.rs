// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The package itself: what it installs, and what its removal leaves.

use std::fs;

use crate::node::{GID, Node};

#[test]
fn purged_package_leaves_nothing_but_its_user() {
    let node = Node::boot();
    let before = files(&node);
    node.install();
    node.ok("systemctl enable --now ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("touch /etc/ibarr/ibarr.d/site.toml /var/lib/ibarr/paths");
    node.ok("dpkg --purge ibarr");
    assert_eq!(node.ask(), None, "no program and no filter is left");
    assert_eq!(left(&node, &before), [""; 0]);
}

/// Everything where a package puts something.
pub(crate) fn files(node: &Node) -> String {
    node.ok("cd / && find etc usr var/lib run sys/fs/bpf -xdev | LC_ALL=C sort")
}

/// What is there besides the files `before`, and all pins.
pub(crate) fn left(node: &Node, before: &str) -> Vec<String> {
    let after = files(node);
    let new = after.lines().filter(|name| !before.lines().any(|was| was == *name));
    let new = new.filter(|name| !is_of_others(name)).map(str::to_owned);
    let pins = fs::read_dir(node.bpffs()).unwrap();
    let pins = pins.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    // The kernel has files of its own there.
    let is_of_kernel = |name: &String| ["maps.debug", "progs.debug"].contains(&name.as_str());
    new.chain(pins.filter(|name| !is_of_kernel(name))).collect()
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
    assert_eq!(node.ok("/usr/bin/ibarr --version"), format!("ibarr {version}"));
    node.ok("systemctl start ip2gid");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("systemctl stop ip2gid");
    assert_eq!(node.show("ActiveState", "ibarr"), "inactive");
}

/// A package with the name, the version, the paths and the unit of the C original. Its program holds the port.
const C_ORIGINAL: &str = r#"mkdir -p /c/DEBIAN /c/usr/bin /c/usr/lib/systemd/system
    printf 'Package: ibarr\nVersion: 0.1.5\nArchitecture: all\nMaintainer: C <c@example>\nDescription: C\n' > /c/DEBIAN/control
    printf '#!/usr/bin/perl\nuse IO::Socket::INET;\nmy $port = IO::Socket::INET->new(Proto => "udp", LocalPort => 4791) or die;\nsleep;\n' > /c/usr/bin/ibarr
    printf '[Service]\nExecStart=/usr/bin/ibarr\n[Install]\nWantedBy=multi-user.target\nAlias=ip2gid.service\n' > /c/usr/lib/systemd/system/ibarr.service
    chmod 755 /c/usr/bin/ibarr
    dpkg-deb -Znone --build /c /c.deb"#;

#[test]
fn running_c_original_is_replaced_by_the_package() {
    let node = Node::boot();
    node.ok(C_ORIGINAL);
    node.ok("dpkg --install /c.deb && systemctl enable --now ibarr");
    node.until("it has the port", || !node.ok("ss -Hlun sport = 4791").is_empty());
    node.install();
    // A daemon of this package runs where one of the C original ran.
    assert_eq!(node.show("ActiveState", "ibarr"), "active");
    node.ok("systemctl reload ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    assert_eq!(node.ok("readlink --canonicalize /usr/bin/ibarr"), "/usr/sbin/ibarr");
    node.ok("systemctl restart ip2gid");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    // The socket that holds the port is enabled only by this.
    node.ok("systemctl enable ibarr && systemctl is-enabled ibarr.socket");
}
