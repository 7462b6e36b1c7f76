// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Servers under load: their CPU and the CPU time that they used.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::lab::netns;

/// A helper program that serves until it is dropped.
#[derive(Debug)]
pub(super) struct Helper(Child);

impl Helper {
    /// Starts this program with `arguments` inside `namespace`, and waits until it says that it is
    /// ready.
    ///
    /// # Errors
    /// The program ends before it is ready.
    pub(super) fn start(namespace: &str, arguments: &[String]) -> Result<Self> {
        Self::start_with(namespace, arguments, Stdio::null())
    }

    /// [`Self::start`] with the given standard input.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    pub(super) fn start_with(
        namespace: &str,
        arguments: &[String],
        stdin: impl Into<Stdio>,
    ) -> Result<Self> {
        let this = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(this);
        command.args(arguments).stdin(stdin).stdout(Stdio::piped());
        let mut helper = Self(netns::spawn(namespace, &mut command)?);
        let stdout = helper.0.stdout.take().context("a pipe was asked for")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("cannot read from a helper")?;
        ensure!(line == READY, "`ibarr-testbed {}` did not start", arguments.join(" "));
        Ok(helper)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A helper prints this when it is ready.
pub(super) const READY: &str = "ready\n";

/// CPU time that all threads of a process have used, by the scheduler's own account in
/// nanoseconds (`/proc/PID/task/*/schedstat`; `stat` counts in ticks of 10 ms).
///
/// # Errors
/// The process has ended.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    let mut used = Duration::ZERO;
    let tasks = format!("/proc/{pid}/task");
    for task in fs::read_dir(&tasks).with_context(|| format!("cannot list {tasks}"))? {
        used += of_thread(&task.context("cannot list threads")?.path().join("schedstat"))?;
    }
    Ok(used)
}

/// CPU time of the calling thread, with the softirqs that interrupted it.
///
/// # Errors
/// There is no `/proc`.
pub(super) fn own_cpu_time() -> Result<Duration> {
    of_thread(Path::new("/proc/thread-self/schedstat"))
}

fn of_thread(path: &Path) -> Result<Duration> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read {} (CONFIG_SCHED_INFO)", path.display()))?;
    let used = text.split_whitespace().next().and_then(|used| used.parse::<u64>().ok());
    let used = used.with_context(|| format!("no number in {}", path.display()))?;
    Ok(Duration::from_nanos(used))
}

/// Context switches of all threads of a process, voluntary and not (`/proc/PID/task/*/status`).
///
/// # Errors
/// The process has ended.
pub(super) fn context_switches(pid: u32) -> Result<u64> {
    let mut switches = 0;
    let tasks = format!("/proc/{pid}/task");
    for task in fs::read_dir(&tasks).with_context(|| format!("cannot list {tasks}"))? {
        let path = task.context("cannot list threads")?.path().join("status");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let counts = text.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
        for (_, count) in counts {
            switches += count.trim().parse::<u64>().context("no number of context switches")?;
        }
    }
    Ok(switches)
}

/// Kernel threads whose names begin with `prefix`.
///
/// # Errors
/// There is no `/proc`.
pub(super) fn kernel_threads(prefix: &str) -> Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let Ok(entry) = entry else { continue };
        let pid: Option<u32> = entry.file_name().to_str().and_then(|name| name.parse().ok());
        // A process that ends meanwhile does not count.
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        pids.extend(pid.filter(|_| name.starts_with(prefix)));
    }
    Ok(pids)
}

/// Pins servers to the first CPU that this process may use, and the calling thread to the last.
///
/// # Errors
/// There is only one CPU, which load and server would share.
pub(super) fn pin(servers: &[u32]) -> Result<()> {
    let [first, _] = first_and_last_cpu()?;
    for &pid in servers {
        put(Pid::from_raw(pid.try_into()?), first)?;
    }
    pin_thread(Side::Load)
}

/// The side of a thread of the bench.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Side {
    Server,
    Load,
}

/// Pins the calling thread to the CPU of its side.
///
/// # Errors
/// There is only one CPU.
pub(super) fn pin_thread(side: Side) -> Result<()> {
    let [first, last] = first_and_last_cpu()?;
    put(Pid::from_raw(0), if side == Side::Server { first } else { last })
}

/// The first and last CPU that this process could use before it was pinned.
fn first_and_last_cpu() -> Result<[usize; 2]> {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    let allowed =
        nix::sched::sched_getaffinity(Pid::from_raw(0)).context("cannot read CPU affinity")?;
    let cpus = CPUS.get_or_init(|| {
        (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu) == Ok(true)).collect()
    });
    let &[first, .., last] = cpus.as_slice() else {
        anyhow::bail!("the bench needs two CPUs, one for the server and one for the load");
    };
    Ok([first, last])
}

fn put(pid: Pid, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).and_then(|()| sched_setaffinity(pid, &set)).context("cannot pin to a CPU")
}
