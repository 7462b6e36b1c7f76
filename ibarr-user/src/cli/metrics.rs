// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr metrics` and `ibarr exporter`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Daemon, Exit, ask, import, patience};
use crate::control::messages::{Body, MetricsForm, Request};
use crate::metrics::exporter::{self, export};
use crate::units::RUN_DIR;
use crate::whole_file;

#[derive(Args, Debug)]
pub(super) struct MetricsArgs {
    /// As OpenMetrics, not as Prometheus' text
    #[arg(long)]
    openmetrics: bool,
    /// Replace this file by them as a whole. If the daemon does not answer, the file says that
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Args, Debug)]
pub(super) struct ExporterArgs {
    /// Where to serve them, at /metrics; 0.0.0.0:9792 is every IPv4 address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9792")]
    listen: SocketAddr,
    /// Directory of the daemon's control socket
    #[arg(long, value_name = "DIR", env = "IBARR_RUN_DIR", default_value = RUN_DIR)]
    run_dir: PathBuf,
    /// How long to wait for the daemon to answer, less than the scraper waits
    #[arg(long = "daemon-timeout", value_name = "TIME", default_value = "5s", value_parser = patience)]
    patience: Duration,
}

/// Prints the metrics, or puts them into a file for a collector of text files.
pub(super) fn metrics(args: &MetricsArgs) -> Exit {
    let MetricsArgs { openmetrics, output, daemon } = args;
    let form = if *openmetrics { MetricsForm::OpenMetrics } else { MetricsForm::Prometheus };
    let Some(file) = output else { return ask::ask(daemon, &Request::Metrics { form }) };
    let asked = exporter::Daemon { run_dir: daemon.run_dir.clone(), patience: daemon.patience() };
    let (metrics, failure) = asked.metrics(form);
    if let Err(error) = whole_file::replace(file, metrics.as_bytes()) {
        return ask::fail(import::not_written(file, &error), daemon.json);
    }
    match failure {
        Some(failure) => ask::fail(failure, daemon.json),
        None if daemon.json => ask::show(Body::Done { done: file.display().to_string() }, true),
        None => Exit::Ok,
    }
}

/// Serves the metrics over HTTP, until a signal ends it.
pub(super) fn serve(args: ExporterArgs) -> Exit {
    let ExporterArgs { listen, run_dir, patience } = args;
    match export(listen, exporter::Daemon { run_dir, patience }) {
        Ok(()) => Exit::Ok,
        Err(failure) => ask::fail(failure, false),
    }
}
