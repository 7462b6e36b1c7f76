// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The document of `ibarr top` as lines of text, for pipes and for the terminal.

use std::iter::once;
use std::time::Duration;

use ibarr_proto::health;

use crate::cli::status;
use crate::cli::table::Table;
use crate::control::messages::{
    AnswerRate, Answerer, ErrorRate, Millis, PortRate, Probing, RequestKind, RequestRate, SlowPeer,
    Top,
};

/// A line, and what it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) kind: Kind,
}

/// What a line is, which decides how a terminal shows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// The daemon's state; `None` if it is not known.
    State(Option<health::State>),
    Head,
    Row,
}

/// The most peers that are shown.
const PEERS: usize = 5;

/// The least width of the first column.
const NAME: usize = 24;

pub(super) fn lines(top: &Top) -> Vec<Line> {
    let head = status::head(&top.version, top.node.as_deref(), top.pid, top.uptime_s);
    let state = status::named(top.health);
    let over = top.interval_ms.map_or("rates follow".to_owned(), |interval| {
        format!("rates over {:.2} s", interval.0.as_secs_f64())
    });
    let text = format!("{head}: {state}; {over}");
    let kind = Kind::State(top.health);
    let causes = top.causes.iter().map(|cause| format!("    {cause}"));
    let mut lines: Vec<_> = once(text).chain(causes).map(|text| Line { text, kind }).collect();
    for (head, rows) in tables(top).into_iter().filter(|(_, rows)| !rows.is_empty()) {
        lines.push(Line { text: String::new(), kind: Kind::Row });
        let head = head.split("  ").map(str::to_owned).collect();
        let mut table = Table { widths: vec![NAME], numbers: true };
        let mut kind = Kind::Head;
        for text in table.text(once(head).chain(rows)).lines() {
            lines.push(Line { text: text.to_owned(), kind });
            kind = Kind::Row;
        }
    }
    lines
}

/// The head of each table, and its rows.
fn tables(top: &Top) -> [(&'static str, Vec<Vec<String>>); 5] {
    let peers = &top.slowest_peers[..top.slowest_peers.len().min(PEERS)];
    let ports =
        "subnet administrator  MADs/s  answers/s  latency  in air  window  questions  MADs in all";
    [
        ("requests  per second  failed  from memory  in all", rows(&top.requests, request)),
        ("answers to peers  per second  share  in all", rows(&top.answers, answer)),
        (ports, rows(&top.ports, port)),
        ("slowest peers  last answer  ago", rows(peers, peer)),
        ("errors  per second  in all", rows(&top.errors, error)),
    ]
}

fn rows<T>(of: &[T], row: fn(&T) -> Vec<String>) -> Vec<Vec<String>> {
    of.iter().map(row).collect()
}

fn request(rate: &RequestRate) -> Vec<String> {
    let what = match rate.what {
        RequestKind::KernelAddresses => "addresses, kernel",
        RequestKind::KernelPaths => "paths, kernel",
        RequestKind::ClientAddresses => "addresses, client",
        RequestKind::Paths => "paths, all",
    };
    vec![
        what.to_owned(),
        per_second(rate.per_s),
        per_second(rate.failed_per_s),
        percent(rate.from_memory_percent),
        rate.total.to_string(),
    ]
}

fn answer(rate: &AnswerRate) -> Vec<String> {
    let by = match rate.by {
        Answerer::Tc => "kernel, tc",
        Answerer::Xdp => "kernel, XDP",
        Answerer::Daemon => "daemon",
    };
    let (per_s, share) = (per_second(rate.per_s), percent(rate.percent));
    vec![by.to_owned(), per_s, share, rate.total.to_string()]
}

fn port(rate: &PortRate) -> Vec<String> {
    let state = match (&rate.blocked, &rate.probing) {
        (Some(reason), _) => format!(": {reason}"),
        (None, Some(Probing { because, for_ms })) => {
            format!(": {because} for {}", seconds(*for_ms))
        }
        (None, None) => String::new(),
    };
    vec![
        format!("{}{state}", rate.port),
        per_second(rate.mads_per_s),
        per_second(rate.answers_per_s),
        rate.answer_ms.map_or(NONE.to_owned(), |ms| format!("{ms:.2} ms")),
        rate.load.in_air.to_string(),
        rate.load.window.to_string(),
        rate.load.questions.to_string(),
        rate.total.to_string(),
    ]
}

fn peer(peer: &SlowPeer) -> Vec<String> {
    let interface = peer.interface.as_ref().map_or(String::new(), |name| format!("%{name}"));
    let (took, ago) = (format!("{:.2} ms", peer.ms.millis()), seconds(peer.ago_ms));
    vec![format!("{}{interface}", peer.ip), took, ago]
}

fn error(rate: &ErrorRate) -> Vec<String> {
    vec![rate.counter.clone(), per_second(rate.per_s), rate.total.to_string()]
}

/// In place of a value that does not exist.
const NONE: &str = "-";

fn per_second(rate: Option<f64>) -> String {
    rate.map_or(NONE.to_owned(), |rate| format!("{rate:.1}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or(NONE.to_owned(), |share| format!("{share:.1}%"))
}

/// Whole seconds; a fraction is cut off.
fn seconds(time: Millis) -> String {
    let seconds = Duration::from(time).as_secs();
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn page_shows_each_value_in_its_column_and_none_as_a_dash() {
        let top = serde_json::from_value(json!({
            "version": "1.0.0", "node": "node7", "pid": 7, "uptime-s": 3661, "interval-ms": 1003.2,
            "health": "degraded", "causes": ["sa mlx5_0/1: sa-silent"],
            "requests": [
                { "what": "kernel-addresses", "per-s": 12.04, "failed-per-s": 0.5,
                  "from-memory-percent": 99.96, "total": 1234 },
                { "what": "paths", "total": 0 },
            ],
            "answers": [{ "by": "tc", "per-s": 1e6, "percent": 87.5, "total": 9 }],
            "ports": [{ "port": "mlx5_0/1", "active": true, "questions": 3, "in-air": 2, "window": 16,
                        "mads-per-s": 4.0, "answers-per-s": 0.0, "total": 5,
                        "probing": { "because": "silent", "for-ms": 12_900 } }],
            "slowest-peers": [{ "ip": "fe80::5", "interface": "ib0", "ms": 30.125, "ago-ms": 999 }],
            "errors": [{ "counter": "sa.silent", "per-s": 2.0, "total": 3 }],
        }));
        let lines = lines(&top.unwrap());
        let state = Kind::State(Some(health::State::Degraded));
        assert_eq!([lines[0].kind, lines[1].kind], [state; 2]);
        let text: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(
            text.join("\n"),
            "\
ibarr 1.0.0 on node7, pid 7, up 1h 1m 1s: degraded; rates over 1.00 s
    sa mlx5_0/1: sa-silent

requests                  per second  failed  from memory  in all
addresses, kernel               12.0     0.5       100.0%    1234
paths, all                         -       -            -       0

answers to peers          per second  share  in all
kernel, tc                 1000000.0  87.5%       9

subnet administrator      MADs/s  answers/s  latency  in air  window  questions  MADs in all
mlx5_0/1: silent for 12s     4.0        0.0        -       2      16          3            5

slowest peers             last answer  ago
fe80::5%ib0                  30.12 ms   0s

errors                    per second  in all
sa.silent                        2.0       3"
        );
    }
}
