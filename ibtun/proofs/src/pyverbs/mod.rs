// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run i`: what others say of software HCAs and of the fabric. infiniband-diags first, while nothing has gone
//! wrong; then rdma-core's own tests of verbs and connections. A recording has the outcome of each test, and the
//! reason of each that is skipped. Any other outcome breaks a claim. Last, small programs of our own.
//!
//! `vm run o`: what stands above verbs, and the tests of a later rdma-core.

mod behaviour;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::above_verbs;
use crate::diagnostics;
use crate::report::Report;
use crate::rig::{self, Place, Rig, spawn};
use crate::wire::{LOOPBACK, OURS};

/// rdma-core of a Debian release, with its tests, some of them compressed.
struct Judge {
    python: &'static [&'static str],
    tests: &'static str,
    /// Lines of a test, its outcome and the reason. `ibtun/README.md` says which part of the stack each reason
    /// comes from.
    recorded: &'static str,
}

const DEBIAN_12: Judge = Judge {
    python: &["PYTHONHOME=/usr", "python3.11"],
    tests: "/usr/share/doc/rdma-core/tests",
    recorded: include_str!("pyverbs.txt"),
};

/// With a C library of its own.
const DEBIAN_13: Judge = Judge {
    python: &[
        "PYTHONHOME=/trixie/usr",
        "PYTHONPATH=/trixie/usr/lib/python3/dist-packages",
        "/trixie/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        "--library-path",
        "/trixie/usr/lib/x86_64-linux-gnu",
        "/trixie/usr/bin/python3.13",
    ],
    tests: "/trixie/usr/share/doc/rdma-core/tests",
    recorded: include_str!("pyverbs-13.txt"),
};

/// The program that runs them. Its name must not be that of a module: Python looks for modules beside it, too.
const RUN: &str = "/run/run-tests.py";

/// More packets than UD and the connection manager send, and fewer than connections.
const MANY: u64 = 1000;

/// Several times what all tests take.
const PATIENCE: Duration = Duration::from_mins(5);

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up()) {
        diagnostics::prove(&mut report);
        DEBIAN_12.prove(&mut report);
        behaviour::prove(&mut report);
        drop(rig);
    }
    report.end()
}

pub(crate) fn run_newer() -> ExitCode {
    let mut report = Report::default();
    // A capture of all that libfabric sends would fill the guest.
    if let Some(_rig) = report.claim("the rig stands", Rig::up_without_capture()) {
        above_verbs::prove(&mut report);
        if report.claim("Debian 13's rdma-core is in the place of the other", newer()).is_some() {
            DEBIAN_13.prove(&mut report);
        }
    }
    report.end()
}

/// What the tests of Debian 13 need besides.
fn newer() -> Result<()> {
    // libibverbs of both releases looks for its provider there.
    let provider = "/usr/lib/x86_64-linux-gnu/libibverbs";
    let other = format!("/trixie{provider}");
    rig::run(Place::Here, &["busybox", "mount", "--bind", &other, provider])?;
    // A test compares P_Keys with what this prints.
    symlink("/bin/busybox", "/bin/cat").context("/bin/cat")
}

impl Judge {
    fn prove(&self, report: &mut Report) {
        if report.claim("rdma-core's tests are here", self.unpack()).is_none() {
            return;
        }
        let recorded = modules(self.recorded);
        for way in [Way::Inside, Way::Wire] {
            let name = way.name();
            let told = report.claim(&format!("{name}: the tests run to their end"), self.test(way));
            let told = told.unwrap_or_default();
            let told = modules(&told);
            for (module, recorded) in &recorded {
                let passed =
                    recorded.values().filter(|outcome| outcome.starts_with("passed")).count();
                let claim =
                    format!("{name}: {module}: {passed} of {} pass, as recorded", recorded.len());
                report.claim(&claim, same(recorded, told.get(module)));
            }
            let new: Vec<_> =
                told.keys().filter(|module| !recorded.contains_key(*module)).collect();
            let none = || -> Result<()> {
                ensure!(new.is_empty(), "not recorded: {new:?}");
                Ok(())
            };
            report.claim(&format!("{name}: there are no other tests"), none());
        }
    }

