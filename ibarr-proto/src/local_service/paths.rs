// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Path requests: those that wait, and what their answers are.

use alloc::collections::BTreeMap;

use ibarr_common::Instant;
use ibarr_common::wire::ls::{Answer, PathUse, Paths, ResolvePath, Seq};
use ibarr_common::wire::sa::PathQuestion;

use super::types::Counter;
use crate::paths::{Outcome, records};
use crate::request::KernelRequest;

/// Waiting requests, by their own number and by the kernel's.
#[derive(Debug)]
pub(super) struct PathRequests {
    max: usize,
    next: u64,
    by_id: BTreeMap<KernelRequest, Waiting>,
    ids: BTreeMap<Seq, KernelRequest>,
}

/// The data of a request that its answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) seq: Seq,
    pub(super) path_use: PathUse,
    pub(super) asked_at: Instant,
}

impl PathRequests {
    pub(super) fn new(max: usize) -> Self {
        Self { max, next: 0, by_id: BTreeMap::new(), ids: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns whether a request with this number was waiting.
    pub(super) fn forget(&mut self, seq: Seq) -> bool {
        let id = self.ids.remove(&seq);
        id.is_some_and(|id| self.by_id.remove(&id).is_some())
    }

    /// `None` if too many requests wait.
    pub(super) fn insert(
        &mut self,
        asked_at: Instant,
        seq: Seq,
        request: &ResolvePath,
    ) -> Option<KernelRequest> {
        if self.by_id.len() >= self.max {
            return None;
        }
        let id = KernelRequest(self.next);
        self.next += 1;
        let waiting = Waiting { seq, path_use: request.path_use, asked_at };
        self.by_id.insert(id, waiting);
        self.ids.insert(seq, id);
        Some(id)
    }

    pub(super) fn take(&mut self, id: KernelRequest) -> Option<Waiting> {
        let waiting = self.by_id.remove(&id)?;
        self.ids.remove(&waiting.seq);
        Some(waiting)
    }

    /// The request that has waited longest.
    pub(super) fn take_first(&mut self) -> Option<Seq> {
        let (_, Waiting { seq, .. }) = self.by_id.pop_first()?;
        self.ids.remove(&seq);
        Some(seq)
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
