// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Fallbacks: which requests of the kernel are left to it. It then asks the SA without a window.
//!
//! The rule stands here because it weighs what no other core has: each port's budget, what its SA has had to spare,
//! whether the SA is overdue, and a path in doubt.

use super::{Counter, NoPath, Outcome, Paths};
use crate::sa::{PortIndex, QuestionId, Rank};

impl Paths {
    /// Whether a request of the kernel with this outcome is left to the kernel.
    ///
    /// Of the requests that the SA does not answer, one may be in each
    /// [`fallback_interval`](super::Config::fallback_interval). Of the requests that there is no room for, as many may
    /// as the SA has recently answered in time, at most a window at once. A busy SA would refuse the kernel at once.
    pub(super) fn falls_back(&mut self, port: Option<PortIndex>, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Found { .. } | Outcome::Busy => return false,
            Outcome::NoRecord { .. } => return self.config.on_no_record == NoPath::Fallback,
            Outcome::Silent if self.config.on_sa_silent == NoPath::Final => return false,
            // The SA was not asked, or has refused this question alone.
            Outcome::Refused(_) | Outcome::UnknownPort | Outcome::NoSa => return true,
            Outcome::Silent | Outcome::Overloaded => {}
        }
        let Some(port) = port else { return true };
        let is_spare = matches!(outcome, Outcome::Overloaded);
        let may = is_spare && self.client.take_spare(self.now, port) || self.take_fallback(port);
        self.counters.count(if may { Counter::Fallbacks } else { Counter::FallbacksSpared });
        may
    }

    /// While the SA shows no sign of life, a request of the kernel that waits for it is left to the kernel at once, if
    /// one may be now.
    pub(super) fn leave_overdue(&mut self, question: QuestionId) {
        if self.config.on_sa_silent == NoPath::Final || !self.client.is_overdue(question) {
            return;
        }
        let Some(flight) = self.flights.get(&question) else { return };
        let is_kernels = |id: &&_| self.waiting.get(*id).is_some_and(|it| it.rank == Rank::Kernel);
        let (port, first) = (flight.key.port(), flight.waiters.iter().find(is_kernels).copied());
        // A path in doubt is better than what the kernel would get.
        if let Some(id) = first.filter(|_| flight.doubted.is_none())
            && self.take_fallback(port)
        {
            self.counters.count(Counter::Fallbacks);
            self.stop_waiting(id);
            self.push(id, Outcome::Silent, true);
        }
    }

    fn take_fallback(&mut self, port: PortIndex) -> bool {
        let every = self.config.fallback_interval;
        let port = self.ports.get_mut(port);
        port.is_some_and(|port| port.fallbacks.take(self.now, every, &mut self.rng))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ibarr_common::wire::ls::Seq;

    use super::super::tests::{PORT, Rig, name, question};
    use super::super::{Event, Input};
    use super::*;

    fn left(rig: &mut Rig, outcome: Outcome) -> u32 {
        (0..1000).map(|_| u32::from(rig.paths.falls_back(Some(PORT), &outcome))).sum()
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
        assert_eq!(left(&mut rig, Outcome::Silent), 1);
        assert_eq!(left(&mut rig, Outcome::Overloaded), window);
        assert_eq!(left(&mut rig, Outcome::Overloaded), 0);
        for n in 100..103 {
            rig.outcome(question(n));
        }
        let (seq, port) = (Seq(7), name(1));
        rig.paths.handle_input(rig.now, Input::Overloaded { seq, port });
        let is_left = Event::Overloaded { seq, is_left_to_kernel: true };
        assert_eq!(rig.paths.poll_event(), Some(is_left));
        assert_eq!(left(&mut rig, Outcome::Overloaded), 2);
        // Answers of long ago do not count.
        rig.outcome(question(104));
        rig.now += Duration::from_secs(2);
        rig.paths.handle_timeout(rig.now);
        assert_eq!(left(&mut rig, Outcome::Overloaded), 0);
        assert_eq!(left(&mut rig, Outcome::Silent), 0);
        rig.now += Duration::from_secs(5);
        rig.paths.handle_timeout(rig.now);
        assert_eq!(left(&mut rig, Outcome::Overloaded), 1);
    }

    #[test]
    fn who_is_left_to_the_kernel_follows_outcome_and_configuration() {
        let source = super::super::Source::Sa;
        let no_record = Outcome::NoRecord { source };
        for (outcome, is_left, if_final, if_fallback) in [
            (no_record, false, false, true),
            (Outcome::Silent, true, false, true),
            (Outcome::Busy, false, false, false),
            (Outcome::Refused(None), true, true, true),
            (Outcome::UnknownPort, true, true, true),
            (Outcome::NoSa, true, true, true),
            (Outcome::Overloaded, true, true, true),
        ] {
            let configured = |no_path| super::super::Config {
                on_no_record: no_path,
                on_sa_silent: no_path,
                ..super::super::Config::default()
            };
            for (config, expected) in [
                (super::super::Config::default(), is_left),
                (configured(NoPath::Final), if_final),
                (configured(NoPath::Fallback), if_fallback),
            ] {
                let mut rig = Rig::with(config);
                assert_eq!(rig.paths.falls_back(Some(PORT), &outcome), expected, "{outcome:?}");
            }
        }
    }
}
