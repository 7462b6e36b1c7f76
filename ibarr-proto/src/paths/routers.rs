// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Routers that the SA names in turn for one question, because each of them leads there.

use std::collections::VecDeque;

use ibarr_common::ib::Lid;

/// Pairs of routers of which the second has taken the first one's place, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Routers {
    replaced: VecDeque<(Lid, Lid)>,
}

/// A subnet has few routers; of more pairs the oldest is forgotten, which costs a doubt.
const MOST: usize = 64;

impl Routers {
    /// The SA gives a path by `now` that it gave by `before`. Whether that is news: it is not if `now`
    /// had `before` in its place already.
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
    fn routers_in_turn_are_news_until_the_first_is_back() {
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
