// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A stand-in for a subnet administrator: answers Get of PathRecord and ClassPortInfo, and GetTable of
//! PathRecord, like OpenSM 3.3, and misbehaves on demand. It has no I/O and no clock.
//!
//! It is for tests of SA clients. Its answers are compared with bytes that OpenSM sent
//! (`tests/sa.rs`), so that it is no kinder than OpenSM.

mod subnet;

pub(crate) use subnet::other_paths;
pub use subnet::{AddressedPort, Route, Subnet};

use std::collections::BTreeMap;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::Lid;
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::mad::{Mad, Tid};
use ibarr_common::wire::sa::{Answer, Question, Refusal, Request};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};

/// Limit of pending answers. Further questions get no answer.
pub const MAX_PENDING: usize = 8192;

/// A subnet administrator with configurable behaviour.
///
/// After each `handle_…` call, the caller must call [`StandIn::poll_transmit`] until it returns
/// nothing. The same history gives the same bytes.
#[derive(Debug)]
pub struct StandIn {
    subnet: Subnet,
    lid: Option<Lid>,
    behaviour: Behaviour,
    pending: BTreeMap<(Instant, u64), Reply>,
    asked: u64,
    counts: Counts,
    rng: ChaCha8Rng,
    now: Instant,
}

/// Identifies a client; the caller chooses the numbers.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ClientId(pub u64);

/// An answer or report.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Reply {
    pub to: ClientId,
    /// LID of the sender.
    pub from: Lid,
    pub mad: Mad,
}

/// How the SA treats questions. Counts apply to that many questions, from the next one on; one
/// question uses up one of each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Behaviour {
    /// The SA says nothing, like OpenSM when it is stopped, standby or overloaded.
    pub silent: bool,
    /// Number of questions that are lost.
    pub lose: u32,
    /// Number of questions answered with BUSY.
    pub busy: u32,
    /// Number of questions that are redirected, without saying where to.
    pub redirect: u32,
    /// Number of answers with a wrong transaction id.
    pub wrong_tid: u32,
    /// Number of answers that are sent twice.
    pub repeat: u32,
    /// Delay of each answer.
    pub delay: Duration,
    /// Largest random additional delay of an answer.
    pub jitter: Duration,
    /// The SA announces quality of service, and respects SERVICE_ID.
    pub has_qos: bool,
}

/// Counts of questions and their outcomes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Counts {
    /// Questions to the SA, including malformed ones.
    pub asked: u64,
    /// Questions answered with a path or a ClassPortInfo.
    pub answered: u64,
    /// Questions that were refused.
    pub refused: u64,
    /// Questions without an answer: the SA was silent, lost them, or had too many.
    pub unanswered: u64,
    pub malformed: u64,
    /// Questions to a LID that the SA does not have.
    pub misdirected: u64,
}

impl StandIn {
    /// An SA for `subnet`, at `lid`. `seed` determines random delays.
    pub fn new(subnet: Subnet, lid: Lid, seed: u64) -> Self {
        Self {
            subnet,
            lid: Some(lid),
            behaviour: Behaviour::default(),
            pending: BTreeMap::new(),
            asked: 0,
            counts: Counts::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: Instant::BOOT,
        }
    }

    /// The subnet that it administers.
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// The subnet, to be changed: for example a port moves, or a route is removed.
    pub fn subnet_mut(&mut self) -> &mut Subnet {
        &mut self.subnet
    }

    /// The behaviour, to be changed.
    pub fn behaviour_mut(&mut self) -> &mut Behaviour {
        &mut self.behaviour
    }

    /// Moves the SA to another port, as when another subnet manager takes over; `None` removes it.
    /// Pending questions at the old port get no answer.
    pub fn move_to(&mut self, lid: Option<Lid>) {
        self.counts.unanswered += self.pending.len() as u64;
        self.pending.clear();
        self.lid = lid;
    }

    /// The counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Handles a MAD from `from` to `dlid`.
    pub fn handle_input(&mut self, now: Instant, from: ClientId, dlid: Lid, mad: &[u8]) {
        self.now = now;
        let Some(lid) = self.lid.filter(|lid| *lid == dlid) else {
            self.counts.misdirected += 1;
            return;
        };
        self.counts.asked += 1;
        // A malformed question gets no answer.
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
            () => self.answer(&request.question),
        };
        let others = match (answer, request.question) {
            (Answer::Path(first), Question::Paths(_, count)) => {
                other_paths(first, count, self.subnet.lmc)
            }
            _ => Vec::new(),
        };
        let mut response = request.answer(answer);
        if is_wrong {
            response.tid = Tid::new(response.tid.get() ^ 1);
        }
        for _ in 0..=u8::from(repeats) {
            self.schedule(&Reply { to: from, from: lid, mad: response.emit_table(&others) });
        }
        match answer {
            Answer::Refused(_) => self.counts.refused += 1,
            Answer::Path(_) | Answer::ClassPortInfo(_) => self.counts.answered += 1,
        }
    }

    /// Handles all that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
    }

    /// When [`StandIn::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pending.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next answer that is due.
    pub fn poll_transmit(&mut self) -> Option<Reply> {
        let first = self.pending.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }

    fn answer(&self, question: &Question) -> Answer {
        match question {
            Question::ClassPortInfo => {
                Answer::ClassPortInfo(ClassPortInfo { has_qos: self.behaviour.has_qos })
            }
            Question::Path(path) | Question::Paths(path, _) => self
                .subnet
                .path(path, self.behaviour.has_qos)
                .map_or_else(Answer::Refused, Answer::Path),
            Question::Known(query) => {
                self.subnet.known(query).map_or_else(Answer::Refused, Answer::Path)
            }
        }
    }

    fn schedule(&mut self, reply: &Reply) {
        if self.pending.len() >= MAX_PENDING {
            self.counts.unanswered += 1;
            return;
        }
        let jitter = u64::try_from(self.behaviour.jitter.as_nanos()).unwrap_or(u64::MAX);
        // The remainder's bias is far too small to matter.
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
