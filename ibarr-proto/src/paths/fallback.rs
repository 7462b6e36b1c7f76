// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Fallbacks: requests left to the kernel, which asks the SA without a window.

use ibarr_common::Instant;
use rand_core::{CryptoRng, SeedableRng};

use super::{Counter, Outcome, Paths, PortName};

/// Why a request of the kernel has no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lack {
    /// The SA has not answered, or is busy: more requests would make that worse.
    OfAnswer,
    /// The daemon had no room for it; the SA may have.
    OfRoom,
}

impl Lack {
    /// What a request with this outcome lacks.
    pub fn of(outcome: &Outcome) -> Self {
        if matches!(outcome, Outcome::Overloaded) { Self::OfRoom } else { Self::OfAnswer }
    }
}

impl<R: CryptoRng + SeedableRng> Paths<R> {
    /// Whether the kernel may ask the SA of a port itself. Of the requests without an answer, one
    /// may in each [`fallback_interval`](super::Config::fallback_interval). Of the requests that
    /// the daemon had no room for, as many may as the SA has recently answered in time, at most a
    /// window at once.
    pub fn may_fall_back(&mut self, now: Instant, port: &PortName, lack: Lack) -> bool {
        self.advance(now);
        // If the port does not exist, the SA is not asked.
        let Some((index, _)) = self.ports.by_name(port) else { return true };
        let (now, every) = (self.now, self.config.fallback_interval);
        let may = lack == Lack::OfRoom && self.client.take_spare(now, index)
            || self
                .ports
                .get_mut(index)
                .is_some_and(|port| port.fallbacks.take(now, every, &mut self.rng));
        self.counters.count(if may { Counter::Fallbacks } else { Counter::FallbacksSpared });
        may
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{PORT, Rig, name, question};
    use super::*;

    fn left(rig: &mut Rig, lack: Lack) -> u32 {
        (0..1000).map(|_| u32::from(rig.paths.may_fall_back(rig.now, &name(1), lack))).sum()
    }

    /// With an SA that keeps up, a window of requests without room is left to the kernel, and one
    /// more by the rule for an SA that does not answer.
    #[test]
    fn requests_without_room_are_left_to_the_kernel_as_the_sa_answers() {
        let mut rig = Rig::new();
        for n in 0..60 {
            rig.resolve(question(n));
        }
        rig.answer_all();
        assert_eq!(rig.answered().len(), 60);
        let window = rig.paths.client().load(PORT).window;
        assert!(window > 20, "{window}");
        assert_eq!(left(&mut rig, Lack::OfAnswer), 1);
        assert_eq!(left(&mut rig, Lack::OfRoom), window);
        assert_eq!(left(&mut rig, Lack::OfRoom), 0);
        for n in 100..103 {
            rig.outcome(question(n));
        }
        assert_eq!(left(&mut rig, Lack::OfRoom), 3);
        // Answers of long ago do not count.
        rig.outcome(question(104));
        rig.now += Duration::from_secs(2);
        assert_eq!(left(&mut rig, Lack::OfRoom), 0);
        assert_eq!(left(&mut rig, Lack::OfAnswer), 0);
        rig.now += Duration::from_secs(5);
        assert_eq!(left(&mut rig, Lack::OfRoom), 1);
    }
}
