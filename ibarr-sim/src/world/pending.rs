// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The pending requests of users: of one that asks now and then, and of one that sends a new request
//! as soon as one is answered.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use ibarr_proto::request::UserRequest;
use ibarr_proto::requests::PATHS;

use crate::dice::secs;

/// The requests of the first user, with targets and deadlines.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pending: BTreeMap<UserRequest, (IpAddr, Instant)>,
    last: u64,
}

/// The requests of the second user at one daemon, until a time.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    until: Instant,
    is_due: bool,
    last: u32,
    /// The times of the requests.
    addresses: BTreeMap<UserRequest, Instant>,
    paths: BTreeMap<UserRequest, Instant>,
    /// When the SA was asked a question of the user in the last second.
    asked: VecDeque<Instant>,
}

/// A subnet that only the second user asks about.
pub(super) const ELSEWHERE: u16 = 0x7fff;

/// More addresses than are admitted at once.
const ADDRESSES: usize = 300;
const PATHS_HELD: usize = 40;

/// The first id of the second user's requests.
const FIRST: u64 = 1 << 32;

impl Asked {
    /// A new request and its deadline.
    pub(super) fn ask(&mut self, now: Instant, target: IpAddr) -> (UserRequest, Instant) {
        self.last += 1;
        let request = UserRequest::Control(self.last);
        let deadline = now + secs(3);
        self.pending.insert(request, (target, deadline));
        (request, deadline)
    }

    /// Target and deadline of a request that has its answer.
    pub(super) fn end(&mut self, request: UserRequest) -> Option<(IpAddr, Instant)> {
        self.pending.remove(&request)
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }
}

impl Crowd {
    /// The user asks until then, or until the time said before; returns whether it asks now.
    pub(super) fn extend(&mut self, now: Instant, until: Instant) -> bool {
        self.until = self.until.max(until);
        self.is_due = false;
        self.until > now
    }

    /// Until when the user asks, if it has room for more requests and no turn for them yet.
    pub(super) fn wants_turn(&mut self, now: Instant) -> Option<Instant> {
        let wants = now < self.until && !std::mem::replace(&mut self.is_due, true);
        wants.then_some(self.until)
    }

    /// A new request for an address, and its number.
    pub(super) fn ask_address(&mut self, now: Instant) -> Option<(UserRequest, u32)> {
        if self.addresses.len() >= ADDRESSES {
            return None;
        }
        let (request, number) = self.next();
        self.addresses.insert(request, now);
        Some((request, number))
    }

    /// A new request for a path, and its number.
    pub(super) fn ask_path(&mut self, now: Instant) -> Option<(UserRequest, u32)> {
        if self.paths.len() >= PATHS_HELD {
            return None;
        }
        let (request, number) = self.next();
        self.paths.insert(request, now);
        Some((request, number))
    }

    fn next(&mut self) -> (UserRequest, u32) {
        self.last += 1;
        (UserRequest::Control(FIRST + u64::from(self.last)), self.last)
    }

    /// The time of a request that has its answer. `None` if the request is not the user's.
    pub(super) fn end(&mut self, request: UserRequest) -> Option<Instant> {
        self.addresses.remove(&request).or_else(|| self.paths.remove(&request))
    }

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
