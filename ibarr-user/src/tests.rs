// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the tests of several modules share.

mod names;

use std::any::type_name;
use std::env;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Uid;
use tempfile::TempDir;

/// A temporary directory for sockets, whose names have at most 107 bytes, wherever `$TMPDIR` is.
pub(crate) struct ShortDir {
    path: PathBuf,
    _open: File,
    _dir: TempDir,
}

impl ShortDir {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let open = File::open(dir.path()).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        Self { path, _open: open, _dir: dir }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether this process has a network namespace of its own, with a loopback interface that is up and has both families.
/// Otherwise it runs the test that contains `inside` in one.
pub(crate) fn on_own_network<F: Fn()>(_inside: F) -> bool {
    const INSIDE: &str = "IBARR_TEST_ON_OWN_NETWORK";
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let path = type_name::<F>().split_once("::").unwrap().1;
    let name = path.split("::{{closure}}").next().unwrap();
    let mut command = Command::new("unshare");
    if !Uid::effective().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "sh", "-ec", "ip link set lo up; exec \"$@\"", "sh"]);
    command.arg(env::current_exe().unwrap()).args(["--exact", name]).env(INSIDE, "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(" 1 passed"), "{name}: {said}");
    false
}
