// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reads the report of a guest: the Test Anything Protocol, with its plan at the end, or the lines of Rust's
//! test harness.

use std::fmt;

/// The report so far.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Tap {
    passed: usize,
    /// What failed, with the first line of what is said about it.
    failed: Vec<String>,
    /// What could not be tried, with the reason.
    skipped: Vec<String>,
    plan: Option<usize>,
    figures: Vec<String>,
    /// The last line was the claim that failed last, and the next one may say why.
    has_failed_now: bool,
}

impl Tap {
    /// Reads a line. Lines that report nothing are skipped.
    pub(super) fn line(&mut self, line: &str) {
        let has_failed_now = std::mem::take(&mut self.has_failed_now);
        if let Some(claim) = line.strip_prefix("ok ") {
            match claim.split_once(" # SKIP ") {
                Some((claim, why)) => self.skipped.push(format!("{claim}: {why}")),
                None => self.passed += 1,
            }
        } else if let Some(claim) = line.strip_prefix("not ok ") {
            self.failed.push(claim.to_owned());
            self.has_failed_now = true;
        } else if let Some(figure) = line.strip_prefix("# figure: ") {
            self.figures.push(figure.to_owned());
        } else if let Some(plan) = line.strip_prefix("1..") {
            self.plan = plan.trim().parse().ok();
        } else if let Some(result) = line.strip_prefix("test result: ") {
            let count = |word: &str| -> Option<usize> {
                result.split_once(&format!(" {word}"))?.0.rsplit(' ').next()?.parse().ok()
            };
            self.plan =
                count("passed").zip(count("failed")).map(|(passed, failed)| passed + failed);
        } else if let Some(test) = line.strip_prefix("test ") {
            if test.ends_with(" ... ok") {
                self.passed += 1;
            } else if let Some(test) = test.strip_suffix(" ... FAILED") {
                self.failed.push(test.to_owned());
            }
        } else if let (true, Some(why), Some(claim)) =
            (has_failed_now, line.strip_prefix("# "), self.failed.last_mut())
        {
            *claim = format!("{claim}: {why}");
        }
    }

    /// How many claims hold.
    pub(super) fn passed(&self) -> usize {
        self.passed
    }

    /// How many claims do not hold.
    pub(super) fn failed(&self) -> usize {
        self.failed.len()
    }

    /// How many claims could not be tried.
    pub(super) fn skipped(&self) -> usize {
        self.skipped.len()
    }

    pub(super) fn figures(&self) -> &[String] {
        &self.figures
    }

    /// Whether there are claims, all that could be tried hold, and none was lost.
    pub(super) fn is_success(&self) -> bool {
        self.passed > 0 && self.failed.is_empty() && self.plan == Some(self.made())
    }

    fn made(&self) -> usize {
        self.passed + self.failed.len() + self.skipped.len()
    }
}

impl fmt::Display for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed.len())?;
        match self.plan {
            None => f.write_str(", and the report has no end")?,
            Some(plan) if plan != self.made() => write!(f, ", {plan} planned")?,
            Some(_) => {}
        }
        for failed in &self.failed {
            write!(f, "; failed: {failed}")?;
        }
        for skipped in &self.skipped {
            write!(f, "; not tried: {skipped}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(report: &str) -> Tap {
        let mut tap = Tap::default();
        report.lines().for_each(|line| tap.line(line));
        tap
    }

    #[test]
    fn whole_report_without_failures_is_a_success() {
        let tap = read("# figure: 3 s\nok 1 - boots\nnoise\nok 2 - answers\n1..2\n");
        assert!(tap.is_success());
        assert_eq!(tap.figures(), ["3 s"]);
        assert_eq!(tap.to_string(), "2 passed, 0 failed");
    }

    #[test]
    fn claim_that_cannot_be_tried_is_named_and_not_counted_as_held() {
        let tap = read("ok 1 - boots\nok 2 - wins a race # SKIP no preemption\n1..2\n");
        assert!(tap.is_success());
        assert_eq!((tap.passed(), tap.skipped()), (1, 1));
        assert_eq!(
            tap.to_string(),
            "1 passed, 0 failed; not tried: 2 - wins a race: no preemption"
        );
        assert!(!read("ok 1 - all # SKIP no kernel\n1..1\n").is_success());
    }

    #[test]
    fn test_harness_is_understood() {
        let lines = "running 2 tests\ntest a::b ... ok\ntest c ... ok\n";
        let end = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; fin";
        assert!(read(&format!("{lines}\n{end}\n")).is_success());
        assert!(!read(lines).is_success());
        let failed = lines.replacen("ok", "FAILED", 1);
        let end = "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured";
        let shown = read(&format!("{failed}{end}")).to_string();
        assert_eq!(shown, "1 passed, 1 failed; failed: a::b");
    }

    #[test]
    fn other_reports_are_no_success() {
        for (report, says) in [
            ("", "0 passed, 0 failed, and the report has no end"),
            ("1..0", "0 passed, 0 failed"),
            ("ok 1 - a", "1 passed, 0 failed, and the report has no end"),
            ("ok 1 - a\n1..2", "1 passed, 0 failed, 2 planned"),
            ("ok 1 - a\nnot ok 2 - b\n1..2", "1 passed, 1 failed; failed: 2 - b"),
            (
                "not ok 1 - a\n# no route\n# two hops\nnot ok 2 - b\n1..2\n# a note",
                "0 passed, 2 failed; failed: 1 - a: no route; failed: 2 - b",
            ),
        ] {
            let tap = read(report);
            assert!(!tap.is_success(), "{report}");
            assert_eq!(tap.to_string(), says);
        }
    }
}
