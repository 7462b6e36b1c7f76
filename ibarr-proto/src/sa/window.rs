// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The window: how many questions an SA gets at once.

use core::time::Duration;

use ibarr_common::Instant;

use super::types::Rank;

/// The minimum, and the initial size: a question that is never answered must not block others.
const LEAST: u32 = 2;

/// After this time without use, the earlier size no longer applies.
const IDLE: Duration = Duration::from_secs(1);

/// The window grows by one with each answer while it is full, and is halved by a loss, like TCP's
/// in slow start. A later loss of a MAD sent before the last halving does not count. After a time
/// without use it starts again with the minimum: ten thousand idle nodes ask their SA at once after
/// an event.
#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    max: u32,
    in_air: u32,
    sent_at: Instant,
    shrunk_at: Instant,
    /// Number of successive halvings.
    lost: u32,
    /// MADs in the air that no request of the kernel waited for when they were sent.
    behind: u32,
    answered_at: Instant,
    spare: u32,
}

impl Window {
    pub(super) fn new(max: u32) -> Self {
        let (max, never) = (max.max(1), Instant::BOOT);
        Self {
            size: LEAST.min(max),
            max,
            in_air: 0,
            sent_at: never,
            shrunk_at: never,
            lost: 0,
            behind: 0,
            answered_at: never,
            spare: 0,
        }
    }

    /// Whether another MAD may be sent. Questions of others than the kernel get at most half of the
    /// window.
    pub(super) fn has_room(&self, rank: Rank) -> bool {
        let has_half = rank == Rank::Kernel || self.behind < (self.size / 2).max(1);
        self.in_air < self.size && has_half
    }

    pub(super) fn sent(&mut self, now: Instant, rank: Rank) {
        if self.in_air == 0 && now.since(self.sent_at) > IDLE {
            self.size = self.size.min(LEAST);
        }
        self.in_air += 1;
        self.behind += u32::from(rank == Rank::Other);
        self.sent_at = now;
    }

    /// A MAD is no longer in the air.
    pub(super) fn landed(&mut self, rank: Rank) {
        self.in_air = self.in_air.saturating_sub(1);
        self.behind = self.behind.saturating_sub(u32::from(rank == Rank::Other));
    }

    /// The SA has answered a MAD that is no longer in the air. Late answers count too: if our
    /// reading is late, the window would otherwise stay at its minimum.
    pub(super) fn grow(&mut self) {
        let was_full = self.in_air + 1 >= self.size;
        self.size = (self.size + u32::from(was_full)).min(self.max);
    }

    /// The SA has answered in time.
    pub(super) fn kept_up(&mut self, now: Instant) {
        self.lost = 0;
        self.spare = (self.spare_at(now) + 1).min(self.size);
        self.answered_at = now;
    }

    /// Whether the kernel may send the SA a request outside the window: once for each answer in
    /// time, at most as often as the window has places, and not because of answers long ago.
    pub(super) fn take_spare(&mut self, now: Instant) -> bool {
        let spare = self.spare_at(now);
        self.spare = spare.saturating_sub(1);
        spare > 0
    }

    fn spare_at(&self, now: Instant) -> u32 {
        if now.since(self.answered_at) > IDLE { 0 } else { self.spare }
    }

    /// A MAD sent at `sent_at` was lost, or refused because the SA was busy.
    pub(super) fn shrink(&mut self, now: Instant, sent_at: Instant) {
        self.spare = 0;
        if sent_at >= self.shrunk_at {
            self.size = (self.size / 2).max(LEAST.min(self.max));
            self.shrunk_at = now;
            self.lost = self.lost.saturating_add(1);
        }
    }

    /// Number of halvings since the last answer in time.
    pub(super) fn lost(&self) -> u32 {
        self.lost
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
    use super::*;

    #[test]
    fn burst_of_losses_halves_the_window_once() {
        let mut window = Window::new(64);
        let (start, later) = (Instant::from_nanos(5), Instant::from_nanos(9));
        for _ in 0..100 {
            while window.has_room(Rank::Kernel) {
                window.sent(start, Rank::Kernel);
            }
            window.landed(Rank::Kernel);
            window.grow();
        }
        assert_eq!(window.size(), 64);
        for _ in 0..10 {
            window.shrink(later, start);
        }
        assert_eq!((window.size(), window.lost()), (32, 1));
        for n in 0..10 {
            let now = later + Duration::from_secs(n);
            window.shrink(now, now);
        }
        assert_eq!((window.size(), window.lost()), (2, 11));
        window.grow();
        assert_eq!((window.size(), window.lost()), (3, 11));
        window.kept_up(later);
        assert_eq!((window.size(), window.lost()), (3, 0));
    }
}
