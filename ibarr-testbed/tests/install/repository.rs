// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The signed repositories of `cargo xtask repository`: apt installs from one, rpm knows the other's signature,
//! and both refuse what was changed since.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use ibarr_testbed::start::program;

use crate::machine::{Machine, said};
use crate::node::Node;
use crate::rpm;

fn repository() -> PathBuf {
    env::var_os("IBARR_REPOSITORY").expect("`cargo xtask test install` sets it").into()
}

#[test]
fn apt_installs_from_the_signed_repository_and_refuses_a_changed_one() {
    const SOURCES: &str = "Types: deb\nURIs: file:/repository/apt\nSuites: stable\nComponents: main\nSigned-By: /repository/ibarr.asc\n";
    let node = Node::boot();
    let copy = program("cp").arg("-r").arg(repository()).arg(node.path("/repository")).output();
    assert!(copy.unwrap().status.success());
    node.ok("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*");
    fs::write(node.path("/etc/apt/sources.list.d/ibarr.sources"), SOURCES).unwrap();
    let refuses = |change: &str, command: &str, words: &str| {
        node.ok(&format!("cp -r /repository /kept && cd /repository/apt && {change}"));
        let refused = node.run(command);
        assert!(!refused.status.success(), "{change}: {}", said(&refused));
        assert!(said(&refused).contains(words), "{change}: {}", said(&refused));
        node.ok("rm -rf /repository && mv /kept /repository && rm -rf /var/lib/apt/lists/*");
    };
    refuses("sed --in-place s/Origin/origin/ dists/stable/InRelease", "apt-get update", "BADSIG");
    refuses(
        "rm dists/stable/InRelease dists/stable/Release.gpg",
        "apt-get update",
        "is not signed",
    );
    refuses(
        "sed --in-place 's/^Maintainer: /&X/' dists/stable/main/binary-*/Packages",
        "apt-get update",
        "Hash Sum mismatch",
    );
    let install = "apt-get update && apt-get install --yes --no-install-recommends ibarr";
    refuses("echo >> $(ls pool/ibarr_*.deb)", install, "Hash Sum mismatch");
    assert!(!node.path("/usr/sbin/ibarr").exists());
    node.ok(install);
    assert!(node.ok("/usr/bin/ibarr --version").starts_with("ibarr "));
}

#[test]
fn rpm_knows_the_signature_of_its_repository_and_refuses_a_changed_package() {
    let machine = Machine::new();
    let repository = repository();
    let packages = fs::read_dir(repository.join("dnf")).unwrap().map(|it| it.unwrap().path());
    let package = packages.into_iter().find(|it| it.extension().is_some_and(|it| it == "rpm"));
    let package = package.unwrap();
    let check = |package: &Path| {
        let mut command = rpm::command(&machine, "rpmkeys");
        let output = command.arg("--checksig").arg(package).output().unwrap();
        (output.status.success(), said(&output))
    };
    let (is_known, words) = check(&package);
    assert!(!is_known && words.contains("SIGNATURES NOT OK"), "{words}");
    let key = repository.join("ibarr.asc");
    assert!(rpm::command(&machine, "rpmkeys").arg("--import").arg(key).status().unwrap().success());
    let (is_known, words) = check(&package);
    assert!(is_known && words.contains("digests signatures OK"), "{words}");
    let changed = machine.directory().join("changed.rpm");
    let mut bytes = fs::read(&package).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&changed, bytes).unwrap();
    let (is_known, words) = check(&changed);
    assert!(!is_known && words.contains("NOT OK"), "{words}");
}
