// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The daemon of a node: its files, its start, its end.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;

use super::netns;
use super::plan::{Node, NodeName};
use crate::interrupt::Interrupt;
use crate::start::program;
use crate::umad;

/// The files of a node's daemon.
#[derive(Clone, Debug)]
pub struct Files(PathBuf);

impl Files {
    /// The files of `node` below the directory of the lab.
    pub fn of(lab: &Path, node: NodeName) -> Self {
        Self(lab.join(node.to_string()))
    }

    /// Path of the configuration file.
    pub fn config(&self) -> PathBuf {
        self.0.join("ibarr.toml")
    }

    /// Its `--run-dir`.
    pub fn run_dir(&self) -> PathBuf {
        self.0.join("run")
    }

    /// The directory of its InfiniBand ports. It has none until a test makes one, and never those of the
    /// machine.
    pub fn infiniband(&self) -> umad::Directory {
        umad::Directory::new(&self.0)
    }

    /// Path of the log.
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// Makes the directories and writes the configuration.
    ///
    /// # Errors
    /// The file system refuses, or a path is too long for a socket.
    pub fn create(&self, node: &Node) -> Result<()> {
        let longest = self.run_dir().join("control.sock");
        ensure!(
            longest.as_os_str().len() <= SOCKET_PATH_MAX,
            "{} is too long for a socket: choose a shorter --state-dir",
            longest.display()
        );
        fs::create_dir_all(self.run_dir())
            .with_context(|| format!("cannot make {}", self.run_dir().display()))?;
        let config = toml::to_string(&Config {
            static_gid: node.addresses.map(|ip| StaticGid { ip, gid: &node.gid }),
        })
        .context("cannot write TOML")?;
        fs::write(self.config(), config)
            .with_context(|| format!("cannot write {}", self.config().display()))
    }

    /// The end of the log, for a message.
    pub fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        match lines.get(lines.len().saturating_sub(20)..) {
            None | Some([]) => "its log is empty".to_owned(),
            Some(tail) => format!("the end of its log:\n  {}", tail.join("\n  ")),
        }
    }
}

/// A daemon that may not be ready yet.
#[derive(Debug)]
pub(super) struct Starting {
    node: NodeName,
    child: Child,
    files: Files,
    notify: UnixDatagram,
    since: Instant,
}

impl Starting {
    /// Starts the daemon of `node`. It inherits `local_service` as `FDNAME=ls`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn spawn(
        node: &Node,
        files: Files,
        ibarr: &Path,
        bpf: &Path,
        local_service: Option<OwnedFd>,
    ) -> Result<Self> {
        let socket = files.0.join("notify.sock");
        // The daemon before this one left the socket.
        let _ = fs::remove_file(&socket);
        let notify = UnixDatagram::bind(&socket)
            .with_context(|| format!("cannot make {}", socket.display()))?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(files.log())
            .with_context(|| format!("cannot make {}", files.log().display()))?;
        let mut command = program(if local_service.is_some() { "sh".as_ref() } else { ibarr });
        if local_service.is_some() {
            command.args(["-ec", INHERIT, "sh"]).arg(ibarr);
        }
        command.arg("run").arg("--config").arg(files.config());
        command.arg("--run-dir").arg(files.run_dir());
        command.arg("--bpf-dir").arg(bpf.join(node.name.to_string()));
        let infiniband = files.infiniband();
        command.arg("--sys-dir").arg(infiniband.sys()).arg("--dev-dir").arg(infiniband.dev());
        command
            .env("NOTIFY_SOCKET", &socket)
            .current_dir(&files.0)
            .stdin(local_service.map_or_else(Stdio::null, Stdio::from))
            .stdout(log.try_clone().context("cannot share a log")?)
            .stderr(log);
        let since = Instant::now();
        let child = netns::spawn(&node.namespace, &mut command)?;
        Ok(Self { node: node.name, child, files, notify, since })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the daemon says READY=1, and returns how long that took from its start.
    ///
    /// # Errors
    /// The daemon ends, or is silent until `deadline`, or we are interrupted. The error has the daemon's log.
    pub(super) fn wait_ready(
        mut self,
        deadline: Instant,
        interrupt: &Interrupt,
    ) -> Result<(Child, Duration)> {
        let node = self.node;
        self.notify.set_nonblocking(true).context("cannot set up a socket")?;
        let mut message = [0; 4096];
        loop {
            match self.notify.recv(&mut message) {
                Ok(len) => {
                    let said = message.get(..len).unwrap_or_default();
                    if said.split(|&byte| byte == b'\n').any(|line| line == b"READY=1") {
                        return Ok((self.child, self.since.elapsed()));
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot read a notify socket"),
            }
            if let Some(status) = self.child.try_wait().context("cannot wait for a daemon")? {
                bail!("{node}: ibarr ended at once ({status}); {}", self.files.log_tail());
            }
            let failed = if Instant::now() >= deadline {
                anyhow!("{node}: ibarr was not ready in time")
            } else {
                match interrupt.wait_readable(self.notify.as_fd(), LOOK_EVERY) {
                    Ok(()) => continue,
                    Err(error) => error,
                }
            };
            let log = self.files.log_tail();
            // The caller removes the lab; this child must not stay a zombie.
            let _ = self.child.kill();
            let _ = self.child.wait();
            return Err(failed.context(log));
        }
    }
}

/// Moves the socket from standard input to the first descriptor after the standard ones, and sets
/// LISTEN_PID to the process's own number (sd_listen_fds(3)).
const INHERIT: &str = "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=ls
exec 3<&0 \"$@\" </dev/null";

/// How often to check that a silent daemon still runs.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Length of `sun_path` without its final zero.
const SOCKET_PATH_MAX: usize = 107;

/// The configuration keys that a lab sets.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Config<'a> {
    static_gid: [StaticGid<'a>; 2],
}

#[derive(Serialize)]
struct StaticGid<'a> {
    ip: IpAddr,
    gid: &'a str,
}
