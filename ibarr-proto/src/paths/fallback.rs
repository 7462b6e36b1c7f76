// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What is left to the kernel.

use ibarr_common::Instant;
use rand_core::{CryptoRng, SeedableRng};

use super::{Counter, Paths, PortName};

impl<R: CryptoRng + SeedableRng> Paths<R> {
    /// Whether the kernel may be left to ask the SA of a port itself, which it does without a window:
    /// of the requests that end in [`Silent`](super::Outcome::Silent), `Busy` or `Overloaded`
    /// one in [`fallback_interval`](super::Config::fallback_interval).
    pub fn may_fall_back(&mut self, now: Instant, port: &PortName) -> bool {
        self.advance(now);
        // By a port that we do not have nobody asks.
        let Some((index, _)) = self.ports.by_name(port) else { return true };
        let (now, every) = (self.now, self.config.fallback_interval);
        let may = self
            .ports
            .get_mut(index)
            .is_some_and(|port| port.fallbacks.take(now, every, &mut self.rng));
        self.counters.count(if may { Counter::Fallbacks } else { Counter::FallbacksSpared });
        may
    }
}
