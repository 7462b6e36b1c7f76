// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The figures of a run, as tables and JSON.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::cache::{Cache, Costs};
use super::head::{Head, Ratios as Table, Target, short};
use super::load::Latencies;
use super::rounds::{Round, ratio};
use super::{OPEN_LOOP_RATE, SERVERS};

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    head: Head,
    ratios: Ratios,
    servers: Vec<Server>,
    open_loop_per_second: u32,
    caches: [Cached; 2],
    startup_ms: Spread,
}

/// Figures that can be compared between machines.
#[derive(Debug, Serialize)]
struct Ratios {
    /// Answers a second, ibarr's divided by the echo's.
    rate_to_echo: f64,
    /// Answers per CPU-second, ibarr's divided by the echo's.
    rate_per_cpu_to_echo: f64,
    /// Answers per CPU-second, ibarr's divided by those of an echo with one system call for many datagrams.
    rate_per_cpu_to_batched_echo: f64,
    /// Median latency, ibarr's divided by the echo's.
    p50_to_echo: Option<f64>,
    /// Median look-up time at 100,000 entries, divided by that at 1,000.
    lookup_large_to_small: f64,
}

#[derive(Debug, Serialize)]
struct Server {
    name: &'static str,
    /// Medians over the rounds.
    answers_per_second: f64,
    answers_per_cpu_second: f64,
    /// CPU time divided by wall time. Far below 1, the load was the limit, and rates say little.
    busy: f64,
    latency_us: Percentiles,
}

/// Percentiles in microseconds. `None` if too few queries were answered.
#[derive(Debug, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    pub(super) lost: usize,
}

