// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The level `arm64`: what is built for 64-bit Arm, run on this machine by emulators.

use std::process::Command;

use anyhow::Result;

use super::suite::{self, Count};
use crate::package::{self, Architecture, Builder};
use crate::systems::{self, How, Row};
use crate::workspace::Workspace;
use crate::{artifacts, tools, vm};

/// All tests of the formats and the cores: no input and no output of theirs is the machine's.
const TESTS: [&str; 7] = [
    "test",
    "--no-run",
    "--locked",
    "--package=ibarr-common",
    "--package=ibarr-proto",
    "--lib",
    "--tests",
];

/// An emulator takes ten times as long; the level `unit` tries 256.
const CASES_OF_PROPERTIES: &str = "16";

pub(super) fn prove(workspace: &Workspace) -> Result<Count> {
    let ibarr = package::prove_other(workspace, Architecture::Arm64)?;
    let mut count = formats(workspace)?;
    let passed = usize::try_from(count.passed)?;
    let (how, system, what) = (How::Ran, vm::arm64::SYSTEM.to_owned(), "formats".to_owned());
    let row = Row { system, how, what, passed, of: passed, with: "qemu-user".to_owned() };
    systems::record(workspace, &[row])?;
    count.passed += u32::try_from(vm::arm64::prove(workspace, &ibarr)?)?;
    Ok(count)
}

fn formats(workspace: &Workspace) -> Result<Count> {
    let toolbox = tools::ensure(workspace, &[&tools::QEMU_USER])?;
    let path = toolbox.path()?;
    let libraries = tools::root(workspace, &tools::GLIBC_ARM64)?.join("usr/aarch64-linux-gnu");
    let builder = Builder::ensure(workspace, Architecture::Arm64)?;
    let built = artifacts::from(&mut builder.cargo(workspace.root(), &TESTS))?;
    let mut count = Count::default();
    for program in built.iter().filter(|built| built.is_test) {
        let package = program.package.strip_prefix(workspace.root()).unwrap_or(&program.package);
        let name = format!("{} {}", package.display(), program.target);
        let mut emulator = Command::new("qemu-aarch64-static");
        emulator.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
        emulator.env("PATH", &path).env("PROPTEST_CASES", CASES_OF_PROPERTIES);
        emulator.arg("-L").arg(&libraries).arg(&program.executable);
        count += suite::run_command(&name, &mut emulator)?;
    }
    Ok(count)
}
