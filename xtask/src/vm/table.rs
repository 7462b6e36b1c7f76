// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The table of results of all scenarios on all kernels, which is printed when all have run.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};

use super::tap::Tap;
use crate::systems::{How, Row};

/// A row for each scenario, a column for each kernel, both in the order in which they ran.
#[derive(Debug, Default)]
pub(super) struct Table {
    cells: Vec<Cell>,
}

/// A scenario on a kernel.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) scenario: &'static str,
    /// A few words about it.
    pub(super) about: String,
    /// Like `6.1`.
    pub(super) kernel: String,
    pub(super) success: bool,
    pub(super) tap: Tap,
    /// How it ended, for the error that names it.
    pub(super) outcome: String,
    pub(super) took: Duration,
}

impl Table {
    pub(super) fn add(&mut self, cell: Cell) {
        self.cells.push(cell);
    }

    /// The results of each kernel: one of the `level`, or one of each scenario. `release` has the release of a
    /// kernel by its name.
    pub(super) fn rows<'a>(
        &self,
        level: Option<&str>,
        release: impl Fn(&str) -> &'a str,
    ) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        // A scenario of two guests is one of both kernels.
        let cells = self.cells.iter();
        let cells = cells.flat_map(|cell| cell.kernel.split(", ").map(move |name| (cell, name)));
        for (cell, kernel) in cells {
            let (passed, failed) = (cell.tap.passed(), cell.tap.failed());
            // A guest that died has made fewer claims than it would have.
            let lost = usize::from(!cell.success && failed == 0);
            let of = passed + failed + lost + cell.tap.skipped();
            let system = format!("Linux {kernel}");
            // Two guests share the tests of `responder`.
            let what = level.unwrap_or(cell.scenario.trim_end_matches(['-', '1', '2'])).to_owned();
            let same = |row: &&mut Row| row.system == system && row.what == what;
            if let Some(row) = rows.iter_mut().find(same) {
                (row.passed, row.of) = (row.passed + passed, row.of + of);
            } else {
                let with = release(kernel).to_owned();
                rows.push(Row { system, how: How::Ran, what, passed, of, with });
            }
        }
        rows
    }

    /// The kernels of each run, and its figures.
    pub(super) fn figures(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.cells.iter().map(|cell| (cell.kernel.as_str(), cell.tap.figures()))
    }

    /// Prints it, unless there is only one scenario on one kernel. Returns how many claims hold.
    ///
    /// # Errors
    /// Lists the scenarios that failed.
    pub(super) fn end(self) -> Result<usize> {
        if self.cells.len() > 1 {
            println!("\n{self}");
        }
        let failed = self.cells.iter().filter(|cell| !cell.success);
        let failed = failed.map(|Cell { scenario, kernel, outcome, .. }| {
            format!("{scenario} on {kernel} ({outcome})")
        });
        let failed: Vec<_> = failed.collect();
        if !failed.is_empty() {
            bail!("vm: failed: {}", failed.join(", "));
        }
        Ok(self.cells.iter().map(|cell| cell.tap.passed()).sum())
    }
}

