// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! GIDs and paths of the administrator's files, read at the start and at each reload.

use std::collections::BTreeSet;
use std::path::PathBuf;

use ibarr_common::Instant;
use ibarr_proto::acm::Hosts;
use ibarr_proto::node::Node;
use ibarr_proto::paths::{self, PortName};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::causes::{Fault, fault};
use crate::config;
use crate::preload::{self, Loaded, Order, Report, Selection};

/// What is to be read, and what was wrong. One thread reads at a time.
pub(super) struct Preloads {
    loaded: mpsc::Sender<Loaded>,
    hosts: Option<PathBuf>,
    routes: Option<PathBuf>,
    are_hosts_due: bool,
    /// The ports whose paths were asked for.
    done: BTreeSet<PortName>,
    /// Since when the thread reads.
    pub(super) reading: Option<Instant>,
    /// What is wrong with the files.
    of_hosts: Vec<Fault>,
    of_routes: Vec<Fault>,
}

impl Preloads {
    pub(super) fn new(loaded: mpsc::Sender<Loaded>) -> Self {
        Self {
            loaded,
            hosts: None,
            routes: None,
            are_hosts_due: false,
            done: BTreeSet::new(),
            reading: None,
            of_hosts: Vec::new(),
            of_routes: Vec::new(),
        }
    }

    /// Reads what the configuration names, even if it was read before.
    pub(super) fn configure(&mut self, wanted: &config::Acm) {
        (self.hosts, self.routes) = (wanted.hosts.clone(), wanted.routes.clone());
        self.are_hosts_due = true;
        self.done.clear();
        self.of_routes.clear();
    }

    /// What is wrong with the files, one line for each.
    pub(super) fn warnings(&self) -> impl Iterator<Item = Fault> {
        let first = |problems: &[Fault]| {
            let (first, rest) = problems.split_first()?;
            let more = if rest.is_empty() { "" } else { "; the log has the others" };
            Some(fault!("acm: {first}{more}"))
        };
        [first(&self.of_hosts), first(&self.of_routes)].into_iter().flatten()
    }

    /// Begins to read what is due. A file of paths is read when the port is known that they start from.
    pub(super) fn start(&mut self, now: Instant, paths: &paths::Config, node: &mut Node) {
        if self.reading.is_some() {
            return;
        }
        let mut order = Order { hosts: None, routes: None };
        if std::mem::take(&mut self.are_hosts_due) {
            order.hosts.clone_from(&self.hosts);
            if order.hosts.is_none() {
                node.set_acm_hosts(Hosts::default());
                self.of_hosts.clear();
            }
        }
        if let Some(path) = &self.routes {
            let mut ports = node.paths().walk(now).ports();
            ports.retain(|port| self.done.insert(port.name));
            let paths::Config { max_cached: most, ttl: life, .. } = *paths;
            if !ports.is_empty() {
                order.routes = Some((path.clone(), Selection { ports, most, life }));
            }
        }
        if order.hosts.is_none() && order.routes.is_none() {
            return;
        }
        self.reading = Some(now);
        if let Err(error) = preload::start(order, self.loaded.clone()) {
            self.reading = None;
            warn!(%error, "cannot start a thread to preload addresses and paths");
        }
    }

    pub(super) fn handle(&mut self, now: Instant, loaded: Loaded, node: &mut Node) {
        self.reading = None;
        let Loaded { hosts, routes } = loaded;
        if let Some(hosts) = hosts {
            self.of_hosts.clear();
            if let Some(hosts) = tell("addresses", hosts, &mut self.of_hosts) {
                node.set_acm_hosts(hosts);
            }
        }
        if let Some(routes) = routes
            && let Some(routes) = tell("paths", routes, &mut self.of_routes)
        {
            node.preload_paths(now, routes);
        }
    }
}

/// Logs what was read and what was wrong, which is bounded. `None` if the file cannot be read.
fn tell<T>(of: &str, read: Result<(T, Report), Fault>, problems: &mut Vec<Fault>) -> Option<T> {
    let before = problems.len();
    let read = match read {
        Ok((read, report)) => {
            let Report { file, entries, bad_lines, .. } = &report;
            info!(file = %file.display(), entries, bad_lines, "preloaded {of}");
            problems.extend(report.problems().map(Fault::new));
            Some(read)
        }
        Err(error) => {
            problems.push(error);
            None
        }
    };
    for problem in problems.iter().skip(before) {
        warn!("preload of {of}: {problem}");
    }
    problems.truncate(MOST_PROBLEMS);
    read
}

/// How many problems of a kind of file are remembered: those of a port with a report, and of other ports.
const MOST_PROBLEMS: usize = 2 * Report::MOST;
