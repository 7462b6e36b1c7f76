// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Routers that the SA names alternately for one question, because each of them leads there.

use alloc::collections::VecDeque;

use ibarr_common::ib::Lid;

/// Pairs of routers in which the second has replaced the first, the oldest pair first.
#[derive(Debug, Default)]
pub(super) struct Routers {
    replaced: VecDeque<(Lid, Lid)>,
}

/// A subnet has few routers. Beyond this number the oldest pair is dropped, which costs one doubt.
const MOST: usize = 64;

impl Routers {
    /// The SA now gives a path through router `now`, and gave one through `before`. Returns `true`
    /// unless `before` has already replaced `now` earlier.
    pub(super) fn replaced(&mut self, before: Lid, now: Lid) -> bool {
        let is_news = !self.replaced.contains(&(now, before));
        if !self.replaced.contains(&(before, now)) {
            self.replaced.push_back((before, now));
            if self.replaced.len() > MOST {
                self.replaced.pop_front();
            }
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternating_routers_are_a_change_only_once() {
        let [a, b, c] = [1, 2, 3].map(|lid| Lid::new(lid).unwrap());
        let mut routers = Routers::default();
        let news: Vec<_> = [(a, b), (b, a), (a, b), (b, c), (c, b), (a, c), (c, a), (b, a)]
            .into_iter()
            .map(|(before, now)| routers.replaced(before, now))
            .collect();
        assert_eq!(news, [true, false, false, true, false, true, false, false]);
        for n in 0..1000 {
            routers.replaced(a, Lid::new(100 + n).unwrap());
        }
        assert_eq!(routers.replaced.len(), MOST);
    }
}
