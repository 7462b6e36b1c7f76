// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs that go on when `ibfab up` has ended. The state has the process of each, and what it says.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::STATE;

/// How long a program may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(5);

/// A program that was started by this process.
pub(super) struct Started {
    name: &'static str,
    child: Child,
}

/// Starts a program in a process group of its own, which an interrupt of the terminal does not reach.
pub(super) fn start(name: &'static str, command: &mut Command) -> anyhow::Result<Started> {
    let log = format!("{STATE}/{name}.log");
    let log = File::create(&log).context(log)?;
    // Before the program starts, so that none is without.
    let file = format!("{STATE}/{name}.process");
    let mut file = File::create(&file).context(file)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let begin = begin(child.id()).unwrap_or_default();
    write!(file, "{} {begin}", child.id())?;
    Ok(Started { name, child })
}

impl Started {
    /// Fails if the program has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("it has ended with {status}: {}", self.last_line());
        }
        Ok(())
    }

    /// Its name, and the last line that it said.
    pub(super) fn last_line(&self) -> String {
        let log = fs::read(format!("{STATE}/{}.log", self.name)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let line = log.lines().last().unwrap_or("nothing").trim_start_matches("ibfab: ");
        format!("{} said: {line}", self.name)
    }
}

/// Kills a program of the state, if it is there. None has anything to keep, and OpenSM takes 10 s to end.
pub(super) fn stop(name: &str) -> anyhow::Result<()> {
    let file = format!("{STATE}/{name}.process");
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text.context(file)?,
    };
    let Some((id, begun)) = text.split_once(' ') else { return Ok(()) };
    let id = id.parse().with_context(|| format!("{name}: a process {id}"))?;
    // Another process may have got its number.
    let is_there = || begin(id).is_some_and(|begin| begin == begun);
    end(id, &[Signal::SIGKILL], is_there).with_context(|| format!("cannot end {name}"))
}

/// Asks a process to end, and kills it if it does not.
pub(super) fn ask_to_end(id: u32) -> anyhow::Result<()> {
    let begun = begin(id);
    let is_there = || begun.is_some() && begin(id) == begun;
    end(id, &[Signal::SIGTERM, Signal::SIGKILL], is_there)
}

/// Sends one signal after the other, until the process has ended.
fn end(id: u32, signals: &[Signal], is_there: impl Fn() -> bool) -> anyhow::Result<()> {
    let pid = Pid::from_raw(id.try_into()?);
    for &signal in signals {
        if !is_there() {
            return Ok(());
        }
        match kill(pid, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error.into()),
        }
        let asked = Instant::now();
        while is_there() && asked.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
    }
    if is_there() {
        bail!("process {id} does not end");
    }
    Ok(())
}

/// When a process began, in the kernel's ticks. `None` if there is none, or only its status is left.
fn begin(id: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    parse_begin(&stat).map(str::to_owned)
}

/// The third and the 22nd field of proc_pid_stat(5). The second is a name in parentheses, with any characters.
fn parse_begin(stat: &str) -> Option<&str> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let is_dead = |state: &&str| matches!(*state, "Z" | "X");
    fields.next().filter(|state| !is_dead(state))?;
    fields.nth(18)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_has_a_begin_until_it_is_dead() {
        let stat = |state| {
            format!("17 (a ) b) {state} 1 17 17 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2")
        };
        assert_eq!(parse_begin(&stat("S")), Some("98765"));
        assert_eq!(parse_begin(&stat("Z")), None);
        assert_eq!(parse_begin("17 (a"), None);
        assert!(begin(std::process::id()).is_some());
    }

    #[test]
    fn process_that_is_asked_ends() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        ask_to_end(child.id()).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
