// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The figures of a run, as a table and as JSON.

use std::fmt;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// The bench, its build, the machine, and one row a figure.
#[derive(Debug, Serialize)]
pub struct Report {
    v: u32,
    bench: &'static str,
    quick: bool,
    /// Whether this is a release build; presumably the daemon then is one, too.
    optimised: bool,
    kernel: String,
    cpu: String,
    cpus: usize,
    figures: Vec<Figure>,
}

#[derive(Debug, Serialize)]
struct Figure {
    name: String,
    value: f64,
    /// The bound, and whether `value` meets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn held_against(self, value: f64) -> String {
        let (sign, bound, is_met) = match self {
            Self::AtLeast(bound) => ("≥", bound, value >= bound),
            Self::AtMost(bound) => ("≤", bound, value <= bound),
        };
        format!("{sign} {bound}: {}", if is_met { "met" } else { "MISSED" })
    }
}

/// One server in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) answers: f64,
    pub(super) wall: Duration,
    /// CPU time of all threads of the server.
    pub(super) cpu: Duration,
}

impl Round {
    fn rate(&self) -> f64 {
        self.answers / self.wall.as_secs_f64()
    }

    pub(super) fn rate_per_cpu(&self) -> f64 {
        self.answers / self.cpu.as_secs_f64()
    }
}

impl Report {
    /// A report without figures yet.
    pub(super) fn new(bench: &'static str, quick: bool) -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("no {path}"));
        let cpus = read("/proc/cpuinfo")?;
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
        let cpu =
            model.map_or(std::env::consts::ARCH, |it| it.trim_start_matches([' ', '\t', ':']));
        Ok(Self {
            v: 2,
            bench,
            quick,
            optimised: !cfg!(debug_assertions),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            cpu: cpu.to_owned(),
            cpus: cpus.lines().filter(|line| line.starts_with("processor")).count(),
            figures: Vec::new(),
        })
    }

    pub(super) fn add(&mut self, name: impl Into<String>, value: f64, target: Option<Target>) {
        let target = target.map(|target| target.held_against(value));
        self.figures.push(Figure { name: name.into(), value, target });
    }

    /// Answers a second.
    pub(super) fn rate(
        &mut self,
        what: &str,
        ours: &[Round],
        target: Option<Target>,
    ) -> Result<()> {
        self.add(what, median(ours.iter().map(Round::rate))?, target);
        Ok(())
    }

    /// Compares two servers, round by round: rounds with the same index are neighbours in time.
    pub(super) fn compare(
        &mut self,
        what: &str,
        ours: &[Round],
        echo: &[Round],
        target: Option<Target>,
    ) -> Result<()> {
        self.add_ratios(what, "the echo's", ours, echo, target)?;
        let of = |each: fn(&Round) -> f64| median(ours.iter().map(each));
        let busy = of(|round| round.cpu.as_secs_f64() / round.wall.as_secs_f64())?;
        self.add(format!("{what}: answers a second"), of(Round::rate)?, None);
        let cost = of(|round| 1e6 / round.rate_per_cpu())?;
        self.add(format!("{what}: µs of CPU time an answer"), cost, None);
        self.add(format!("{what}: CPU time to wall time"), busy, None);
        Ok(())
    }

    /// The rates of a server to those of another, round by round.
    pub(super) fn add_ratios(
        &mut self,
        what: &str,
        to: &str,
        ours: &[Round],
        theirs: &[Round],
        target: Option<Target>,
    ) -> Result<()> {
        let ratio = |of: fn(&Round) -> f64| {
            median(ours.iter().zip(theirs).map(|(ours, theirs)| of(ours) / of(theirs)))
        };
        self.add(format!("{what}: answers a second, to {to}"), ratio(Round::rate)?, target);
        let per_cpu = ratio(Round::rate_per_cpu)?;
        self.add(format!("{what}: answers per CPU-second, to {to}"), per_cpu, None);
        Ok(())
    }
}

/// The figures, with a warning for a short run or a debug build.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bench, kernel, cpu, cpus, .. } = self;
        writeln!(f, "{bench} on {cpu}, {cpus} CPUs, Linux {kernel}")?;
        if self.quick || !self.optimised {
            let why = if self.optimised { "a quick run" } else { "a debug build" };
            writeln!(f, "{why}: these figures show that the bench works, nothing else")?;
        }
        for Figure { name, value, target } in &self.figures {
            let value = short(*value);
            let line = format!("{name:<60}{value:>10}   {}", target.as_deref().unwrap_or_default());
            writeln!(f, "  {}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The value of which half are less.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Result<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().context("nothing was measured")
}

/// A short form of a number: 1.20 M, 34.5 k, 678, 0.12.
fn short(value: f64) -> String {
    match value {
        _ if value >= 999_500.0 => format!("{:.2} M", value / 1e6),
        _ if value >= 9_995.0 => format!("{:.1} k", value / 1e3),
        _ if value >= 99.5 => format!("{value:.0}"),
        _ if value >= 9.95 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
