// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What happened between two looks at the daemon: a function of these two and of nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ibarr_proto::health;
use ibarr_proto::sa::Tally;

use crate::cli::status;
use crate::control::messages::{
    AnswerRate, Answerer, Elapsed, ErrorRate, PortRate, PortStatus, RequestKind, RequestRate,
    Status, Top,
};
use crate::engine::descriptions;

/// One look at the daemon.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// When it was made, on a clock that only goes forward.
    pub(super) at: Duration,
    pub(super) status: Status,
    pub(super) counters: BTreeMap<String, u64>,
}

/// What happened from `before` to `after`. Without `before`, or if the daemon was started again
/// meanwhile, there are no rates.
pub(super) fn top(before: Option<&Sample>, after: &Sample) -> Top {
    let before = before.filter(|before| before.is_of_the_same_daemon(after));
    let passed = before.map(|before| after.at.saturating_sub(before.at));
    let interval = Interval { before, after, passed };
    let Sample { status, .. } = after;
    Top {
        version: status.version.clone(),
        node: status.node.clone(),
        pid: status.pid,
        uptime_s: status.uptime_s,
        interval_ms: passed.map(Elapsed),
        health: status::verdict(status),
        causes: causes(status),
        requests: REQUESTS.iter().map(|kind| interval.requests(kind)).collect(),
        answers: interval.answers(),
        ports: status.ports.iter().map(|port| interval.port(port)).collect(),
        slowest_peers: status.slowest_peers.clone(),
        errors: interval.errors(),
    }
}

/// A kind of requests, by its counters.
struct Kind {
    what: RequestKind,
    requests: &'static str,
    /// Ends with a GID or a path.
    answered: &'static [&'static str],
    /// All other ends.
    failed: &'static [&'static str],
    /// Those of both that memory knew, or nothing if the counters do not tell.
    from_memory: &'static [&'static str],
}

const REQUESTS: [Kind; 4] = [
    Kind {
        what: RequestKind::KernelAddresses,
        requests: "local-service.requests",
        answered: &[
            "local-service.answered-local",
            "local-service.answered-cache",
            "local-service.answered-peer",
        ],
        failed: &[
            "local-service.given-up-not-found",
            "local-service.given-up-timed-out",
            "local-service.given-up-unreachable",
            "local-service.given-up-overloaded",
            "local-service.abandoned",
        ],
        from_memory: &["local-service.answered-local", "local-service.answered-cache"],
    },
    Kind {
        what: RequestKind::KernelPaths,
        requests: "local-service.path-requests",
        answered: &["local-service.paths-answered"],
        failed: &[
            "local-service.paths-none",
            "local-service.paths-unknown",
            "local-service.paths-no-sa",
            "local-service.paths-no-record",
            "local-service.paths-silent",
            "local-service.paths-refused",
            "local-service.paths-overloaded",
            "local-service.paths-spared",
            "local-service.paths-abandoned",
        ],
        from_memory: &[],
    },
    Kind {
        what: RequestKind::ClientAddresses,
        requests: "ip2gid.client.requests",
        answered: &["ip2gid.client.found"],
        failed: &[
            "ip2gid.client.not-found",
            "ip2gid.client.timed-out",
            "ip2gid.client.refused",
            "ip2gid.client.unreachable",
            "ip2gid.client.overloaded",
        ],
        from_memory: &["ip2gid.client.cache-hits"],
    },
    Kind {
        what: RequestKind::Paths,
        requests: "paths.requests",
        answered: &["paths.found-cache", "paths.found-doubted", "paths.found-sa"],
        failed: &[
            "paths.no-record-cache",
            "paths.no-record-sa",
            "paths.refused",
            "paths.silent",
            "paths.busy",
            "paths.unknown-port",
            "paths.no-sa",
            "paths.overloaded",
        ],
        from_memory: &["paths.found-cache", "paths.found-doubted", "paths.no-record-cache"],
    },
];

const ANSWERS: [(Answerer, &str); 3] = [
    (Answerer::Tc, "bpf.tc.answered"),
    (Answerer::Xdp, "bpf.xdp.answered"),
    (Answerer::Daemon, "ip2gid.server.answered"),
];

impl Sample {
    fn is_of_the_same_daemon(&self, other: &Self) -> bool {
        let began = |sample: &Self| Duration::from(sample.status.uptime_s);
        self.status.pid == other.status.pid && began(self) <= began(other)
    }

