// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What other programs do to pins, mounts, qdiscs and filters of a running daemon.

use std::fs;
use std::path::Path;

use ibarr_common::map;
use nix::sys::signal::Signal;

use super::beside::Theirs;
use super::life::traces;
use super::rig::*;
use crate::machine::said;

#[test]
fn pins_that_others_remove_or_cover_are_made_again() {
    type Change<'a> = (&'a str, fn(&Rig));
    let removals: &[Change<'_>] = &[
        ("emptied", |rig| empty(rig.bpf_dir())),
        ("removed", |rig| remove(rig.bpf_dir())),
        ("a map", |rig| fs::remove_file(map_pin(rig)).unwrap()),
        ("links", |rig| remove(&rig.bpf_dir().join("links"))),
    ];
    let mounts: &[Change<'_>] = &[
        ("covered by a bpffs", |rig| at_mounts(rig, "mount -t bpf bpf", &rig.bpffs())),
        ("covered by nothing", |rig| at_mounts(rig, "mount -t tmpfs none", rig.bpf_dir())),
        ("unmounted", |rig| at_mounts(rig, "umount -l", &rig.bpffs())),
    ];
    for (responder, hook) in kinds() {
        for changes in [removals, mounts] {
            let mut rig = Rig::new();
            let before = traces(&rig);
            rig.start(&format!("responder = \"{responder}\"\nlease = \"1h\""));
            for (what, change) in changes {
                let (times, warned) = (lost(&rig), warnings(&rig));
                change(&rig);
                rig.eventually(what, || lost(&rig) > times);
                let health = || rig.asked("status")["status"]["health"].to_string();
                rig.eventually("health names it", || health().contains("programs-removed"));
                rig.eventually("so does the log", || warnings(&rig) > warned);
                rig.eventually("it is attached again", || {
                    rig.status_of("eth0")["responder"] == hook
                });
                let by_kernel = || rig.asked("counters")["counters"]["bpf.tc.answered"].as_u64();
                let answered = by_kernel().unwrap();
                socket(V4).ask_all(20);
                assert_eq!(by_kernel(), Some(answered + 20), "{what}");
            }
            rig.end(Signal::SIGTERM);
            let output = rig.detach();
            assert!(output.status.success(), "{responder}: {}", said(&output));
            // Mounts have ended with the namespace of the daemon, and what was pinned there.
            if changes.len() == removals.len() || hook != "clsact" {
                // The kernel ends them after the process.
                rig.eventually(&format!("no trace of {responder}"), || traces(&rig) == before);
            }
        }
    }
}

fn warnings(rig: &Rig) -> usize {
    rig.log().matches("another program has removed").count()
}

#[test]
fn program_whose_pins_are_covered_for_good_is_not_left_behind() {
    for (responder, _) in kinds() {
        let mut rig = Rig::new();
        let before = traces(&rig);
        rig.start(&format!("responder = \"{responder}\""));
        let theirs = rig.machine.directory().join("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("file"), "theirs").unwrap();
        at_mounts(&rig, &format!("mount --bind {}", theirs.display()), rig.bpf_dir());
        let blocked = || rig.asked("status")["status"]["responder"]["blocked"].to_string();
        rig.eventually("it is named", || blocked().contains("holds file, which is not ibarr's"));
        socket(V4).ask_all(5);
        rig.end(Signal::SIGTERM);
        assert_eq!(fs::read_to_string(theirs.join("file")).unwrap(), "theirs");
        assert!(rig.detach().status.success());
        assert_eq!(traces(&rig), before);
    }
}

#[test]
fn qdisc_that_others_remove_and_filter_that_they_replace() {
    let mut rig = Rig::new();
    let before = traces(&rig);
    rig.start("responder = \"clsact\"\nlease = \"3s\"");
    tool("tc", &format!("-netns {NODE} qdisc delete dev eth0 clsact"));
    rig.eventually("the qdisc is back", || lost(&rig) == 1 && rig.asks_the_kernel());
    // Another program in our place stays, and is named.
    rig.signal(Signal::SIGSTOP);
    tool("tc", &format!("-netns {NODE} filter delete dev eth0 ingress"));
    let theirs = Theirs::filter_at(4791, 0x4791);
    rig.signal(Signal::SIGCONT);
    let reason = || rig.status_of("eth0")["in-user-space"].to_string();
    rig.eventually("it is named", || reason().contains("another filter, \\\"empty_tc\\\""));
    socket(V4).ask_all(5);
    let filters = || tool("tc", &format!("-netns {NODE} filter show dev eth0 ingress"));
    assert!(filters().contains("empty_tc"), "{}", filters());
    tool("tc", &format!("-netns {NODE} filter delete dev eth0 ingress"));
    drop(theirs);
    rig.eventually("ours is back", || rig.status_of("eth0")["responder"] == "clsact");
    rig.end(Signal::SIGTERM);
    assert!(rig.detach().status.success());
    assert_eq!(traces(&rig), before);
}

fn lost(rig: &Rig) -> u64 {
    rig.asked("counters")["counters"]["responder.lost"].as_u64().unwrap()
}

fn map_pin(rig: &Rig) -> std::path::PathBuf {
    rig.bpf_dir().join(format!("v{}", map::ABI_VERSION)).join(map::GID_CACHE)
}

/// As `rm -rf` does.
fn remove(directory: &Path) {
    empty(directory);
    fs::remove_dir(directory).unwrap();
}

fn empty(directory: &Path) {
    for path in tree(directory).into_iter().rev() {
        if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }.unwrap();
    }
}

/// In the mount namespace of the daemon.
fn at_mounts(rig: &Rig, words: &str, at: &Path) {
    let pid = rig.pid();
    tool("nsenter", &format!("--mount=/proc/{pid}/ns/mnt -- {words} {}", at.display()));
}
