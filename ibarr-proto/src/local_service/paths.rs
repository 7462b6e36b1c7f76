// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Path requests: those that wait, and what their answers are.

use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use ibarr_common::Instant;
use ibarr_common::wire::ls::{Answer, PathUse, Paths, ResolvePath, Seq};
use ibarr_common::wire::sa::PathQuestion;

use super::types::Counter;
use crate::paths::{Outcome, records};
use crate::request::KernelRequest;

/// Waiting requests, by the kernel's number.
#[derive(Debug)]
pub(super) struct PathRequests {
    max: usize,
    next: u64,
    by_seq: HashMap<Seq, Waiting, FixedState>,
}

/// The data of a request that its answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    number: u64,
    pub(super) path_use: PathUse,
    pub(super) asked_at: Instant,
}

impl PathRequests {
    pub(super) fn new(max: usize) -> Self {
        Self { max, next: 0, by_seq: HashMap::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_seq.len()
    }

    /// Returns whether a request with this number was waiting.
    pub(super) fn forget(&mut self, seq: Seq) -> bool {
        self.by_seq.remove(&seq).is_some()
    }

    /// `None` if too many requests wait.
    pub(super) fn insert(
        &mut self,
        asked_at: Instant,
        seq: Seq,
        request: &ResolvePath,
    ) -> Option<KernelRequest> {
        if self.by_seq.len() >= self.max {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.by_seq.insert(seq, Waiting { number, path_use: request.path_use, asked_at });
        Some(KernelRequest { number, seq })
    }

    pub(super) fn take(&mut self, id: KernelRequest) -> Option<Waiting> {
        let waiting = self.by_seq.remove(&id.seq)?;
        if waiting.number == id.number {
            return Some(waiting);
        }
        // Another request with the same number has replaced it.
        self.by_seq.insert(id.seq, waiting);
        None
    }

    /// The numbers of all requests, which no longer wait; first that which has waited longest.
    pub(super) fn take_all(&mut self) -> Vec<Seq> {
        let mut all: Vec<_> = self.by_seq.drain().collect();
        all.sort_unstable_by_key(|(_, waiting)| waiting.number);
        all.into_iter().map(|(seq, _)| seq).collect()
    }
}

/// A request for one direction ignores the other (`ib_nl_set_path_rec_attrs`).
pub(super) fn question(request: &ResolvePath) -> PathQuestion {
    let ResolvePath { dgid, sgid, path_use, pkey, tclass, service_id, qos_class, .. } = *request;
    let reversible = path_use != PathUse::Unidirectional;
    PathQuestion { dgid, sgid, reversible, pkey, tclass, service_id, qos_class }
}

/// The answer to the kernel for an outcome, and its counter. If the request is `left` to the kernel, it asks the SA.
pub(super) fn answer(path_use: PathUse, outcome: &Outcome, left: bool) -> (Answer, Counter) {
    let without_path = |left_as, otherwise| {
        if left { (Answer::Error, left_as) } else { (Answer::Paths(Paths::NONE), otherwise) }
    };
    match outcome {
        Outcome::Found { record, .. } => {
            (Answer::Paths(records(path_use, *record)), Counter::PathsAnswered)
        }
        Outcome::NoRecord { .. } => without_path(Counter::PathsNoRecord, Counter::PathsNone),
        Outcome::Silent => without_path(Counter::PathsSilent, Counter::PathsSpared),
        Outcome::Overloaded => without_path(Counter::PathsOverloaded, Counter::PathsSpared),
        Outcome::Busy => (Answer::Paths(Paths::NONE), Counter::PathsSpared),
        Outcome::Refused(_) => (Answer::Error, Counter::PathsRefused),
        Outcome::UnknownPort => (Answer::Error, Counter::PathsUnknown),
        Outcome::NoSa => (Answer::Error, Counter::PathsNoSa),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_without_a_path_is_left_to_the_kernel_or_fails() {
        let none = Answer::Paths(Paths::NONE);
        let source = crate::paths::Source::Sa;
        for (outcome, left, otherwise) in [
            (Outcome::NoRecord { source }, Counter::PathsNoRecord, Counter::PathsNone),
            (Outcome::Silent, Counter::PathsSilent, Counter::PathsSpared),
            (Outcome::Overloaded, Counter::PathsOverloaded, Counter::PathsSpared),
        ] {
            assert_eq!(answer(PathUse::All, &outcome, true), (Answer::Error, left));
            assert_eq!(answer(PathUse::All, &outcome, false), (none, otherwise));
        }
        let busy = answer(PathUse::All, &Outcome::Busy, false);
        assert_eq!(busy, (none, Counter::PathsSpared));
    }
}
