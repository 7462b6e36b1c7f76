// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The figures of a run, as tables and JSON.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::super::cache::{Cache, Costs};
use super::super::head::{Head, Ratios, Target, short};
use super::super::report::{Cached, median};
use super::super::rounds::{Rates, Round, ratio};
use super::storm::Storm;
use super::{Measured, OUTSTANDING, OUTSTANDING_SA, opensm};

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    head: Head,
    loads: Vec<Load>,
    /// Answers per CPU-second from the stand-in, divided by what their system calls alone would allow.
    /// The echo's rounds give the calls for the kernel's question, the bare client's rounds those for the
    /// administrator's.
    rate_per_cpu_to_system_calls: f64,
    storms: Vec<Storm>,
    caches: [Cached; 2],
    /// Median look-up time with many paths, divided by that with few.
    lookup_large_to_small: f64,
}

/// Requests of one kind, compared with a minimal program.
#[derive(Debug, Serialize)]
struct Load {
    /// The source of the paths.
    from: &'static str,
    /// The program that it is compared with.
    other: &'static str,
    outstanding: u32,
    /// The target for the ratio, if there is one.
    at_least: Option<f64>,
    /// Answers a second, ibarr's divided by the other's, in the same round.
    rate_to_other: f64,
    /// The same for answers per CPU-second.
    rate_per_cpu_to_other: f64,
    ibarr: Rates,
    them: Rates,
}

impl Report {
    pub(super) fn new(
        quick: bool,
        measured: &Measured,
        from_opensm: Option<&opensm::Measured>,
        storms: Vec<Storm>,
        costs: Costs,
    ) -> Result<Self> {
        let load = |from, other, outstanding, at_least, ours: &[Round], theirs: &[Round]| {
            Some(Load {
                from,
                other,
                outstanding,
                at_least,
                rate_to_other: ratio(ours, theirs, Round::rate)?,
                rate_per_cpu_to_other: ratio(ours, theirs, Round::rate_per_cpu)?,
                ibarr: Rates::new(ours)?,
                them: Rates::new(theirs)?,
            })
        };
        let Measured { cached, echo, uncached, bare } = measured;
        let bare_client = "bare client";
        let mut loads = vec![
            load("the cache", "echo", OUTSTANDING, Some(0.3), cached, echo).context("no rounds")?,
            load("the stand-in", bare_client, OUTSTANDING_SA, None, uncached, bare)
                .context("no rounds")?,
        ];
        if let Some((ours, theirs)) = from_opensm {
            let load = load("OpenSM", bare_client, OUTSTANDING_SA, Some(0.5), ours, theirs);
            loads.push(load.context("no rounds")?);
        }
        let calls = uncached.iter().zip(echo).zip(bare).map(|((ours, echo), bare)| {
            ours.rate_per_cpu() * (1.0 / echo.rate_per_cpu() + 1.0 / bare.rate_per_cpu())
        });
        Ok(Self {
            head: Head::new("paths", quick)?,
            loads,
            rate_per_cpu_to_system_calls: median(calls).context("no rounds")?,
            storms,
            caches: Cached::of(Cache::Paths, quick, costs),
            lookup_large_to_small: costs.large_lookup_ns / costs.small_lookup_ns,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head)?;
        self.ratios(f)?;
        self.rates(f)?;
        self.storms(f)?;
        Cached::table(f, "cache of paths", &self.caches)
    }
}

impl Report {
    fn ratios(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Ratios::begin(f)?;
        for load in &self.loads {
            let Load { from, other, rate_to_other: rate, rate_per_cpu_to_other: per_cpu, .. } =
                load;
            let what = format_args!("from {from}: answers a second, to the {other}'s");
            table.row(what, Some(*rate), load.at_least.map(Target::AtLeast))?;
            let what = format_args!("from {from}: answers per CPU-second, to the {other}'s");
            table.row(what, Some(*per_cpu), None)?;
        }
        let what = "from the stand-in: answers per CPU-second, to four system calls'";
        table.row(what, Some(self.rate_per_cpu_to_system_calls), None)?;
        for storm in &self.storms {
            let what = format_args!("{}: the SA is asked, to distinct questions", storm.pace);
            table.row(what, Some(storm.asked_per_question()), Some(Target::AtMost(1.0)))?;
        }
        let [small, large] = &self.caches;
        let what = format_args!("median look-up, {} paths to {}", large.entries, small.entries);
        let target = Target::AtMost(LOOKUP_AT_MOST);
        table.row(what, Some(self.lookup_large_to_small), Some(target))?;
        for (reads, name) in [(1.0, "one read"), (2.0, "two reads")] {
            let read = large.read_ns.map(|read| 1.0 + reads * read / small.lookup_p50_ns);
            let what =
                format_args!("the same, were it as with {} and {name} of memory", small.entries);
            table.row(what, read, None)?;
        }
        let what = format_args!("bytes of memory a path, of {}", large.entries);
        table.row(what, large.bytes_per_entry, Some(Target::AtMost(BYTES_AT_MOST)))
    }

    fn rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<14}{:<14}{:>12}{:>18}{:>8}",
            "from", "program", "answers/s", "CPU µs an answer", "busy"
        )?;
        for load in &self.loads {
            for (name, rates) in [("ibarr", &load.ibarr), (load.other, &load.them)] {
                writeln!(
                    f,
                    "{:<14}{name:<14}{:>12}{:>17.2}{:>8.2}",
                    load.from,
                    short(rates.answers_per_second),
                    rates.cpu_us_per_answer,
                    rates.busy
                )?;
            }
        }
        writeln!(
            f,
            "  medians; {OUTSTANDING} requests in flight for paths in the cache, {OUTSTANDING_SA} for others. The echo\n  \
             sends back each request; the bare client asks the same SA by the same device, a socket if\n  \
             the SA is a stand-in, FUSE if it is OpenSM. CPU time is of all threads of the server."
        )?;
        if self.loads.iter().all(|load| load.from != "OpenSM") {
            writeln!(f, "  From OpenSM: not measured, because $IBARR_OPENSM_ROOT is not set.")?;
        }
        Ok(())
    }

    fn storms(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<22}{:>10}{:>10}{:>10}{:>8}{:>10}{:>10}",
            "requests", "", "distinct", "queries", "ERR", "no room", "seconds"
        )?;
        for storm in &self.storms {
            writeln!(
                f,
                "{:<22}{:>10}{:>10}{:>10}{:>8}{:>10}{:>10.1}",
                storm.pace.to_string(),
                storm.requests,
                storm.questions,
                storm.queries,
                storm.errors,
                storm.undelivered,
                storm.seconds
            )?;
        }
        writeln!(
            f,
            "  Each process has its own service port. Queries are the daemon's. For each ERR, and for\n  \
             each request without room in the daemon's socket, the kernel asks the SA itself."
        )
    }
}

const LOOKUP_AT_MOST: f64 = 3.0;
const BYTES_AT_MOST: f64 = 400.0;
