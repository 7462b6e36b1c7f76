// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Subscriptions to reports of the SA about the subnet, and the doubt that reports cause.
//!
//! A port that receives reports subscribes to four traps, with one InformInfo after another. It
//! subscribes again after an event of the port, when the SA moves, and from time to time, because
//! an SA that restarts forgets its subscribers. A round ends at the first InformInfo that the SA
//! does not confirm, so an SA that refuses gets one MAD in half a minute.
//!
//! | trap | subject | effect |
//! |---|---|---|
//! | 64, 65 | a GID is in service, or no longer is | the remembered path to the GID is in doubt |
//! | 128, 144 | a link or a port's capabilities have changed | a path in use is asked for soon |
//!
//! OpenSM sends 64 and 65 after it has given the port its LID, and 128 and 144 before it examines
//! the subnet. At that time it may still give its old answers, so a canary asks a few seconds
//! later. Traps 66 and 67 are about multicast groups, and no path here leads to one. One
//! subscription to all traps would include them, and send each of them to every node.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid};
use ibarr_common::wire::inform::{Event, InformInfo, Report, Trap};
use ibarr_common::wire::sa::Question;
use rand_core::{CryptoRng, Rng, SeedableRng};

use super::bucket::DOUBT_SPREAD;
use super::cache::Key;
use super::lids::Host;
use super::ports::Port;
use super::{Counter, INFO_AGAIN, INFO_DEADLINE, Paths};
use crate::hash::Seeded;
use crate::retry::{Jitter, random};
use crate::sa::{self, PortIndex, QuestionId, Rank};

/// Subscriptions, and reported changes.
#[derive(Debug)]
pub(super) struct Informing {
    /// Of ports that receive reports.
    subscriptions: BTreeMap<PortIndex, Subscription>,
    /// InformInfos that the SA has not answered yet.
    asked: BTreeMap<QuestionId, (PortIndex, InformInfo)>,
    /// When the subscriptions must be ended, if they are being ended.
    ends_by: Option<Instant>,
    /// Answers to be sent, at most [`MAX_ANSWERS`].
    answers: VecDeque<sa::Transmit>,
    /// Reported hosts about which nothing has been asked since, at most [`MAX_REPORTED`].
    reported: HashSet<Host, Seeded>,
}

#[derive(Debug, Default)]
struct Subscription {
    /// When the next round begins.
    due: Option<Instant>,
    /// Whether a round is in progress.
    is_asking: bool,
    /// Subscriptions that the SA may have.
    given: Vec<Trap>,
    /// Number of subscriptions that the SA has confirmed in the last round.
    confirmed: usize,
}

/// Answers that wait to be sent. A report without room is not answered, and the SA sends it again.
const MAX_ANSWERS: usize = 64;

/// GIDs in doubt individually. With one more, all paths of the port are in doubt.
const MAX_REPORTED: usize = 1024;

impl Informing {
    pub(super) fn new(hasher: Seeded) -> Self {
        Self {
            subscriptions: BTreeMap::new(),
            asked: BTreeMap::new(),
            ends_by: None,
            answers: VecDeque::new(),
            reported: HashSet::with_hasher(hasher),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let idle = self.subscriptions.values().filter(|subscription| !subscription.is_asking);
        idle.filter_map(|subscription| subscription.due).min()
    }

    pub(super) fn poll_transmit(&mut self) -> Option<sa::Transmit> {
        self.answers.pop_front()
    }

    /// Whether the SA has reported the destination of a question, and nothing has been asked about
    /// it since.
    pub(super) fn has_reported(&self, key: &Key) -> bool {
        !self.reported.is_empty() && self.reported.contains(&key.host())
    }

    /// The SA has answered a question.
    pub(super) fn note_answer(&mut self, key: &Key) {
        if !self.reported.is_empty() {
            self.reported.remove(&key.host());
        }
    }
}

impl<R: CryptoRng + SeedableRng> Paths<R> {
    /// Whether the SA has confirmed every subscription of a port. `None` if the port receives no
    /// reports.
    pub fn is_informed(&self, port: PortIndex) -> Option<bool> {
        let subscription = self.informing.subscriptions.get(&port)?;
        Some(subscription.confirmed == Trap::ALL.len())
    }

    /// Ends every subscription. The SA is asked until `deadline` at most, while
    /// [`Self::is_giving_back`].
    pub fn give_back(&mut self, now: Instant, deadline: Instant) {
        self.advance(now);
        self.informing.ends_by = Some(deadline);
        let subscriptions = std::mem::take(&mut self.informing.subscriptions);
        for (port, subscription) in subscriptions {
            for trap in subscription.given {
                // The SA might receive this after the request to end.
                let begin = (port, InformInfo { trap, subscribe: true });
                if !self.informing.asked.values().any(|asked| *asked == begin) {
                    self.inform(port, InformInfo { trap, subscribe: false }, deadline);
                }
            }
        }
        self.settle();
    }

    /// Whether an SA has not confirmed the end of a subscription yet.
    pub fn is_giving_back(&self) -> bool {
        self.informing.ends_by.is_some() && !self.informing.asked.is_empty()
    }

    /// Sets whether reports to a port reach this core.
    pub(super) fn take_reports(&mut self, port: PortIndex, are_taken: bool) {
        if are_taken {
            self.informing.ends_by = None;
            if let Entry::Vacant(vacant) = self.informing.subscriptions.entry(port) {
                vacant.insert(Subscription::default());
                self.renew(port);
            }
        } else {
            self.informing.subscriptions.remove(&port);
        }
    }

