// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The life of the process: from the configuration to readiness, until a signal ends it.

mod descriptors;
mod systemd;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use getrandom::SysRng;
use ibarr_proto::node;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tracing::info;

use crate::bpf;
use crate::config::{self, Config};
use crate::control::access::{self, Access};
use crate::control::messages::FailureKind;
use crate::control::run_dir::{self, RunDir};
use crate::control::{self as control_socket, server as control};
use crate::engine::{Engine, Setup};
use crate::logging::{self, Level, Log};
use crate::sys::inherited;
use crate::transport;
use crate::transport::inherited::Inherited;
use crate::transport::ports::Dirs;

pub use self::descriptors::Budget;
pub use self::systemd::Systemd;

/// The default directory of the control socket.
pub const RUN_DIR: &str = "/run/ibarr";

/// The arguments of the daemon.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Path of the configuration file.
    pub config: PathBuf,
    /// Whether a missing file is an error; otherwise it means the defaults.
    pub must_exist: bool,
    /// Directory of the control socket.
    pub run_dir: PathBuf,
    /// Directory of the pins.
    pub bpf_dir: PathBuf,
    /// Mount points of sysfs and of device files.
    pub dirs: Dirs,
    /// BPF object to load instead of the built-in one.
    pub bpf_object: Option<PathBuf>,
    /// Filter for log lines.
    pub level: Level,
    /// Shares of the descriptor limit.
    pub descriptors: Budget,
}

impl RunOptions {
    /// Paths for the BPF responder.
    pub fn bpf(&self) -> bpf::Options {
        bpf::Options {
            dir: self.bpf_dir.clone(),
            object: self.bpf_object.clone(),
            verifier_log: self.run_dir.join("verifier.log"),
        }
    }

    /// Reads the configuration; returns it with the path of its file, if there is one.
    ///
    /// # Errors
    /// Errors of [`Config::load`].
    pub fn load(&self) -> Result<(Config, Option<PathBuf>), config::Error> {
        if !self.must_exist && !self.config.exists() {
            return Ok((Config::default(), None));
        }
        Ok((Config::load(&self.config)?, Some(self.config.clone())))
    }

    /// The cores' part of `config`, limited to what the process can do.
    pub fn node(&self, config: &Config) -> node::Config {
        let node = config.node();
        node::Config { client: node.client.with_sockets(self.descriptors.query_sockets), ..node }
    }
}

/// Why the daemon ended or could not start.
#[derive(Debug, Error)]
pub enum Error {
    /// The configuration has mistakes.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The control socket cannot be made.
    #[error(transparent)]
    Control(#[from] control::Error),
    /// The kernel refuses something that every daemon needs.
    #[error("{0}: refused by the kernel")]
    Kernel(&'static str, #[source] io::Error),
}

impl Error {
    /// Decides the exit code.
    pub fn kind(&self) -> FailureKind {
        let io = match self {
            Self::Config(_) => return FailureKind::Config,
            Self::Control(control::Error::RunDir(run_dir::Error::Taken { .. })) => {
                return FailureKind::Busy;
            }
            Self::Control(control::Error::NoSocket(_)) => return FailureKind::Internal,
            Self::Control(
                control::Error::RunDir(run_dir::Error::Io(_, source))
                | control::Error::Io { source, .. },
            )
            | Self::Kernel(_, source) => source,
        };
        match io.kind() {
            io::ErrorKind::PermissionDenied => FailureKind::Permission,
            _ => FailureKind::Internal,
        }
    }
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// Only errors of the start: once ready, the daemon continues with what works.
pub fn run(options: &RunOptions) -> Result<(), Error> {
    let inherited = inherited::take().map_err(|error| Error::Kernel("LISTEN_FDS", error))?;
    let (mut local_service, mut servers) = (None, Inherited::none());
    for (name, fd) in inherited {
        match name.as_str() {
            "ls" if local_service.is_none() => local_service = Some(fd),
            transport::inherited::NAME => servers.add(fd),
            _ => servers.refuse_name(&name),
        }
    }
    let (config, file) = options.load()?;
    let run_dir = RunDir::lock(&options.run_dir).map_err(control::Error::from)?;
    let log = logging::start(&options.level)
        .map_err(|error| Error::Kernel("a thread for logs", error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Kernel("event loop", error))?;
    let start = Start { config, file, run_dir, local_service, servers, log: log.clone() };
    let outcome = runtime.block_on(serve(options, start));
    // Threads that wait for a disk or a device do not delay the end.
    runtime.shutdown_background();
    log.finish(logging::LAST_LINES);
    outcome
}

/// What is made before the event loop.
struct Start {
    config: Config,
    file: Option<PathBuf>,
    run_dir: RunDir,
    local_service: Option<OwnedFd>,
    servers: Inherited,
    log: Log,
}

async fn serve(options: &RunOptions, start: Start) -> Result<(), Error> {
    let Start { config, file, run_dir, local_service, servers, log } = start;
    let signals = Signals::catch().map_err(|error| Error::Kernel("signal handlers", error))?;
    let rng = ChaCha12Rng::try_from_rng(&mut SysRng)
        .map_err(|error| Error::Kernel("random numbers", io::Error::other(error)))?;
    let listener = control::Listener::bind(run_dir)?;
    let (asks, asked) = mpsc::channel(transport::ASKS);
    let (systemd, told) =
        Systemd::start().map_err(|error| Error::Kernel("a thread for systemd", error))?;
    let at_end = systemd.clone();
    let access = Access::start(|| access::look_up(control_socket::GROUP))
        .map_err(|error| Error::Kernel("a thread for the user database", error))?;
    let shared = control::Control::new(access, options.descriptors.connections);
    let setup = Setup {
        options: options.clone(),
        config,
        file,
        rng,
        local_service,
        servers,
        control: shared.clone(),
        systemd,
        log,
    };
    let engine = Engine::start(setup).map_err(|error| Error::Kernel("rtnetlink", error))?;
    let control = control::start(listener, asks, shared)
        .map_err(|error| Error::Kernel("a thread for the control socket", error))?;

    info!(version = env!("CARGO_PKG_VERSION"), run_dir = %options.run_dir.display(), "starting");
    Box::pin(engine.run(asked, signals)).await;
    info!("ending");
    // The engine has dropped its end of the channel. The thread removes the socket when it ends.
    drop(control.join());
    at_end.stopping(&told);
    Ok(())
}

/// A command that an administrator sends as a signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    End,
}

/// The signals that the daemon handles.
#[derive(Debug)]
pub struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Command {
        tokio::select! {
            _ = self.hangup.recv() => Command::Reload,
            _ = self.terminate.recv() => Command::End,
            _ = self.interrupt.recv() => Command::End,
        }
    }
}
