// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Serves the metrics to other machines, in a process that has no right but to connect to the control socket. What
//! parses the network's bytes is not the daemon.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::mpsc;

use super::Snapshot;
use super::server::{Error, serve_at};
use crate::causes::Fault;
use crate::control::client;
use crate::control::messages::{Body, Failure, FailureKind, MetricsForm, Request};
use crate::control::server::Ask;

/// Where the daemon is, and how long it is waited for.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub run_dir: PathBuf,
    pub patience: Duration,
}

impl Daemon {
    /// The metrics. If the daemon does not answer, they say that, and why is returned, too.
    pub(crate) fn metrics(&self, form: MetricsForm) -> (String, Option<Failure>) {
        let of_no_daemon = |failure| (Snapshot::of_no_daemon().text(form), Some(failure));
        match client::ask(&self.run_dir, &Request::Metrics { form }, self.patience) {
            Ok(Body::Metrics { metrics }) => (metrics, None),
            Ok(_) => of_no_daemon(Failure {
                kind: FailureKind::Internal,
                message: "the daemon speaks another version".to_owned(),
            }),
            Err(failure) => of_no_daemon(failure),
        }
    }

    /// Answers the server's questions, each after the one before.
    fn answer(&self, mut asked: mpsc::Receiver<Ask>) {
        while let Some(ask) = asked.blocking_recv() {
            let Request::Metrics { form } = ask.request else { continue };
            let (metrics, _) = self.metrics(form);
            // The client may have gone.
            drop(ask.answer.send(Body::Metrics { metrics }.into()));
        }
    }
}

/// Serves the metrics of the daemon at `address` until a signal ends the process.
///
/// # Errors
/// Why it cannot begin.
pub(crate) fn export(address: SocketAddr, daemon: Daemon) -> Result<(), Failure> {
    let internal = |error: io::Error| {
        let message = format!("the exporter cannot be started: {error}");
        Failure { kind: FailureKind::Internal, message }
    };
    // The server asks once at a time.
    let (asks, asked) = mpsc::channel(1);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(internal)?;
    thread::Builder::new().spawn(move || daemon.answer(asked)).map_err(internal)?;
    // systemd may not be there.
    let ready = || drop(sd_notify::notify(&[NotifyState::Ready]));
    runtime.block_on(serve_at(address, asks, ready)).map_err(|error| not_served(&error))
}

fn not_served(error: &Error) -> Failure {
    let kind = match error {
        Error::Tcp(_, error) => error.kind(),
        Error::Unix(_) => ErrorKind::Other,
    };
    let (kind, remedy) = match kind {
        ErrorKind::AddrInUse => {
            (FailureKind::Busy, "; stop the program that has it, or --listen elsewhere")
        }
        ErrorKind::AddrNotAvailable => {
            (FailureKind::Absent, "; --listen to an address of this machine")
        }
        ErrorKind::PermissionDenied => (FailureKind::Permission, "; --listen to a port above 1023"),
        _ => (FailureKind::Internal, ""),
    };
    Failure { kind, message: format!("the metrics are not served: {}{remedy}", Fault::from(error)) }
}