    /// The SA of a port may have forgotten its subscriptions, or has changed.
    pub(super) fn renew(&mut self, port: PortIndex) {
        if let Some(subscription) = self.informing.subscriptions.get_mut(&port) {
            let due = self.now + random(DOUBT_SPREAD, &mut self.rng);
            subscription.confirmed = 0;
            subscription.begin_by(due);
        }
    }

    pub(super) fn subscribe(&mut self) {
        let now = self.now;
        let is_due = |it: &Subscription| !it.is_asking && it.due.is_some_and(|due| due <= now);
        let subscriptions = &mut self.informing.subscriptions;
        let due: Vec<_> = subscriptions
            .iter_mut()
            .filter(|(_, subscription)| is_due(subscription))
            .map(|(port, subscription)| {
                subscription.due = None;
                *port
            })
            .collect();
        for port in due {
            // The round begins when the port has an SA.
            if self.ports.get(port).is_some_and(Port::can_ask) {
                self.subscribe_to(port, 0);
            }
        }
    }

    fn subscribe_to(&mut self, port: PortIndex, number: usize) {
        let Some(subscription) = self.informing.subscriptions.get_mut(&port) else { return };
        subscription.confirmed = number;
        let Some(&trap) = Trap::ALL.get(number) else {
            subscription.is_asking = false;
            let due = self.now + spread(self.config.ttl, &mut self.rng);
            return subscription.begin_by(due);
        };
        subscription.is_asking = true;
        if !subscription.given.contains(&trap) {
            subscription.given.push(trap);
        }
        self.inform(port, InformInfo { trap, subscribe: true }, self.now + INFO_DEADLINE);
    }

    fn inform(&mut self, port: PortIndex, info: InformInfo, deadline: Instant) {
        self.counters.count(Counter::Informs);
        let id = self.next_id();
        self.informing.asked.insert(id, (port, info));
        self.ask_sa(id, port, Question::Inform(info), Rank::Kernel, deadline);
    }

    /// The SA has answered an InformInfo.
    pub(super) fn note_informed(&mut self, id: QuestionId, outcome: sa::Outcome) {
        let Some((port, info)) = self.informing.asked.remove(&id) else { return };
        let is_confirmed = outcome == sa::Outcome::Inform(info);
        if !is_confirmed {
            self.counters.count(Counter::InformsFailed);
        }
        if !info.subscribe {
            // It may have ended a subscription that has begun again since.
            return self.renew(port);
        }
        if let Some(ends_by) = self.informing.ends_by {
            return self.inform(port, InformInfo { subscribe: false, ..info }, ends_by);
        }
        let number = Trap::ALL.iter().position(|trap| *trap == info.trap);
        if is_confirmed && let Some(number) = number {
            self.subscribe_to(port, number + 1);
        } else if let Some(subscription) = self.informing.subscriptions.get_mut(&port) {
            subscription.is_asking = false;
            subscription.begin_by(self.now + spread(INFO_AGAIN, &mut self.rng));
        }
    }

    /// The port with the LID `from` has sent a report.
    pub(super) fn note_report(&mut self, index: PortIndex, from: Option<Lid>, report: &Report) {
        let Some(port) = self.ports.get_mut(index) else { return };
        let Some(sa) = port.sa().filter(|sa| Some(sa.lid) == from) else {
            return self.counters.count(Counter::ReportsWrongLid);
        };
        self.counters.count(Counter::Reports);
        if self.informing.answers.len() >= MAX_ANSWERS {
            return self.counters.count(Counter::ReportsDropped);
        }
        self.informing.answers.push_back(sa::Transmit {
            port: index,
            sa,
            timeout: None,
            mad: report.emit_answer(),
            transaction: report.tid.transaction(),
            is_probe: false,
        });
        match report.event() {
            Event::GidInService(gid) | Event::GidOutOfService(gid) => self.doubt_gid(index, gid),
            Event::Change(_) => {
                let every = self.config.canary_every;
                if !every.is_zero() {
                    let at = self.now + every / 2 + random(every, &mut self.rng);
                    port.canaries.hurry(at, every);
                }
            }
            Event::Other => self.counters.count(Counter::ReportsOther),
        }
    }

    fn doubt_gid(&mut self, port: PortIndex, gid: Gid) {
        let host = Host::new(port, gid);
        if !self.cache.lids().knows(&host) {
            return self.counters.count(Counter::ReportsUnknown);
        }
        self.counters.count(Counter::ReportsDoubted);
        let reported = &mut self.informing.reported;
        if reported.len() >= MAX_REPORTED && !reported.contains(&host) {
            let lids = self.cache.lids();
            reported.retain(|host| lids.knows(host));
        }
        if reported.len() >= MAX_REPORTED && !reported.contains(&host) {
            reported.retain(|host| host.port() != port);
            self.counters.count(Counter::Doubts);
            return self.ports.doubt(port, self.now, &mut self.rng);
        }
        reported.insert(host);
    }
}

impl Subscription {
    fn begin_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

fn spread(time: Duration, rng: &mut impl Rng) -> Duration {
    Jitter::percent(25).unwrap_or_default().spread(time, rng)
}
