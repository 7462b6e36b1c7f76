// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The image of `contrib/container`: a real podman carries out the commands that the Containerfile shows.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, process};

use ibarr_testbed::start::program;
use nix::mount::{MsFlags, mount};
use serde_json::Value;

use crate::machine::said;
use crate::node::{GID, Node, file, layer};

const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib/");
const CONTAINERFILE: &str = include_str!("../../../contrib/container/Containerfile");
const DAEMONSET: &str = include_str!("../../../contrib/k8s/daemonset.yaml");

/// The tests' container has no rights to make cgroups or to raise limits.
const ENGINE: &str = r#"[containers]
netns = "host"
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
"#;

#[test]
fn image_answers_in_the_kernel_by_the_commands_of_its_containerfile() {
    let node = Node::boot_for_deployment(|directory| {
        build(directory);
        let storage = directory.join("storage");
        vec![
            format!("--bind={}:/var/lib/containers", storage.display()),
            format!("--bind-ro={CONTRIB}:/checkout/contrib"),
            "--capability=all".into(),
            "--system-call-filter=add_key keyctl".into(),
        ]
    });
    fs::write(node.path("/etc/containers/containers.conf"), ENGINE).unwrap();
    // The host of an image has no package.
    node.ok("mkdir -p /etc/ibarr /run/ibarr /var/lib/ibarr /dev/infiniband && mknod /dev/infiniband/umad0 c 1 3");
    node.configure_address();
    assert_eq!(calls_of_the_profile(), calls_of_the_unit(&node));
    let run = command("podman run ");
    node.ok(&format!("cd /checkout && {run}"));
    let status = || said(&node.run("podman exec ibarr ibarr status"));
    node.until("the kernel answers", || status().contains("answered by the kernel (tcx)"));
    let health = status();
    // It is the init process of its container, and the host has the bpffs.
    assert!(health.contains("pid 1,") && !health.contains("pins-private"), "{health}");
    // CAP_NET_ADMIN (12), CAP_PERFMON (38), CAP_BPF (39), and a filter of system calls.
    let process = node.ok("podman exec ibarr cat /proc/1/status");
    for line in ["CapEff:\t000000c000001000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(process.lines().any(|it| it == line), "{line}\n{process}");
    }
    node.ok("podman exec ibarr test ! -e /usr/lib/systemd/systemd");
    // This machine has no InfiniBand, so the daemon is not well, and the engine knows.
    assert!(said(&node.run("podman healthcheck run ibarr")).contains("\nunhealthy"));

    // A stop leaves the programs to the next container.
    node.ok("podman stop ibarr && podman rm ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));

    // With the engine's own filter the daemon answers itself.
    let (before, after) = run.split_once("--security-opt seccomp=").unwrap();
    let (_, after) = after.split_once(' ').unwrap();
    node.ok(&format!("{before} {after}"));
    node.until("it says why", || status().contains("not-loaded"));
    let health = status();
    assert!(health.contains("answered by the daemon"), "{health}");
    assert!(health.contains("a seccomp filter forbids bpf(2)"), "{health}");
    assert!(!node.run("podman exec ibarr ibarr status --check").status.success());
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("podman stop ibarr");
}

#[test]
fn daemonset_runs_the_image_that_the_containerfile_makes() {
    let image = concat!("ibarr:", env!("CARGO_PKG_VERSION"));
    assert!(command("podman build ").contains(&format!("-t {image} ")));
    assert!(command("podman run ").ends_with(&format!(" {image}")));
    assert!(DAEMONSET.contains(&format!("image: localhost/{image}\n")));
}

fn calls_of_the_profile() -> BTreeSet<String> {
    let profile = include_str!("../../../contrib/container/seccomp.json");
    let profile: Value = serde_json::from_str(profile).unwrap();
    let calls = profile["syscalls"][0]["names"].as_array().unwrap();
    calls.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

fn calls_of_the_unit(node: &Node) -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    let unit = include_str!("../../../pkg/ibarr.service");
    for list in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (list, removes) = list.strip_prefix('~').map_or((list, false), |list| (list, true));
        let named: BTreeSet<_> = list.split(' ').flat_map(|name| calls_of(node, name)).collect();
        if removes {
            calls.retain(|call| !named.contains(call));
        } else {
            calls.extend(named);
        }
    }
    calls
}

/// A system call, or those of one of systemd's sets.
fn calls_of(node: &Node, name: &str) -> Vec<String> {
    if !name.starts_with('@') {
        return vec![name.to_owned()];
    }
    let set = node.ok(&format!("systemd-analyze syscall-filter {name}"));
    let names = set.lines().skip(1).map(str::trim);
    let names = names.filter(|name| !name.is_empty() && !name.starts_with('#'));
    names.flat_map(|name| calls_of(node, name)).collect()
}

/// The command in the comment of the Containerfile that begins with `words`, on one line.
fn command(words: &str) -> String {
    let mut lines = CONTAINERFILE.lines().map(|line| line.trim_start_matches(['#', ' ']));
    let mut command = lines.by_ref().find(|line| line.starts_with(words)).expect(words).to_owned();
    while let Some(begun) = command.strip_suffix('\\') {
        command = format!("{begun}{}", lines.next().expect("the rest of the command"));
    }
    command
}

/// Builds the image in `directory/storage`. That needs the machine's network, for Debian's archives.
fn build(directory: &Path) {
    let engine = layer(&file("IBARR_DEPLOY_ROOT"), directory, "engine");
    let base = layer(&file("IBARR_DEBIAN_ROOT"), directory, "base");
    let bind = |from: &Path, to: &str| {
        fs::create_dir_all(engine.join(to)).unwrap();
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(from), &engine.join(to), None::<&str>, flags, None::<&str>).unwrap();
    };
    let storage = directory.join("storage");
    fs::create_dir(&storage).unwrap();
    bind(&storage, "var/lib/containers");
    bind(&base, "base");
    for name in ["dev", "proc", "sys"] {
        bind(&Path::new("/").join(name), name);
    }
    bind(Path::new(CONTRIB), "checkout/contrib");
    fs::create_dir_all(engine.join("checkout/target/package")).unwrap();
    let package = file("IBARR_PACKAGE");
    let name = package.file_name().unwrap();
    fs::copy(&package, engine.join("checkout/target/package").join(name)).unwrap();
    for resolver in ["etc/resolv.conf", "etc/hosts"] {
        fs::copy(Path::new("/").join(resolver), engine.join(resolver)).unwrap();
    }
    fs::write(engine.join("etc/containers/containers.conf"), ENGINE).unwrap();
    // docker.io has a base without systemd. Here it is what the tests' Debian is without it.
    let script = format!(
        "set -e
        chroot /base apt-get -qq purge --auto-remove systemd systemd-sysv systemd-container dbus udev iproute2
        tar -C /base -c . | podman import - docker.io/library/debian:12-slim
        cd /checkout
        {}",
        command("podman build ")
    );
    let net = format!("--net=/proc/{}/ns/net", process::id());
    let mut engine_shell = program("nsenter");
    engine_shell.args([&net, "chroot"]).arg(&engine).args(["sh", "-c", &script]);
    engine_shell.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("BUILDAH_ISOLATION", "chroot");
    let built = engine_shell.env("DEBIAN_FRONTEND", "noninteractive").output().unwrap();
    assert!(built.status.success(), "{}", said(&built));
}
