// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Subnets that ports of this node have left; GIDs with their prefixes may be invalid.

use std::collections::VecDeque;

use ibarr_common::Instant;
use ibarr_common::ib::SubnetPrefix;

use super::Cached;

/// Subnet prefixes, each with a time: an answer that expires before that time may date from before
/// all ports of the subnet had their new GIDs.
#[derive(Debug, Default)]
pub(super) struct Left(VecDeque<(SubnetPrefix, Instant)>);

impl Left {
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

    /// Answers learned now expire as late as `until`.
    pub(super) fn extend(&mut self, until: Instant) {
        self.0.iter_mut().for_each(|(_, end)| *end = until.max(*end));
    }

    /// Answers that expired by `now` are not used anyway.
    pub(super) fn expire(&mut self, now: Instant) {
        self.0.retain(|(_, until)| *until > now);
    }

    pub(super) fn doubts(&self, answer: &Cached) -> bool {
        !self.0.is_empty()
            && answer.gid.is_some_and(|gid| {
                let prefix = gid.subnet_prefix();
                self.0.iter().any(|&(left, until)| left == prefix && answer.expires_at <= until)
            })
    }
}
