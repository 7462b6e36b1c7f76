// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A run's figures as table, JSON and SVG.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::super::chart::{Bar, Chart, Scale, svg};
use super::super::report::{Machine, Target, median};
use super::programs::Hook;
use super::{Case, Cost, ENTRIES};

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub struct Report {
    v: u32,
    bench: &'static str,
    quick: bool,
    machine: Machine,
    entries: u32,
    /// Of each program, in each case.
    runs: u64,
    programs: Vec<Program>,
}

/// A program on one kind of frame.
#[derive(Debug, Serialize)]
struct Program {
    name: &'static str,
    family: &'static str,
    /// Whether targets are scattered over all entries, or one is asked for all the time.
    scattered: bool,
    /// A run, by the kernel's account: the median over the rounds.
    ns: f64,
    /// The same without what an empty program of the same hook takes, in the same round.
    net_ns: f64,
    /// To a program of the same hook that swaps addresses and sends back, in the same round.
    to_bounce: Option<f64>,
}

impl Report {
    pub(super) fn new(quick: bool, rounds: usize, runs: u32, costs: &[Cost]) -> Result<Self> {
        let beside = |case: &Case, prefix: &str| {
            let is_it =
                |cost: &&Cost| cost.case.hook == case.hook && cost.case.program.starts_with(prefix);
            costs.iter().find(is_it).with_context(|| format!("nothing {prefix} was run"))
        };
        let mut programs = Vec::new();
        for Cost { case, rounds } in costs {
            let empty = &beside(case, "empty")?.rounds;
            let bounce = &beside(case, "bounce")?.rounds;
            let net = rounds.iter().zip(empty).map(|(ours, empty)| ours - empty);
            let to_bounce = rounds.iter().zip(bounce).map(|(ours, bounce)| ours / bounce);
            programs.push(Program {
                name: case.program,
                family: if case.ipv6 { "IPv6" } else { "IPv4" },
                scattered: case.scattered,
                ns: median(rounds.iter().copied()).context("no rounds")?,
                net_ns: median(net).context("no rounds")?,
                to_bounce: median(to_bounce).filter(|_| case.is_ours()),
            });
        }
        Ok(Self {
            v: 1,
            bench: "responder",
            quick,
            machine: Machine::this()?,
            entries: ENTRIES,
            runs: u64::from(runs) * u64::try_from(rounds)?,
            programs,
        })
    }

    /// One picture of it.
    pub fn svg(&self) -> String {
        let chart = |hook: Hook| Chart {
            title: format!("Nanoseconds a run, {}", if hook == Hook::Tc { "tc" } else { "XDP" }),
            note: format!(
                "by the kernel's account, {ENTRIES} entries in the map (shorter is better)"
            ),
            unit: "nanoseconds",
            scale: Scale::Linear,
            bars: (self.programs.iter().filter(|program| program.is_at(hook)))
                .map(|program| Bar {
                    label: program.label(),
                    value: program.ns,
                    is_ours: program.to_bounce.is_some(),
                })
                .collect(),
        };
        let Machine { kernel, cpu, .. } = &self.machine;
        let heading = format!("ibarr responder on {cpu}, Linux {kernel}");
        svg(&heading, &[chart(Hook::Tc), chart(Hook::Xdp)])
    }
}

impl Program {
    fn is_at(&self, hook: Hook) -> bool {
        self.name.ends_with("_tc") == (hook == Hook::Tc)
    }

    fn label(&self) -> String {
        let name = self.name.split_once('_').map_or(self.name, |(name, _)| name);
        match (self.to_bounce, self.scattered) {
            (None, _) => name.to_owned(),
            (_, false) => format!("{name}, {}, one", self.family),
            (_, true) => format!("{name}, {}, any", self.family),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { kernel, cpu, cpus } = &self.machine;
        writeln!(f, "responder on {cpu}, {cpus} CPUs, Linux {kernel}")?;
        if self.quick {
            writeln!(f, "a quick run: these figures show that the bench works, nothing else")?;
        }
        writeln!(
            f,
            "\n{:<12}{:<24}{:>10}{:>14}{:>12}   target",
            "program", "query", "ns a run", "minus empty", "to bounce"
        )?;
        for program in &self.programs {
            let target = if program.scattered { "any of all" } else { "one address" };
            let query = format!("{}, {target}", program.family);
            let query = if program.to_bounce.is_some() { &query[..] } else { program.family };
            write!(
                f,
                "{:<12}{query:<24}{:>10.1}{:>14.1}",
                program.name, program.ns, program.net_ns
            )?;
            match program.to_bounce {
                Some(ratio) => writeln!(f, "{ratio:>12.2}   {}", Target::AtMost(2.0, ratio))?,
                None => writeln!(f)?,
            }
        }
        writeln!(
            f,
            "  medians; {} runs of each; {} entries in the map; bounce looks at nothing, swaps\n  \
             addresses and ports, and sends back",
            self.runs, self.entries
        )
    }
}
