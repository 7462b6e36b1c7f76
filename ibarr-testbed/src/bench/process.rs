// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Servers under load: their CPU and the CPU time that they used.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
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
        let path = task.context("cannot list threads")?.path().join("schedstat");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("cannot read {} (CONFIG_SCHED_INFO)", path.display()))?;
        let nanos = text.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
        used += Duration::from_nanos(nanos.context("no number in schedstat")?);
    }
    Ok(used)
}

/// The CPUs before the first pinning.
static ALLOWED: OnceLock<CpuSet> = OnceLock::new();

/// Pins servers to the first CPU that this thread could use at the first call, and this thread to the last.
///
/// # Errors
/// There is only one CPU, which load and server would share.
pub(super) fn pin(servers: &[u32]) -> Result<()> {
    let this = Pid::from_raw(0);
    let now = sched_getaffinity(this).context("cannot read CPU affinity")?;
    let allowed = ALLOWED.get_or_init(|| now);
    let cpus = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu) == Ok(true));
    let [first, .., last] = *cpus.collect::<Vec<_>>() else {
        bail!("the bench needs two CPUs, one for the server and one for the load");
    };
    let put = |pid, cpu| {
        let mut set = CpuSet::new();
        set.set(cpu).and_then(|()| sched_setaffinity(pid, &set)).context("cannot pin to a CPU")
    };
    for &pid in servers {
        put(Pid::from_raw(pid.try_into()?), first)?;
    }
    put(this, last)
}
