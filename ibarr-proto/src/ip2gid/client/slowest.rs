// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The peers that took longest to answer lately, for people.

use alloc::vec::Vec;
use core::time::Duration;

use ibarr_common::Instant;

use super::Question;

/// How long a peer took to answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Slow {
    /// The question that it answered.
    pub question: Question,
    /// The time from the first query of the round to the answer.
    pub took: Duration,
    pub at: Instant,
}

/// The last answer of each of at most [`LEN`] peers. A peer that finds no room takes the place of
/// the fastest one, if it was slower. Answers older than [`LATELY`] do not count.
#[derive(Debug, Default)]
pub(super) struct Slowest(Vec<Slow>);

/// The most peers that are remembered.
const LEN: usize = 16;

/// An older answer says nothing about the peer of today.
const LATELY: Duration = Duration::from_mins(1);

impl Slowest {
    pub(super) fn note(&mut self, slow: Slow) {
        let now = slow.at;
        self.0.retain(|known| known.question != slow.question && is_recent(now, known));
        if self.0.len() >= LEN {
            let fastest = self.0.iter().enumerate().min_by_key(|(_, known)| known.took);
            match fastest {
                Some((place, fastest)) if fastest.took < slow.took => self.0.swap_remove(place),
                _ => return,
            };
        }
        self.0.push(slow);
    }

    /// The slowest first.
    pub(super) fn list(&self, now: Instant) -> Vec<Slow> {
        let recent = self.0.iter().filter(|known| is_recent(now, known));
        let mut list: Vec<_> = recent.copied().collect();
        list.sort_by_key(|slow| core::cmp::Reverse(slow.took));
        list
    }
}

fn is_recent(now: Instant, known: &Slow) -> bool {
    now.since(known.at) < LATELY
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn slow(peer: u8, ms: u64, at: u64) -> Slow {
        let question = Question::new(IpAddr::from([10, 2, 0, peer]), None).unwrap();
        let at = Instant::BOOT + Duration::from_secs(at);
        Slow { question, took: Duration::from_millis(ms), at }
    }

    #[test]
    fn last_answer_of_a_peer_counts_and_the_slowest_is_first() {
        let mut slowest = Slowest::default();
        let all = [slow(1, 900, 1), slow(2, 20, 1), slow(1, 5, 2), slow(3, 7, 3)];
        for slow in all {
            slowest.note(slow);
        }
        assert_eq!(slowest.list(all[3].at), [all[1], all[3], all[2]]);
        // A minute after its answer, a peer is forgotten.
        assert_eq!(slowest.list(slow(1, 0, 61).at), [all[3], all[2]]);
        slowest.note(slow(4, 1, 63));
        assert_eq!(slowest.0.len(), 1);
    }

    #[test]
    fn full_list_keeps_the_slowest() {
        let mut slowest = Slowest::default();
        for peer in 1..=200 {
            slowest.note(slow(peer, u64::from(peer ^ 0x55), 1));
        }
        let expected: Vec<_> = {
            let mut all: Vec<_> = (1..=200_u8).map(|peer| u64::from(peer ^ 0x55)).collect();
            all.sort_unstable_by_key(|ms| std::cmp::Reverse(*ms));
            all.truncate(LEN);
            all
        };
        let list = slowest.list(slow(1, 0, 1).at);
        let kept: Vec<_> = list.iter().map(|slow| slow.took.as_millis()).collect();
        assert_eq!(kept, expected.into_iter().map(u128::from).collect::<Vec<_>>());
    }
}
