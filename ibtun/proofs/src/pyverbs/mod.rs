// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run i`: what others say of software HCAs and of the fabric. infiniband-diags first, while nothing has gone
//! wrong; then rdma-core's own tests of verbs and connections. A recording has the outcome of each test, and the
//! reason of each that is skipped. Any other outcome breaks a claim. Last, small programs of our own.

mod behaviour;

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::diagnostics;
use crate::report::Report;
use crate::rig::{self, Place, Rig, spawn};
use crate::wire::{LOOPBACK, OURS};

/// Where Debian's package has the tests, some of them compressed.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// The program that runs them. Its name must not be that of a module: Python looks for modules beside it, too.
const RUN: &str = "/run/run-tests.py";

/// Lines of a test, its outcome and the reason. `ibtun/README.md` says which part of the stack each reason
/// comes from.
const RECORDED: &str = include_str!("pyverbs.txt");

/// More packets than UD and the connection manager send, and fewer than connections.
const MANY: u64 = 1000;

/// Several times what all tests take.
const PATIENCE: Duration = Duration::from_mins(5);

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up()) {
        diagnostics::prove(&mut report);
        prove(&mut report);
        behaviour::prove(&mut report);
        drop(rig);
    }
    report.end()
}

fn prove(report: &mut Report) {
    if report.claim("rdma-core's tests are here", unpack()).is_none() {
        return;
    }
    let recorded = modules(RECORDED);
    for way in [Way::Inside, Way::Wire] {
        let name = way.name();
        let told = report.claim(&format!("{name}: the tests run to their end"), way.test());
        let told = told.unwrap_or_default();
        let told = modules(&told);
        for (module, recorded) in &recorded {
            let passed = recorded.values().filter(|outcome| outcome.starts_with("passed")).count();
            let claim =
                format!("{name}: {module}: {passed} of {} pass, as recorded", recorded.len());
            report.claim(&claim, same(recorded, told.get(module)));
        }
        let new: Vec<_> = told.keys().filter(|module| !recorded.contains_key(*module)).collect();
        let none = || -> Result<()> {
            ensure!(new.is_empty(), "not recorded: {new:?}");
            Ok(())
        };
        report.claim(&format!("{name}: there are no other tests"), none());
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

    /// Runs the tests, and returns their outcomes.
    fn test(self) -> Result<String> {
        fs::write(LOOPBACK, if self == Self::Wire { "N" } else { "Y" }).context(LOOPBACK)?;
        let file = format!("{}/pyverbs-{}.txt", rig::RESULTS, self.name());
        let python = ["busybox", "env", "PYTHONHOME=/usr", "python3.11", RUN, TESTS, &file, "ib0"];
        let options = ["--dev", OURS.0, "--port", OURS.1, "-v"];
        let before = OURS.count("tx_packets")?;
        let log = format!("pyverbs-{}", self.name());
        let tests = spawn(&log, Place::Here, &[&python[..], &options].concat())?;
        let status = tests.wait(PATIENCE)?;
        ensure!(status.success(), "{status}; {log}.log has more");
        let sent = OURS.count("tx_packets")? - before;
        // UD and the messages of the connection manager go over the wire always.
        ensure!((sent > MANY) == (self == Self::Wire), "{sent} packets went over the wire");
        fs::read_to_string(&file).context(file)
    }
}

fn unpack() -> Result<()> {
    // Python has locks between processes there.
    fs::create_dir_all("/dev/shm").context("/dev/shm")?;
    // Some tests want pages of 2 MiB.
    rig::write(Place::Here, "/proc/sys/vm/nr_hugepages", "8")?;
    let unpack = format!("busybox gunzip {TESTS}/*.gz");
    rig::run(Place::Here, &["busybox", "sh", "-c", &unpack])?;
    fs::write(RUN, include_str!("run.py")).context(RUN)
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
    let changes = tests.filter(|test| recorded.get(*test) != told.get(*test)).map(|test| {
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
        for (module, tests) in modules(RECORDED) {
            for (test, outcome) in tests {
                let is_known = outcome == "passed" || outcome.starts_with("skipped: ");
                assert!(is_known && test.starts_with(module), "{test}: {outcome}");
            }
        }
    }
}
