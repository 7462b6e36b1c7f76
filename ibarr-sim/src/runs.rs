// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Runs many simulations, one on each processor at a time.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::{Bug, Counts, Failure, Plan, run};

/// The result of many simulations.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Runs {
    pub seeds: u64,
    /// Sum of their hashes, independent of the order in which they ran.
    pub hash: u64,
    /// Sum of their counts.
    pub counts: Counts,
    /// The broken claim of the lowest failing seed.
    pub failure: Option<Failure>,
}

/// Runs the seeds on all processors until one fails. The reported failure is that of the lowest
/// failing seed; all lower seeds have passed.
pub fn run_all(seeds: Range<u64>, plan: Plan, bug: Option<Bug>) -> Runs {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let next = AtomicU64::new(seeds.start);
    let has_failed = AtomicBool::new(false);
    let runs = Mutex::new(Runs::default());
    let work = || {
        while !has_failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let result = run(seed, plan, bug);
            let Ok(mut runs) = runs.lock() else { return };
            runs.seeds += 1;
            match result {
                Ok(report) => {
                    runs.hash = runs.hash.wrapping_add(report.hash);
                    runs.counts += &report.counts;
                }
                Err(failure) => {
                    has_failed.store(true, Ordering::Relaxed);
                    if runs.failure.as_ref().is_none_or(|other| failure.seed < other.seed) {
                        runs.failure = Some(failure);
                    }
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    runs.into_inner().unwrap_or_default()
}
