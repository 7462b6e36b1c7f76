// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The ports of this node, and the effect of their changes on remembered paths.

use alloc::collections::BTreeMap;
use core::time::Duration;

use ibarr_common::Instant;
use rand_core::Rng;

use super::bucket::{Bucket, DOUBT_SPREAD, Seldom};
use super::cache::Key;
use super::canaries::Canaries;
use super::routers::Routers;
use super::types::{PortEvent, PortFacts, PortName};
use crate::retry::random;
use crate::sa::{PortIndex, Sa};

/// All ports since the start: a removed port stays, because its paths are remembered.
#[derive(Debug, Default)]
pub(super) struct Ports {
    ports: BTreeMap<PortIndex, Port>,
    names: BTreeMap<PortName, PortIndex>,
}

/// The epoch of answers to an earlier daemon: in doubt from the start.
pub(super) const BEFORE: u32 = 0;

/// The first epoch of a port.
const FIRST: u32 = BEFORE + 1;

#[derive(Debug)]
pub(super) struct Port {
    pub(super) name: PortName,
    /// `None` while the port does not exist.
    facts: Option<PortFacts>,
    /// The state when it last had an SA.
    last: Option<PortFacts>,
    /// Answers of earlier epochs are in doubt.
    pub(super) epoch: u32,
    /// Answers of epochs before this one are wrong.
    pub(super) valid_from: u32,
    /// Callers that keep paths may still have those learned from this epoch on.
    pub(super) kept_from: u32,
    /// Nothing was asked since all answers came into doubt.
    all_doubted: bool,
    /// Rate of refreshes, and of questions for paths of an earlier daemon.
    pub(super) repeats: Bucket,
    /// Whether the kernel's events of the port are received.
    pub(super) hears_events: bool,
    /// The last event, and its time.
    pub(super) last_event: Option<(Instant, PortEvent)>,
    /// Choice of the paths that are asked for without a reason for doubt.
    pub(super) canaries: Canaries,
    /// Routers that have replaced each other.
    pub(super) routers: Routers,
    /// Rate at which the kernel may ask the SA itself.
    pub(super) fallbacks: Seldom,
    /// Whether its SA supports quality of service.
    pub(super) has_qos: bool,
    /// The SA that last refused a question for several paths.
    pub(super) refused_tables: Option<Sa>,
    /// When to ask the SA for its capabilities; `None` while that question is in flight.
    pub(super) info_due: Option<Instant>,
}

/// The effect of a change on the remembered paths of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    None,
    Doubt,
    Void,
}

impl Port {
    /// `None` while the port does not exist.
    pub(super) fn facts(&self) -> Option<&PortFacts> {
        self.facts.as_ref()
    }

    pub(super) fn can_ask(&self) -> bool {
        self.sa().is_some()
    }

    /// The address of its SA, if it can be asked.
    pub(super) fn sa(&self) -> Option<Sa> {
        self.facts.as_ref().and_then(PortFacts::sa)
    }

    /// Whether anything has happened to it since this daemon started.
    pub(super) fn was_doubted(&self) -> bool {
        self.epoch > FIRST
    }

    /// The epoch of a question asked now.
    pub(super) fn ask(&mut self) -> u32 {
        self.all_doubted = false;
        self.epoch
    }

    /// Puts all remembered answers in doubt. Returns `false` if they were in doubt already and
    /// nothing has been asked since: the kernel often reports one change of a port as several
    /// events.
    fn doubt(&mut self, now: Instant, rng: &mut impl Rng) -> bool {
        self.repeats.hold(now, rng);
        let is_news = !core::mem::replace(&mut self.all_doubted, true);
        self.epoch += u32::from(is_news);
        is_news
    }

    /// No answer that is remembered may be used. Answers that are taken from elsewhere get the epoch
    /// [`Self::valid_from`], in which nothing is asked, so that they are in doubt.
    fn void(&mut self) {
        self.valid_from = self.epoch;
        self.epoch += 1;
    }

    /// LMC when it last had an SA.
    pub(super) fn lmc(&self) -> u8 {
        self.last.as_ref().map_or(0, |facts| facts.lmc)
    }
}

impl Ports {
    pub(super) fn get(&self, index: PortIndex) -> Option<&Port> {
        self.ports.get(&index)
    }

    pub(super) fn get_mut(&mut self, index: PortIndex) -> Option<&mut Port> {
        self.ports.get_mut(&index)
    }

    /// The existing port with this name.
    pub(super) fn by_name(&self, name: &PortName) -> Option<(PortIndex, &Port)> {
        let index = *self.names.get(name)?;
        let port = self.ports.get(&index).filter(|port| port.facts.is_some())?;
        Some((index, port))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PortIndex, PortName, &PortFacts, bool)> {
        self.ports.iter().filter_map(|(index, port)| {
            Some((*index, port.name, port.facts.as_ref()?, port.has_qos))
        })
    }

