// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs in the guest, which run to their end or until they are stopped.

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Place;
use crate::OWN;

/// The host copies the files of this directory to `target/vm` when the guest ends.
pub const RESULTS: &str = "/results";

/// The argument with which this program stands for a command of the other guest.
pub const STAND_IN: &str = "there";

/// A running program. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    place: Place,
    child: Child,
}

/// Long enough for every program, on a machine with other work. Otherwise the report would be lost with
/// a program that hangs.
const LIMIT: Duration = Duration::from_secs(90);

/// Runs a program to its end, and returns its output.
///
/// # Errors
/// The program failed or took too long. The error has its output.
pub fn run(place: Place, words: &[&str]) -> Result<String> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let file = env::temp_dir().join(format!("run-{}", RUNS.fetch_add(1, Ordering::Relaxed)));
    let output = File::create(&file).with_context(|| file.display().to_string())?;
    let process = start(&words.join(" "), place, words, output)?;
    let outcome = process.wait(LIMIT);
    let said = fs::read(&file).with_context(|| file.display().to_string())?;
    fs::remove_file(&file).with_context(|| file.display().to_string())?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let status = outcome.with_context(|| said.clone())?;
    ensure!(status.success(), "`{}`: {status}\n{said}", words.join(" "));
    Ok(said)
}

/// Starts a program. Its output goes to the file `name` of the results.
pub fn spawn(name: &str, place: Place, words: &[&str]) -> Result<Process> {
    let file = format!("{RESULTS}/{name}.log");
    let mut log = File::options().create(true).append(true).open(&file).context(file)?;
    writeln!(log, "$ {}", words.join(" "))?;
    start(name, place, words, log)
}

fn start(name: &str, place: Place, words: &[&str], output: File) -> Result<Process> {
    let child = command(place, words)?
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("`{}` cannot be started", words.join(" ")))?;
    Ok(Process { name: name.to_owned(), place, child })
}

fn command(place: Place, words: &[&str]) -> Result<Command> {
    let [program, arguments @ ..] = words else { bail!("a command without a name") };
    let mut command = match place {
        Place::Here => Command::new(program),
        Place::Netns(name) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name, program]);
            command
        }
        Place::Other => {
            let mut command = Command::new(OWN);
            command.args([STAND_IN, program]);
            command
        }
    };
    command.args(arguments);
    Ok(command)
}

/// What all threads of a process have used, in the scheduler's account.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let mut used = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("no process")? {
        let text = fs::read_to_string(task?.path().join("schedstat")).context("schedstat")?;
        let nanos = text.split_whitespace().next().context("schedstat")?;
        used += Duration::from_nanos(nanos.parse()?);
    }
    Ok(used)
}

impl Process {
    /// Its output so far.
    pub fn said(&self) -> Result<String> {
        let file = format!("{RESULTS}/{}.log", self.name);
        fs::read_to_string(&file).context(file)
    }

    /// Where it was started.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Its number in /proc.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its user, capabilities and more (proc(5)).
    pub fn status(&self) -> Result<String> {
        let file = format!("/proc/{}/status", self.child.id());
        fs::read_to_string(&file).context(file)
    }

    /// Checks that the program has not ended.
    pub fn check_alive(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "{} has ended: {}", self.name, ended.unwrap_or_default());
        Ok(())
    }

    /// Sends it a signal, which it may catch. After `SIGSTOP`, waits until all its threads have stopped.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).context("a process number")?);
        kill(pid, signal).with_context(|| self.name.clone())?;
        if signal == Signal::SIGSTOP {
            let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED));
            ensure!(status == Ok(WaitStatus::Stopped(pid, signal)), "{}: {status:?}", self.name);
        }
        Ok(())
    }

    /// Waits for its end.
    pub fn wait(mut self, patience: Duration) -> Result<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(began.elapsed() < patience, "{} does not end", self.name);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it, and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| self.name.clone())?;
        self.child.wait().map(drop).with_context(|| self.name.clone())
    }

    /// Asks the program to end, and waits for its end.
    pub fn stop(self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait(Duration::from_secs(30))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let killed = self.child.kill().and_then(|()| self.child.wait());
            let is_as_wanted =
                |status: &ExitStatus| status.signal() == Some(Signal::SIGKILL as i32);
            if !killed.as_ref().is_ok_and(is_as_wanted) {
                eprintln!("{} could not be killed: {killed:?}", self.name);
            }
        }
    }
}
