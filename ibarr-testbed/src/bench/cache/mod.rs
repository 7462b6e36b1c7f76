// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Costs of the caches, small and large: time of a look-up, and memory of an entry.

mod paths;
mod peers;

use std::fs;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Instant as Stopwatch;

use anyhow::{Context, Result, ensure};
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::report::float;
use crate::interrupt::Interrupt;

/// The cache that is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Cache {
    /// Answers of peers.
    Peers,
    /// Answers of subnet administrators.
    Paths,
}

impl Cache {
    /// Numbers of entries that are compared, few and many.
    pub(super) fn sizes(self, quick: bool) -> [u32; 2] {
        match self {
            Self::Peers => [1_000, 100_000],
            Self::Paths if quick => [1_000, 20_000],
            Self::Paths => [1_000, 1_000_000],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Peers => "peers",
            Self::Paths => "paths",
        }
    }
}

/// The costs of a cache.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Costs {
    /// Median time of a successful look-up with few entries, in nanoseconds, in the least disturbed
    /// round.
    pub(super) small_lookup_ns: f64,
    /// The same with many entries.
    pub(super) large_lookup_ns: f64,
    /// Growth of the resident process for each of many entries.
    pub(super) bytes_per_entry: f64,
    /// Time to read a random word of an equally large array, when each read waits for the one before, in
    /// nanoseconds. No look-up of something that is only in memory can be faster.
    pub(super) read_ns: f64,
}

impl Costs {
    /// The minimum of both, because a disturbance only adds time.
    fn less_disturbed(self, other: Self) -> Self {
        Self {
            small_lookup_ns: self.small_lookup_ns.min(other.small_lookup_ns),
            large_lookup_ns: self.large_lookup_ns.min(other.large_lookup_ns),
            bytes_per_entry: self.bytes_per_entry.min(other.bytes_per_entry),
            read_ns: self.read_ns.min(other.read_ns),
        }
    }
}

/// Measures in so many fresh processes, one after another, because the memory layout of some is worse
/// than that of others.
pub(super) fn measure_in_children(
    cache: Cache,
    quick: bool,
    processes: usize,
    interrupt: &Interrupt,
) -> Result<Costs> {
    let mut costs = measure_in_child(cache, quick)?;
    for _ in 1..processes {
        interrupt.check()?;
        costs = costs.less_disturbed(measure_in_child(cache, quick)?);
    }
    Ok(costs)
}

