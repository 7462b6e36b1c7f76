// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Another configuration, while the daemon runs.

use std::path::PathBuf;

use ibarr_common::Instant;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::Engine;
use crate::causes::chain;
use crate::config::Config;
use crate::control::messages::{Body, Failure, FailureKind, Response};

impl Engine {
    /// All of the file takes effect, or none of it. Whoever asked hears of it when it has.
    pub(super) fn reload(&mut self, now: Instant, asked: Option<oneshot::Sender<Response>>) {
        self.systemd.reloading();
        self.is_reloading = true;
        self.access.look_again();
        let response = match self.options.load() {
            Ok((config, file)) => {
                self.reconfigure(now, config, file);
                let done = format!("configuration: {}", self.config_name());
                info!("reloaded, {done}");
                Body::Done { done }.into()
            }
            Err(error) => {
                let message = chain(&error);
                error!("not reloaded, the old configuration stays:\n{message}");
                Failure { kind: FailureKind::Config, message }.into()
            }
        };
        self.reloads.extend(asked.map(|asked| (asked, response)));
    }

    pub(super) fn end_reload(&mut self) {
        if !self.is_reloading || !self.responder.is_settled() {
            return;
        }
        self.is_reloading = false;
        for (asked, response) in self.reloads.drain(..) {
            // He may be gone.
            drop(asked.send(response));
        }
        self.systemd.ready();
    }

    fn reconfigure(&mut self, now: Instant, config: Config, file: Option<PathBuf>) {
        self.node.reconfigure(now, config.node());
        self.responder.reconfigure(now, config.responder.clone(), config.allow.clone());
        let port = |config: &Config| config.client.settings().udp_port;
        let moved = port(&config) != port(&self.config);
        self.snapshots.set_file(config.snapshot.clone());
        self.config = config;
        self.file = file;
        if moved {
            self.start_servers();
        }
        for pattern in self.node.view().unmatched_patterns() {
            warn!(%pattern, "no such interface (yet)");
        }
    }
}
