// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the SA client knows of each port, each question in flight, and each MAD that was sent.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cmp::Reverse;

use ibarr_common::Instant;
use ibarr_common::ib::{Lid, PathRecord};
use ibarr_common::wire::mad::Transaction;
use ibarr_common::wire::sa::{Answer, Question, Response, other_records};

use super::gate::Gate;
use super::window::Window;
use super::{Counter, Outcome, PortIndex, QuestionId, Rank, Sa};

/// The client's own questions have numbers from here on; no caller uses these.
pub(super) const OWN: u64 = 1 << 63;

/// A port that has an SA.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) sa: Sa,
    /// Nothing is sent before this time.
    pub(super) holds_until: Instant,
    pub(super) window: Window,
    pub(super) gate: Gate,
    /// The client's own question in flight.
    pub(super) own: Option<QuestionId>,
    /// Number of other flights.
    pub(super) flights: usize,
    /// Flights that wait for their turn.
    pub(super) turns: BTreeSet<Turn>,
}

impl Lane {
    /// Whether its first flight may send now. Most lanes have no turn.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        let has_room = |turn: &Turn| self.window.has_room(turn.rank);
        let is_shut = || self.gate.shut().is_some() && self.probe_at() > Some(now);
        self.turns.first().is_some_and(has_room) && self.holds_until <= now && !is_shut()
    }
}

/// Ordered by turn.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Turn {
    pub(super) rank: Rank,
    pub(super) lost: u32,
    pub(super) id: Reverse<QuestionId>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SentMad {
    pub(super) port: PortIndex,
    pub(super) to: Lid,
    pub(super) question: Question,
    pub(super) rank: Rank,
    /// Whether it is a question of the client's own.
    pub(super) is_own: bool,
    /// Whether the SA answered that it was busy.
    pub(super) was_busy: bool,
    /// The flight, which may have ended.
    pub(super) id: QuestionId,
    pub(super) at: Instant,
    pub(super) in_air: bool,
}

#[derive(Debug)]
pub(super) struct Flight {
    pub(super) port: PortIndex,
    pub(super) rank: Rank,
    pub(super) question: Question,
    pub(super) deadline: Instant,
    /// Its last MAD, unless the flight waits for its turn.
    pub(super) in_air: Option<Transaction>,
    pub(super) sent: Vec<Transaction>,
    /// Number of lost MADs.
    pub(super) lost: u32,
    /// When the last lost one was sent.
    pub(super) lost_since: Option<Instant>,
    /// The reason of the next send, and its counter.
    pub(super) next: Counter,
}

impl Lane {
    /// When the next probe leaves, if the SA is probed.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        // At most one turn is of our own.
        let is_kernels = |turn: &Turn| turn.rank == Rank::Kernel && turn.id.0.0 <= OWN;
        self.gate.probe_at(self.turns.iter().take(2).any(is_kernels))
    }
}

impl Flight {
    pub(super) fn new(port: PortIndex, question: Question, rank: Rank, deadline: Instant) -> Self {
        Self {
            port,
            rank,
            question,
            deadline,
            in_air: None,
            sent: Vec::new(),
            lost: 0,
            lost_since: None,
            next: Counter::Queries,
        }
    }

    pub(super) fn turn(&self, id: QuestionId) -> Turn {
        Turn { rank: self.rank, lost: self.lost, id: Reverse(id) }
    }

    /// The result that an answer of its kind has, and the paths after the first one, if several were asked for.
    pub(super) fn outcome(
        &self,
        answer: Option<Response>,
        mad: &[u8],
    ) -> (Outcome, Vec<PathRecord>) {
        let Some(answer) = answer else { return (Outcome::Unusable, Vec::new()) };
        match answer.answer {
            Answer::Refused(refusal) => (Outcome::Refused(refusal), Vec::new()),
            Answer::ClassPortInfo(info) => (Outcome::ClassPortInfo(info), Vec::new()),
            Answer::Path(record) => {
                let others = match self.question {
                    Question::Paths(_, count) => {
                        other_records(mad).take(usize::from(count.get() - 1)).collect()
                    }
                    _ => Vec::new(),
                };
                (Outcome::Path(record), others)
            }
        }
    }
}
