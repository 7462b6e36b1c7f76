// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The pending requests of a user that sends a new one as soon as one is answered.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use ibarr_proto::request::UserRequest;
use ibarr_proto::resolver::PATHS;

/// The user's pending requests at one daemon, until a time.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    pub(super) until: Instant,
    pub(super) is_due: bool,
    pub(super) next: u32,
    pub(super) addresses: BTreeMap<UserRequest, Instant>,
    pub(super) paths: BTreeMap<UserRequest, Instant>,
    /// When the SA was asked a question of the user in the last second.
    asked: VecDeque<Instant>,
}

/// A subnet that only the user asks about.
pub(super) const ELSEWHERE: u16 = 0x7fff;

impl Crowd {
    pub(super) fn len(&self) -> usize {
        self.addresses.len() + self.paths.len()
    }

    /// Checks a new question to the SA; returns what is wrong with it.
    pub(super) fn asks(&mut self, now: Instant, dgid: Gid) -> Option<String> {
        if dgid.octets()[6..8] != ELSEWHERE.to_be_bytes() {
            return None;
        }
        self.asked.push_back(now);
        while self.asked.front().is_some_and(|&at| now.since(at) > Duration::from_secs(1)) {
            self.asked.pop_front();
        }
        // A question without an answer is asked again.
        let most = 2 * (PATHS.burst + PATHS.rate);
        let count = self.asked.len();
        (count > usize::try_from(most).unwrap_or(usize::MAX))
            .then(|| format!("the SA is asked {count} questions of a user in a second"))
    }
}
