// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A stand-in for a subnet administrator: answers Get of PathRecord and ClassPortInfo as OpenSM 3.3
//! does, and misbehaves when told to. No I/O, no clock.
//!
//! It is for tests of those who ask. That it is no kinder than OpenSM is held against bytes that
//! OpenSM sent (`tests/sa.rs`).

mod subnet;

pub use subnet::{AddressedPort, Route, Subnet};

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::inform::{InformInfo, Report, Trap};
use ibarr_common::wire::mad::{Mad, Tid};
use ibarr_common::wire::sa::{Answer, Question, Refusal, Request};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};

/// Answers that are held back, at most. What is asked when there are more gets none.
pub const MAX_PENDING: usize = 8192;

/// Subscriptions to traps, at most.
pub const MAX_SUBSCRIPTIONS: usize = 8192;

/// A subnet administrator that does what it is told.
///
/// After each `handle_…` call [`StandIn::poll_transmit`] is to be called until it has nothing more.
/// The same history gives the same bytes.
#[derive(Debug)]
pub struct StandIn {
    subnet: Subnet,
    lid: Option<Lid>,
    behaviour: Behaviour,
    pending: BTreeMap<(Instant, u64), Reply>,
    asked: u64,
    counts: Counts,
    subscribers: BTreeSet<(ClientId, Trap)>,
    reported: u64,
    rng: ChaCha8Rng,
    now: Instant,
}

/// Who asks: whatever the caller tells its clients apart by.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ClientId(pub u64);

/// An answer.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Who asked.
    pub to: ClientId,
    /// The LID that it comes from.
    pub from: Lid,
    /// The answer.
    pub mad: Mad,
}

/// How it treats those who ask. What has a count goes for that many questions, from the next on; one
/// question spends one of each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Behaviour {
    /// Says nothing, as OpenSM does while it is stopped, standby or overloaded.
    pub silent: bool,
    /// So many questions are lost.
    pub lose: u32,
    /// So many get BUSY.
    pub busy: u32,
    /// So many are sent to somebody else, without saying to whom.
    pub redirect: u32,
    /// So many get an answer to another transaction.
    pub wrong_tid: u32,
    /// So many get their answer twice.
    pub repeat: u32,
    /// How long each answer takes.
    pub delay: Duration,
    /// And up to so much longer, each by itself.
    pub jitter: Duration,
    /// It announces quality of service, and takes SERVICE_ID into account.
    pub has_qos: bool,
}

/// What it has been asked, and what became of that.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Questions for it, malformed ones included.
    pub asked: u64,
    /// Those with a path or a ClassPortInfo for answer.
    pub answered: u64,
    /// Those refused.
    pub refused: u64,
    /// Those without an answer: it was silent, lost them, or had too many.
    pub unanswered: u64,
    /// Reports of it that were answered.
    pub reports_answered: u64,
    /// Those that are none.
    pub malformed: u64,
    /// Questions to a LID that it does not have.
    pub misdirected: u64,
}

impl StandIn {
    /// For `subnet`, reached at `lid`. `seed` decides what is random.
    pub fn new(subnet: Subnet, lid: Lid, seed: u64) -> Self {
        Self {
            subnet,
            lid: Some(lid),
            behaviour: Behaviour::default(),
            pending: BTreeMap::new(),
            asked: 0,
            counts: Counts::default(),
            subscribers: BTreeSet::new(),
            reported: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: Instant::BOOT,
        }
    }

    /// What it knows.
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// What it knows, to be changed: a port that moves, a route that goes.
    pub fn subnet_mut(&mut self) -> &mut Subnet {
        &mut self.subnet
    }

    /// How it treats those who ask.
    pub fn behaviour_mut(&mut self) -> &mut Behaviour {
        &mut self.behaviour
    }

    /// It moves to another port, as when another subnet manager takes over; `None`: there is none.
    /// What it has been asked at the old one is not answered.
    pub fn move_to(&mut self, lid: Option<Lid>) {
        self.counts.unanswered += self.pending.len() as u64;
        self.pending.clear();
        self.subscribers.clear();
        self.lid = lid;
    }

    /// Who is to be told of what.
    pub fn subscribers(&self) -> impl Iterator<Item = (ClientId, Trap)> {
        self.subscribers.iter().copied()
    }

    /// Tells all who have subscribed to it that a port is, or is no longer, in service.
    pub fn report_gid(&mut self, now: Instant, is_in_service: bool, gid: Gid) {
        let trap = if is_in_service { Trap::GidInService } else { Trap::GidOutOfService };
        self.report(now, trap, |tid, lid| Report::of_gid(tid, is_in_service, gid, lid));
    }

