// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The file system of a guest, which is in memory.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _};

use super::cpio::Archive;
use super::kernel::Module;
use crate::artifacts::{self, Artifact};

/// Paths that the guest's `init` reads. `ibtun/guest/src/init.rs` has the same.
const COMMAND: &str = "/command";
pub(super) const MODULES: &str = "/modules";
/// Modules that a scenario loads itself.
const LATER: &str = "/later";
/// The guest's first program, which runs [`COMMAND`].
pub(super) const INIT: &str = "/bin/guest";

/// A program, or one of its libraries, in the guest.
pub(super) struct Program {
    /// Its path in the guest.
    pub(super) path: String,
    pub(super) executable: PathBuf,
}

/// Builds statically linked binaries of this checkout, for a guest without libraries. `arguments` name
/// packages and targets. `command` is `build` or `test`.
pub(super) fn build(
    cargo: impl Fn(&[&str]) -> Command,
    command: &str,
    arguments: &[&str],
) -> Result<Vec<Artifact>> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let flags = format!("target.{target}.rustflags=['-Ctarget-feature=+crt-static']");
    // Debug information would take most of the guest's memory.
    let strip = "profile.dev.strip='symbols'";
    // The guest's processor is emulated. This makes programs three times faster, and keeps checks.
    let optimise = "profile.dev.opt-level=1";
    // Each packet of a software HCA passes these.
    let fabric = "profile.dev.package.ibarr-fabric.opt-level=3";
    let formats = "profile.dev.package.ibarr-common.opt-level=3";
    let mut all = vec![command, "--locked", "--target", &target];
    all.extend(["--config", &flags, "--config", strip, "--config", optimise]);
    all.extend(["--config", fabric, "--config", formats]);
    all.extend(arguments);
    artifacts::from(&mut cargo(&all))
}

/// Writes the archive that the kernel unpacks as its root file system to `path`.
pub(super) fn write(
    path: &Path,
    modules: &[Module],
    later: &[Module],
    programs: &[Program],
    files: &[(&str, &str)],
    command: &[&str],
) -> Result<()> {
    let file = File::create(path).with_context(|| format!("{} cannot be made", path.display()))?;
    let mut archive = Archive::new(BufWriter::new(file));
    // The kernel opens the standard files of the first process, before there is a /dev.
    archive.device("/dev/console", 5, 1)?;
    archive.device("/dev/null", 1, 3)?;
    for (directory, modules) in [(MODULES, modules), (LATER, later)] {
        for (index, module) in modules.iter().enumerate() {
            // The guest loads modules in the order of their names.
            archive.file(&format!("{directory}/{index:03}-{}.ko", module.name), &module.object)?;
        }
    }
    for Program { path, executable } in programs {
        let content = fs::read(executable)
            .with_context(|| format!("{} is unreadable", executable.display()))?;
        archive.program(path, &content)?;
    }
    for (path, content) in files {
        archive.file(path, content.as_bytes())?;
    }
    archive.file(COMMAND, command.join("\0").as_bytes())?;
    archive.finish()?.flush().with_context(|| format!("{} cannot be written", path.display()))
}

/// One of our programs in the guest.
///
/// # Errors
/// The program needs libraries, which the guest does not have.
pub(super) fn ours(path: &str, executable: &Path) -> Result<Program> {
    let content =
        fs::read(executable).with_context(|| format!("{} is unreadable", executable.display()))?;
    needs_no_library(&content).with_context(|| executable.display().to_string())?;
    Ok(Program { path: path.to_owned(), executable: executable.to_owned() })
}

fn needs_no_library(program: &[u8]) -> Result<()> {
    let elf: ElfFile64<'_> = ElfFile64::parse(program).context("not a program")?;
    if let Some(interpreter) = elf.section_by_name(".interp") {
        let interpreter = String::from_utf8_lossy(interpreter.data()?).into_owned();
        bail!(
            "needs {} and libraries, which the guest does not have (is RUSTFLAGS set? it overrides ours)",
            interpreter.trim_end_matches('\0')
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_needs_libraries_is_refused() {
        let own = fs::read(std::env::current_exe().expect("a path")).expect("readable");
        let error = needs_no_library(&own).expect_err("this test is linked as usual").to_string();
        assert!(error.contains("ld-linux"), "{error}");
    }
}