impl Cell {
    fn outcome(&self) -> String {
        let outcome = match (self.success, self.tap.failed()) {
            (true, _) if self.tap.skipped() > 0 => {
                format!("{} claims hold, {} not tried", self.tap.passed(), self.tap.skipped())
            }
            (true, _) => format!("{} claims hold", self.tap.passed()),
            (false, 0) => "FAILED".to_owned(),
            (false, failed) => format!("{failed} of {} FAILED", failed + self.tap.passed()),
        };
        format!("{outcome:<16} {:6.1} s", self.took.as_secs_f32())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kernels: Vec<&str> = Vec::new();
        let mut rows: Vec<(&str, &str)> = Vec::new();
        for Cell { scenario, about, kernel, .. } in &self.cells {
            if !kernels.contains(&kernel.as_str()) {
                kernels.push(kernel);
            }
            if !rows.contains(&(scenario, about)) {
                rows.push((scenario, about));
            }
        }
        let width = |of: fn(&Cell) -> &str| {
            self.cells.iter().map(|cell| of(cell).len()).max().unwrap_or_default()
        };
        let (name, about) = (width(|cell| cell.scenario), width(|cell| &cell.about));
        write!(f, "{:name$}  {:about$}", "", "")?;
        for kernel in &kernels {
            write!(f, "  {:<25}", format!("Linux {kernel}"))?;
        }
        for row in rows {
            write!(f, "\n{:name$}  {:about$}", row.0, row.1)?;
            for kernel in &kernels {
                let is_it = |cell: &&Cell| cell.scenario == row.0 && cell.kernel == *kernel;
                let outcome = self.cells.iter().find(is_it).map(Cell::outcome);
                write!(f, "  {:<25}", outcome.unwrap_or_default())?;
            }
        }
        for Cell { scenario, kernel, tap, .. } in &self.cells {
            for figure in tap.figures() {
                write!(f, "\n{scenario} on {kernel}: {figure}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(scenario: &'static str, kernel: &str, said: &str) -> Cell {
        let kernel = kernel.to_owned();
        let mut tap = Tap::default();
        said.lines().for_each(|line| tap.line(line));
        let about = format!("about {scenario}");
        let (success, took) = (tap.is_success(), Duration::from_millis(21_250));
        let outcome = tap.to_string();
        Cell { scenario, about, kernel, success, tap, outcome, took }
    }

    #[test]
    fn each_scenario_has_a_row_and_each_kernel_a_column() {
        let mut table = Table::default();
        table.add(cell("run-a", "6.1", "ok 1 - is\nok 2 - too\n1..2"));
        table.add(cell("run-a", "6.12", "ok 1 - is\nnot ok 2 - is not\n1..2"));
        table.add(cell("run-b", "6.12", "ok 1 - is\n# figure: half of it"));
        let shown = table.to_string();
        let lines: Vec<_> = shown.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "                    Linux 6.1                  Linux 6.12",
                "run-a  about run-a  2 claims hold      21.2 s  1 of 2 FAILED      21.2 s",
                "run-b  about run-b                             FAILED             21.2 s",
                "run-b on 6.12: half of it",
            ]
        );
        let rows = table.rows(None, |kernel| if kernel == "6.1" { "6.1.0-9" } else { "6.12.9" });
        assert_eq!(rows[0].to_string(), "Linux 6.1 | ran | run-a | 2 of 2 | 6.1.0-9");
        assert_eq!(rows[2].to_string(), "Linux 6.12 | ran | run-b | 1 of 2 | 6.12.9");
        let error = table.end().expect_err("two failed").to_string();
        assert_eq!(
            error,
            "vm: failed: run-a on 6.12 (1 passed, 1 failed; failed: 2 - is not), \
             run-b on 6.12 (1 passed, 0 failed, and the report has no end)"
        );
    }

    #[test]
    fn claims_of_all_are_counted() {
        let mut table = Table::default();
        table.add(cell("hello", "6.1", "ok 1 - is\n1..1"));
        table.add(cell("ls", "6.1", "ok 1 - is\nok 2 - too\n1..2"));
        assert_eq!(table.end().expect("all hold"), 3);
    }

    #[test]
    fn two_halves_and_all_of_a_level_have_one_result() {
        let mut table = Table::default();
        table.add(cell("responder-1", "6.1", "ok 1 - is\n1..1"));
        table.add(cell("responder-2", "6.1", "ok 1 - is\nok 2 - too\n1..2"));
        for (level, what) in [(None, "responder"), (Some("vm-x"), "vm-x")] {
            let rows = table.rows(level, |_| "6.1.0-9");
            let rows: Vec<_> = rows.iter().map(Row::to_string).collect();
            assert_eq!(rows, [format!("Linux 6.1 | ran | {what} | 3 of 3 | 6.1.0-9")]);
        }
    }
}