    /// Tells all who have subscribed to it that a link of the switch `issuer` has changed.
    pub fn report_link(&mut self, now: Instant, issuer: Lid) {
        self.report(now, Trap::LinkStateChange, |tid, _| Report::of_link(tid, issuer));
    }

    fn report(&mut self, now: Instant, trap: Trap, report: impl Fn(Tid, Lid) -> Report) {
        self.now = now;
        let Some(from) = self.lid else { return };
        let of_trap = self.subscribers.iter().filter(|(_, of)| *of == trap);
        let clients: Vec<_> = of_trap.map(|(client, _)| *client).collect();
        for to in clients {
            self.reported += 1;
            let mad = report(Tid::new(self.reported), from).emit();
            self.schedule(&Reply { to, from, mad });
        }
    }

    /// What it has been asked so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A MAD from `from` to `dlid`.
    pub fn handle_input(&mut self, now: Instant, from: ClientId, dlid: Lid, mad: &[u8]) {
        self.now = now;
        let Some(lid) = self.lid.filter(|lid| *lid == dlid) else {
            self.counts.misdirected += 1;
            return;
        };
        if Report::parse_answer(mad).is_ok() {
            self.counts.reports_answered += 1;
            return;
        }
        self.counts.asked += 1;
        // Whoever asks like that has to live with silence.
        let Ok(request) = Request::parse(mad) else {
            self.counts.malformed += 1;
            return;
        };
        let Behaviour { lose, busy, redirect, wrong_tid, repeat, .. } = &mut self.behaviour;
        let (lost, is_busy, redirects) = (spend(lose), spend(busy), spend(redirect));
        let (is_wrong, repeats) = (spend(wrong_tid), spend(repeat));
        if self.behaviour.silent || lost {
            self.counts.unanswered += 1;
            return;
        }
        let answer = match () {
            () if is_busy => Answer::Refused(Refusal::BUSY),
            () if redirects => Answer::Refused(Refusal::REDIRECT),
            () => self.answer(from, &request.question),
        };
        let mut response = request.answer(answer);
        if is_wrong {
            response.tid = Tid::new(response.tid.get() ^ 1);
        }
        for _ in 0..=u8::from(repeats) {
            self.schedule(&Reply { to: from, from: lid, mad: response.emit() });
        }
        match answer {
            Answer::Refused(_) => self.counts.refused += 1,
            Answer::Path(_) | Answer::ClassPortInfo(_) | Answer::Inform(_) => {
                self.counts.answered += 1;
            }
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
    }

    /// When [`StandIn::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pending.first_key_value().map(|((at, _), _)| *at)
    }

    /// An answer that is due.
    pub fn poll_transmit(&mut self) -> Option<Reply> {
        let first = self.pending.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }

    fn answer(&mut self, from: ClientId, question: &Question) -> Answer {
        match question {
            Question::ClassPortInfo => {
                Answer::ClassPortInfo(ClassPortInfo { has_qos: self.behaviour.has_qos })
            }
            Question::Inform(info) => {
                self.subscribe(from, *info);
                Answer::Inform(*info)
            }
            Question::Path(path) => match self.subnet.path(path, self.behaviour.has_qos) {
                Ok(record) => Answer::Path(record),
                Err(refusal) => Answer::Refused(refusal),
            },
        }
    }

    /// At most [`MAX_SUBSCRIPTIONS`] in all; a further one is confirmed and forgotten.
    fn subscribe(&mut self, client: ClientId, info: InformInfo) {
        if !info.subscribe {
            self.subscribers.remove(&(client, info.trap));
        } else if self.subscribers.len() < MAX_SUBSCRIPTIONS {
            self.subscribers.insert((client, info.trap));
        }
    }

    fn schedule(&mut self, reply: &Reply) {
        if self.pending.len() >= MAX_PENDING {
            self.counts.unanswered += 1;
            return;
        }
        let jitter = u64::try_from(self.behaviour.jitter.as_nanos()).unwrap_or(u64::MAX);
        // The remainder favours nobody that a test could tell.
        let more = if jitter == 0 { 0 } else { self.rng.next_u64() % jitter };
        let at = self.now + self.behaviour.delay + Duration::from_nanos(more);
        self.asked += 1;
        self.pending.insert((at, self.asked), *reply);
    }
}

fn spend(count: &mut u32) -> bool {
    let some = *count > 0;
    *count = count.saturating_sub(1);
    some
}
