// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the process is given from outside: its arguments, its descriptors, signals, and systemd.

mod descriptors;
mod signals;
mod systemd;
mod watchdog;

use std::path::PathBuf;

use ibarr_proto::node;

use crate::bpf;
use crate::config::{self, Absent, Config};
use crate::logging::{self, Level};
use crate::transport::ports::Dirs;

pub(crate) use self::descriptors::Budget;
pub use self::signals::hold_hangups;
pub(crate) use self::signals::{Command, Signals, release_hangups};
pub(crate) use self::systemd::{Systemd, Until, report_failure};

/// The arguments of the daemon.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Path of the configuration file.
    pub config: PathBuf,
    /// Whether a missing file is an error; otherwise it means the defaults.
    pub absent: Absent,
    /// Whether it answers the kernel's requests.
    pub local_service: bool,
    /// Directory of the control socket.
    pub run_dir: PathBuf,
    /// Directory of the pins.
    pub bpf_dir: PathBuf,
    /// Mount points of sysfs and of device files.
    pub dirs: Dirs,
    /// BPF object to load instead of the built-in one.
    pub bpf_object: Option<PathBuf>,
    /// Filter for log lines; without it that of the configuration.
    pub level: Option<Level>,
    /// Where the log goes.
    pub log_to: logging::Sink,
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

    /// Reads the configuration.
    ///
    /// # Errors
    /// Errors of [`config::gather`] and [`Config::read`].
    pub(crate) fn load(&self) -> Result<Config, config::Error> {
        Config::read(&config::gather(&self.config, self.absent)?)
    }

    /// The cores' part of `config`, limited to what the process can do.
    pub fn node(&self, config: &Config) -> node::Config {
        let mut node = config.node();
        node.client = node.client.with_sockets(self.descriptors.query_sockets);
        node.acm = node.acm.with_clients(self.descriptors.acm_clients);
        node
    }
}