    /// Runs the tests, and returns their outcomes.
    fn test(&self, way: Way) -> Result<String> {
        fs::write(LOOPBACK, if way == Way::Wire { "N" } else { "Y" }).context(LOOPBACK)?;
        let file = format!("{}/pyverbs-{}.txt", rig::RESULTS, way.name());
        let env = ["busybox", "env"];
        let options = [RUN, self.tests, &file, "ib0", "--dev", OURS.0, "--port", OURS.1, "-v"];
        let before = OURS.count("tx_packets")?;
        let log = format!("pyverbs-{}", way.name());
        let tests = spawn(&log, Place::Here, &[&env[..], self.python, &options].concat())?;
        let status = tests.wait(PATIENCE)?;
        ensure!(status.success(), "{status}; {log}.log has more");
        let sent = OURS.count("tx_packets")? - before;
        // UD and the messages of the connection manager go over the wire always.
        ensure!((sent > MANY) == (way == Way::Wire), "{sent} packets went over the wire");
        fs::read_to_string(&file).context(file)
    }

    fn unpack(&self) -> Result<()> {
        // Python has locks between processes there.
        fs::create_dir_all("/dev/shm").context("/dev/shm")?;
        // Some tests want pages of 2 MiB.
        rig::write(Place::Here, "/proc/sys/vm/nr_hugepages", "8")?;
        let unpack = format!("busybox gunzip {}/*.gz", self.tests);
        rig::run(Place::Here, &["busybox", "sh", "-c", &unpack])?;
        fs::write(RUN, include_str!("run.py")).context(RUN)
    }
}

/// How the packets of a connection get from one queue pair of an HCA to another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// Inside the kernel.
    Inside,
    /// Over the descriptor, through the fabric.
    Wire,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Inside => "inside",
            Self::Wire => "wire",
        }
    }
}

/// The outcomes of each module. A line has a module, a class, a test, the outcome and the reason.
fn modules(lines: &str) -> BTreeMap<&str, BTreeMap<&str, &str>> {
    let mut modules: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for line in lines.lines().filter(|line| !line.starts_with('#')) {
        let (test, outcome) = line.split_once('\t').unwrap_or((line, "no outcome"));
        let module = test.split('.').next().unwrap_or_default();
        modules.entry(module).or_default().insert(test, outcome);
    }
    modules
}

fn same(recorded: &BTreeMap<&str, &str>, told: Option<&BTreeMap<&str, &str>>) -> Result<()> {
    let empty = BTreeMap::new();
    let told = told.unwrap_or(&empty);
    let tests = recorded.keys().chain(told.keys().filter(|test| !recorded.contains_key(*test)));
    // Kernels refuse some calls for different reasons.
    let is_same = |test: &&&str| match (recorded.get(**test), told.get(**test)) {
        (Some(recorded), Some(told)) => recorded.split(" | ").any(|one| one == *told),
        _ => false,
    };
    let changes = tests.filter(|test| !is_same(test)).map(|test| {
        let [recorded, told] = [recorded, told].map(|of| of.get(test).unwrap_or(&"not there"));
        format!("{test}: recorded {recorded}, now {told}")
    });
    let changes: Vec<_> = changes.collect();
    ensure!(changes.is_empty(), "{}", changes.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_skip_failure_missing_and_unknown_test_are_differences() {
        let recorded = modules("a.B.one\tpassed\na.B.two\tskipped: no ODP\nc.D.three\tpassed\n");
        assert!(same(&recorded["a"], Some(&recorded["a"])).is_ok());
        assert!(same(&recorded["a"], None).is_err());
        assert!(
            same(
                &modules("a.B.one\tskipped: 6.1 | skipped: 6.12")["a"],
                modules("a.B.one\tskipped: 6.12").get("a")
            )
            .is_ok()
        );
        for told in [
            "a.B.one\tskipped: no ODP\na.B.two\tskipped: no ODP",
            "a.B.one\tfailed: no\na.B.two\tskipped: no ODP",
            "a.B.one\tpassed\na.B.two\tskipped: no memory",
            "a.B.one\tpassed",
            "a.B.one\tpassed\na.B.two\tskipped: no ODP\na.B.new\tpassed",
        ] {
            assert!(same(&recorded["a"], modules(told).get("a")).is_err(), "{told}");
        }
    }

    #[test]
    fn every_recorded_test_has_passed_or_has_a_reason() {
        let recorded = [DEBIAN_12, DEBIAN_13].map(|judge| modules(judge.recorded));
        for (module, tests) in recorded.into_iter().flatten() {
            for (test, outcome) in tests {
                let is_known = outcome == "passed" || outcome.starts_with("skipped: ");
                assert!(is_known && test.starts_with(module), "{test}: {outcome}");
            }
        }
    }
}
