// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Where each test runs, apart from the machine and from the others.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process, thread};

use ibarr_testbed::lab::netns;
use ibarr_testbed::start::program;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, geteuid};

/// A machine of its own for each test: mount and network namespaces of the calling thread, and an empty
/// directory.
pub(crate) struct Machine {
    directory: PathBuf,
    marker: String,
}

impl Machine {
    pub(crate) fn new() -> Self {
        assert!(geteuid().is_root(), "system tests need root: cargo xtask test uses sudo");
        netns::own_directory().expect("system tests need a mount namespace");
        // Mounts of other processes must not appear here.
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        unshare(CloneFlags::CLONE_NEWNET).expect("system tests need a network namespace");

        let marker = format!("{}-{}", process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        // Daemons of other users read files of the tests.
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
        let directory = base().join(format!("ibarr-test-{marker}"));
        fs::create_dir(&directory).unwrap();
        Self { directory, marker }
    }

    /// A directory for files of the test.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The value that all descendants of the test have in their environment.
    pub(crate) fn marker(&self) -> &str {
        &self.marker
    }

    /// The directory of the labs' files.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// A command of `ibarr-testbed`, for this machine.
    pub(crate) fn testbed(&self, arguments: &[&str]) -> Command {
        let mut command = program(env!("CARGO_BIN_EXE_ibarr-testbed"));
        command.arg("--state-dir").arg(self.state_dir()).args(arguments);
        command.env(MARKER, &self.marker).stdin(Stdio::null());
        command
    }

    /// Runs `ibarr-testbed`, which must succeed, and returns its output.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.testbed(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `ibarr-testbed`, which must fail, and returns its message.
    pub(crate) fn fail(&self, arguments: &[&str]) -> String {
        let output = self.testbed(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", said(&output));
        String::from_utf8(output.stderr).unwrap()
    }

    /// Makes a lab with the real daemon.
    pub(crate) fn lab_up(&self, arguments: &[&str]) -> String {
        let ibarr = ibarr().to_str().unwrap();
        self.run(&[&["lab", "up", "--ibarr", ibarr], arguments].concat())
    }

    /// Everything that a lab could leave behind.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let lines = |path: &str, field: usize| -> BTreeSet<String> {
            let text = fs::read_to_string(path).unwrap();
            text.lines().filter_map(|l| Some(l.split_whitespace().nth(field)?.into())).collect()
        };
        Snapshot {
            namespaces: names(Path::new(netns::DIRECTORY)),
            links: lines("/proc/thread-self/net/dev", 0),
            mounts: lines("/proc/thread-self/mountinfo", 4),
            processes: self.processes().iter().map(|(pid, name)| format!("{pid} {name}")).collect(),
            files: names(&self.directory),
        }
    }

    /// The descendants of [`Self::testbed`] that still run.
    pub(crate) fn processes(&self) -> Vec<(Pid, String)> {
        let marked = format!("{MARKER}={}", self.marker);
        let is_marked = |process: &Path| {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|one| one == marked.as_bytes())
        };
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let process = entry.unwrap().path();
            let pid = process.file_name().and_then(OsStr::to_str)?.parse().ok()?;
            let name = || fs::read_to_string(process.join("comm")).unwrap_or_default();
            is_marked(&process).then(|| (Pid::from_raw(pid), name().trim_end().to_owned()))
        });
        processes.collect()
    }
}

/// The directory of temporary files. Names of sockets are short, and mount points with a space have other names in
/// mountinfo, so `/run` stands in for an odd one.
fn base() -> PathBuf {
    let is_plain = |base: &PathBuf| {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(byte);
        base.as_os_str().len() < 40 && base.as_os_str().as_bytes().iter().all(plain)
    };
    Some(env::temp_dir()).filter(is_plain).unwrap_or_else(|| "/run".into())
}

impl Drop for Machine {
    /// The namespaces end with the thread, but the directory does not.
    fn drop(&mut self) {
        // A failed test may leave processes.
        for (pid, _) in self.processes() {
            let _ = kill(pid, Signal::SIGKILL);
        }
        // A mount point cannot be removed.
        for mount in mounts().iter().filter(|path| path.starts_with(&self.directory)) {
            let _ = umount2(mount, MntFlags::MNT_DETACH);
        }
        let removed = fs::remove_dir_all(&self.directory);
        if !thread::panicking() {
            removed.unwrap();
        }
    }
}

