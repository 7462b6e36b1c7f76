// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A fabric of `ibfab` with stock programs on it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use ibarr_common::ib::Gid;
use ibarr_testbed::stock::{Running, Stock};
use ibarr_testbed::umad::{Directory, Port};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::daemon::{Daemon, PATIENCE, name};
use crate::machine::{MARKER, Machine, said};
use crate::on_fabric::OnFabric;

pub(crate) struct Rig {
    /// Dropped before the machine.
    _fabric: Running,
    managers: Cell<u32>,
    stock: Stock,
    pub(crate) machine: Machine,
}

pub(crate) struct Manager {
    process: Running,
    directory: PathBuf,
}

impl Rig {
    /// Starts the fabric of `topology`, without a subnet manager.
    pub(crate) fn new(topology: &str) -> Self {
        Self::with(topology, &[])
    }

    /// The same, and lets the hosts of the named nodes join at the socket [`HOSTS`].
    pub(crate) fn with_hosts(topology: &str, nodes: &str) -> Self {
        Self::with(topology, &["--listen", "unix:hosts", "--key", "key", "--host", nodes])
    }

    fn with(topology: &str, options: &[&str]) -> Self {
        let machine = Machine::new();
        let directory = machine.directory();
        let key = directory.join("key");
        let key = File::options().write(true).create_new(true).mode(0o600).open(key);
        key.unwrap().write_all(KEY).unwrap();
        let stock = Stock::new(packages(), ibfab()).unwrap();
        let mut fabric = stock.fabric(FABRIC, directory, topology).unwrap();
        fabric.args(options);
        let fabric = start(&machine, fabric);
        until("ibfab listens", || directory.join("control").exists());
        Self { _fabric: fabric, managers: Cell::new(0), stock, machine }
    }

    /// Starts an OpenSM on `host`.
    pub(crate) fn manager(&self, host: &str, config: &str) -> Manager {
        let number = self.managers.get();
        self.managers.set(number + 1);
        let directory = self.machine.directory().join(format!("opensm-{number}"));
        fs::create_dir(&directory).unwrap();
        let command = self.stock.manager(FABRIC, host, &directory, config).unwrap();
        let process = start(&self.machine, command);
        Manager { process, directory }
    }

    /// Writes a file for OpenSM, and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.machine.directory().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Makes the port of `host`, for a daemon.
    pub(crate) fn port(&self, host: &str) -> Port {
        let directory = Directory::new(self.machine.directory());
        let wire = OnFabric::connect(FABRIC, host).unwrap();
        Port::new(&directory, name(), 0, None, wire).unwrap()
    }

    /// Starts a daemon, and waits until it knows the LID of its SA.
    pub(crate) fn daemon(&self, config: &str) -> Daemon {
        let daemon = Daemon::start(&self.machine, config);
        daemon.until(|daemon| {
            let port = daemon.port();
            (port["active"] == true && port["blocked"].is_null()).then_some(())
        });
        daemon
    }

    /// The output of a diagnostic program on `host`.
    pub(crate) fn diagnose(&self, host: &str, words: &[&str]) -> String {
        let [program, arguments @ ..] = words else { panic!("no program") };
        let mut command = self.stock.on_host(FABRIC, host, program);
        command.args(arguments).current_dir(self.machine.directory());
        let output = command.env(MARKER, self.machine.marker()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The path that `saquery` gets, by the names of its fields. `None` if there is no path.
    pub(crate) fn saquery(
        &self,
        host: &str,
        (sgid, dgid): (Gid, Gid),
        more: &[&str],
    ) -> Option<BTreeMap<String, String>> {
        let (sgid, dgid) = (sgid.to_string(), dgid.to_string());
        let words = [&["saquery", "PR", "--sgid", &sgid, "--dgid", &dgid], more].concat();
        let printed = self.diagnose(host, &words);
        // libumad2sim.so does not say where the answer ends, so only the first record counts.
        let first = printed.split("PathRecord dump:").nth(1)?;
        let field = |line: &str| {
            let (name, value) = line.trim().split_once("..")?;
            Some((name.to_owned(), value.trim_start_matches('.').to_owned()))
        };
        Some(first.lines().filter_map(field).collect())
    }

    /// Runs a command of `ibfab`, and returns its output.
    pub(crate) fn ibfab(&self, words: &[&str]) -> String {
        let mut command = self.stock.ibfab();
        command.args(["--control", "control"]).args(words);
        let output = command.current_dir(self.machine.directory()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Manager {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.pid()).unwrap());
        kill(pid, signal).unwrap();
        if signal == Signal::SIGSTOP {
            // Until its last thread has stopped, OpenSM answers.
            let stopped = WaitStatus::Stopped(pid, signal);
            assert_eq!(waitpid(pid, Some(WaitPidFlag::WUNTRACED)), Ok(stopped));
        }
    }

    /// Waits until OpenSM's log has `text`.
    pub(crate) fn until_says(&self, text: &str) {
        until(text, || self.log().contains(text));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.join("opensm.log")).unwrap_or_default()
    }

    /// The LIDs that OpenSM gave, by GUID of the port.
    pub(crate) fn lids(&self) -> BTreeMap<u64, u16> {
        let text = fs::read_to_string(self.directory.join("guid2lid")).unwrap();
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let (guid, lid) = (hex(words.next()?), hex(words.next()?));
            Some((guid, u16::try_from(lid).unwrap()))
        };
        text.lines().filter_map(line).collect()
    }
}

/// Waits until `is_so` returns true.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "timed out before {what}");
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn start(machine: &Machine, mut command: Command) -> Running {
    let program = command.get_program().to_owned();
    Running::start(command.env(MARKER, machine.marker()))
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()))
}

/// The directory in which OpenSM and its diagnostics are unpacked.
fn packages() -> PathBuf {
    let unpacked = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/opensm/root");
    let root = env::var_os("IBARR_OPENSM_ROOT").map_or_else(|| unpacked.into(), PathBuf::from);
    let what = "no OpenSM: `cargo xtask test opensm` unpacks it and sets $IBARR_OPENSM_ROOT";
    assert!(root.join("usr/sbin/opensm").exists(), "{what}");
    root
}

fn ibfab() -> PathBuf {
    let beside = || Path::new(env!("CARGO_BIN_EXE_ibarr-testbed")).with_file_name("ibfab");
    let path = env::var_os("IBFAB_UNDER_TEST").map_or_else(beside, PathBuf::from);
    assert!(path.exists(), "no {}: run `cargo build` in ibtun/", path.display());
    path
}

/// The key of hosts that may join, and where.
pub(crate) const KEY: &[u8] = b"the key of the fabric";
pub(crate) const HOSTS: &str = "hosts";

/// An abstract socket name. Each test has its own network namespace, so the name is free.
const FABRIC: &str = "fabric";
