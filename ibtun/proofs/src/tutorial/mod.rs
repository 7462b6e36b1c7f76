// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run tutorial`: the commands of `ibtun/README.md` and of the tutorial, as they stand there, and what they
//! print. The guest has the files of the packages already, and its init has loaded the modules.

mod up;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use ibtun_guest::page::{self, Command};

use crate::report::Report;
use crate::rig::{self, Place};

const README: &str = include_str!("../../../README.md");

const PAGES: [(&str, &str); 5] = [
    ("page 1", include_str!("../../../docs/tutorial/1-first-packet.md")),
    ("page 2", include_str!("../../../docs/tutorial/2-breaking-a-link.md")),
    ("page 3", include_str!("../../../docs/tutorial/3-testing-a-subnet-manager.md")),
    ("page 4", include_str!("../../../docs/tutorial/4-debugging-a-program.md")),
    ("page 5", include_str!("../../../docs/tutorial/5-ci-job.md")),
];

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    report.claim("the guest has a shell and its tools", shell());
    for command in page::commands(page::section(README, "in five commands\n")) {
        type_in(&mut report, "README", &command);
    }
    report.claim("after `ibfab down` nothing is left", up::nothing_is_left());
    for (name, page) in PAGES {
        for command in page::commands(page) {
            type_in(&mut report, name, &command);
        }
    }
    report.claim("after the tutorial nothing is left", up::nothing_is_left());
    up::prove(&mut report);
    report.end()
}

/// Types a command, and compares what it prints. The guest has no packages, and no programs for modules.
fn type_in(report: &mut Report, document: &str, command: &Command<'_>) {
    let mut lines = command.text.lines();
    let line = lines.next().unwrap_or_default();
    let outcome = match line.split(' ').collect::<Vec<_>>()[..] {
        ["apt", ..] | ["sudo", "apt-get", ..] => return,
        ["modprobe", ref names @ ..] | ["sudo", "modprobe", ref names @ ..] => are_loaded(names),
        _ => typed(&command.text).and_then(|said| command.said(&said)),
    };
    report.claim(&format!("{document}: {line}"), outcome);
}

/// A shell that prefers programs to what busybox has of the same name, and a stand-in for sudo.
fn shell() -> Result<()> {
    rig::run(Place::Here, &["busybox", "--install", "-s", "/bin"])?;
    typed("printf '#!/bin/dash\nexec \"$@\"\n' >/bin/sudo; chmod +x /bin/sudo")?;
    rig::ip(Place::Here, "link set lo up").map(drop)
}

fn typed(command: &str) -> Result<String> {
    rig::run(Place::Here, &["dash", "-c", &format!("cd /run; {command}")])
}

fn are_loaded(names: &[&str]) -> Result<()> {
    for name in names.iter().filter(|name| !name.starts_with('-')) {
        ensure!(Path::new("/sys/module").join(name).exists(), "{name} is not loaded");
    }
    Ok(())
}

/// The names of processes, without those that are dead.
fn processes() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc")? {
        // Those of the kernel, and of the dead, have no command line. Some end while we look.
        let line = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let program = line.split(|&byte| byte == 0).next().unwrap_or_default();
        let program = String::from_utf8_lossy(program).into_owned();
        names.push(program.rsplit('/').next().unwrap_or_default().to_owned());
    }
    Ok(names)
}
