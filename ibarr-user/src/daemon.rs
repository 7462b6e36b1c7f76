// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The life of the process: from the configuration to readiness, until a signal ends it.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;

use getrandom::SysRng;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;
use thiserror::Error;
use tokio::sync::mpsc;
use tracing::info;

use crate::causes::{Fault, fault};
use crate::config::{self, Config};
use crate::control::access::{self, Access};
use crate::control::messages::FailureKind;
use crate::control::run_dir::{self, RunDir};
use crate::control::{self as control_socket, server as control};
use crate::engine::{Engine, Inherited, Service, Setup};
use crate::logging::{self, Levels, Log, ids};
use crate::metrics::server::Server;
use crate::process::{RunOptions, Signals, Systemd};
use crate::regular_file;
use crate::sys::clock;
use crate::sys::inherited;
use crate::transport;
use crate::transport::socket_file;

/// Why the daemon ended or could not start.
#[derive(Debug, Error)]
pub(crate) enum Error {
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
    pub(crate) fn kind(&self) -> FailureKind {
        let io = match self {
            Self::Config(_) => return FailureKind::Config,
            Self::Control(control::Error::RunDir(run_dir::Error::Taken { .. })) => {
                return FailureKind::Busy;
            }
            Self::Control(
                control::Error::RunDir(run_dir::Error::Io(_, source))
                | control::Error::Socket(socket_file::Error::Io(_, source)),
            )
            | Self::Kernel(_, source) => source,
            Self::Control(_) => return FailureKind::Internal,
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
pub(crate) fn run(options: &RunOptions) -> Result<(), Error> {
    let inherited = take_inherited();
    let config = options.load()?;
    let run_dir = RunDir::lock(&options.run_dir).map_err(control::Error::from)?;
    let (log, levels) =
        logging::start(options.level.clone(), config.log_level.clone(), options.log_to)
            .map_err(|error| Error::Kernel("a place and a thread for the log", error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Kernel("event loop", error))?;
    let serving = serve(options.clone(), config, inherited, run_dir, log.clone(), levels);
    // As a task: before it polls the future of `block_on` again, the runtime looks for other events,
    // which would be a system call for each batch of peers' queries.
    let outcome = runtime
        .block_on(runtime.spawn(serving))
        .map_err(|error| Error::Kernel("event loop", error.into()))
        .flatten();
    // Threads that wait for a disk or a device do not delay the end.
    runtime.shutdown_background();
    log.finish(logging::LAST_LINES);
    outcome
}

fn host_name() -> Option<String> {
    let name = regular_file::text(Path::new("/proc/sys/kernel/hostname"))?;
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// The sockets that systemd has passed.
fn take_inherited() -> Inherited {
    let (inherited, wrong) = inherited::take();
    let mut servers = transport::inherited::Inherited::none();
    servers.refused.extend(wrong.into_iter().map(Fault::new));
    let (mut local_service, mut acm) = (None, transport::acm::Inherited::default());
    for (name, fd) in inherited {
        let number = fd.as_raw_fd();
        let used = match name.as_str() {
            transport::local_service::NAME if local_service.is_none() => {
                local_service = Some(fd);
                Ok(())
            }
            transport::local_service::NAME => Err(fault!("there is another one")),
            transport::inherited::NAME => servers.add(fd),
            _ => acm.add(&name, fd),
        };
        if let Err(reason) = used {
            servers.refuse(number, &name, &reason);
        }
    }
    Inherited { local_service, acm, servers }
}

async fn serve(
    options: RunOptions,
    config: Config,
    inherited: Inherited,
    run_dir: RunDir,
    log: Log,
    levels: Levels,
) -> Result<(), Error> {
    let signals = Signals::catch().map_err(|error| Error::Kernel("signal handlers", error))?;
    let rng = ChaCha12Rng::try_from_rng(&mut SysRng)
        .map_err(|error| Error::Kernel("random numbers", io::Error::other(error)))?;
    let listener = control::Listener::bind(run_dir)?;
    let (asks, asked) = mpsc::channel(transport::ASKS);
    let (systemd, told) = Systemd::start(clock::now())
        .map_err(|error| Error::Kernel("a thread for systemd", error))?;
    let at_end = systemd.clone();
    let access = Access::start(|| access::find_group(control_socket::GROUP))
        .map_err(|error| Error::Kernel("a thread for the user database", error))?;
    let shared = control::Control::new(access, options.descriptors.connections);
    let counters = Arc::clone(&shared.counters);
    let (metrics, scraped) = Server::start(config.metrics.clone(), asks.clone(), counters)
        .map_err(|error| Error::Kernel("a thread for the metrics", error))?;
    info!(version = env!("CARGO_PKG_VERSION"), run_dir = %options.run_dir.display(), "starting");
    let setup = Setup {
        options,
        config,
        rng,
        inherited,
        resolve: transport::names::resolve,
        service: Service {
            started: clock::now(),
            node: host_name(),
            ends_at: None,
            control: shared.clone(),
            systemd,
            log,
            levels,
            metrics,
            last_metrics: None,
        },
    };
    let engine = Engine::start(setup).map_err(|error| Error::Kernel("rtnetlink", error))?;
    let control = control::start(listener, asks, shared)
        .map_err(|error| Error::Kernel("a thread for the control socket", error))?;

    Box::pin(engine.run(asked, signals)).await;
    info!(message_id = ids::ENDING, "ending");
    // The engine has dropped its end of the channel. The threads remove their sockets when they end.
    for thread in [control, scraped] {
        drop(thread.join());
    }
    at_end.stopping(&told);
    Ok(())
}
