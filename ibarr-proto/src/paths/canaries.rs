// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which remembered path of a port the SA is asked for again although nothing has happened.

use std::collections::VecDeque;
use std::time::Duration;

use ibarr_common::Instant;
use rand_core::Rng;

use super::cache::Key;
use crate::retry::random;

/// The paths of a port that are given from memory, as far as they matter here: one of them is chosen
/// to be asked for at a moment that is fixed when the first is given. So a port whose paths nobody uses
/// asks nothing.
///
/// Each path that was given since the last choice is equally likely, but those chosen lately come
/// last, the oldest choice first: a few paths in use are asked for in turn.
#[derive(Debug, Default)]
pub(super) struct Canaries {
    due: Option<Instant>,
    /// When the last was taken.
    taken_at: Option<Instant>,
    /// Something has changed, and the next is to be asked for at this time.
    hurried: Option<Instant>,
    chosen: Option<Key>,
    /// Paths that were given and not chosen lately.
    others: u32,
    /// The place of the chosen one in `lately`, if it has one.
    rank: Option<usize>,
    /// The oldest choice first, at most [`LATELY`].
    lately: VecDeque<Key>,
}

/// More paths than are asked for in half a minute.
const LATELY: usize = 8;

impl Canaries {
    /// A path was given from memory. On average one is asked for in each interval `every`.
    pub(super) fn used(&mut self, now: Instant, key: &Key, every: Duration, rng: &mut impl Rng) {
        if self.due.is_none() {
            let due = now + every / 2 + random(every, rng);
            self.due = Some(self.hurried.take().map_or(due, |at| due.min(at.max(now))));
        }
        match self.lately.iter().position(|known| known == key) {
            None => {
                self.others = self.others.saturating_add(1);
                if rng.next_u32().is_multiple_of(self.others) {
                    self.chosen = Some(*key);
                }
            }
            Some(rank) if self.others == 0 && self.rank.is_none_or(|chosen| rank < chosen) => {
                (self.chosen, self.rank) = (Some(*key), Some(rank));
            }
            Some(_) => {}
        }
    }

    /// Something has changed: the next path in use is asked for at `at`, but not sooner than `every`
    /// after the last.
    pub(super) fn hurry(&mut self, at: Instant, every: Duration) {
        let at = self.taken_at.map_or(at, |taken_at| at.max(taken_at + every));
        match &mut self.due {
            Some(due) => *due = at.min(*due),
            None => self.hurried = Some(self.hurried.map_or(at, |hurried| hurried.min(at))),
        }
    }

    /// When [`Self::take`] has one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The path to ask for now.
    pub(super) fn take(&mut self, now: Instant) -> Option<Key> {
        self.due.take_if(|due| *due <= now)?;
        self.taken_at = Some(now);
        (self.others, self.rank) = (0, None);
        let key = self.chosen.take()?;
        self.lately.retain(|known| *known != key);
        self.lately.push_back(key);
        if self.lately.len() > LATELY {
            self.lately.pop_front();
        }
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::super::tests::question;
    use super::*;
    use crate::sa::PortIndex;

    const EVERY: Duration = Duration::from_secs(5);

    fn key(n: u64) -> Key {
        Key::new(PortIndex(0), &question(n))
    }

    /// What is chosen if `used` are given again and again, and when.
    fn chosen(used: &[u64], times: usize) -> (Vec<Key>, Duration) {
        let rng = &mut ChaCha12Rng::seed_from_u64(1);
        let start = Instant::from_nanos(1 << 40);
        let (mut canaries, mut now) = (Canaries::default(), start);
        let mut chosen = Vec::new();
        while chosen.len() < times {
            for n in used {
                canaries.used(now, &key(*n), EVERY, rng);
            }
            now = canaries.due().unwrap();
            chosen.extend(canaries.take(now));
            assert!(canaries.lately.len() <= LATELY);
        }
        (chosen, now.since(start))
    }

    #[test]
    fn few_paths_in_use_are_chosen_in_turn_at_the_rate() {
        let (chosen, time) = chosen(&[1, 2, 2, 3], 300);
        for three in chosen.windows(3) {
            assert!((1..4).all(|n| three.contains(&key(n))));
        }
        let expected = EVERY * 300;
        assert!(time > expected * 9 / 10 && time < expected * 11 / 10, "{time:?}");
    }

    #[test]
    fn of_many_paths_in_use_each_is_chosen_about_equally_often() {
        let used: Vec<_> = (0..50).collect();
        let mut counts = BTreeMap::new();
        for key in chosen(&used, 5_000).0 {
            *counts.entry(key).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 50);
        assert!(counts.values().all(|count| (50..200).contains(count)), "{counts:?}");
    }

    #[test]
    fn nothing_is_chosen_while_nothing_is_used() {
        let rng = &mut ChaCha12Rng::seed_from_u64(1);
        let (mut canaries, now) = (Canaries::default(), Instant::from_nanos(1 << 40));
        assert_eq!((canaries.due(), canaries.take(now)), (None, None));
        canaries.used(now, &key(1), EVERY, rng);
        assert_eq!(canaries.take(now), None, "not yet");
        assert_eq!(canaries.take(now + 2 * EVERY), Some(key(1)));
        assert_eq!(canaries.due(), None);
    }
}
