// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What becomes of `/etc/ibarr/ibarr.toml` when the package is upgraded. No program answers a question here, so
//! dpkg fails if it asks one.

use std::fs;

use crate::machine::said;
use crate::node::Node;

const FILE: &str = "/etc/ibarr/ibarr.toml";
const OF_1_0_0: &str = include_str!("../data/ibarr-1.0.0.toml");
const PACKAGED: &str = include_str!("../../../pkg/ibarr.toml");

/// Builds `NAME.deb` from the package, with another `version` and what `change` does in its directory.
fn build(node: &Node, name: &str, version: &str, change: &str) {
    node.ok(&format!(
        "rm -rf /{name} && dpkg-deb --raw-extract /ibarr.deb /{name} && cd /{name} && {change}
        sed --in-place 's/^Version: .*/Version: {version}/' DEBIAN/control
        dpkg-deb -Znone --build /{name} /{name}.deb"
    ));
}

/// A node and `first.deb`, which has the configuration as 1.0.0 had it: a conffile with each key.
fn with_first() -> Node {
    let node = Node::boot();
    fs::write(node.path("/1.0.0.toml"), OF_1_0_0).unwrap();
    let change = "rm -r DEBIAN/preinst usr/share/ibarr && cp /1.0.0.toml etc/ibarr/ibarr.toml
        echo /etc/ibarr/ibarr.toml > DEBIAN/conffiles";
    build(&node, "first", "0.9", change);
    node.ok("dpkg --install /first.deb");
    assert_eq!(read(&node), OF_1_0_0);
    node
}

fn read(node: &Node) -> String {
    fs::read_to_string(node.path(FILE)).unwrap()
}

fn edit(node: &Node, text: &str) -> String {
    let edited = format!("{text}# of this site\n");
    fs::write(node.path(FILE), &edited).unwrap();
    edited
}

#[test]
fn untouched_configuration_of_1_0_0_is_replaced_and_comes_back() {
    let node = with_first();
    node.ok("dpkg --install /ibarr.deb");
    assert_eq!(read(&node), PACKAGED);
    assert_eq!(node.ok("ls -A /etc/ibarr"), "ibarr.d\nibarr.toml\nnetns");
    // Nothing is changed from its default.
    assert!(!node.ok("ibarr config").contains(FILE));
    node.ok("dpkg --install /first.deb");
    assert_eq!(read(&node), OF_1_0_0);
}

#[test]
fn upgrades_keep_an_edited_configuration_without_a_question() {
    let node = with_first();
    let edited = edit(&node, OF_1_0_0);
    node.ok("dpkg --install /ibarr.deb");
    assert_eq!(read(&node), edited);
    build(&node, "later", "9.0", "echo '#lease = \"9s\"' >> usr/share/ibarr/ibarr.toml");
    node.ok("dpkg --install /later.deb");
    assert_eq!(read(&node), edited);
    assert_eq!(node.ok("ls -A /etc/ibarr"), "ibarr.d\nibarr.toml\nnetns");
}

#[test]
fn new_comment_of_a_later_version_reaches_an_untouched_configuration() {
    let node = Node::boot();
    build(&node, "later", "9.0", "echo '#lease = \"9s\"' >> usr/share/ibarr/ibarr.toml");
    build(&node, "failing", "9.1", "echo 'exit 1' >> DEBIAN/preinst");
    node.ok("dpkg --install /ibarr.deb");
    assert_eq!(read(&node), PACKAGED);
    node.ok("dpkg --install /later.deb");
    let later = format!("{PACKAGED}#lease = \"9s\"\n");
    assert_eq!(read(&node), later);
    let failed = node.run("dpkg --install /failing.deb");
    assert!(!failed.status.success(), "{}", said(&failed));
    assert_eq!(read(&node), later, "an upgrade that fails leaves the file as it was");
    // A deleted file stays deleted.
    node.ok(&format!("rm {FILE} && dpkg --install /ibarr.deb"));
    assert!(!node.path(FILE).exists());
}
