// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! When the simulation calls a daemon or a kernel next.

use ibarr_common::Instant;

/// The next call of a kernel.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Instant>);

impl Alarm {
    /// Sets the alarm; returns the time of the event to schedule, if it is a new one.
    pub(super) fn set(&mut self, now: Instant, next: Option<Instant>) -> Option<Instant> {
        let next = next.filter(|next| self.0 != Some(*next))?.max(now);
        self.0 = Some(next);
        self.0
    }

    /// Whether the event at `at` is the alarm, which is then over.
    pub(super) fn rings(&mut self, at: Instant) -> bool {
        let rings = self.0 == Some(at);
        if rings {
            self.0 = None;
        }
        rings
    }

    pub(super) fn postpone(&mut self, from: Instant, to: Instant) {
        if self.0 == Some(from) {
            self.0 = Some(to);
        }
    }
}

/// The next turn of a daemon.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// When the queued inputs are handled.
    wake: Alarm,
    /// When the cores want to be called, and when that happens.
    timer: Option<Instant>,
    armed: Option<Instant>,
}

impl Schedule {
    /// Whether a turn for inputs is scheduled.
    pub(super) fn wakes(&self) -> bool {
        self.wake.0.is_some()
    }

    pub(super) fn wake(&mut self, at: Instant) {
        self.wake = Alarm(Some(at));
    }

    /// Whether the daemon has something to do at `at`, for which an event was scheduled.
    pub(super) fn take_due(&mut self, at: Instant) -> bool {
        if self.wake.rings(at) {
            return true;
        }
        if self.armed == Some(at) {
            self.armed = None;
            return self.timer.is_some_and(|timer| timer <= at);
        }
        false
    }

    /// The cores want to be called then.
    pub(super) fn set_timer(&mut self, timer: Option<Instant>) {
        self.timer = timer;
    }

    /// The time of the event to schedule for the timer, if there is none yet.
    pub(super) fn arm(&mut self) -> Option<Instant> {
        let timer = self.timer?;
        if self.armed.is_some_and(|armed| armed <= timer) {
            return None;
        }
        self.armed = Some(timer);
        self.armed
    }

    pub(super) fn postpone(&mut self, from: Instant, to: Instant) {
        self.wake.postpone(from, to);
        if self.armed == Some(from) {
            self.armed = Some(to);
        }
    }
}
