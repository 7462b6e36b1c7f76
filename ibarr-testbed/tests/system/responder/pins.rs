// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The directory of pins: what `detach` removes there, and which directories the daemon refuses.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::Signal;

use super::rig::*;
use crate::machine::said;

/// The uid of another user.
const STRANGER: u32 = 65_533;
const MARK: &str = "ibarr-pins";

#[test]
fn detach_removes_only_its_own_names_and_lists_the_rest() {
    let mut rig = Rig::new();
    let outside = rig.machine.directory().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("tc-1"), "theirs").unwrap();
    rig.start("");
    rig.end(Signal::SIGTERM);
    let own = tree(rig.bpf_dir());
    let theirs = ["theirs/below", "links/theirs", "links/clsact-9/below", "v4/theirs", "v04"];
    for theirs in theirs {
        fs::create_dir_all(rig.bpf_dir().join(theirs)).unwrap();
    }
    // Links that take the place of a pin, and of a directory.
    for link in ["links/tc-9", "netns-9"] {
        symlink(&outside, rig.bpf_dir().join(link)).unwrap();
    }

    let output = rig.detach();
    assert!(output.status.success(), "{}", said(&output));
    for left in ["theirs", "links/theirs", "links/clsact-9", "links/tc-9", "v4/theirs", "v04"] {
        let left = rig.bpf_dir().join(left);
        assert!(said(&output).contains(left.to_str().unwrap()), "{}", said(&output));
        assert!(left.symlink_metadata().is_ok(), "{} is gone", left.display());
    }
    let of_ours = |path: &Path| own.iter().any(|own| own == path) && !path.ends_with("links");
    let left = tree(rig.bpf_dir());
    assert!(!left.iter().any(|path| of_ours(path) && !path.ends_with("v4")), "{left:?}");
    assert_eq!(fs::read_to_string(outside.join("tc-1")).unwrap(), "theirs");
    assert!(tcx_programs().is_empty());

    // The remaining files are not ours, so no daemon uses the directory any more.
    rig.restart();
    assert!(blocked(&rig).contains("which is not ibarr's"), "{}", blocked(&rig));
    rig.end(Signal::SIGTERM);
    assert_eq!(tree(rig.bpf_dir()), left);
}

#[test]
fn detach_leaves_a_directory_of_others_as_it_is() {
    let mut rig = Rig::new();
    let plain = rig.machine.directory().join("plain");
    let of_others = rig.bpffs().join("others");
    for directory in [&plain, &of_others] {
        fs::create_dir(directory).unwrap();
        make_private(directory);
        // Names like ours, and one that is different.
        for name in ["links/tc-1", "v4", "netns-1", "v1/cache", "v01"] {
            fs::create_dir_all(directory.join(name)).unwrap();
        }
    }
    fs::write(plain.join("links/file"), "theirs").unwrap();
    let through = rig.machine.directory().join("through");
    symlink(&of_others, &through).unwrap();
    for directory in [plain, of_others, through] {
        let before = tree(&directory);
        rig.move_bpf_dir(directory.clone());
        let output = rig.detach();
        assert!(!output.status.success(), "{}", said(&output));
        assert!(said(&output).contains(directory.to_str().unwrap()), "{}", said(&output));
        assert_eq!(tree(&directory), before);
    }
}

#[test]
fn a_bpffs_mounted_for_the_pins_is_detached_with_success() {
    let mut rig = Rig::new();
    let root = rig.machine.directory().join("root");
    fs::create_dir(&root).unwrap();
    mount(Some("bpf"), &root, Some("bpf"), MsFlags::empty(), Some("mode=0700")).unwrap();
    // Some kernels have their own maps.debug and progs.debug there.
    let before = tree(&root);
    rig.move_bpf_dir(root.clone());
    rig.start("");
    assert!(rig.asks_the_kernel());
    rig.end(Signal::SIGTERM);
    for _ in 0..2 {
        let output = rig.detach();
        assert!(output.status.success(), "{}", said(&output));
        assert!(!said(&output).contains("left alone"), "{}", said(&output));
        assert_eq!(tree(&root), before);
    }
}

#[test]
fn bpffs_is_not_mounted_over_files_of_others() {
    let mut rig = Rig::new();
    let kept = rig.machine.directory().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "theirs").unwrap();
    rig.move_bpf_dir(kept.clone());
    rig.start("");
    assert!(blocked(&rig).contains("holds file, which is not ibarr's"), "{}", blocked(&rig));
    let by_daemon = rig.answered_by_daemon();
    socket(V4).ask_all(10);
    rig.until_answered_by_daemon(by_daemon + 10);
    assert!(!rig.log().contains("mounted a bpffs"), "{}", rig.log());
    rig.end(Signal::SIGTERM);
    assert_eq!(tree(&kept), [kept.join("file")]);
}

