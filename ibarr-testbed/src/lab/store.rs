// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The directory of a lab: its state file, and all files of its nodes.

use std::env;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::plan::{LabName, NodeName, Plan};

/// The state of a lab. It is written before the first thing in it is made, so that it lists everything
/// after a crash at any point.
#[derive(Debug, Deserialize, Serialize)]
pub struct State {
    /// Version of this document.
    v: Version,
    /// Whether `up` has finished.
    pub phase: Phase,
    /// The process that made it: `lab up`, or a demonstration that still runs.
    pub maker: Option<Process>,
    /// Whether the namespaces are inside a user namespace and end with its last process.
    pub user_namespace: bool,
    /// Path of the daemon's program.
    pub ibarr: PathBuf,
    /// The parts of the lab.
    pub plan: Plan,
    /// The daemon of each node that was started.
    pub daemons: Vec<Daemon>,
}

impl State {
    /// The state of a lab that is not made yet.
    pub fn new(plan: Plan, ibarr: PathBuf, user_namespace: bool) -> Self {
        Self {
            v: Version,
            phase: Phase::Building,
            maker: Process::of(std::process::id()),
            user_namespace,
            ibarr,
            plan,
            daemons: Vec::new(),
        }
    }
}

/// Whether `up` has finished.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// `up` still runs, or has crashed.
    Building,
    /// `up` has finished: all daemons were ready.
    Up,
}

/// The daemon of a node.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Daemon {
    /// The name of the node.
    pub node: NodeName,
    /// The process of the daemon.
    #[serde(flatten)]
    pub process: Process,
}

/// A process, identified also after its id is used again.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Process {
    pub pid: u32,
    /// Its start in clock ticks since boot, which a later process with the same id does not have.
    pub start_time: u64,
}

impl Process {
    /// The process with this id. `None` if it has ended.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start_time: start_time(pid)? })
    }

    /// Whether the process still runs.
    pub fn is_running(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

/// The directory that holds a directory for each lab.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

impl Store {
    /// The store at `path`, which need not exist.
    ///
    /// # Errors
    /// `path` is relative and the working directory is gone.
    pub fn at(path: &Path) -> Result<Self> {
        Ok(Self(std::path::absolute(path).context("cannot find the state directory")?))
    }

    /// The store of the caller's labs: /run/ibarr-lab for root, otherwise below `$XDG_RUNTIME_DIR` or
    /// `$TMPDIR`.
    pub fn of_caller() -> Self {
        if geteuid().is_root() {
            return Self("/run/ibarr-lab".into());
        }
        if let Some(runtime) = env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
            return Self(PathBuf::from(runtime).join("ibarr-lab"));
        }
        Self(env::temp_dir().join(format!("ibarr-lab-{}", geteuid())))
    }

    /// Makes the directory of a new lab.
    ///
    /// # Errors
    /// There is a lab of this name.
    pub fn create(&self, name: &LabName) -> Result<Directory> {
        fs::create_dir_all(&self.0).with_context(|| format!("cannot make {}", self.0.display()))?;
        let path = self.0.join(name);
        match fs::create_dir(&path) {
            Ok(()) => Directory::lock(name, path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let state = Directory::read_state(&path);
                if matches!(state, Ok(Some(State { phase: Phase::Up, .. }))) {
                    bail!("lab {name} is up already: take it down, or give another --name")
                }
                bail!(
                    "lab {name} is half made: `lab down --name {name}` removes what is left of it"
                )
            }
            Err(error) => Err(error).with_context(|| format!("cannot make {}", path.display())),
        }
    }

    /// The directory of a lab, locked for a change. `None` if there is no such lab.
    ///
    /// # Errors
    /// Another process has locked it.
    pub fn open(&self, name: &LabName) -> Result<Option<Directory>> {
        let path = self.0.join(name);
        if !path.exists() {
            return Ok(None);
        }
        Directory::lock(name, path).map(Some)
    }

    /// The directory and state of a lab, without a lock.
    ///
    /// # Errors
    /// There is no such lab. The message lists the others.
    pub fn read(&self, name: &LabName) -> Result<(PathBuf, State)> {
        let path = self.0.join(name);
        if let Some(state) = Directory::read_state(&path)? {
            return Ok((path, state));
        }
        let names: Vec<_> = self.names()?.iter().map(ToString::to_string).collect();
        let others = match names.as_slice() {
            [] => "none is up".to_owned(),
            names => format!("there is {}", names.join(", ")),
        };
        bail!("no lab {name} under {}: {others}", self.0.display())
    }

    /// The names of all labs.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn names(&self) -> Result<Vec<LabName>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("cannot list {}", self.0.display()))?,
        };
        let mut names: Vec<LabName> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        names.sort();
        Ok(names)
    }
}

/// A lab's directory, locked.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Locked until this is dropped or the process ends in any way.
    lock: Flock<File>,
}

impl Directory {
    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Another descriptor of its lock.
    ///
    /// # Errors
    /// Too many open files.
    pub fn lock_file(&self) -> Result<File> {
        self.lock.try_clone().context("cannot share a lock")
    }

    /// The state of the lab. `None` if `up` ended before it made anything.
    ///
    /// # Errors
    /// The state file is not one of ours.
    pub fn state(&self) -> Result<Option<State>> {
        Self::read_state(&self.path)
    }

    /// Replaces the state file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, state: &State) -> Result<()> {
        let (path, new) = (self.path.join(STATE_FILE), self.path.join("lab.json.new"));
        let json = serde_json::to_vec_pretty(state).context("cannot write JSON")?;
        fs::write(&new, json)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the directory with everything in it, and the store if this was its last lab.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))?;
        // The kernel refuses while another lab is in it.
        let _ = self.path.parent().map(fs::remove_dir);
        Ok(())
    }

    fn lock(name: &LabName, path: PathBuf) -> Result<Self> {
        let mut file =
            File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let patience = Instant::now() + LOCK_WITHIN;
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Self { path, lock }),
                Err((file, _)) => file,
            };
            let maker = Self::read_state(&path)?.and_then(|state| state.maker);
            let maker = maker.filter(|maker| maker.is_running() && maker.pid != std::process::id());
            if let Some(Process { pid, .. }) = maker {
                bail!("process {pid} uses lab {name}: end it first (Ctrl-C there)");
            }
            ensure!(Instant::now() < patience, "another process uses lab {name}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn read_state(directory: &Path) -> Result<Option<State>> {
        let path = directory.join(STATE_FILE);
        let json = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            json => json.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let state = serde_json::from_slice(&json)
            .with_context(|| format!("{} is not of this ibarr-testbed", path.display()))?;
        Ok(Some(state))
    }
}

const STATE_FILE: &str = "lab.json";

/// Longer than the last child of a crashed `up` runs, also on a very busy machine.
const LOCK_WITHIN: Duration = Duration::from_secs(10);

/// The only version of the state file so far.
#[derive(Debug, Deserialize, Serialize)]
#[serde(try_from = "u32", into = "u32")]
struct Version;

// serde's `into` needs Clone.
impl Clone for Version {
    fn clone(&self) -> Self {
        Self
    }
}

impl TryFrom<u32> for Version {
    type Error = anyhow::Error;

    fn try_from(version: u32) -> Result<Self> {
        ensure!(
            version == 1,
            "the state file has version {version}, but this program knows version 1"
        );
        Ok(Self)
    }
}

impl From<Version> for u32 {
    fn from(_: Version) -> Self {
        1
    }
}

/// Field 22 of /proc/PID/stat. `None` for a process that has ended or is a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any character.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}