fn measure_in_child(cache: Cache, quick: bool) -> Result<Costs> {
    let this = std::env::current_exe().context("cannot find this program")?;
    let output = Command::new(this)
        .args(["bench", "caches", cache.name()])
        .args(quick.then_some("--quick"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start a process")?;
    ensure!(output.status.success(), "the bench of caches ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("costs in JSON were expected")
}

/// Fills caches in this process, as answers from the network do, and measures.
///
/// # Errors
/// A cache does not remember an answer.
pub fn measure(cache: Cache, quick: bool) -> Result<Costs> {
    let sizes = cache.sizes(quick);
    let rounds = if quick { 5 } else { 100 };
    match cache {
        Cache::Peers => compare::<peers::Peers>(sizes, rounds),
        Cache::Paths => compare::<paths::Paths>(sizes, rounds),
    }
}

/// A core that remembers answers.
trait Memory: Sized {
    /// As small as possible, because a million questions must not fill the processor's caches.
    type Question: Copy;

    /// The question with this number.
    fn question(number: u32) -> Result<Self::Question>;

    /// A core that has asked all of `questions` and got the answers.
    fn filled(questions: &[Self::Question], rng: ChaCha20Rng) -> Result<Self>;

    /// Number of remembered answers.
    fn len(&self) -> usize;

    /// Looks an answer up. False if there is none.
    fn knows(&mut self, question: Self::Question) -> bool;
}

fn compare<M: Memory>([small, large]: [u32; 2], rounds: usize) -> Result<Costs> {
    let mut rng = ChaCha20Rng::seed_from_u64(SEED);
    let mut small = Filled::<M>::new(small, &mut rng)?;
    let mut large = Filled::<M>::new(large, &mut rng)?;
    let mut array = Array::new(large.bytes, &mut rng);
    let mut best = [f64::INFINITY; 3];
    for _ in 0..rounds {
        // In turn, so that a disturbance hits all three.
        let round = [small.median_ns()?, large.median_ns()?, array.median_ns()?];
        best.iter_mut().zip(round).for_each(|(best, round)| *best = best.min(round));
    }
    let [small_lookup_ns, large_lookup_ns, read_ns] = best;
    let bytes_per_entry = float(large.bytes) / float(large.memory.len() as u64);
    Ok(Costs { small_lookup_ns, large_lookup_ns, bytes_per_entry, read_ns })
}

/// A memory and its questions.
struct Filled<M: Memory> {
    memory: M,
    /// Endless, in another order than they were asked in, so that the processor cannot prefetch memory.
    questions: std::iter::Cycle<std::vec::IntoIter<M::Question>>,
    /// Growth of the process in bytes.
    bytes: u64,
}

impl<M: Memory> Filled<M> {
    fn new(entries: u32, rng: &mut ChaCha20Rng) -> Result<Self> {
        let mut questions: Vec<_> = (0..entries).map(M::question).collect::<Result<_>>()?;
        let before = resident_bytes()?;
        let memory = M::filled(&questions, ChaCha20Rng::from_rng(rng))?;
        let bytes = resident_bytes()?.saturating_sub(before);
        let remembered = memory.len();
        ensure!(remembered == questions.len(), "{remembered} of {entries} answers are remembered");
        for at in (1..questions.len()).rev() {
            questions.swap(at, below(at + 1, rng));
        }
        Ok(Self { memory, questions: questions.into_iter().cycle(), bytes })
    }

    fn median_ns(&mut self) -> Result<f64> {
        median_ns(|| {
            let group: Vec<_> = self.questions.by_ref().take(GROUP).collect();
            let start = Stopwatch::now();
            let known = group.iter().filter(|question| black_box(self.memory.knows(**question)));
            let known = known.count();
            let took = start.elapsed();
            ensure!(known == GROUP, "an answer is forgotten");
            Ok(took.as_secs_f64())
        })
    }
}

/// An array as large as a cache.
struct Array {
    lines: Vec<[u64; 8]>,
    places: std::iter::Cycle<std::vec::IntoIter<u32>>,
}

impl Array {
    fn new(bytes: u64, rng: &mut ChaCha20Rng) -> Self {
        let lines = usize::try_from(bytes).unwrap_or(usize::MAX) / size_of::<[u64; 8]>() + 1;
        // Write to it, because otherwise the kernel maps one page of zeros everywhere.
        let lines: Vec<_> = (0..lines).map(|_| black_box([0; 8])).collect();
        let place = |_| u32::try_from(below(lines.len(), rng)).unwrap_or_default();
        let places: Vec<_> = (0..GROUP * GROUPS * 8).map(place).collect();
        Self { lines, places: places.into_iter().cycle() }
    }

    fn median_ns(&mut self) -> Result<f64> {
        median_ns(|| {
            let group: Vec<_> = self.places.by_ref().take(GROUP).collect();
            let start = Stopwatch::now();
            let mut read = 0;
            for place in group {
                // All words are zero, but the processor does not know that before it has read them.
                let place = place as usize + usize::try_from(read)?;
                read = black_box(self.lines.get(place).map_or(0, |line| line[0]));
            }
            black_box(read);
            Ok(start.elapsed().as_secs_f64())
        })
    }
}

/// The median of [`GROUPS`] groups, divided by the look-ups of a group.
fn median_ns(mut seconds_of_group: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut times = (0..GROUPS).map(|_| seconds_of_group()).collect::<Result<Vec<_>>>()?;
    times.sort_unstable_by(f64::total_cmp);
    let median = times.get(GROUPS / 2).context("no look-ups")?;
    Ok(median * 1e9 / float(GROUP as u64))
}

fn below(bound: usize, rng: &mut ChaCha20Rng) -> usize {
    // The bias of the remainder is too small for a bench.
    usize::try_from(rng.next_u64() % bound as u64).unwrap_or_default()
}

fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read own status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("no VmRSS in /proc/self/status")? * 1024)
}

/// Look-ups timed together, because to read the clock takes about as long as one.
const GROUP: usize = 16;
/// Groups of a round. They take some milliseconds, so an interrupt does not move the median.
const GROUPS: usize = 2_000;

const SEED: u64 = 1;
