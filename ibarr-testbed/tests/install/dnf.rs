// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! dnf, on a Debian under systemd: it installs, upgrades and takes back the RPM. What RHEL's packages would have, a package
//! without files provides.

use std::fs;
use std::path::Path;

use ibarr_testbed::start::program;

use crate::machine::said;
use crate::node::{ADDRESS, GID, Node, file};

const FILE: &str = "/etc/ibarr/ibarr.toml";
const OF_1_0_0: &str = include_str!("../data/ibarr-1.0.0.toml");
const PACKAGED: &str = include_str!("../../../pkg/ibarr.toml");

/// Provides what the package needs of RHEL.
const RHEL: &str = "
Name: rhel
Version: 1
Release: 1
Summary: Stands in for RHEL
License: none
BuildArch: noarch
Provides: /bin/sh
Provides: systemd = 252
Provides: libc.so.6(GLIBC_2.28)(64bit)
%description
%files
";

#[test]
fn dnf_installs_from_the_signed_repository_and_refuses_a_changed_list() {
    let node = boot();
    let mut copy = program("cp");
    copy.arg("-r").arg(file("IBARR_REPOSITORY")).arg(node.path("/repository"));
    assert!(copy.output().unwrap().status.success());
    let [add, install] = ["printf '[ibarr]", "sudo dnf install ibarr"].map(of_the_page);
    node.ok(&add);
    for (change, words) in [
        ("sed --in-place 's/<revision>1/<revision>2/' repomd.xml", "Bad GPG signature"),
        ("rm repomd.xml.asc", "GPG signature is not available"),
    ] {
        let at = "cd /repository/dnf/repodata";
        node.ok(&format!("cp -r /repository /kept && {at} && {change}"));
        let refused = node.run(&install);
        assert!(!refused.status.success(), "{change}: {}", said(&refused));
        assert!(said(&refused).contains(words), "{change}: {}", said(&refused));
        node.ok("rm -rf /repository && mv /kept /repository && dnf clean all");
    }
    assert!(!node.path("/usr/sbin/ibarr").exists());
    node.ok(&install);
    assert!(node.ok("/usr/bin/ibarr --version").starts_with("ibarr "));
}

#[test]
fn rpm_upgrade_and_rollback_keep_an_edited_configuration_alone() {
    let node = boot();
    make_older(&node);
    let dnf = |what: &str| node.ok(&format!("dnf --assumeyes {what}"));
    let read = |name: &str| fs::read_to_string(node.path(name)).ok();
    dnf("install /older.rpm");
    assert_eq!(read(FILE).as_deref(), Some(OF_1_0_0));
    let site = format!("interfaces = ['eth0']\n[[static-gid]]\nip = '{ADDRESS}'\ngid = '{GID}'\n");
    fs::write(node.path("/etc/ibarr/ibarr.d/site.toml"), site).unwrap();
    node.ok("systemctl enable --now ibarr");
    let pid = || node.show("MainPID", "ibarr");
    let answers = || assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    answers();

    // The file is not edited: each version has its own.
    let older = pid();
    dnf("install /ibarr.rpm");
    assert_eq!(read(FILE).as_deref(), Some(PACKAGED));
    let newer = pid();
    assert_ne!(older, newer);
    answers();
    dnf("downgrade /older.rpm");
    assert_eq!(node.ok("rpm --query --queryformat '%{VERSION}' ibarr"), "0.9");
    assert_eq!(read(FILE).as_deref(), Some(OF_1_0_0));
    assert_ne!(pid(), newer);
    answers();
    assert_eq!(node.ok("ls -A /etc/ibarr"), "ibarr.d\nibarr.toml");

    // An edited one is kept.
    let edited = format!("{OF_1_0_0}# of this site\n");
    fs::write(node.path(FILE), &edited).unwrap();
    dnf("install /ibarr.rpm");
    assert_eq!(read(FILE).as_deref(), Some(&*edited));
    assert_eq!(read(&format!("{FILE}.rpmnew")).as_deref(), Some(PACKAGED));
    answers();
    dnf("remove ibarr");
    assert_eq!(read(FILE), None);
    assert_eq!(read(&format!("{FILE}.rpmsave")).as_deref(), Some(&*edited));
    assert_eq!(node.ask(), None);
}

/// A node that has, for dnf, what RHEL has.
fn boot() -> Node {
    let node = Node::boot_for_deployment(|_| Vec::new());
    fs::copy(file("IBARR_RPM"), node.path("/ibarr.rpm")).unwrap();
    build(&node, "rhel", RHEL);
    // Debian's package of dnf does not have the directory.
    node.ok("mkdir -p /etc/yum.repos.d && dnf --assumeyes install /rhel.rpm");
    node
}

/// Builds the package of `spec` as `/NAME.rpm`.
fn build(node: &Node, name: &str, spec: &str) {
    fs::write(node.path(&format!("/{name}.spec")), spec).unwrap();
    let quick = "--define '_binary_payload w0.gzdio' --define '__os_install_post %{nil}'";
    node.ok(&format!(
        "rpmbuild {quick} --define 'debug_package %{{nil}}' --define '_rpmdir /{name}.d' -bb /{name}.spec
        mv /{name}.d/*/*.rpm /{name}.rpm"
    ));
}

/// Makes `/older.rpm` from the package: of version 0.9, with the configuration that 1.0.0 had.
fn make_older(node: &Node) {
    node.ok("mkdir /older && rpm --root /older --dbpath /db --install --nodeps --noscripts /ibarr.rpm && rm -r /older/db");
    fs::write(node.path(&format!("/older{FILE}")), OF_1_0_0).unwrap();
    let files = node.ok("cd /older && find usr -not -type d");
    let files: Vec<_> = files.lines().map(|file| format!("/{file}")).collect();
    let own =
        "%dir /etc/ibarr\n%dir /etc/ibarr/ibarr.d\n%config(noreplace) /etc/ibarr/ibarr.toml\n";
    let spec = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../pkg/rpm/ibarr.spec"));
    let spec = fs::read_to_string(spec).unwrap();
    let spec = spec
        .replace("@VERSION@", "0.9")
        .replace("@MAINTAINER@", "A <a@example.org>")
        .replace("@HOMEPAGE@\n", "")
        .replace("@DATE@", "Thu Nov 26 2026")
        .replace("@GLIBC@", "2.28")
        .replace("@ROOT@", "/older")
        .replace("@FILES@", &(own.to_owned() + &files.join("\n")));
    build(node, "older", &spec);
}

/// The command of docs/install.md that begins with `words`, for a repository in a directory of the node. It asks nothing.
fn of_the_page(words: &str) -> String {
    let page = include_str!("../../../docs/install.md");
    let mut commands = page.lines().filter_map(|line| line.strip_prefix("$ "));
    let command = commands.find(|command| command.starts_with(words)).expect(words);
    let command = command.replace("https://HOST", "file:///repository").replace("sudo ", "");
    command.replace("dnf install", "dnf --assumeyes install")
}