#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) namespaces: BTreeSet<String>,
    links: BTreeSet<String>,
    mounts: BTreeSet<String>,
    pub(crate) processes: BTreeSet<String>,
    pub(crate) files: BTreeSet<String>,
}

/// The daemon under test: the program that `$IBARR_UNDER_TEST` names, or one that is built now.
pub(crate) fn ibarr() -> &'static Path {
    static IBARR: OnceLock<PathBuf> = OnceLock::new();
    IBARR.get_or_init(|| {
        if let Some(path) = env::var_os("IBARR_UNDER_TEST") {
            return path.into();
        }
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // cargo itself may need anything.
        let built = program(cargo)
            .envs(env::vars_os())
            .args(["build", "--quiet", "--package", "ibarr-user", "--manifest-path", manifest])
            .status()
            .expect("cargo starts");
        assert!(built.success(), "cargo build -p ibarr-user: {built}");
        Path::new(env!("CARGO_BIN_EXE_ibarr-testbed")).with_file_name("ibarr")
    })
}

/// Reads the output of a child until a line contains `text`.
pub(crate) fn read_until(child: &mut Child, text: &str) -> String {
    let stdout = child.stdout.as_mut().unwrap();
    let mut read = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&read).contains(text) {
        let len = stdout.read(&mut byte).unwrap();
        assert_eq!(len, 1, "it ended before {text:?}: {}", String::from_utf8_lossy(&read));
        read.extend(byte);
    }
    String::from_utf8(read).unwrap()
}

/// Writes a program of one line of shell.
pub(crate) fn script(directory: &Path, name: &str, line: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The output of a program, for messages.
pub(crate) fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}{err}", output.status)
}

/// All mount points, the last first.
fn mounts() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points.rev().map(PathBuf::from).collect()
}

#[test]
fn netns_directory_is_created_when_missing() {
    for was_there in [true, false] {
        let test = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            mount(none, "/run", Some("tmpfs"), MsFlags::empty(), none).unwrap();
            fs::write("/run/other", "").unwrap();
            if was_there {
                fs::create_dir(netns::DIRECTORY).unwrap();
            }
            netns::own_directory().unwrap();
            let device = |path: &str| fs::metadata(path).unwrap().dev();
            let is_mount = device(netns::DIRECTORY) != device("/run");
            (is_mount, names(Path::new(netns::DIRECTORY)), names(Path::new("/run")))
        });
        let (is_mount, namespaces, others) = test.join().unwrap();
        assert!(is_mount, "`ip` would mount it, and leave that behind");
        assert_eq!(namespaces, BTreeSet::new());
        assert_eq!(others, ["/run/netns", "/run/other"].map(str::to_owned).into());
    }
}

#[test]
fn machine_leaves_nothing_behind_after_any_test() {
    for fails in [false, true] {
        let (path, told) = std::sync::mpsc::channel();
        let test = thread::spawn(move || {
            let machine = Machine::new();
            let bpffs = machine.directory().join("bpffs");
            fs::create_dir(&bpffs).unwrap();
            let none: Option<&str> = None;
            mount(Some("bpf"), &bpffs, Some("bpf"), MsFlags::empty(), none).unwrap();
            fs::create_dir(bpffs.join("pins")).unwrap();
            path.send(machine.directory().to_owned()).unwrap();
            if fails {
                // Panics without a message on standard error.
                std::panic::resume_unwind(Box::new("as tests do"));
            }
        });
        let directory = told.recv().unwrap();
        assert_eq!(test.join().is_err(), fails);
        assert!(!directory.exists(), "{}", directory.display());
    }
}

static MADE: AtomicU32 = AtomicU32::new(0);

/// Environment variable of everything that a test starts.
pub(crate) const MARKER: &str = "IBARR_TEST_MACHINE";

/// The paths of all files below `directory`.
fn names(directory: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut directories = vec![directory.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            }
            names.insert(entry.path().display().to_string());
        }
    }
    names
}
