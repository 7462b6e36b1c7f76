// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! node_exporter on a node. Its textfile collector reads the metrics by a link, as docs/metrics.md says, and a thread
//! writes them, as ibarr-metrics.timer does.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use super::process::Process;
use crate::lab::{Lab, Node};
use crate::start::program;

pub(super) struct Collector {
    _node_exporter: Process,
    is_over: Arc<AtomicBool>,
    is_paused: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

/// The port of node_exporter.
pub(super) const PORT: u16 = 9100;

/// The time between two files.
const PACE: Duration = Duration::from_secs(1);

impl Collector {
    pub(super) fn start(lab: &Lab, node: &Node, ibarr: &Path) -> Result<Self> {
        let run_dir = lab.files(node).run_dir();
        let (file, directory) = (run_dir.join("ibarr.prom"), run_dir.join("textfile"));
        fs::create_dir(&directory)?;
        symlink(&file, directory.join("ibarr.prom"))?;
        let mut command = program(ibarr);
        command.args(["metrics", "--daemon-timeout", "500ms", "--output"]).arg(&file);
        command.arg("--run-dir").arg(&run_dir).stdin(Stdio::null()).stderr(Stdio::null());
        // Without the daemon it fails, and writes the file.
        command.status().with_context(|| format!("{} cannot be started", ibarr.display()))?;
        let (is_over, is_paused) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (over, paused) = (Arc::clone(&is_over), Arc::clone(&is_paused));
        let writer = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if !paused.load(Ordering::Relaxed) {
                    let _ = command.status();
                }
                thread::park_timeout(PACE);
            }
        });
        let mut command = program("prometheus-node-exporter");
        command.args(["--collector.disable-defaults", "--collector.textfile"]);
        command.arg(format!("--collector.textfile.directory={}", directory.display()));
        command.arg(format!("--web.listen-address=:{PORT}"));
        let log = run_dir.join("node_exporter.log");
        let node_exporter = Process::start(&node.namespace, command, &log)?;
        Ok(Self { _node_exporter: node_exporter, is_over, is_paused, writer: Some(writer) })
    }

    /// Whether the file grows old.
    pub(super) fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            writer.thread().unpark();
            // A thread that has panicked writes no more.
            drop(writer.join());
        }
    }
}
