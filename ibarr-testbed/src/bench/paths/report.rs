// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A run's figures as table, JSON and SVG.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::super::cache::{Cache, Costs};
use super::super::chart::{Aim, Bar, Chart, Scale, short, svg};
use super::super::report::{Cached, Machine, Target, say_whether_figures_count};
use super::super::rounds::{Rates, Round, ratio};
use super::storm::Storm;
use super::{Measured, OUTSTANDING, OUTSTANDING_SA};

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub struct Report {
    v: u32,
    bench: &'static str,
    quick: bool,
    /// Whether the testbed, and so presumably the daemon, is a release build.
    optimised: bool,
    machine: Machine,
    loads: [Load; 2],
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
    at_least: f64,
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
        let loads = [
            load("cache", "echo", OUTSTANDING, 0.3, cached, echo).context("no rounds")?,
            load("SA", "bare client", OUTSTANDING_SA, 0.5, uncached, bare).context("no rounds")?,
        ];
        Ok(Self {
            v: 1,
            bench: "paths",
            quick,
            optimised: !cfg!(debug_assertions),
            machine: Machine::this()?,
            loads,
            storms,
            caches: Cached::of(Cache::Paths, quick, costs),
            lookup_large_to_small: costs.large_lookup_ns / costs.small_lookup_ns,
        })
    }

    /// One picture of it.
    pub fn svg(&self) -> String {
        let load = |load: &Load| Chart {
            title: format!("Paths from the {}, answers a second", load.from),
            note: format!(
                "{} requests under way; ibarr makes {:.2} of what the {} makes (longer is better)",
                load.outstanding, load.rate_to_other, load.other
            ),
            unit: "answers",
            scale: Scale::Linear,
            aim: Some(Aim {
                value: load.them.answers_per_second * load.at_least,
                label: format!("target: {} of the {}", load.at_least, load.other),
            }),
            bars: [("ibarr", &load.ibarr, true), (load.other, &load.them, false)]
                .map(|(label, rates, is_ours)| Bar {
                    label: label.to_owned(),
                    value: rates.answers_per_second,
                    is_ours,
                })
                .into(),
        };
        let [from_cache, from_sa] = &self.loads;
        let [small, large] = &self.caches;
        let lookups = Chart {
            title: "Median look-up in the cache of paths".to_owned(),
            note: format!(
                "{} times the entries take {:.2} times as long (shorter is better)",
                large.entries / small.entries,
                self.lookup_large_to_small
            ),
            unit: "nanoseconds",
            scale: Scale::Linear,
            aim: Some(Aim {
                value: small.lookup_p50_ns * LOOKUP_AT_MOST,
                label: "target: three times the small one".to_owned(),
            }),
            bars: self.caches.iter().map(Cached::bar).collect(),
        };
        let Machine { kernel, cpu, .. } = &self.machine;
        let heading = format!("ibarr paths on {cpu}, Linux {kernel}");
        svg(&heading, &[load(from_cache), load(from_sa), lookups])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { kernel, cpu, cpus } = &self.machine;
        writeln!(f, "paths on {cpu}, {cpus} CPUs, Linux {kernel}")?;
        say_whether_figures_count(f, self.quick, self.optimised)?;
        self.ratios(f)?;
        self.rates(f)?;
        self.storms(f)?;
        Cached::table(f, "cache of paths", &self.caches)
    }
}

impl Report {
    fn ratios(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<58}{:>8}   target", "ratios", "")?;
        for load in &self.loads {
            let Load { from, other, rate_to_other: rate, .. } = load;
            let what = format!("from the {from}: answers a second, to the {other}'s");
            writeln!(f, "  {what:<56}{rate:>8.2}   {}", Target::AtLeast(load.at_least, *rate))?;
            let what = format!("from the {from}: answers per CPU-second, to the {other}'s");
            writeln!(f, "  {what:<56}{:>8.2}", load.rate_per_cpu_to_other)?;
        }
        for storm in &self.storms {
            let what = format!("{}: the SA is asked, to distinct questions", storm.pace);
            let asked = storm.asked_per_question();
            writeln!(f, "  {what:<56}{asked:>8.2}   {}", Target::AtMost(1.0, asked))?;
        }
        let lookup = self.lookup_large_to_small;
        let [small, large] = &self.caches;
        let what = format!("median look-up, {} paths to {}", large.entries, small.entries);
        writeln!(f, "  {what:<56}{lookup:>8.2}   {}", Target::AtMost(LOOKUP_AT_MOST, lookup))?;
        let bytes = large.bytes_per_entry.unwrap_or_default();
        let what = format!("bytes of memory a path, of {}", large.entries);
        writeln!(f, "  {what:<56}{bytes:>8.0}   {}", Target::AtMost(BYTES_AT_MOST, bytes))
    }

    fn rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<10}{:<14}{:>12}{:>18}{:>8}",
            "from", "who", "answers/s", "CPU µs an answer", "busy"
        )?;
        for load in &self.loads {
            for (name, rates) in [("ibarr", &load.ibarr), (load.other, &load.them)] {
                writeln!(
                    f,
                    "{:<10}{name:<14}{:>12}{:>17.2}{:>8.2}",
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
             gives back each request; the bare client asks the same stand-in for a subnet administrator,\n  \
             by the same socket in a umad device's place. CPU time is of all threads of who answers."
        )
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
