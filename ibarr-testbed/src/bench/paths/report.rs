// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A run's figures as table and JSON.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::super::cache::{Cache, Costs};
use super::super::head::{Head, Ratios, Target, short};
use super::super::report::{Cached, median};
use super::super::rounds::{Rates, Round, ratio};
use super::storm::Storm;
use super::{Measured, OUTSTANDING, OUTSTANDING_SA, opensm};

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    head: Head,
    loads: Vec<Load>,
    /// Answers per CPU-second, those from the stand-in, to what its system calls alone would allow:
    /// the kernel's question and the administrator's, each taken from the other's rounds.
    rate_per_cpu_to_system_calls: f64,
    storms: Vec<Storm>,
    caches: [Cached; 2],
    /// Median look-up, with many paths to that with few.
    lookup_large_to_small: f64,
}

/// Requests of one kind, beside what does as little as can be.
#[derive(Debug, Serialize)]
struct Load {
    /// Where the paths are from.
    from: &'static str,
    /// Who it is held against.
    other: &'static str,
    outstanding: u32,
    /// The target, if there is one.
    at_least: Option<f64>,
    /// Answers a second, ibarr's to the other's, in the same round.
    rate_to_other: f64,
    /// Answers per CPU-second, likewise.
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
            "from", "who", "answers/s", "CPU µs an answer", "busy"
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
            "  medians; {OUTSTANDING} requests under way for what is in the cache, {OUTSTANDING_SA} for what is not. The echo\n  \
             gives back each request; the bare client asks the same SA by the same device, a socket where\n  \
             the SA is a stand-in, FUSE where it is OpenSM. CPU time is of all threads of who answers."
        )?;
        if self.loads.iter().all(|load| load.from != "OpenSM") {
            writeln!(
                f,
                "  From OpenSM: not measured, for $IBARR_OPENSM_ROOT does not say where it is."
            )?;
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
            "  Each process has a service port of its own. Queries are the daemon's; for each ERR, and for\n  \
             each request that the daemon's socket has no room for, the kernel asks itself."
        )
    }
}

const LOOKUP_AT_MOST: f64 = 3.0;
const BYTES_AT_MOST: f64 = 400.0;
