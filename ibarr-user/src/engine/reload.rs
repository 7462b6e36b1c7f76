// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Changes the configuration while the daemon runs.

use std::thread;

use ibarr_common::Instant;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use super::{Engine, summary};
use crate::causes::Fault;
use crate::config::{self, Config};
use crate::control::messages::{Body, Failure, FailureKind, Response};
use crate::logging::ids;
use crate::process::RunOptions;

/// Requested reloads. A thread reads the file, because a disk may hang; one reading serves all
/// requests that came before it began.
pub(super) struct Reloads {
    loaded: mpsc::Sender<Result<Config, config::Error>>,
    /// Requests for a reading that has not begun yet.
    asked: Vec<oneshot::Sender<Response>>,
    is_wanted: bool,
    /// Start of the running reading, and the requests that it serves.
    pub(super) reading: Option<(Instant, Vec<oneshot::Sender<Response>>)>,
    /// A new configuration was read and has not taken effect everywhere yet.
    is_settling: bool,
    /// Pending requests, each with the response it will get then.
    told: Vec<(oneshot::Sender<Response>, Response)>,
    /// The last reload that took effect.
    pub(super) succeeded: Option<Instant>,
    /// Set by a failed reload, cleared by a successful one.
    pub(super) failed: Option<FailedReload>,
}

/// The command line, the contents of the configuration files, and their reloads.
pub(super) struct Settings {
    pub(super) options: RunOptions,
    pub(super) config: Config,
    pub(super) reloads: Reloads,
}

/// The time of the failure, and the mistakes.
pub(super) struct FailedReload {
    pub(super) at: Instant,
    pub(super) message: String,
}

impl Reloads {
    pub(super) fn new(loaded: mpsc::Sender<Result<Config, config::Error>>) -> Self {
        Self {
            loaded,
            asked: Vec::new(),
            is_wanted: false,
            reading: None,
            is_settling: false,
            told: Vec::new(),
            succeeded: None,
            failed: None,
        }
    }

    fn read(&mut self, now: Instant, options: &RunOptions) {
        if !self.is_wanted || self.reading.is_some() {
            return;
        }
        self.is_wanted = false;
        self.reading = Some((now, std::mem::take(&mut self.asked)));
        let (options, loaded) = (options.clone(), self.loaded.clone());
        let read = move || drop(loaded.blocking_send(options.load()));
        if let Err(error) = thread::Builder::new().name("configuration".to_owned()).spawn(read) {
            let failure = Failure {
                kind: FailureKind::Internal,
                message: format!("cannot start a thread to read the configuration: {error}"),
            };
            self.note_read(&failure.into());
        }
    }

    fn note_read(&mut self, response: &Response) {
        let (_, asked) = self.reading.take().unwrap_or((Instant::BOOT, Vec::new()));
        self.told.extend(asked.into_iter().map(|asked| (asked, response.clone())));
        self.is_settling = true;
    }
}

impl Settings {
    /// The names of the files.
    pub(super) fn name(&self) -> String {
        if self.config.files.is_empty() {
            return format!("defaults ({} is not there)", self.options.config.display());
        }
        self.config.files.join(", ")
    }
}

impl Engine {
    /// Applies all of the file, or none of it. `asked` gets its response when it has taken effect.
    pub(super) fn reload(&mut self, now: Instant, asked: Option<oneshot::Sender<Response>>) {
        self.service.systemd.reloading();
        self.service.control.access.look_again();
        self.settings.reloads.asked.extend(asked);
        self.settings.reloads.is_wanted = true;
        self.settings.reloads.read(now, &self.settings.options);
    }

    pub(super) fn handle_loaded(&mut self, now: Instant, loaded: Result<Config, config::Error>) {
        let response = match loaded {
            Ok(config) => {
                self.reconfigure(now, config);
                (self.settings.reloads.succeeded, self.settings.reloads.failed) = (Some(now), None);
                let mut done = format!("configuration: {}", self.settings.name());
                info!(message_id = ids::RELOADED, "reloaded, {done}");
                for warning in self.settings.config.warnings() {
                    warn!("{warning}");
                    done = format!("{done}\nwarning: {warning}");
                }
                Body::Done { done }.into()
            }
            Err(error) => {
                let message = Fault::from(error).to_string();
                error!(
                    message_id = ids::RELOAD_REFUSED,
                    cause = message,
                    "not reloaded; the old configuration stays in force:\n{message}"
                );
                self.settings.reloads.failed =
                    Some(FailedReload { at: now, message: message.clone() });
                Failure { kind: FailureKind::Config, message }.into()
            }
        };
        self.settings.reloads.note_read(&response);
        self.settings.reloads.read(now, &self.settings.options);
    }

    pub(super) fn end_reload(&mut self, now: Instant) {
        let Reloads { is_settling, reading, .. } = &self.settings.reloads;
        let has_settled = self.are_programs_settled() && self.acm.sockets.is_settled();
        if !is_settling || reading.is_some() || !has_settled {
            return;
        }
        self.settings.reloads.is_settling = false;
        for (asked, response) in self.settings.reloads.told.drain(..) {
            // The connection may be closed.
            drop(asked.send(response));
        }
        self.service.systemd.ready(summary::of(&self.status(now)));
    }

    fn reconfigure(&mut self, now: Instant, config: Config) {
        self.node.reconfigure(now, self.settings.options.node(&config));
        self.rdma.umads.with_tables(config.paths.has_spread());
        self.snapshots.set_file(now, config.snapshot.clone());
        self.service.levels.configure(config.log_level.clone());
        self.settings.config = config;
        self.acm.sockets.serve(&self.settings.config.acm);
        self.acm.preloads.configure(&self.settings.config.acm);
        self.acm.preloads.start(now, &self.settings.config.paths, &mut self.node);
        self.service.metrics.listen(self.settings.config.metrics.clone());
        self.servers.move_to(self.settings.config.client.settings().udp_port);
        for pattern in self.node.view().unmatched_patterns() {
            warn!(%pattern, "no such interface (yet)");
        }
    }
}