    fn count(&self, counter: &str) -> u64 {
        self.counters.get(counter).copied().unwrap_or(0)
    }
}

/// Two looks at one daemon, or one alone.
#[derive(Clone, Copy)]
struct Interval<'a> {
    before: Option<&'a Sample>,
    after: &'a Sample,
    passed: Option<Duration>,
}

impl Interval<'_> {
    /// By how much a counter has grown.
    fn grown(&self, counter: &str) -> Option<u64> {
        let before = self.before?.count(counter);
        Some(self.after.count(counter).saturating_sub(before))
    }

    /// By how much all of them have grown.
    fn grown_together(&self, counters: &[&str]) -> Option<u64> {
        counters.iter().map(|counter| self.grown(counter)).sum()
    }

    fn rate(&self, grown: Option<u64>) -> Option<f64> {
        let seconds = self.passed?.as_secs_f64();
        (seconds > 0.0).then_some(number(grown?) / seconds)
    }

    fn requests(&self, kind: &Kind) -> RequestRate {
        let from_memory = self.grown_together(kind.from_memory);
        let from_memory = from_memory.filter(|_| !kind.from_memory.is_empty());
        let ended = [kind.answered, kind.failed].concat();
        RequestRate {
            what: kind.what,
            per_s: self.rate(self.grown(kind.requests)),
            failed_per_s: self.rate(self.grown_together(kind.failed)),
            from_memory_percent: percent(from_memory, self.grown_together(&ended)),
            total: self.after.count(kind.requests),
        }
    }

    fn answers(&self) -> Vec<AnswerRate> {
        let all = self.grown_together(&ANSWERS.map(|(_, counter)| counter));
        let rate = |(by, counter)| AnswerRate {
            by,
            per_s: self.rate(self.grown(counter)),
            percent: percent(self.grown(counter), all),
            total: self.after.count(counter),
        };
        ANSWERS.into_iter().map(rate).collect()
    }

    fn port(&self, after: &PortStatus) -> PortRate {
        let ports = self.before.map(|before| before.status.ports.as_slice()).unwrap_or_default();
        let before = ports.iter().find(|before| before.port == after.port).map(|port| port.sa);
        let Tally { mads, answers, took, .. } = after.sa;
        let answered = before.map(|before| answers.saturating_sub(before.answers));
        let took = before.map(|before| took.saturating_sub(before.took));
        let answer_ms = answered.zip(took).filter(|(answered, _)| *answered > 0);
        PortRate {
            port: after.port,
            active: after.active,
            load: after.load,
            mads_per_s: self.rate(before.map(|before| mads.saturating_sub(before.mads))),
            answers_per_s: self.rate(answered),
            answer_ms: answer_ms.map(|(count, took)| Elapsed(took).millis() / number(count)),
            probing: after.probing.clone(),
            blocked: after.blocked.clone(),
            total: mads,
        }
    }

    fn errors(&self) -> Vec<ErrorRate> {
        // Counters of a newer daemon are shown, whatever they count.
        let normal = descriptions().filter(|(_, description)| !description.is_error);
        let normal: BTreeSet<_> = normal.map(|(name, _)| name).collect();
        let counters = self.after.counters.iter();
        let mut errors: Vec<_> = counters
            .filter(|(counter, total)| **total > 0 && !normal.contains(*counter))
            .map(|(counter, &total)| {
                let per_s = self.rate(self.grown(counter));
                ErrorRate { counter: counter.clone(), per_s, total }
            })
            .collect();
        // Equal ones stay in the order of their names.
        errors.sort_by(|one, other| {
            let key = |error: &ErrorRate| error.per_s.unwrap_or(0.0);
            key(other).total_cmp(&key(one)).then(other.total.cmp(&one.total))
        });
        errors
    }
}

/// The reasons for the worst state, and for others that are not ok.
fn causes(status: &Status) -> Vec<String> {
    let bad = status.health.iter().flat_map(|subsystem| {
        let bad = subsystem.reasons.iter().filter(|reason| reason.state > health::State::Ok);
        bad.map(move |reason| (reason.state, format!("{subsystem}: {}", reason.cause)))
    });
    let mut bad: Vec<_> = bad.collect();
    bad.sort_by_key(|(state, _)| std::cmp::Reverse(*state));
    bad.into_iter().map(|(_, cause)| cause).collect()
}

