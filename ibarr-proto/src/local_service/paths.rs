// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Path requests: those that wait, and what their answers are.

use std::collections::BTreeMap;

use ibarr_common::Instant;
use ibarr_common::wire::ls::{Answer, PathUse, Paths, ResolvePath, Seq};

use super::types::{Config, Counter, NoPath};
use crate::paths::{Outcome, PortName, records};
use crate::request::PathFlightId;

/// Waiting requests, by their own number and by the kernel's.
#[derive(Debug)]
pub(super) struct PathRequests {
    max: usize,
    next: u64,
    by_flight: BTreeMap<PathFlightId, Waiting>,
    flights: BTreeMap<Seq, PathFlightId>,
}

/// The data of a request that its answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) seq: Seq,
    pub(super) path_use: PathUse,
    pub(super) port: PortName,
    pub(super) asked_at: Instant,
}

impl PathRequests {
    pub(super) fn new(max: usize) -> Self {
        Self { max, next: 0, by_flight: BTreeMap::new(), flights: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_flight.len()
    }

    /// Returns whether a request with this number was waiting.
    pub(super) fn forget(&mut self, seq: Seq) -> bool {
        let flight = self.flights.remove(&seq);
        flight.is_some_and(|flight| self.by_flight.remove(&flight).is_some())
    }

    /// `None` if too many requests wait.
    pub(super) fn insert(
        &mut self,
        asked_at: Instant,
        seq: Seq,
        request: &ResolvePath,
    ) -> Option<PathFlightId> {
        if self.by_flight.len() >= self.max {
            return None;
        }
        let flight = PathFlightId(self.next);
        self.next += 1;
        let port = PortName { device: request.device, port: request.port };
        let waiting = Waiting { seq, path_use: request.path_use, port, asked_at };
        self.by_flight.insert(flight, waiting);
        self.flights.insert(seq, flight);
        Some(flight)
    }

    pub(super) fn get(&self, flight: PathFlightId) -> Option<&Waiting> {
        self.by_flight.get(&flight)
    }

    pub(super) fn take(&mut self, flight: PathFlightId) -> Option<Waiting> {
        let waiting = self.by_flight.remove(&flight)?;
        self.flights.remove(&waiting.seq);
        Some(waiting)
    }

    /// The request that has waited longest.
    pub(super) fn take_first(&mut self) -> Option<Seq> {
        let (_, Waiting { seq, .. }) = self.by_flight.pop_first()?;
        self.flights.remove(&seq);
        Some(seq)
    }
}

/// Whether the kernel should ask the SA itself after this outcome, unless it has already done so
/// too often: the SA had no answer, or was not asked.
pub(super) fn falls_back(config: Config, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Silent | Outcome::Busy => config.on_sa_silent == NoPath::Fallback,
        Outcome::Overloaded => true,
        _ => false,
    }
}

/// The answer to the kernel for an outcome, and its counter.
///
/// An answer without a path fails the caller with -EIO, where the kernel without a daemon returns
/// -EINVAL. No answer gives -EINVAL on every kernel. `ib_nl_process_good_resolve_rsp` of sa_query.c
/// passes on -EIO or 0; `recv_handler` there turns a MAD of the SA with an error status into
/// -EINVAL. Since 6.3 `cma_query_handler` of cma.c returns -EINVAL for a record with only
/// `IB_PATH_PRIMARY`; 6.1 and 6.2 treat that as success without a path, and the daemon cannot tell
/// these kernels apart. -EINVAL therefore costs the SA a query: [`NoPath::Fallback`].
pub(super) fn answer(config: Config, path_use: PathUse, outcome: &Outcome) -> (Answer, Counter) {
    let unless = |no_path, counter| match no_path {
        NoPath::Final => (Answer::Paths(Paths::NONE), Counter::PathsNone),
        NoPath::Fallback => (Answer::Error, counter),
    };
    match outcome {
        Outcome::Found { record, .. } => {
            (Answer::Paths(records(path_use, *record)), Counter::PathsAnswered)
        }
        Outcome::NoRecord { .. } => unless(config.on_no_record, Counter::PathsNoRecord),
        Outcome::Silent => unless(config.on_sa_silent, Counter::PathsSilent),
        Outcome::Busy => unless(config.on_sa_silent, Counter::PathsBusy),
        Outcome::Refused(_) => (Answer::Error, Counter::PathsRefused),
        Outcome::UnknownPort => (Answer::Error, Counter::PathsUnknown),
        Outcome::NoSa => (Answer::Error, Counter::PathsNoSa),
        Outcome::Overloaded => (Answer::Error, Counter::PathsOverloaded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_without_a_path_follows_the_configuration() {
        let fallback = Config {
            on_no_record: NoPath::Fallback,
            on_sa_silent: NoPath::Fallback,
            ..Config::default()
        };
        let last = Config {
            on_no_record: NoPath::Final,
            on_sa_silent: NoPath::Final,
            ..Config::default()
        };
        let none = (Answer::Paths(Paths::NONE), Counter::PathsNone);
        let source = crate::paths::Source::Sa;
        for (outcome, counter, is_free) in [
            (Outcome::NoRecord { source }, Counter::PathsNoRecord, true),
            (Outcome::Silent, Counter::PathsSilent, true),
            (Outcome::Busy, Counter::PathsBusy, true),
            (Outcome::Refused(None), Counter::PathsRefused, false),
            (Outcome::UnknownPort, Counter::PathsUnknown, false),
            (Outcome::NoSa, Counter::PathsNoSa, false),
            (Outcome::Overloaded, Counter::PathsOverloaded, false),
        ] {
            let error = (Answer::Error, counter);
            assert_eq!(answer(fallback, PathUse::All, &outcome), error);
            let expected = if is_free { none } else { error };
            assert_eq!(answer(last, PathUse::All, &outcome), expected);
        }
        // A repeated question would get the same answer; silence may have a local cause.
        let default = Config::default();
        assert_eq!(default.on_no_record, NoPath::Final);
        assert_eq!(default.on_sa_silent, NoPath::Fallback);
    }
}
