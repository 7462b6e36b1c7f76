// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the machine sees of the daemon: its control socket, systemd's messages, log and metrics.

use ibarr_common::Instant;

use crate::control::server::Control;
use crate::logging::{Levels, Log};
use crate::metrics::Snapshot;
use crate::metrics::server::Server;
use crate::process::Systemd;
use crate::transport::Counter;

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) started: Instant,
    /// The host name at the start, for people.
    pub(crate) node: Option<String>,
    /// Set by a signal.
    pub(crate) ends_at: Option<Instant>,
    pub(crate) control: Control,
    pub(crate) systemd: Systemd,
    pub(crate) log: Log,
    pub(crate) levels: Levels,
    pub(crate) metrics: Server,
    /// The last values, so that no user makes the engine collect them again and again.
    pub(crate) last_metrics: Option<(Instant, Snapshot)>,
}

impl Service {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let due = [self.ends_at, self.systemd.poll_timeout(), self.levels.poll_timeout()];
        due.into_iter().flatten().min()
    }

    pub(super) fn connections_refused(&self) -> u64 {
        self.sum(&[
            Counter::ControlUserFull,
            Counter::ControlAllFull,
            Counter::ControlGaveWay,
            Counter::ControlNoDescriptor,
        ])
    }

    pub(super) fn sum(&self, counters: &[Counter]) -> u64 {
        counters.iter().map(|&counter| self.control.counters.get(counter)).sum()
    }
}