fn percent(part: Option<u64>, whole: Option<u64>) -> Option<f64> {
    let (part, whole) = part.zip(whole)?;
    (whole > 0).then(|| 100.0 * number(part) / number(whole))
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use ibarr_proto::counters::Counter as _;
    use serde_json::{Value, json};

    use super::*;

    /// The daemon of the golden documents, with one port.
    fn sample(at_ms: u64, port: &Value, counters: &[(&str, u64)]) -> Sample {
        let golden = include_str!("../../../tests/golden/control.jsonl");
        let line = golden.lines().find(|line| line.contains("\"failed-reload\"")).unwrap();
        let mut document: Value = serde_json::from_str(line).unwrap();
        let status = &mut document["status"];
        let mut shown = status["ports"][0].clone();
        for (name, value) in port.as_object().unwrap() {
            shown[name] = value.clone();
        }
        status["ports"] = json!([shown]);
        let counters = counters.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let status = serde_json::from_value(status.clone()).unwrap();
        Sample { at: Duration::from_millis(at_ms), status, counters }
    }

    fn of(all: &[RequestRate], what: RequestKind) -> &RequestRate {
        all.iter().find(|rate| rate.what == what).unwrap()
    }

    #[test]
    fn rates_and_shares_are_of_the_interval_alone() {
        let none = json!({});
        let before = sample(
            1000,
            &none,
            &[
                ("local-service.requests", 1000),
                ("local-service.answered-cache", 990),
                ("ip2gid.server.answered", 7),
            ],
        );
        let after = sample(
            3500,
            &none,
            &[
                ("local-service.requests", 1010),
                ("local-service.answered-cache", 993),
                ("local-service.answered-local", 1),
                ("local-service.answered-peer", 1),
                ("local-service.given-up-timed-out", 5),
                ("ip2gid.client.requests", 20),
                ("ip2gid.client.cache-hits", 3),
                ("ip2gid.client.found", 6),
                ("ip2gid.client.timed-out", 4),
                ("bpf.tc.answered", 30),
                ("ip2gid.server.answered", 17),
            ],
        );
        let top = top(Some(&before), &after);
        assert_eq!(top.interval_ms, Some(Elapsed(Duration::from_millis(2500))));
        let kernel = of(&top.requests, RequestKind::KernelAddresses);
        assert_eq!((kernel.per_s, kernel.failed_per_s), (Some(4.0), Some(2.0)));
        assert_eq!((kernel.from_memory_percent, kernel.total), (Some(40.0), 1010));
        let client = of(&top.requests, RequestKind::ClientAddresses);
        assert_eq!((client.per_s, client.failed_per_s), (Some(8.0), Some(1.6)));
        assert_eq!((client.from_memory_percent, client.total), (Some(30.0), 20));
        // No path was asked for.
        let paths = of(&top.requests, RequestKind::Paths);
        assert_eq!((paths.per_s, paths.from_memory_percent), (Some(0.0), None));
        let answers: Vec<_> =
            top.answers.iter().map(|one| (one.by, one.per_s, one.percent, one.total)).collect();
        assert_eq!(
            answers,
            [
                (Answerer::Tc, Some(12.0), Some(75.0), 30),
                (Answerer::Xdp, Some(0.0), Some(0.0), 0),
                (Answerer::Daemon, Some(4.0), Some(25.0), 17),
            ]
        );
    }

    #[test]
    fn latency_of_an_sa_is_the_mean_of_the_interval() {
        let sa = |mads, answers, took_ms: f64| {
            let sa = json!({ "mads": mads, "answers": answers, "took-ms": took_ms });
            json!({ "active": true, "in-air": 3, "window": 16, "sa": sa })
        };
        let before = sample(0, &sa(10, 10, 5000.0), &[]);
        let shown = |after| {
            let top = top(Some(&before), &sample(2000, &after, &[]));
            let port = &top.ports[0];
            assert_eq!((port.load.in_air, port.load.window), (3, 16));
            (port.mads_per_s, port.answers_per_s, port.answer_ms, port.total)
        };
        assert_eq!(shown(sa(18, 14, 5010.0)), (Some(4.0), Some(2.0), Some(2.5), 18));
        assert_eq!(shown(sa(12, 10, 5000.0)), (Some(1.0), Some(0.0), None, 12));
        // A port that has appeared meanwhile has no rate yet.
        let other =
            json!({ "port": "mlx5_1/1", "sa": { "mads": 7, "answers": 7, "took-ms": 7.0 } });
        let top = top(Some(&before), &sample(2000, &other, &[]));
        assert_eq!((top.ports[0].mads_per_s, top.ports[0].total), (None, 7));
    }

    #[test]
    fn errors_are_named_with_the_fastest_first() {
        let none = json!({});
        let before = sample(0, &none, &[("sa.silent", 100), ("ip2gid.client.timed-out", 1)]);
        let after = [
            ("sa.silent", 100),
            ("log.dropped", 100),
            ("ip2gid.client.timed-out", 2),
            ("ip2gid.client.found", 900),
            ("paths.busy", 0),
        ];
        let errors = top(Some(&before), &sample(500, &none, &after)).errors;
        let shown: Vec<_> =
            errors.iter().map(|one| (one.counter.as_str(), one.per_s, one.total)).collect();
        assert_eq!(
            shown,
            [
                ("log.dropped", Some(200.0), 100),
                ("ip2gid.client.timed-out", Some(2.0), 2),
                ("sa.silent", Some(0.0), 100),
            ]
        );
    }

    #[test]
    fn another_daemon_has_no_rate_before_its_second_sample() {
        let none = json!({});
        let before = sample(0, &none, &[("paths.requests", 100)]);
        let mut after = sample(1000, &none, &[("paths.requests", 5)]);
        after.status.pid += 1;
        for top in [top(Some(&before), &after), top(None, &after)] {
            assert_eq!(top.interval_ms, None);
            let paths = of(&top.requests, RequestKind::Paths);
            assert_eq!((paths.per_s, paths.total), (None, 5));
        }
        // A clock that stands still makes no rate.
        let still = top(Some(&after), &after);
        assert_eq!(of(&still.requests, RequestKind::Paths).per_s, None);
    }

    #[test]
    fn every_end_of_a_kernels_path_request_is_counted() {
        use ibarr_proto::local_service::Counter;

        let name = |counter: &Counter| format!("local-service.{counter}");
        let (first, end) = (Counter::PathsAnswered.index(), Counter::PathsMalformed.index());
        let ends: Vec<_> = Counter::ALL[first..end].iter().map(name).collect();
        let kind = REQUESTS.iter().find(|kind| kind.what == RequestKind::KernelPaths).unwrap();
        assert_eq!([kind.answered, kind.failed].concat(), ends);
    }

    #[test]
    fn errors_are_all_counters_above_zero_that_count_errors() {
        let known: Vec<_> = descriptions().collect();
        let shown = |count| {
            let counters: Vec<_> = known.iter().map(|(name, _)| (name.as_str(), count)).collect();
            let errors = top(None, &sample(1000, &json!({}), &counters)).errors;
            errors.into_iter().map(|error| error.counter).collect::<BTreeSet<_>>()
        };
        let errors = known.iter().filter(|(_, description)| description.is_error);
        assert_eq!(shown(1), errors.map(|(name, _)| name.clone()).collect());
        assert_eq!(shown(0), BTreeSet::new());
        for (name, is_error) in [
            ("bpf.tc.answered", false),
            ("bpf.tc.lease-over", true),
            ("users.paths.requests", false),
            ("users.paths.refused", true),
            ("ip2gid.server.malformed-gid", true),
            ("log.dropped", true),
        ] {
            assert_eq!(shown(1).contains(name), is_error, "{name}");
        }
    }

    #[test]
    fn counter_of_a_newer_daemon_is_shown_as_an_error() {
        let errors = top(None, &sample(1000, &json!({}), &[("newer.counter", 3)])).errors;
        assert_eq!(errors.iter().map(|error| error.total).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn every_counter_that_is_named_here_exists() {
        let known: Vec<_> = descriptions().map(|(name, _)| name).collect();
        let of_kinds = REQUESTS.iter().flat_map(|kind| {
            [&[kind.requests], kind.answered, kind.failed, kind.from_memory].concat()
        });
        for name in of_kinds.chain(ANSWERS.map(|(_, counter)| counter)) {
            assert!(known.iter().any(|known| known == name), "{name}");
        }
    }
}
