// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{Cached, Learned};
use tracing::debug;

use super::learned::{Element, Making, Mirror, Part};
use super::map::Error;
use crate::causes::chain;

/// Hands the cache on to the next daemon, through the map.
pub(crate) struct Handover {
    mirror: Mirror,
    step: Step,
    /// How often the map could not be read or written.
    pub(super) faults: u64,
}

/// How far the map is equal to the cache.
enum Step {
    Equal,
    Making(Making),
    /// The map has to be read again, so that it can be made equal.
    Unread,
    Reading,
    /// The map could not be changed, and is read again later.
    Failed {
        retry_at: Instant,
    },
}

/// How long a map that differs from the cache stays so: making it equal reads all of it.
const RETRY: Duration = Duration::from_secs(10);

impl Handover {
    /// Takes over what an earlier daemon has left.
    pub(super) fn new(mirror: Mirror, elements: Vec<Element>) -> Self {
        Self { mirror, step: Step::Making(Making::new(elements, true)), faults: 0 }
    }

    /// Handles a change of the cache.
    pub(crate) fn learn(&mut self, now: Instant, change: &Learned) {
        if *change == Learned::Everything {
            self.step = Step::Unread;
            return;
        }
        match (self.mirror.learn(change), &mut self.step) {
            (Err(error), _) => self.fail(now, &error),
            (Ok(()), Step::Making(making)) => making.note(change),
            (Ok(()), _) => {}
        }
    }

    /// The next part of the work, if there is any; one a turn.
    pub(crate) fn next_part(&mut self) -> Option<Part> {
        match &mut self.step {
            Step::Making(making) => Some(making.next()),
            _ => None,
        }
    }

    /// Makes an element of the map equal to the cache.
    pub(crate) fn compare(&mut self, now: Instant, element: &Element, cached: Option<Cached>) {
        let Step::Making(making) = &mut self.step else { return };
        if let Err(error) = making.compare(&mut self.mirror, element, cached) {
            self.fail(now, &error);
        }
    }

    /// Adds the next entries of the cache to the map.
    pub(crate) fn add(&mut self, now: Instant, entries: &[(Question, Cached)]) {
        let Step::Making(making) = &mut self.step else { return };
        match making.add(&mut self.mirror, entries) {
            Ok(true) => self.step = Step::Equal,
            Ok(false) => {}
            Err(error) => self.fail(now, &error),
        }
    }

    /// Whether the thread has to read the map now; it is told only once.
    pub(super) fn take_read(&mut self) -> bool {
        let is_unread = matches!(self.step, Step::Unread);
        if is_unread {
            self.step = Step::Reading;
        }
        is_unread
    }

    /// Takes what the thread has read.
    pub(super) fn handle_read(&mut self, now: Instant, read: Result<Vec<Element>, Error>) {
        match (read, &self.step) {
            (Ok(elements), Step::Reading) => {
                self.step = Step::Making(Making::new(elements, false));
            }
            (Err(error), Step::Reading) => self.fail(now, &error),
            // The cache has changed as a whole meanwhile.
            _ => {}
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Step::Failed { retry_at } = self.step
            && retry_at <= now
        {
            self.step = Step::Unread;
        }
    }

    /// While there is a part of the work, the time is now.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.step {
            Step::Making(_) => Some(Instant::BOOT),
            Step::Failed { retry_at } => Some(retry_at),
            Step::Equal | Step::Unread | Step::Reading => None,
        }
    }

    /// Whether the cache has yet to take over elements.
    pub(super) fn inherits(&self) -> bool {
        matches!(&self.step, Step::Making(making) if making.inherits())
    }

    fn fail(&mut self, now: Instant, error: &Error) {
        self.faults += 1;
        debug!("{}", chain(error));
        // In the other states, the map will be read and compared with the cache anyway.
        if !matches!(self.step, Step::Unread | Step::Failed { .. }) {
            self.step = Step::Failed { retry_at: now + RETRY };
        }
    }
}
