// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Canaries: the choice of remembered paths that the SA is asked for again without a reason for
//! doubt.

use alloc::collections::VecDeque;
use core::time::Duration;

use ibarr_common::Instant;
use rand_core::Rng;

use super::cache::Key;
use crate::retry::random;

/// The canaries of a port. A port chooses one of the paths that are given from memory, and asks for
/// it at a time that is fixed when the first of them is given. A port whose paths are not used asks
/// nothing.
///
/// Each path that was given since the last choice is equally likely, but recently chosen ones come
/// last, the oldest choice first: if only a few paths are in use, they are asked for in turn.
#[derive(Debug, Default)]
pub(super) struct Canaries {
    due: Option<Instant>,
    chosen: Option<Key>,
    /// Number of paths that were given and not chosen recently.
    others: u32,
    /// The position of the chosen path in `lately`, if it is there.
    rank: Option<usize>,
    /// Recently chosen paths, the oldest first, at most [`LATELY`].
    lately: VecDeque<Key>,
}

/// More paths than are asked for in half a minute.
const LATELY: usize = 8;

impl Canaries {
    /// A path was given from memory. On average one path is asked for in each interval `every`.
    pub(super) fn used(&mut self, now: Instant, key: &Key, every: Duration, rng: &mut impl Rng) {
        if self.due.is_none() {
            self.due = Some(now + every / 2 + random(every, rng));
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

    /// A path is given that is asked for more often than those before, so it does not wait for their time. Returns whether
    /// the time has changed.
    pub(super) fn hurry(&mut self, now: Instant, every: Duration, rng: &mut impl Rng) -> bool {
        let is_late = self.due.is_some_and(|due| due > now + every / 2 + every);
        if is_late {
            self.due = Some(now + every / 2 + random(every, rng));
        }
        is_late
    }

    /// When [`Self::take`] will return a path.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The path to ask for now.
    pub(super) fn take(&mut self, now: Instant) -> Option<Key> {
        self.due.take_if(|due| *due <= now)?;
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

    /// The paths that are chosen if `used` are given again and again, and the time until then.
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
    fn few_paths_in_use_are_chosen_in_turn() {
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
    fn idle_port_chooses_no_canary() {
        let rng = &mut ChaCha12Rng::seed_from_u64(1);
        let (mut canaries, now) = (Canaries::default(), Instant::from_nanos(1 << 40));
        assert_eq!((canaries.due(), canaries.take(now)), (None, None));
        canaries.used(now, &key(1), EVERY, rng);
        assert_eq!(canaries.take(now), None, "not yet");
        assert_eq!(canaries.take(now + 2 * EVERY), Some(key(1)));
        assert_eq!(canaries.due(), None);
    }
}