    /// Each port that ever had an SA, in its state of that time.
    pub(super) fn last_facts(&self) -> impl Iterator<Item = (PortIndex, PortName, &PortFacts)> {
        self.ports.iter().filter_map(|(index, port)| Some((*index, port.name, port.last.as_ref()?)))
    }

    pub(super) fn set(
        &mut self,
        now: Instant,
        index: PortIndex,
        name: PortName,
        facts: PortFacts,
        rng: &mut impl Rng,
    ) -> Change {
        let port = self.ports.entry(index).or_insert_with(|| Port {
            name,
            facts: None,
            last: None,
            epoch: FIRST,
            valid_from: BEFORE,
            kept_from: BEFORE,
            all_doubted: false,
            repeats: Bucket::held(now, rng),
            canaries: Canaries::default(),
            routers: Routers::default(),
            hears_events: false,
            fallbacks: Seldom::default(),
            last_event: None,
            has_qos: false,
            refused_tables: None,
            info_due: None,
        });
        self.names.insert(name, index);
        let was_up = port.can_ask();
        let has_sa = facts.sa().is_some();
        let change = match &port.last {
            Some(last) if has_sa => change(last, &facts, was_up),
            _ => Change::None,
        };
        let has_moved = port.facts.as_ref().and_then(PortFacts::sa) != facts.sa();
        let is_known = port.last.is_some();
        if has_sa {
            port.last = Some(facts.clone());
        }
        port.facts = Some(facts);
        if has_moved {
            // The capabilities of an earlier SA are known, so the question can wait.
            let spread = if is_known { random(DOUBT_SPREAD, rng) } else { Duration::ZERO };
            port.info_due = has_sa.then_some(now + spread);
        }
        if change == Change::None {
            return change;
        }
        let is_news = port.doubt(now, rng);
        port.kept_from = port.epoch;
        match change {
            Change::Doubt if !is_news => return Change::None,
            Change::Void => port.void(),
            Change::Doubt | Change::None => {}
        }
        change
    }

    /// The kernel reported an event of a port to the daemon and to IPoIB, which drops its paths.
    /// Returns whether answers have come into doubt.
    pub(super) fn happened(
        &mut self,
        now: Instant,
        index: PortIndex,
        event: PortEvent,
        rng: &mut impl Rng,
    ) -> bool {
        let Some(port) = self.ports.get_mut(&index) else { return false };
        port.last_event = Some((now, event));
        // Before the port has an SA, the only remembered paths are those of an earlier daemon.
        if !event.is_cause_for_doubt() || port.last.is_none() {
            return false;
        }
        let is_news = port.doubt(now, rng);
        port.kept_from = port.epoch;
        is_news
    }

    /// No remembered answer of any port may be used.
    pub(super) fn void(&mut self) {
        for port in self.ports.values_mut() {
            port.epoch += 1;
            port.void();
        }
    }

    /// All remembered answers of a port are in doubt.
    pub(super) fn doubt(&mut self, index: PortIndex, now: Instant, rng: &mut impl Rng) {
        if let Some(port) = self.ports.get_mut(&index) {
            port.doubt(now, rng);
        }
    }

    pub(super) fn remove(&mut self, index: PortIndex) {
        if let Some(port) = self.ports.get_mut(&index) {
            port.facts = None;
            port.info_due = None;
        }
    }

    pub(super) fn canary_due(&self) -> Option<Instant> {
        self.ports.values().filter_map(|port| port.canaries.due()).min()
    }

    /// A path that the SA is to be asked for now without a reason for doubt.
    pub(super) fn take_canary(&mut self, now: Instant) -> Option<Key> {
        self.ports.values_mut().find_map(|port| port.canaries.take(now))
    }

    pub(super) fn info_due(&self) -> Option<Instant> {
        self.ports.values().filter_map(|port| port.info_due).min()
    }

    /// A port whose SA is to be asked for its capabilities now.
    pub(super) fn take_info_due(&mut self, now: Instant) -> Option<PortIndex> {
        let is_due = |port: &Port| port.info_due.is_some_and(|at| at <= now);
        let (index, port) = self.ports.iter_mut().find(|(_, port)| is_due(port))?;
        port.info_due = None;
        Some(*index)
    }
}

fn change(last: &PortFacts, facts: &PortFacts, was_up: bool) -> Change {
    let has_lost = |pkey: &_| !facts.pkeys.contains(pkey);
    let is_another = last.lid != facts.lid
        || last.lmc != facts.lmc
        || last.gids.first() != facts.gids.first()
        || last.pkeys.iter().any(has_lost);
    let gids_lost = last.gids.iter().any(|gid| !facts.gids.contains(gid));
    if is_another {
        Change::Void
    } else if last.sa() != facts.sa() || gids_lost || !was_up {
        Change::Doubt
    } else {
        Change::None
    }
}
