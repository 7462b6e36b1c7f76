// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Callers that ask for more than a daemon can do: an unprivileged user that sends a new request as
//! soon as one is answered, and a kernel whose applications resolve addresses of missing peers.
//!
//! Neither is a trouble: all claims about an undisturbed machine still hold, so the kernel's
//! callers of live peers are answered in the same time. For the user itself it is claimed that no
//! request is refused within a second, and that the SA is asked at the user's rate.

use std::net::{IpAddr, Ipv4Addr};

use ibarr_common::Instant;
use ibarr_common::ib::PKey;
use ibarr_common::wire::ls::ResolveIp;
use ibarr_common::wire::sa::PathQuestion;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::node::Input;
use ibarr_proto::paths;
use ibarr_proto::request::{Outcome, UserRequest};
use ibarr_proto::requests::AddressRequest;
use ibarr_proto::shares::{PAUSE, User};

use super::World;
use super::addresses::gid;
use super::network::IPOIB;
use super::pending::ELSEWHERE;
use super::process::{Daemon, Inbox};
use super::subnet::name;
use crate::dice::{ms, secs};
use crate::record::Entry;

const USER: User = User(1000);

/// Missing peers that the kernel asks for at once.
const DEAD: u32 = 400;

impl World {
    /// Fills up the user's requests until `until`, at the start and after each answer.
    pub(super) fn user_asks(&mut self, id: usize, daemon: &mut Daemon, until: Instant) {
        let (now, subnet) = (self.now, self.machines[id].subnet);
        if !daemon.crowd.extend(now, until) {
            return;
        }
        let deadline = now + secs(3);
        while let Some((request, number)) = daemon.crowd.ask_address(now) {
            let Some(question) = Question::new(dead(subnet, number), None) else { continue };
            let request = AddressRequest::of_user(request, USER, question, deadline);
            daemon.core.handle_input(now, Input::Resolve(request));
        }
        let Some(sgid) = self.machines[id].gid() else { return };
        while let Some((request, number)) = daemon.crowd.ask_path(now) {
            let question = PathQuestion {
                dgid: gid(ELSEWHERE, number),
                sgid,
                reversible: true,
                pkey: Some(PKey::DEFAULT),
                tclass: None,
                service_id: None,
                qos_class: None,
            };
            let request = paths::Request::of_user(request, USER, name(), question, deadline);
            daemon.core.handle_input(now, Input::ResolvePath(request));
        }
    }

    /// Takes the outcome of a request; returns whether the request is the user's.
    pub(super) fn user_told(
        &mut self,
        id: usize,
        daemon: &mut Daemon,
        request: UserRequest,
        outcome: &Outcome,
    ) -> bool {
        let Some(asked_at) = daemon.crowd.end(request) else { return false };
        let is_refused = *outcome == Outcome::Overloaded;
        self.user_answered(id, daemon, asked_at, is_refused);
        true
    }

    pub(super) fn user_path_told(
        &mut self,
        id: usize,
        daemon: &mut Daemon,
        request: UserRequest,
        outcome: &paths::Outcome,
    ) {
        let Some(asked_at) = daemon.crowd.end(request) else {
            let text = "a path request is answered that no user has made".to_owned();
            return self.claims.breaks(self.now, [Some(id), None], text);
        };
        let is_refused = *outcome == paths::Outcome::Overloaded;
        self.user_answered(id, daemon, asked_at, is_refused);
    }

    fn user_answered(
        &mut self,
        id: usize,
        daemon: &mut Daemon,
        asked_at: Instant,
        is_refused: bool,
    ) {
        let took = self.now.since(asked_at);
        self.claims.counts.users_told += 1;
        self.claims.counts.users_refused += u64::from(is_refused);
        if is_refused && took < PAUSE {
            let text = format!("a user's request is refused after {took:?}");
            self.claims.breaks(self.now, [Some(id), None], text);
        }
        let awake = self.machines[id].troubles.end().max(asked_at + secs(3));
        if self.now.since(awake) > ms(100) {
            let text = format!("a user's request is answered after {took:?}");
            self.claims.breaks(self.now, [Some(id), None], text);
        }
        if let Some(until) = daemon.crowd.wants_turn(self.now) {
            daemon.inbox.push_back(Inbox::Crowd(until));
        }
    }

    /// The kernel's applications resolve many addresses that no host has, all at once.
    pub(super) fn kernel_wants_the_dead(&mut self, id: usize) {
        self.note(id, &Entry::Weather("many requests for missing peers", None));
        let (first, subnet) = (self.dice.below(1 << 15), self.machines[id].subnet);
        let first = u32::try_from(first).unwrap_or_default();
        for n in first..first + DEAD {
            let target = dead(subnet, n);
            self.resolve(id, ResolveIp { ifindex: IPOIB, target }, secs(2));
        }
    }
}

/// The `n`th address that no host has, behind the gateway of a subnet.
fn dead(subnet: u8, n: u32) -> IpAddr {
    let [.., high, low] = (n & 0x3fff).to_be_bytes();
    Ipv4Addr::new(10, subnet % 3 + 1, 16 + high, low).into()
}
