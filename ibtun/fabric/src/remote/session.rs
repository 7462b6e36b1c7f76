// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A session between a host and the fabric, as either end has it.

/// The numbers of a session.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Numbers {
    /// The host chose it at random.
    pub(super) host: u64,
    /// The fabric chose it at random. 0 in a hello.
    pub(super) fabric: u64,
}

/// One end of a session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) numbers: Numbers,
    sent: u64,
    received: Window,
}

impl Session {
    pub(super) fn new(numbers: Numbers) -> Self {
        Self { numbers, sent: 0, received: Window::default() }
    }

    /// The count of the next datagram.
    pub(super) fn next_count(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Whether a datagram with this count is new.
    pub(super) fn admit(&mut self, count: u64) -> bool {
        self.received.admit(count)
    }
}

/// Which counts were received. Those below the highest by more than its bits count as received.
#[derive(Debug, Default)]
struct Window {
    highest: u64,
    /// Bit n: `highest` - n was received.
    seen: u128,
}

impl Window {
    fn admit(&mut self, count: u64) -> bool {
        if count == 0 {
            return false;
        }
        if let Some(ahead) = count.checked_sub(self.highest).filter(|&ahead| ahead > 0) {
            let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = count;
            return true;
        }
        let behind = u32::try_from(self.highest - count).unwrap_or(u32::MAX);
        let bit = 1u128.checked_shl(behind).unwrap_or(0);
        let is_new = bit != 0 && self.seen & bit == 0;
        self.seen |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn count_is_admitted_once_and_within_128_of_the_highest() {
        let mut window = Window::default();
        assert!(!window.admit(0));
        assert!(window.admit(1));
        assert!(!window.admit(1));
        assert!(window.admit(129));
        assert!(window.admit(2), "127 behind");
        assert!(!window.admit(1), "128 behind");
        assert!(window.admit(u64::MAX));
        assert!(!window.admit(129));
        assert!(window.admit(u64::MAX - 127));
        assert!(!window.admit(u64::MAX - 128));
    }

    proptest! {
        #[test]
        fn window_admits_what_a_set_of_counts_does(counts in prop::collection::vec(1u64..400, 0..300)) {
            let mut window = Window::default();
            let mut seen = BTreeSet::new();
            for count in counts {
                let highest = seen.last().copied().unwrap_or(0);
                let expected = count + 128 > highest && seen.insert(count);
                prop_assert_eq!(window.admit(count), expected, "{} after {}", count, highest);
            }
        }
    }
}
