// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Subnets that ports of this node have left; GIDs with their prefixes may be invalid.

use alloc::collections::VecDeque;
use core::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::SubnetPrefix;

use super::Cached;

/// Subnet prefixes, each with a time: an answer heard until then may date from before all ports of
/// the subnet had their new GIDs.
#[derive(Debug, Default)]
pub(super) struct OldPrefixes(VecDeque<(SubnetPrefix, Instant)>);

impl OldPrefixes {
    /// An additional prefix displaces the oldest.
    pub(super) const MAX: usize = 8;

    /// Returns whether there was room.
    pub(super) fn insert(&mut self, prefix: SubnetPrefix, until: Instant) -> bool {
        self.remove(prefix);
        self.0.push_back((prefix, until));
        let has_room = self.0.len() <= Self::MAX;
        if !has_room {
            self.0.pop_front();
        }
        has_room
    }

    /// A subnet with this prefix exists again.
    pub(super) fn remove(&mut self, prefix: SubnetPrefix) {
        self.0.retain(|(left, _)| *left != prefix);
    }

    /// Answers that are forgotten by `now` need no doubt.
    pub(super) fn expire(&mut self, now: Instant, ttl: Duration) {
        self.0.retain(|(_, until)| *until + ttl > now);
    }

    pub(super) fn doubts(&self, answer: &Cached) -> bool {
        !self.0.is_empty()
            && answer.gid.is_some_and(|gid| {
                let prefix = gid.subnet_prefix();
                let is_old = |until| answer.heard_at.is_none_or(|at| at <= until);
                self.0.iter().any(|&(left, until)| left == prefix && is_old(until))
            })
    }
}