impl Percentiles {
    pub(super) fn of(late: &Latencies) -> Self {
        let micros = |per_mille| late.percentile(per_mille).map(|time| time.as_secs_f64() * 1e6);
        Self {
            p50: micros(500),
            p90: micros(900),
            p99: micros(990),
            p999: micros(999),
            lost: late.lost,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Cached {
    pub(super) entries: u32,
    pub(super) lookup_p50_ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_per_entry: Option<f64>,
    /// Time to read a random word in as much memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) read_ns: Option<f64>,
}

impl Cached {
    pub(super) fn of(cache: Cache, quick: bool, costs: Costs) -> [Self; 2] {
        let Costs { small_lookup_ns, large_lookup_ns, bytes_per_entry, read_ns } = costs;
        let [small, large] = cache.sizes(quick);
        [
            Self {
                entries: small,
                lookup_p50_ns: small_lookup_ns,
                bytes_per_entry: None,
                read_ns: None,
            },
            Self {
                entries: large,
                lookup_p50_ns: large_lookup_ns,
                bytes_per_entry: Some(bytes_per_entry),
                read_ns: Some(read_ns),
            },
        ]
    }

    /// The table of both sizes.
    pub(super) fn table(f: &mut fmt::Formatter<'_>, heading: &str, caches: &[Self]) -> fmt::Result {
        writeln!(
            f,
            "\n{heading:<24}{:>16}{:>18}{:>20}",
            "look-up p50 ns", "bytes per entry", "memory read, ns"
        )?;
        for Self { entries, lookup_p50_ns, bytes_per_entry, read_ns } in caches {
            let bytes = bytes_per_entry.map(|bytes| format!("{bytes:.0}")).unwrap_or_default();
            let read = read_ns.map(|read| format!("{read:.1}")).unwrap_or_default();
            let name = format!("{entries} entries");
            writeln!(f, "{name:<24}{lookup_p50_ns:>16.1}{bytes:>18}{read:>20}")?;
        }
        writeln!(
            f,
            "  median of the least disturbed round, sizes in turn, in several processes; a memory read\n  \
             reads a random word in as much memory, and waits for the read before"
        )
    }
}

#[derive(Debug, Serialize)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Report {
    pub(super) fn new(
        quick: bool,
        throughput: &[Vec<Round>; SERVERS.len()],
        latency: &[Latencies; SERVERS.len()],
        startup: &[Duration],
        costs: Costs,
    ) -> Result<Self> {
        let [ibarr, echo, batched] = throughput;
        let servers = SERVERS.iter().zip(throughput).zip(latency).map(|((name, rounds), late)| {
            Some(Server {
                name,
                answers_per_second: median(rounds.iter().map(Round::rate))?,
                answers_per_cpu_second: median(rounds.iter().map(Round::rate_per_cpu))?,
                busy: median(rounds.iter().map(|r| r.cpu.as_secs_f64() / r.wall.as_secs_f64()))?,
                latency_us: Percentiles::of(late),
            })
        });
        let servers = servers.collect::<Option<Vec<_>>>().context("no rounds")?;
        let Costs { small_lookup_ns, large_lookup_ns, .. } = costs;
        let p50_to_echo = match [&servers[0], &servers[1]].map(|server| server.latency_us.p50) {
            [Some(ours), Some(theirs)] => Some(ours / theirs),
            _ => None,
        };
        let ratios = Ratios {
            rate_to_echo: ratio(ibarr, echo, Round::rate).context("no rounds")?,
            rate_per_cpu_to_echo: ratio(ibarr, echo, Round::rate_per_cpu).context("no rounds")?,
            rate_per_cpu_to_batched_echo: ratio(ibarr, batched, Round::rate_per_cpu)
                .context("no rounds")?,
            p50_to_echo,
            lookup_large_to_small: large_lookup_ns / small_lookup_ns,
        };
        let startup_ms = || startup.iter().map(|time| time.as_secs_f64() * 1e3);
        Ok(Self {
            head: Head::new("ip2gid", quick)?,
            ratios,
            servers,
            open_loop_per_second: OPEN_LOOP_RATE,
            caches: Cached::of(Cache::Peers, quick, costs),
            startup_ms: Spread {
                min: startup_ms().fold(f64::INFINITY, f64::min),
                median: median(startup_ms()).context("no starts")?,
                max: startup_ms().fold(0.0, f64::max),
            },
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head)?;
        let r = &self.ratios;
        let mut table = Table::begin(f)?;
        let (rate, lookup) = (Some(r.rate_to_echo), Some(r.lookup_large_to_small));
        table.row("answers a second, to the echo's", rate, Some(Target::AtLeast(0.8)))?;
        let per_cpu = Some(r.rate_per_cpu_to_echo);
        table.row("answers per CPU-second, to the echo's", per_cpu, None)?;
        let batched = Some(r.rate_per_cpu_to_batched_echo);
        table.row("answers per CPU-second, to the batched echo's", batched, None)?;
        table.row("median latency, to the echo's", r.p50_to_echo, None)?;
        let what = "median look-up, 100,000 entries to 1,000";
        table.row(what, lookup, Some(Target::AtMost(3.0)))?;

        writeln!(
            f,
            "\n{:<14}{:>12}{:>16}{:>7}{:>10}{:>9}{:>9}{:>9}{:>7}",
            "server", "answers/s", "answers/CPU-s", "busy", "p50 µs", "p90", "p99", "p99.9", "lost"
        )?;
        for server in &self.servers {
            write!(
                f,
                "{:<14}{:>12}{:>16}{:>7.2}",
                server.name,
                short(server.answers_per_second),
                short(server.answers_per_cpu_second),
                server.busy
            )?;
            for ((_, of), width) in PERCENTILES.into_iter().zip([10, 9, 9, 9]) {
                let value = of(&server.latency_us).map_or("-".to_owned(), short);
                write!(f, "{value:>width$}")?;
            }
            writeln!(f, "{:>7}", server.latency_us.lost)?;
        }
        if self.servers.iter().any(|server| server.busy < 0.8) {
            writeln!(
                f,
                "  NOTE: a server was idle for more than a fifth of the time, so the load, or"
            )?;
            writeln!(
                f,
                "  another program, was the limit: compare answers per CPU-second, not rates."
            )?;
        }
        writeln!(
            f,
            "  busy: CPU time of the server / wall time; latencies at {OPEN_LOOP_RATE}/s, from"
        )?;
        writeln!(
            f,
            "  the time a query was due. The echo moves datagrams with the daemon's own code,"
        )?;
        writeln!(f, "  the batched echo with recvmmsg and sendmmsg and without packet info.")?;

        Cached::table(f, "client cache", &self.caches)?;
        let Spread { min, median, max } = self.startup_ms;
        writeln!(f, "\nstart-up to ready: median {median:.1} ms ({min:.1} to {max:.1})")
    }
}

type Percentile = fn(&Percentiles) -> Option<f64>;

const PERCENTILES: [(&str, Percentile); 4] =
    [("p50", |p| p.p50), ("p90", |p| p.p90), ("p99", |p| p.p99), ("p99.9", |p| p.p999)];

#[expect(clippy::cast_precision_loss, reason = "nothing here is counted to 2⁵³")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
