// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The prolog for Slurm in contrib: with a daemon, without one, with one that hangs, and with hostile lists.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::{env, fs};

use nix::sys::signal::{Signal, kill};

use crate::paths::{FOREIGN, LOCAL, Port, await_capabilities};
use crate::peers::{Peers, name_hosts};
use crate::sockets::in_namespace;
use crate::support::{Daemon, IBARR, TempDir, json, program};

const PROLOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib/slurm/prolog.sh");

/// The environment of a prolog: `ibarr` and a `logger` that writes a file.
struct Job<'a> {
    dir: &'a TempDir,
}

impl<'a> Job<'a> {
    fn new(dir: &'a TempDir) -> Self {
        let bin = dir.path("bin");
        fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(IBARR, bin.join("ibarr")).unwrap();
        let this = Self { dir };
        this.command(
            "logger",
            &format!("shift 3; printf '%s\\n' \"$*\" >>{}", this.log().display()),
        );
        this
    }

    fn command(&self, name: &str, script: &str) {
        let path = self.dir.path("bin").join(name);
        drop(fs::remove_file(&path));
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn log(&self) -> std::path::PathBuf {
        self.dir.path("log")
    }

    /// Runs the prolog, which must succeed and print nothing, and returns what it has logged.
    fn begins(&self, nodes: &str, more: &[(&str, &str)]) -> String {
        drop(fs::remove_file(self.log()));
        let system = env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
        let path = format!("{}:{system}", self.dir.path("bin").display());
        let mut command = program("sh");
        command.arg(PROLOG).env("PATH", path).env("IBARR_RUN_DIR", &self.dir.0);
        command.env("SLURM_JOB_ID", "7").env("SLURM_JOB_NODELIST", nodes);
        let output = command.envs(more.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!((output.stdout, output.stderr), (vec![], vec![]));
        fs::read_to_string(self.log()).unwrap_or_default()
    }
}

#[test]
fn prolog_asks_for_all_nodes_of_a_job() {
    if !in_namespace("prolog::prolog_asks_for_all_nodes_of_a_job") {
        return;
    }
    let (dir, peers) = (TempDir::new("prolog"), Peers::new());
    let (job, _port) = (Job::new(&dir), Port::new(&dir));
    let daemon = Daemon::start(&dir, &peers.config());
    await_capabilities(&daemon);
    name_hosts(&dir, "10.9.0.2 node1-ib0\n10.9.0.3 node2-ib0\n10.9.0.4 login1-ib0\n");
    for (n, gid) in [(2, LOCAL), (3, FOREIGN), (4, "fec0:0:1:1::10:3")] {
        peers.set(&format!("10.9.0.{n}"), Some(gid));
    }
    let said = job.begins("node[1-2],login1", &[("IBARR_PROLOG_SUFFIX", "-ib0")]);
    assert!(said.starts_with("job 7: 3 answers: 3 found; "), "{said}");
    let cached = daemon.ask(&["resolve", "10.9.0.[2-4]", "--cached"]);
    assert_eq!(cached.status.code(), Some(0), "{cached:?}");
    let paths = json(&daemon.ask(&["cache", "--paths", "--json"]));
    assert_eq!(paths["paths"].as_array().unwrap().len(), 3, "{paths}");

    // Without the suffix the names are unknown, and the job starts nevertheless.
    let said = job.begins("node[1-2]", &[]);
    assert!(said.contains("node2: ") && said.contains("exit status 1"), "{said}");
}

#[test]
fn prolog_never_fails_without_a_daemon_or_with_one_that_hangs() {
    if !in_namespace("prolog::prolog_never_fails_without_a_daemon_or_with_one_that_hangs") {
        return;
    }
    let (dir, peers) = (TempDir::new("prolog-fails"), Peers::new());
    let job = Job::new(&dir);
    let said = job.begins("10.9.0.[2-3]", &[]);
    assert!(said.contains("no daemon at") && said.contains("exit status 69"), "{said}");

    let daemon = Daemon::start(&dir, &peers.config());
    daemon.stop();
    let said = job.begins("10.9.0.[2-3]", &[]);
    assert!(said.contains("did not answer within 2s"), "{said}");
    kill(daemon.pid(), Signal::SIGCONT).unwrap();

    // The command itself hangs, and does not heed SIGTERM.
    job.command("ibarr", "trap '' TERM; while :; do sleep 1; done");
    let said = job.begins("10.9.0.2", &[("IBARR_PROLOG_SECONDS", "1")]);
    assert!(said.contains("exit status 137"), "{said}");
    for command in ["exit 1", "kill -9 $$"] {
        job.command("ibarr", command);
        job.begins("10.9.0.2", &[]);
    }
    // Nothing can be logged.
    job.command("logger", "exit 1");
    assert_eq!(job.begins("10.9.0.2", &[]), "");
}

#[test]
fn hostile_list_of_nodes_runs_nothing_and_reads_no_file() {
    if !in_namespace("prolog::hostile_list_of_nodes_runs_nothing_and_reads_no_file") {
        return;
    }
    let dir = TempDir::new("prolog-hostile");
    let job = Job::new(&dir);
    let made = dir.path("made");
    let touch = format!("touch {}", made.display());
    let secret = dir.write("secret", "the-secret !\n");
    let file = format!("@{}", secret.display());
    for (nodes, says) in [
        ("", "the job has no list of nodes"),
        (&file, "names a file"),
        (&format!("$({touch})"), "neither an address nor a host name"),
        (&format!("`{touch}`;{touch}"), "neither an address nor a host name"),
        (&format!("a' ; {touch} ; '"), "neither an address nor a host name"),
        ("--run-dir=/", "neither an address nor a host name"),
        ("-h", "neither an address nor a host name"),
        ("node[1-1000000000]", "more than 65536 destinations"),
        ("node[1-", "closing bracket"),
        ("\nb\u{1b}(B", "neither an address nor a host name"),
        (&"n[1-9]".repeat(10_000), "more than 65536 destinations"),
    ] {
        for suffix in ["", "-ib0"] {
            let said = job.begins(nodes, &[("IBARR_PROLOG_SUFFIX", suffix)]);
            assert!(said.contains(says), "{nodes:.80}: {said:.300}");
            assert!(!said.contains("the-secret") && !said.contains('\u{1b}'), "{said}");
            assert!(!Path::new(&made).exists(), "{nodes}");
        }
    }
}
