// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Deadlines by key.

use alloc::collections::{BTreeMap, BTreeSet};

use ibarr_common::Instant;

/// At most one deadline for each key. The earliest comes first, equal ones in the order of their
/// keys. Every operation is O(log n).
#[derive(Debug)]
pub struct Timers<K> {
    by_key: BTreeMap<K, Instant>,
    by_time: BTreeSet<(Instant, K)>,
}

impl<K: Copy + Ord> Timers<K> {
    /// Sets, moves or (`None`) removes the deadline of `key`.
    pub fn set(&mut self, key: K, at: Option<Instant>) {
        let old = match at {
            Some(at) => self.by_key.insert(key, at),
            None => self.by_key.remove(&key),
        };
        if let Some(old) = old {
            self.by_time.remove(&(old, key));
        }
        if let Some(at) = at {
            self.by_time.insert((at, key));
        }
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|&(at, _)| at)
    }

    /// Whether `key` has a deadline.
    pub fn contains(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Removes the earliest deadline if it is not after `now`.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        let &(at, key) = self.by_time.first()?;
        if at > now {
            return None;
        }
        self.by_time.pop_first();
        self.by_key.remove(&key);
        Some(key)
    }

    /// Number of deadlines.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}

impl<K: Ord> Default for Timers<K> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), by_time: BTreeSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn deadlines_come_in_the_order_of_a_sorted_list(
            ops: Vec<(u8, Option<u8>, u8)>,
        ) {
            let mut timers = Timers::default();
            let mut model: Vec<(Instant, u8)> = Vec::new();
            for (key, at, now) in ops {
                let (key, at) = (key % 8, at.map(|at| Instant::from_nanos(at.into())));
                timers.set(key, at);
                model.retain(|&(_, other)| other != key);
                model.extend(at.map(|at| (at, key)));
                model.sort_unstable();
                prop_assert_eq!(timers.next(), model.first().map(|&(at, _)| at));

                let now = Instant::from_nanos(now.into());
                let due = model.first().filter(|&&(at, _)| at <= now).map(|&(_, key)| key);
                prop_assert_eq!(timers.pop(now), due);
                model.retain(|&(_, other)| Some(other) != due);
                prop_assert_eq!(timers.len(), model.len());
                let has = model.iter().any(|&(_, other)| other == key);
                prop_assert_eq!(timers.contains(key), has);
            }
        }
    }
}
