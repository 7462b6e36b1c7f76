// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The source address that routing chooses for a target. The kernel decides, because only it knows all rules and
//! metrics. A search costs several system calls, more than the rest of a request, so it is remembered for a second.

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;
use core::time::Duration;

use ibarr_common::Instant;

use crate::ip2gid::Question;
use crate::request::ResolutionId;

/// A change of routes that brings no event is noticed after this.
const MEMORY: Duration = Duration::from_secs(1);

/// How many are remembered. Then all are forgotten.
const MOST: usize = 4096;

/// What is remembered, and the searches that wait for the kernel.
#[derive(Debug, Default)]
pub(super) struct Sources {
    by_target: BTreeMap<Question, IpAddr>,
    until: Instant,
    /// A target is asked for once, and the driver answers each.
    asked: BTreeMap<Question, BTreeSet<ResolutionId>>,
}

impl Sources {
    /// The source of packets to `target`, if it is remembered.
    pub(super) fn to(&mut self, now: Instant, target: Question) -> Option<IpAddr> {
        if self.until <= now {
            self.forget();
        }
        self.by_target.get(&target).copied()
    }

    /// A search waits for the source. Returns whether the kernel has to be asked.
    pub(super) fn wait(&mut self, target: Question, id: ResolutionId) -> bool {
        let is_first = !self.asked.contains_key(&target);
        self.asked.entry(target).or_default().insert(id);
        is_first
    }

    /// A search has ended.
    pub(super) fn leave(&mut self, target: Question, id: ResolutionId) {
        if let Some(searches) = self.asked.get_mut(&target) {
            searches.remove(&id);
        }
    }

    /// The kernel has answered. Returns the searches that wait for it.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        target: Question,
        source: Option<IpAddr>,
    ) -> BTreeSet<ResolutionId> {
        if let Some(source) = source {
            if self.by_target.len() >= MOST {
                self.forget();
            }
            if self.by_target.is_empty() {
                self.until = now + MEMORY;
            }
            self.by_target.insert(target, source);
        }
        self.asked.remove(&target).unwrap_or_default()
    }

    /// Addresses or routes may have changed.
    pub(super) fn forget(&mut self) {
        self.by_target.clear();
    }
}
