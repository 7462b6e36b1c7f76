// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Collects the metrics, at most once in [`FRESH`].

use std::time::SystemTime;

use ibarr_common::Instant;
use ibarr_proto::counters::{Counter, Counters};
use ibarr_proto::health::State;
use ibarr_proto::ip2gid::{client, server};
use ibarr_proto::local_service;

use super::Engine;
use super::report::LEFT_TO_KERNEL;
use crate::control::messages::MetricsForm;
use crate::metrics::server::FRESH;
use crate::metrics::{Name, Snapshot};
use crate::transport;

impl Engine {
    /// The metrics as text.
    pub(super) fn metrics(&mut self, now: Instant, form: MetricsForm) -> String {
        let last = self.service.last_metrics.take().filter(|(at, _)| now.since(*at) < FRESH);
        let last = last.unwrap_or_else(|| (now, self.snapshot_of_metrics(now)));
        self.service.last_metrics.insert(last).1.text(form)
    }

    fn snapshot_of_metrics(&self, now: Instant) -> Snapshot {
        let mut all = Snapshot::default();
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unix_of = |then: Instant| unix.saturating_sub(now.since(then)).as_secs_f64();
        all.level(Name::Up, &[], 1.0);
        all.level(Name::BuildInfo, &[env!("CARGO_PKG_VERSION")], 1.0);
        all.level(Name::Start, &[], unix_of(self.service.started));
        for report in self.node.health().report() {
            let level = match report.state {
                State::Ok => 0.0,
                State::Degraded => 1.0,
                State::Failed => 2.0,
            };
            let of = report.subsystem.object().unwrap_or_default();
            all.level(Name::Health, &[report.subsystem.name(), &of], level);
        }
        let is_successful = self.settings.reloads.failed.is_none();
        all.level(Name::Reload, &[], f64::from(u8::from(is_successful)));
        self.requests(&mut all);
        self.answers_and_drops(&mut all);
        let requests = self.path_requests();
        for (index, name, ..) in self.node.paths().ports() {
            let (port, tally) = (name.to_string(), self.node.paths().client().tally(index));
            all.count(Name::SaQueries, &[&port], tally.mads);
            all.level(Name::SaLastAnswer, &[&port], tally.answered_at.map_or(0.0, unix_of));
        }
        all.count(Name::SaAvoided, &[], requests.avoided);
        let (client, paths) = (self.node.client().load(), self.node.paths().load());
        for (cache, entries) in [("addresses", client.cached), ("paths", paths.cached)] {
            all.level(Name::CacheEntries, &[cache], size(entries));
        }
        for (to, questions) in [("peers", client.flights), ("sa", paths.questions)] {
            all.level(Name::InFlight, &[to], size(questions));
        }
        all
    }

    fn requests(&self, all: &mut Snapshot) {
        let local_service = self.node.local_service();
        for (result, source, counter) in [
            ("found", "local", local_service::Counter::AnsweredLocal),
            ("found", "cache", local_service::Counter::AnsweredCache),
            ("found", "peer", local_service::Counter::AnsweredPeer),
            ("not-found", "none", local_service::Counter::NotFound),
            ("timed-out", "none", local_service::Counter::TimedOut),
            ("unreachable", "none", local_service::Counter::Unreachable),
            ("overloaded", "none", local_service::Counter::Overloaded),
            ("abandoned", "none", local_service::Counter::Abandoned),
        ] {
            all.count(Name::Requests, &[result, source], local_service.counters().get(counter));
        }
        for (reason, counter) in LEFT_TO_KERNEL {
            let count = local_service.counters().get(counter);
            all.count(Name::Fallbacks, &[reason], count);
        }
        all.histogram(Name::ResolveDuration, &local_service.answer_times().addresses);
        all.histogram(Name::PathDuration, &local_service.answer_times().paths);
    }

    fn answers_and_drops(&self, all: &mut Snapshot) {
        let server = self.node.server().counters();
        for (name, count) in self.responder.counts() {
            match name.split_once('.') {
                Some((by @ ("tc" | "xdp"), "answered")) => all.count(Name::Answers, &[by], count),
                Some((_, "answered")) | None => {}
                Some((by, reason)) => all.count(Name::Drops, &[by, reason], count),
            }
        }
        all.count(Name::Answers, &["daemon"], server.get(server::Counter::Answered));
        let not_dropped = [server::Counter::Answered, server::Counter::AnsweredNegative];
        drops(all, "server", server, |counter| !not_dropped.contains(&counter));
        drops(all, "client", self.node.client().counters(), is_client_drop);
        let lost = [
            ("query-dropped", self.servers.dropped(&self.responder)),
            ("reply-not-received", self.queries.dropped()),
            ("reply-dropped", self.service.control.counters.get(transport::Counter::ReplyDropped)),
        ];
        for (reason, count) in lost {
            all.count(Name::Drops, &["socket", reason], count);
        }
    }
}

/// Whether the counter is of datagrams that answer no question.
fn is_client_drop(counter: client::Counter) -> bool {
    matches!(
        counter,
        client::Counter::ClosedSocket
            | client::Counter::SourcePort
            | client::Counter::Unasked
            | client::Counter::WrongSocket
            | client::Counter::SourceAddress
            | client::Counter::WrongIngress
    ) || counter.to_string().starts_with("malformed-")
}

fn drops<C: Counter>(
    all: &mut Snapshot,
    by: &str,
    counters: &Counters<C>,
    is_drop: impl Fn(C) -> bool,
) {
    for (counter, count) in counters.iter().filter(|(counter, _)| is_drop(*counter)) {
        all.count(Name::Drops, &[by, &counter.to_string()], count);
    }
}

/// A size as a number of the document, which has no others.
fn size(size: usize) -> f64 {
    f64::from(u32::try_from(size).unwrap_or(u32::MAX))
}
