// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Costs of the caches, small and large: time of a look-up, and memory of an entry.

mod paths;
mod peers;

use std::fs;
use std::hint::black_box;
use std::time::Instant as Stopwatch;

use anyhow::{Context, Result, ensure};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

use super::report::{Report, Target, median};

/// Measures the cache of peers.
pub(super) fn peers(quick: bool, report: &mut Report) -> Result<()> {
    compare::<peers::Peers>("peers", [1_000, 100_000], None, quick, report)
}

/// Measures the cache of paths.
pub(super) fn paths(quick: bool, report: &mut Report) -> Result<()> {
    let many = if quick { 20_000 } else { 1_000_000 };
    compare::<paths::Paths>("paths", [1_000, many], Some(Target::AtMost(160.0)), quick, report)
}

/// A cache of a core.
trait Memory: Sized {
    type Question: Copy;

    /// The question that `number` stands for.
    fn question(number: u32) -> Result<Self::Question>;

    /// A cache filled as the daemon fills it.
    fn filled(questions: &[Self::Question], rng: ChaCha12Rng) -> Result<Self>;

    /// Number of remembered answers.
    fn len(&self) -> usize;

    /// Whether the answer is remembered; this is the look-up that is measured.
    fn knows(&mut self, question: Self::Question) -> bool;
}

fn compare<M: Memory>(
    what: &str,
    sizes: [u32; 2],
    memory: Option<Target>,
    quick: bool,
    report: &mut Report,
) -> Result<()> {
    eprintln!("bench: look-ups among {sizes:?} {what} …");
    let mut rng = ChaCha12Rng::seed_from_u64(1);
    let [mut small, mut large] =
        [Filled::<M>::new(sizes[0], &mut rng)?, Filled::<M>::new(sizes[1], &mut rng)?];
    let bytes = large.bytes / f64::from(sizes[1]);
    // As much memory as the caches have.
    let [mut few, mut all] = sizes.map(|size| Reads::new(f64::from(size) * bytes, &mut rng));
    let mut best = [f64::INFINITY; 4];
    for _ in 0..if quick { 5 } else { 100 } {
        let round = [small.median_ns()?, large.median_ns()?, few.mean_ns(), all.mean_ns()];
        best.iter_mut().zip(round).for_each(|(best, round)| *best = best.min(round));
    }
    for (at, size) in sizes.iter().enumerate() {
        report.add(format!("ns of a look-up among {size} {what}"), best[at], None);
        report.add(format!("ns of a read of that memory, {size} {what}"), best[at + 2], None);
    }
    let ratio = best[1] / best[0];
    report.add("look-up among many, to one among 1000", ratio, Some(Target::AtMost(3.0)));
    let reads = (best[1] - best[0]) / (best[3] - best[2]);
    report.add("what many cost a look-up, in such reads", reads, None);
    let one_read = (best[0] + best[3]) / best[0];
    report.add("the first ratio if a look-up made one such read", one_read, None);
    report.add(format!("bytes of memory for each of {} {what}", sizes[1]), bytes, memory);
    Ok(())
}

/// A cache, and the order of the look-ups.
struct Filled<M: Memory> {
    memory: M,
    questions: std::iter::Cycle<std::vec::IntoIter<M::Question>>,
    /// Growth of the resident process.
    bytes: f64,
}

impl<M: Memory> Filled<M> {
    fn new(entries: u32, rng: &mut ChaCha12Rng) -> Result<Self> {
        let mut questions: Vec<_> = (0..entries).map(M::question).collect::<Result<_>>()?;
        let before = resident_bytes()?;
        let memory = M::filled(&questions, ChaCha12Rng::from_rng(rng))?;
        let bytes = resident_bytes()? - before;
        let remembered = memory.len();
        ensure!(remembered == questions.len(), "{remembered} of {entries} answers are remembered");
        for at in (1..questions.len()).rev() {
            let other = rng.next_u64() % (at as u64 + 1);
            questions.swap(at, usize::try_from(other)?);
        }
        Ok(Self { memory, questions: questions.into_iter().cycle(), bytes })
    }

    /// The median time of a look-up. Clocks are too coarse for one, so some are timed together.
    fn median_ns(&mut self) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..GROUPS {
            let group: Vec<_> = self.questions.by_ref().take(GROUP as usize).collect();
            let start = Stopwatch::now();
            let known = group.iter().filter(|question| black_box(self.memory.knows(**question)));
            let known = known.count();
            let took = start.elapsed();
            ensure!(known == GROUP as usize, "an answer is forgotten");
            times.push(took.as_secs_f64() * 1e9 / f64::from(GROUP));
        }
        median(times.into_iter())
    }
}

/// Cache lines in random order, each of which says where the next one is: what no look-up can do without.
struct Reads {
    lines: Vec<[usize; 8]>,
    at: usize,
}

impl Reads {
    fn new(bytes: f64, rng: &mut ChaCha12Rng) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^53")]
        let len = (bytes / 64.0) as usize;
        let mut lines: Vec<_> = (0..len.max(1)).map(|at| [at; 8]).collect();
        // Sattolo's shuffle makes one circle of all.
        for at in (1..lines.len()).rev() {
            let other = rng.next_u64() % at as u64;
            lines.swap(at, usize::try_from(other).unwrap_or(0));
        }
        Self { lines, at: 0 }
    }

    fn mean_ns(&mut self) -> f64 {
        let count = GROUP * u32::try_from(GROUPS).unwrap_or(1);
        let start = Stopwatch::now();
        for _ in 0..count {
            self.at = self.lines[self.at][0];
        }
        black_box(self.at);
        start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    }
}

pub(super) fn resident_bytes() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read own status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.context("no VmRSS in /proc/self/status")? * 1024.0)
}

/// Look-ups that are timed together.
const GROUP: u32 = 16;
const GROUPS: usize = 2_000;
