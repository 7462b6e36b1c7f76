// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The first process of a guest: it mounts file systems, loads modules, runs the command, and ends the
//! machine with the command's status.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::{OutputFlags, SetArg, tcdrain, tcgetattr, tcsetattr};

use crate::kernel_log;

/// Files of the host: the command, with its environment variables before it and its arguments behind
/// it, separated by NUL; and the modules, which are loaded in the order of their names.
const COMMAND: &str = "/command";
const MODULES: &str = "/modules";

/// Modules that a scenario loads itself.
pub const LATER: &str = "/later";

/// The host gets the files of this directory, by way of the disk.
const RESULTS: &str = crate::rig::RESULTS;
const DISK: &str = "/dev/vda";

/// The directory in which Debian's programs find their libraries.
const LIBRARIES: &str = "/lib64";

/// The command's output goes to this port. The console (the first serial port) also has the kernel's
/// output.
const SAID: &str = "/dev/ttyS1";

/// The I/O port of QEMU's isa-debug-exit. `STATUS_BASE` is added to the status, so that no status looks
/// like a failure of QEMU itself; `xtask/src/vm/qemu.rs` subtracts it. The sum has seven bits.
const EXIT_PORT: u64 = 0xf4;
const STATUS_BASE: u8 = 70;
/// Also stands for higher statuses, for a signal, and for a failure of this program; the console has
/// the cause.
const MAX_STATUS: u8 = 127 - STATUS_BASE;

/// Runs the command of the image, and ends the machine with its status.
///
/// # Panics
/// The machine cannot be powered off. The kernel then ends it, because its first process has died.
pub fn run() -> ! {
    let outcome = set_up().and_then(|()| command());
    let kept = keep_results();
    let outcome = outcome.and_then(|status| kept.map(|()| status));
    let outcome = outcome.and_then(|status| kernel_log::is_sound().map(|()| status));
    let status = outcome.unwrap_or_else(|error| {
        eprintln!("init: {error:#}");
        MAX_STATUS
    });
    if let Err(error) = end(status) {
        eprintln!("init: {error:#}");
    }
    // The machine has no such port. The host then finds no status.
    let Err(error) = reboot(RebootMode::RB_POWER_OFF);
    panic!("init: cannot power off: {error}");
}

fn set_up() -> Result<()> {
    for (kind, path) in [
        ("devtmpfs", "/dev"),
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("bpf", "/sys/fs/bpf"),
        ("tmpfs", "/run"),
        ("tmpfs", "/tmp"),
        ("tmpfs", RESULTS),
    ] {
        fs::create_dir_all(path).with_context(|| format!("{path} cannot be made"))?;
        mount(Some(kind), path, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("{path} cannot be mounted"))?;
    }
    // As on other systems; iproute2 keeps its namespaces there.
    fs::create_dir_all("/var").and_then(|()| symlink("/run", "/var/run")).context("/var/run")?;
    load(MODULES)
}

/// Loads the modules of a directory in the order of their names, if the directory exists. Those that are loaded
/// already are left as they are.
pub fn load(directory: &str) -> Result<()> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    let entries = entries.map(|entry| Ok(entry?.path()));
    let mut modules = entries.collect::<std::io::Result<Vec<PathBuf>>>()?;
    modules.sort();
    modules.iter().try_for_each(|module| match insert(module) {
        Err(error) if error.root_cause().downcast_ref() == Some(&Errno::EEXIST) => Ok(()),
        outcome => outcome,
    })
}

/// Loads a module of the guest again, after it was unloaded.
pub fn load_again(name: &str) -> Result<()> {
    let entries = fs::read_dir(MODULES).context(MODULES)?;
    let modules = entries.map(|entry| Ok(entry?.path()));
    let modules = modules.collect::<std::io::Result<Vec<PathBuf>>>()?;
    let is_it = |module: &&PathBuf| module.to_string_lossy().ends_with(&format!("-{name}.ko"));
    insert(modules.iter().find(is_it).with_context(|| format!("there is no module {name}"))?)
}

fn insert(module: &Path) -> Result<()> {
    let file = File::open(module)?;
    match finit_module(&file, c"", ModuleInitFlags::empty()) {
        // Modules that are loaded later need some that are there.
        Err(Errno::EEXIST) => Ok(()),
        loaded => loaded.with_context(|| format!("{} cannot be loaded", module.display())),
    }
}

fn command() -> Result<u8> {
    let command = fs::read_to_string(COMMAND).context(COMMAND)?;
    let mut words = command.split('\0').peekable();
    let mut variables = Vec::new();
    while let Some(variable) = words.next_if(|word| !word.contains('/') && word.contains('=')) {
        variables.extend(variable.split_once('='));
    }
    let program = words.next().unwrap_or_default();
    let said = OpenOptions::new().write(true).open(SAID).context(SAID)?;
    let mut settings = tcgetattr(&said).context(SAID)?;
    // Otherwise each line would end with CR LF.
    settings.output_flags.remove(OutputFlags::OPOST);
    tcsetattr(&said, SetArg::TCSANOW, &settings).context(SAID)?;
    let status = Command::new(program)
        .args(words)
        .env_clear()
        .env("PATH", "/bin")
        .env("LD_LIBRARY_PATH", LIBRARIES)
        .env("RUST_BACKTRACE", "1")
        .envs(variables)
        .stdout(said.try_clone().context(SAID)?)
        .status()
        .with_context(|| format!("{program} cannot be run"))?;
    match tcdrain(&said) {
        // A shell with this terminal has ended and hung up.
        Ok(()) | Err(Errno::EIO) => {}
        Err(error) => return Err(error).context(SAID),
    }
    if !status.success() {
        eprintln!("init: {program}: {status}");
    }
    Ok(status_of(status))
}

/// Writes the files of [`RESULTS`] to the disk, if there is one, as a tar archive.
fn keep_results() -> Result<()> {
    if !Path::new(DISK).exists() {
        return Ok(());
    }
    let tar = ["tar", "-c", "-f", DISK, "-C", RESULTS, "."];
    let status = Command::new("/bin/busybox").args(tar).status().context("busybox")?;
    ensure!(status.success(), "tar: {status}");
    File::open(DISK)?.sync_all().context(DISK)
}

fn status_of(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(MAX_STATUS, |code| code.min(MAX_STATUS))
}

/// Ends the machine at once.
fn end(status: u8) -> Result<()> {
    tcdrain(std::io::stderr()).context("the console cannot be drained")?;
    let ports = OpenOptions::new().write(true).open("/dev/port").context("/dev/port")?;
    ports.write_all_at(&[STATUS_BASE + status], EXIT_PORT).context("/dev/port")
}
