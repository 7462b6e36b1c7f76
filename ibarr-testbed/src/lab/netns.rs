// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Network namespaces with names. iproute2 makes them, and this module enters them.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Pid;

use crate::start::program;

/// The directory in which iproute2 keeps the names.
pub const DIRECTORY: &str = "/run/netns";

/// Whether a namespace has this name.
pub fn exists(namespace: &str) -> bool {
    path(namespace).symlink_metadata().is_ok()
}

/// Does `work` inside `namespace`, on a thread of its own. Sockets that it makes stay there.
///
/// # Errors
/// There is no such namespace, or `work` fails.
pub fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let file = open(namespace)?;
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(file, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("cannot enter namespace {namespace}"))?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Starts `command` inside `namespace`, with the namespace's `/sys`. Signals of the terminal do not
/// reach it.
///
/// # Errors
/// There is no such namespace, or the command cannot be started.
pub fn spawn(namespace: &str, command: &mut Command) -> Result<Child> {
    inside(namespace, || {
        show_own_sysfs(namespace)?;
        command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))
    })
}

/// Becomes `command` inside `namespace`.
///
/// # Errors
/// There is no such namespace, or the command cannot be started.
pub fn exec(namespace: &str, command: &mut Command) -> Result<std::convert::Infallible> {
    setns(open(namespace)?, CloneFlags::CLONE_NEWNET)
        .with_context(|| format!("cannot enter namespace {namespace}"))?;
    show_own_sysfs(namespace)?;
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", command.get_program().display()))
}

/// The processes whose main threads are inside `namespace`.
///
/// # Errors
/// There is no such namespace.
pub fn processes(namespace: &str) -> Result<Vec<Pid>> {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    let ours = identity(&path(namespace)).with_context(|| format!("no namespace {namespace}"))?;
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that ends meanwhile does not count.
        if identity(&entry.path().join("ns/net")).is_ok_and(|theirs| theirs == ours) {
            pids.push(Pid::from_raw(pid));
        }
    }
    Ok(pids)
}

/// Writes values under `/proc/sys/net` of `namespace`.
///
/// # Errors
/// There is no such namespace or setting.
pub fn set(namespace: &str, settings: &[(&str, &str)]) -> Result<()> {
    inside(namespace, || {
        for (name, value) in settings {
            let path = Path::new("/proc/sys/net").join(name);
            fs::write(&path, value).with_context(|| {
                format!("namespace {namespace}: cannot write {value} to {}", path.display())
            })?;
        }
        Ok(())
    })
}

/// Gives this thread, and threads that it starts, a mount namespace with an empty `/run/netns`. If there
/// is no such directory, it mounts a copy of `/run` that has one over `/run`.
///
/// # Errors
/// This thread may not mount.
pub fn own_directory() -> Result<()> {
    let none: Option<&str> = None;
    let tmpfs = |target: &str| {
        mount(Some("ibarr-lab"), target, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
            .with_context(|| format!("cannot mount on {target}"))
    };
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none))
        .context("cannot make a mount namespace")?;
    if Path::new(DIRECTORY).is_dir() {
        return tmpfs(DIRECTORY);
    }
    let covered = File::open("/run").context("cannot open /run")?;
    tmpfs("/run")?;
    let covered = format!("/proc/self/fd/{}", covered.as_raw_fd());
    for entry in fs::read_dir(&covered).context("cannot list /run")? {
        let entry = entry.context("cannot list /run")?;
        let target = Path::new("/run").join(entry.file_name());
        let kind = entry.file_type().context("cannot list /run")?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?;
        } else {
            File::create(&target)?;
        }
        mount(Some(&entry.path()), &target, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)
            .with_context(|| format!("cannot show {}", target.display()))?;
    }
    fs::create_dir(DIRECTORY).context("cannot make /run/netns")?;
    // Otherwise `ip` would make it a mount, which stays.
    tmpfs(DIRECTORY)
}

/// iproute2's `ip`.
#[derive(Debug)]
pub struct Ip {
    program: PathBuf,
    /// Each `ip` that we start keeps the lab's lock open, so that after a crash of ours the lock lasts until
    /// the last `ip` has ended.
    lock: File,
}

impl Ip {
    /// Looks under `$IBARR_TOOLS`, then on `$PATH`, then in `sbin` directories.
    ///
    /// # Errors
    /// `ip` is not found.
    pub fn find(lock: File) -> Result<Self> {
        let tools = env::var_os("IBARR_TOOLS").map(PathBuf::from);
        let unpacked = ["", "bin", "sbin", "usr/bin", "usr/sbin"];
        let found = tools
            .iter()
            .flat_map(|tools| unpacked.iter().map(|directory| tools.join(directory)))
            .chain(env::split_paths(&env::var_os("PATH").unwrap_or_default()))
            .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
            .map(|directory| directory.join("ip"))
            .find(|ip| ip.is_file());
        let program = found.context(
            "iproute2's `ip` is neither on PATH nor under $IBARR_TOOLS: \
             install iproute2, or start through `cargo xtask`, which fetches it",
        )?;
        Ok(Self { program, lock })
    }

    /// Starts `ip monitor address` inside `namespace`, and discards what it prints.
    ///
    /// # Errors
    /// `ip` cannot be started.
    pub fn monitor(&self, namespace: &str) -> Result<Child> {
        let mut command = program(&self.program);
        command.args(["monitor", "address"]).stdin(Stdio::null()).stdout(Stdio::null());
        spawn(namespace, &mut command)
    }

    /// Runs one `ip` command a line, inside `namespace` if given. No command may print.
    ///
    /// # Errors
    /// `ip` refuses a line. The lines before it are in effect.
    pub fn batch(&self, namespace: Option<&str>, lines: &[String]) -> Result<()> {
        let mut command = program(&self.program);
        if let Some(namespace) = namespace {
            command.args(["-netns", namespace]);
        }
        let mut ip = command
            .args(["-batch", "-"])
            // Ctrl-C must not reach `ip`, because we still have to clean up.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(self.lock.try_clone().context("cannot share a lock")?)
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        if let Some(mut stdin) = ip.stdin.take() {
            // If `ip` stops early, its standard error says why.
            let _ = stdin.write_all((lines.join("\n") + "\n").as_bytes());
        }
        let output = ip.wait_with_output().context("cannot wait for ip")?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said
            .rsplit_once("Command failed -:")
            .and_then(|(_, number)| number.trim().parse::<usize>().ok())
            .and_then(|number| lines.get(number.checked_sub(1)?));
        let line = line.map_or("-batch", String::as_str);
        let within = namespace.map(|name| format!("namespace {name}: ")).unwrap_or_default();
        bail!("{within}`ip {line}`: {}", said.lines().next().unwrap_or("failed"))
    }
}

fn path(namespace: &str) -> PathBuf {
    Path::new(DIRECTORY).join(namespace)
}

fn open(namespace: &str) -> Result<File> {
    let path = path(namespace);
    File::open(&path).with_context(|| format!("cannot open namespace {}", path.display()))
}

/// Mounts `/sys` again for the calling thread only, because it shows the namespace in which it was
/// mounted.
fn show_own_sysfs(namespace: &str) -> Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none))
        .with_context(|| format!("{namespace}: cannot make a mount namespace"))?;
    // Some containers and user namespaces forbid it. Then the machine's own /sys stays.
    let _ = mount(Some(namespace), "/sys", Some("sysfs"), MsFlags::empty(), none);
    Ok(())
}