#[test]
fn pins_without_a_mark_of_an_older_ibarr_are_taken_over() {
    for (responder, hook) in kinds() {
        let mut rig = Rig::new();
        let before = tree(&rig.bpffs());
        rig.start(&format!("responder = \"{responder}\""));
        let mark = rig.bpf_dir().join(MARK);
        for _ in 0..2 {
            rig.end(Signal::SIGTERM);
            fs::remove_dir(&mark).unwrap();
            rig.restart();
            assert_eq!(rig.status_of("eth0")["responder"], hook);
            assert!(mark.is_dir());
        }
        rig.end(Signal::SIGTERM);
        fs::remove_dir(&mark).unwrap();
        let output = rig.detach();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(tree(&rig.bpffs()), before);
    }
}

#[test]
fn a_directory_that_others_could_have_changed_is_refused_by_name() {
    type Change<'a> = &'a dyn Fn(&Path) -> io::Result<()>;
    let open = |mode| move |path: &Path| fs::set_permissions(path, Permissions::from_mode(mode));
    let owned = |path: &Path| chown(path, Some(STRANGER), None);
    let changes: [(&str, Change<'_>); 4] = [
        ("belongs to uid 65533, not to uid 0", &owned),
        ("other users can write in it (mode 0777)", &open(0o777)),
        ("other users can write in it (mode 0720)", &open(0o720)),
        ("other users can lock it (mode 0755)", &open(0o755)),
    ];
    for was_there in [false, true] {
        for (reason, change) in &changes {
            let mut rig = Rig::new();
            if was_there {
                rig.start("");
                rig.end(Signal::SIGTERM);
            } else {
                // Every user can do this on a bpffs of mode 1777.
                fs::create_dir(rig.bpf_dir()).unwrap();
                make_private(rig.bpf_dir());
            }
            change(rig.bpf_dir()).unwrap();
            let before = tree(&rig.bpffs());
            rig.start("");
            assert!(blocked(&rig).contains(reason), "{}", blocked(&rig));
            rig.end(Signal::SIGTERM);
            let output = rig.detach();
            assert_eq!(output.status.code(), Some(64), "{}", said(&output));
            assert!(said(&output).contains(reason), "{}", said(&output));
            assert_eq!(tree(&rig.bpffs()), before);
        }
    }
}

#[test]
fn a_directory_that_others_could_replace_is_refused_by_name() {
    let mut rig = Rig::new();
    fs::set_permissions(rig.bpffs(), Permissions::from_mode(0o777)).unwrap();
    rig.start("");
    let reason = format!("{}: other users can rename what is in it", rig.bpffs().display());
    assert!(blocked(&rig).contains(&reason), "{}", blocked(&rig));
    rig.end(Signal::SIGTERM);
    fs::set_permissions(rig.bpffs(), Permissions::from_mode(0o1777)).unwrap();
    rig.restart();
    assert!(rig.asks_the_kernel());
}

/// A unit runs the daemon as its own user, and root removes the package.
#[test]
fn root_detaches_what_root_has_given_to_another_user() {
    let mut rig = Rig::new();
    rig.start("");
    rig.end(Signal::SIGTERM);
    chown(rig.bpf_dir(), Some(STRANGER), None).unwrap();
    assert_eq!(rig.detach().status.code(), Some(64));
    fs::set_permissions(rig.bpffs(), Permissions::from_mode(0o755)).unwrap();
    let output = rig.detach();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(tree(rig.bpf_dir()), <[PathBuf; 0]>::default());
    assert!(rig.bpf_dir().is_dir(), "the directory itself is not ours");
}

#[test]
fn a_mount_point_without_its_bpffs_is_nothing_to_detach() {
    let mut rig = Rig::new();
    umount(&rig.bpffs()).unwrap();
    rig.move_bpf_dir(rig.bpffs());
    let output = rig.detach();
    assert!(output.status.success(), "{}", said(&output));
    assert!(rig.bpffs().is_dir());
}

fn make_private(directory: &Path) {
    fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
}

fn blocked(rig: &Rig) -> String {
    rig.asked("status")["status"]["responder"]["blocked"].as_str().unwrap_or_default().to_owned()
}
