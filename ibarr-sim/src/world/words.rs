// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The claims about the age of answers. Three follow one another, so that no answer has a GID which the
//! owner of the address lost long ago:
//!
//! 1. a peer says what is true, or was until a moment ago ([`World::check_reply`]);
//! 2. a daemon takes a peer's word in the round of its question, so the word is at most that old;
//! 3. an answer rests on a word that the daemon took at most `fresh-for` before; or the host of the
//!    address refuses the query, and the answer leaves in the same turn.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{Datagram, MsgId, Query, Reply};
use ibarr_proto::ip2gid::client::Settings;

use super::World;
use super::troubles::Trouble;
use crate::dice::{ms, secs};
use crate::record::START;

/// The time until the view knows a change: one that the kernel reports, and one that it does not.
const TOLD_LAG: Duration = ms(100);
pub(super) const SILENT_LAG: Duration = secs(6);

/// What the daemons of all machines have asked and heard.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// By the number of a query: its target, and when it was sent first.
    asked: BTreeMap<(usize, MsgId), (IpAddr, Instant)>,
    /// When a daemon last took a peer's word that the address has the GID.
    taken: BTreeMap<(usize, IpAddr, Gid), Instant>,
    /// When a daemon last heard that the host of the address has no daemon.
    refused: BTreeMap<(usize, IpAddr), Instant>,
}

impl Words {
    /// Notes a query of a machine.
    pub(super) fn queried(&mut self, now: Instant, id: usize, query: &Datagram) {
        if let Ok(query) = Query::parse(query.as_ref()) {
            let asked = self.asked.entry((id, query.msg_id())).or_insert((query.target(), now));
            // The number is random, and comes again for another target now and then.
            if asked.0 != query.target() {
                *asked = (query.target(), now);
            }
        }
    }

    /// Notes that a daemon has heard a refusal which quotes its query.
    pub(super) fn refused(&mut self, now: Instant, id: usize, target: IpAddr) {
        self.refused.insert((id, target), now);
    }
}

impl World {
    /// Notes a reply that the daemon has taken for the answer to a query of its own.
    pub(super) fn word_is_taken(&mut self, id: usize, reply: &Datagram) {
        let now = self.now;
        let Ok(Reply { msg_id, gid, .. }) = Reply::parse(reply.as_ref()) else { return };
        let Some(&(target, asked_at)) = self.claims.words.asked.get(&(id, msg_id)) else {
            let text = format!("a reply to query {msg_id:?}, which was never sent, is taken");
            return self.claims.breaks(now, [Some(id), None], text);
        };
        if let Some(gid) = gid {
            self.claims.words.taken.insert((id, target, gid), now);
        }
        let took = now.since(asked_at);
        if took > self.under_way(id, now) {
            let text = format!("a reply about {target} is taken {took:?} after its query");
            self.claims.breaks(now, [Some(id), None], text);
        }
    }

    /// How long the reply to a query may be under way if the daemon takes it at `at`: a round, and the
    /// time that the daemon is late.
    pub(super) fn under_way(&self, id: usize, at: Instant) -> Duration {
        let round = self.weather.config.client.round() + ms(100);
        round + self.slept_lately(Some(id), before(at, round))
    }

    /// The age, counted from `since`, of the oldest word that a later answer may rest on.
    pub(super) fn oldest(&self, id: usize, target: IpAddr, since: Instant) -> Duration {
        let &Settings { fresh_for, cache_ttl, .. } = self.weather.config.client.settings();
        let refused = self.claims.words.refused.get(&(id, target));
        if refused.is_some_and(|&at| at >= since) { cache_ttl } else { fresh_for }
    }

    /// Checks an answer that the daemon has found at `since` or later: a peer's word was fresh then,
    /// or the address is of this node.
    pub(super) fn check_age(&mut self, id: usize, target: IpAddr, gid: Gid, since: Instant) {
        let taken = self.claims.words.taken.get(&(id, target, gid)).copied();
        let oldest = self.oldest(id, target, since);
        let is_fresh = taken.is_some_and(|at| at + oldest >= since);
        if !is_fresh && !self.is_own(id, target, gid, since, Duration::ZERO) {
            let text = match taken {
                Some(at) => format!("a peer said {:?} before", since.since(at)),
                None => "no peer has said so".to_owned(),
            };
            let text = format!("the daemon says that {target} has {gid}, but {text}");
            let owner = self.truth.owner(target);
            self.claims.breaks(self.now, [Some(id), owner], text);
        }
    }

    /// Whether the machine had address and GID at `at`, or so shortly before that its view had yet
    /// to be told; `extra` earlier at most.
    pub(super) fn is_own(
        &self,
        id: usize,
        address: IpAddr,
        gid: Gid,
        at: Instant,
        extra: Duration,
    ) -> bool {
        // A dump takes the place of lost events, and starts anew with each that is lost meanwhile.
        let loses = self.machines[id].troubles.until(Trouble::RtnetlinkLoses);
        let lost = if loses >= before(at, SILENT_LAG) { SILENT_LAG } else { Duration::ZERO };
        let extra = extra + lost + self.slept_lately(Some(id), before(at, SILENT_LAG));
        let told = before(at, TOLD_LAG + extra);
        self.truth.owners(address, told).any(|owner| owner == id)
            && self.truth.had(id, gid, told, before(at, SILENT_LAG + extra))
    }
}

pub(super) fn before(at: Instant, time: Duration) -> Instant {
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Instant::from_nanos(at.as_nanos().saturating_sub(time)).max(before_start())
}

fn before_start() -> Instant {
    Instant::from_nanos(START.as_nanos() / 2)
}
