// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The order in which a snapshot is written, in small parts.

use alloc::vec::Vec;
use core::time::Duration;

use ibarr_common::Instant;

use super::super::Paths;
use super::{KeptPort, Step, Walk};

/// When a snapshot is written, and in which parts.
#[derive(Debug)]
pub struct Schedule {
    /// The snapshot that is being written.
    walk: Option<Walk>,
    due: Instant,
}

/// What the writer does next.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Action {
    /// Begin a snapshot of the paths of these ports; an unfinished one is discarded.
    Begin(Vec<KeptPort>),
    Continue(Step),
}

impl Schedule {
    /// After a crash, paths learned since the last snapshot are asked for again.
    pub const INTERVAL: Duration = Duration::from_mins(10);
    /// Paths read in one turn, which take some ten microseconds.
    const PART: usize = 256;
    /// Interval between checks whether a slow disk has room for more.
    const PAUSE: Duration = Duration::from_millis(10);

    /// The first snapshot begins at `due`.
    pub fn new(due: Instant) -> Self {
        Self { walk: None, due }
    }

    /// When to call [`poll`](Self::poll) next.
    pub fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// The next action, if one is due and the writer has room for it.
    pub fn poll(&mut self, now: Instant, paths: &Paths, has_room: bool) -> Option<Action> {
        if now < self.due {
            return None;
        }
        if !has_room {
            self.due = now + Self::PAUSE;
            return None;
        }
        self.due = now;
        let Some(walk) = &mut self.walk else {
            let walk = paths.walk(now);
            let ports = walk.ports();
            self.walk = Some(walk);
            return Some(Action::Begin(ports));
        };
        let step = paths.step(walk, Self::PART);
        if !matches!(step, Step::Paths(_)) {
            self.walk = None;
            self.due = now + Self::INTERVAL;
        }
        Some(Action::Continue(step))
    }
}
