// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The figures of a run, as tables and JSON.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::super::head::{Head, Ratios, Target, short};
use super::super::rounds::{Rates, Round, ratio};
use super::{CASES, OUTSTANDING};

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    head: Head,
    outstanding: u32,
    families: Vec<Family>,
}

/// Figures for addresses of one family, answered from the cache.
#[derive(Debug, Serialize)]
struct Family {
    name: &'static str,
    /// Answers a second, ibarr's divided by the echo's, in the same round.
    rate_to_echo: f64,
    /// The same for answers per CPU-second.
    rate_per_cpu_to_echo: f64,
    ibarr: Rates,
    echo: Rates,
}

impl Report {
    pub(super) fn new(quick: bool, costs: &[Vec<Round>; CASES.len()]) -> Result<Self> {
        let [ibarr_v4, echo_v4, ibarr_v6, echo_v6] = costs;
        let families = [
            Family::new("IPv4", ibarr_v4, echo_v4).context("no rounds")?,
            Family::new("IPv6", ibarr_v6, echo_v6).context("no rounds")?,
        ];
        Ok(Self {
            head: Head::new("resolve", quick)?,
            outstanding: OUTSTANDING,
            families: families.into(),
        })
    }
}

impl Family {
    fn new(name: &'static str, ibarr: &[Round], echo: &[Round]) -> Option<Self> {
        Some(Self {
            name,
            rate_to_echo: ratio(ibarr, echo, Round::rate)?,
            rate_per_cpu_to_echo: ratio(ibarr, echo, Round::rate_per_cpu)?,
            ibarr: Rates::new(ibarr)?,
            echo: Rates::new(echo)?,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head)?;
        let mut table = Ratios::begin(f)?;
        for Family { name, rate_to_echo: rate, rate_per_cpu_to_echo: per_cpu, .. } in &self.families
        {
            let target = Target::AtLeast(0.3);
            table.row(
                format_args!("{name}: answers a second, to the echo's"),
                Some(*rate),
                Some(target),
            )?;
            table.row(
                format_args!("{name}: answers per CPU-second, to the echo's"),
                Some(*per_cpu),
                None,
            )?;
        }
        writeln!(
            f,
            "\n{:<10}{:<8}{:>12}{:>18}{:>8}",
            "server", "family", "answers/s", "CPU µs an answer", "busy"
        )?;
        for family in &self.families {
            for (name, server) in [("ibarr", &family.ibarr), ("echo", &family.echo)] {
                writeln!(
                    f,
                    "{name:<10}{:<8}{:>12}{:>17.2}{:>8.2}",
                    family.name,
                    short(server.answers_per_second),
                    server.cpu_us_per_answer,
                    server.busy
                )?;
            }
        }
        writeln!(
            f,
            "  medians; from the cache, {OUTSTANDING} requests in flight; the echo sends back each\n  \
             datagram and does nothing else; CPU time is of all threads, the nudging one included"
        )
    }
}
