// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Counts and times of many answers.

use std::collections::BTreeMap;
use std::time::Duration;

use ibarr_proto::request;

use crate::control::messages::{Answer, Elapsed, Times};

/// The outcomes of a command's answers, and the times of those with a GID.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) statuses: BTreeMap<request::Status, u64>,
    times: Vec<Duration>,
    /// Where the next time goes if there are [`MAX_TIMES`].
    next: usize,
}

/// The most times that are kept: a command that runs for ever forgets the oldest.
const MAX_TIMES: usize = 1 << 20;

impl Tally {
    pub(super) fn note(&mut self, answer: &Answer) {
        let is_found = answer.status == request::Status::Found;
        self.note_all(answer.status, is_found.then_some(answer.ms.0).as_slice());
    }

    /// Counts an outcome with these times.
    pub(super) fn note_all(&mut self, status: request::Status, times: &[Duration]) {
        *self.statuses.entry(status).or_default() += 1;
        for &time in times {
            if self.times.len() < MAX_TIMES {
                self.times.push(time);
            } else {
                self.times[self.next] = time;
                self.next = (self.next + 1) % MAX_TIMES;
            }
        }
    }

    /// The number of answers.
    pub(super) fn count(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// The number of answers with a GID.
    pub(super) fn found(&self) -> u64 {
        self.statuses.get(&request::Status::Found).copied().unwrap_or(0)
    }

    pub(super) fn times(&self) -> Option<Times> {
        times(self.times.clone())
    }

    /// Like `3 found, 1 timed-out`.
    pub(super) fn outcomes(&self) -> String {
        let outcomes = self.statuses.iter().map(|(status, count)| format!("{count} {status}"));
        outcomes.collect::<Vec<_>>().join(", ")
    }
}

/// What these times have in common; `None` if there is none.
pub(super) fn times(mut times: Vec<Duration>) -> Option<Times> {
    times.sort_unstable();
    let at = |percent| percentile(&times, percent).map(Elapsed);
    Some(Times { min: at(0)?, median: at(50)?, p99: at(99)?, max: at(100)? })
}

/// The smallest value that is not below `percent` of 100 of them (nearest rank).
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: request::Status, ms: u64) -> Answer {
        let (ip, ms) = ([10, 0, 0, 1].into(), Elapsed(Duration::from_millis(ms)));
        Answer { ip, status, gid: None, source: None, ms }
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        let at =
            |values: &[Duration], percent| percentile(values, percent).map(|it| it.as_millis());
        let all = [0, 1, 50, 99, 100].map(|percent| at(&values, percent));
        assert_eq!(all, [1, 1, 50, 99, 100].map(Some));
        let two = [0, 50, 51, 99].map(|percent| at(&values[..2], percent));
        assert_eq!(two, [1, 1, 2, 2].map(Some));
        assert_eq!(at(&values[..1], 99), Some(1));
        assert_eq!(at(&[], 50), None);
    }

    #[test]
    fn tally_counts_outcomes_and_times_only_found_ones() {
        let mut tally = Tally::default();
        assert_eq!(tally.times(), None);
        for ms in [3, 1, 2] {
            tally.note(&answer(request::Status::Found, ms));
        }
        tally.note(&answer(request::Status::TimedOut, 1000));
        assert_eq!(tally.outcomes(), "3 found, 1 timed-out");
        assert_eq!((tally.count(), tally.found()), (4, 3));
        let times = tally.times().unwrap();
        let shown = [times.min, times.median, times.p99, times.max].map(|ms| ms.0.as_millis());
        assert_eq!(shown, [1, 2, 3, 3]);
    }

    #[test]
    fn oldest_times_are_forgotten_at_the_bound() {
        let times = vec![Duration::from_millis(9); MAX_TIMES];
        let mut tally = Tally { times, ..Tally::default() };
        for ms in [1, 2] {
            tally.note(&answer(request::Status::Found, ms));
        }
        assert_eq!(tally.times.len(), MAX_TIMES);
        assert_eq!(tally.times[..3], [1, 2, 9].map(Duration::from_millis));
    }
}
