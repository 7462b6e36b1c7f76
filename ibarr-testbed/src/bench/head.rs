// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The head of every report, and the rows that say whether a target is met.

use std::fmt;
use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

/// The bench, its build, and the machine.
#[derive(Debug, Serialize)]
pub(super) struct Head {
    v: u32,
    bench: &'static str,
    quick: bool,
    /// Whether this is a release build; presumably the daemon then is one, too.
    optimised: bool,
    machine: Machine,
}

#[derive(Debug, Serialize)]
struct Machine {
    kernel: String,
    cpu: String,
    cpus: usize,
}

impl Head {
    /// The head of a run of `bench` that ends now.
    pub(super) fn new(bench: &'static str, quick: bool) -> Result<Self> {
        let optimised = !cfg!(debug_assertions);
        Ok(Self { v: 1, bench, quick, optimised, machine: Machine::this()? })
    }
}

/// Printed above the tables, with a warning for a short run or a debug build.
impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { kernel, cpu, cpus } = &self.machine;
        writeln!(f, "{} on {cpu}, {cpus} CPUs, Linux {kernel}", self.bench)?;
        if self.quick || !self.optimised {
            let why = if self.optimised { "a quick run" } else { "a debug build" };
            writeln!(f, "{why}: these figures show that the bench works, nothing else")?;
        }
        Ok(())
    }
}

impl Machine {
    fn this() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("no {path}"));
        let cpus = read("/proc/cpuinfo")?;
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
        Ok(Self {
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            cpu: model
                .map_or(std::env::consts::ARCH, |m| m.trim_start_matches([' ', '\t', ':']))
                .to_owned(),
            cpus: cpus.lines().filter(|line| line.starts_with("processor")).count(),
        })
    }
}

/// The first table: ratios, which depend little on the machine.
pub(super) struct Ratios<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl<'a, 'f> Ratios<'a, 'f> {
    pub(super) fn begin(f: &'a mut fmt::Formatter<'f>) -> Result<Self, fmt::Error> {
        writeln!(f, "\n{:<58}{:>10}   target", "ratios", "")?;
        Ok(Self(f))
    }

    /// A row. `None` if there was nothing to divide.
    pub(super) fn row(
        &mut self,
        what: impl fmt::Display,
        value: Option<f64>,
        target: Option<Target>,
    ) -> fmt::Result {
        // Format padding works on strings only.
        let what = what.to_string();
        let said = value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        write!(self.0, "  {what:<56}{said:>10}")?;
        if let (Some(value), Some(target)) = (value, target) {
            write!(self.0, "   {}", target.held_against(value))?;
        }
        writeln!(self.0)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    /// The bound, and whether `value` meets it.
    pub(super) fn held_against(self, value: f64) -> String {
        let (sign, bound, is_met) = match self {
            Self::AtLeast(bound) => ("≥", bound, value >= bound),
            Self::AtMost(bound) => ("≤", bound, value <= bound),
        };
        format!("{sign} {bound}: {}", if is_met { "met" } else { "MISSED" })
    }
}

/// A short form of a number: 1.20 M, 34.5 k, 678, 0.12.
pub(super) fn short(value: f64) -> String {
    match value {
        _ if value >= 999_500.0 => format!("{:.2} M", value / 1e6),
        _ if value >= 9_995.0 => format!("{:.1} k", value / 1e3),
        _ if value >= 99.5 => format!("{value:.0}"),
        _ if value >= 9.95 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
