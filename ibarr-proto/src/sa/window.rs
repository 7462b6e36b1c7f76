// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How many questions the SA is given at once.

use ibarr_common::Instant;

/// Grows by one with each answer and is halved by a loss, as TCP's does when it starts. What was sent
/// before the last loss says nothing new when it is lost too.
#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    max: u32,
    in_air: u32,
    shrunk_at: Instant,
}

impl Window {
    pub(super) fn new(max: u32) -> Self {
        let max = max.max(1);
        Self { size: (max / 4).max(1), max, in_air: 0, shrunk_at: Instant::BOOT }
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_air < self.size
    }

    pub(super) fn sent(&mut self) {
        self.in_air += 1;
    }

    /// What was sent is no longer waited for.
    pub(super) fn landed(&mut self) {
        self.in_air = self.in_air.saturating_sub(1);
    }

    /// The SA keeps up.
    pub(super) fn grow(&mut self) {
        self.size = (self.size + 1).min(self.max);
    }

    /// It does not: what was sent at `sent_at` was lost or refused for want of time.
    pub(super) fn shrink(&mut self, now: Instant, sent_at: Instant) {
        if sent_at >= self.shrunk_at {
            self.size = (self.size / 2).max(1);
            self.shrunk_at = now;
        }
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn in_air(&self) -> u32 {
        self.in_air
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_burst_of_losses_halves_the_window_once() {
        let mut window = Window::new(64);
        let (start, later) = (Instant::from_nanos(5), Instant::from_nanos(9));
        for _ in 0..100 {
            window.grow();
        }
        assert_eq!(window.size(), 64);
        for _ in 0..10 {
            window.shrink(later, start);
        }
        assert_eq!(window.size(), 32);
        for n in 0..10 {
            let now = later + Duration::from_secs(n);
            window.shrink(now, now);
        }
        assert_eq!(window.size(), 1);
        assert!(window.has_room());
    }
}
