// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Answers that wait for room in the socket.

use alloc::collections::VecDeque;

use ibarr_common::wire::ls::{Answer, Seq};

/// A queue, first in, first out. Answers to address requests are bounded by their requests, and can
/// be removed; answers to path requests are bounded here.
#[derive(Debug)]
pub(super) struct Queue {
    max_paths: usize,
    paths: usize,
    /// The position of the first of the items.
    first: u64,
    /// `None` for an answer that was removed; never at the front.
    items: VecDeque<Option<Item>>,
}

/// A position in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket(u64);

#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most answers are sent at once, and a box costs more"
)]
pub(super) enum Item {
    /// The answer to an address request, which the request stores.
    Answer(Seq),
    /// The answer to a path request.
    Path(Seq, Answer),
}

impl Queue {
    pub(super) fn new(max_paths: usize) -> Self {
        Self { max_paths, paths: 0, first: 0, items: VecDeque::new() }
    }

    pub(super) fn push_answer(&mut self, seq: Seq) -> Ticket {
        self.push(Item::Answer(seq))
    }

    /// Returns `false` if too many wait.
    pub(super) fn push_path(&mut self, seq: Seq, answer: Answer) -> bool {
        let has_room = self.paths < self.max_paths;
        if has_room {
            self.paths += 1;
            self.push(Item::Path(seq, answer));
        }
        has_room
    }

    pub(super) fn remove(&mut self, ticket: Ticket) {
        let at = ticket.0.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(item) = at.and_then(|at| self.items.get_mut(at)) {
            *item = None;
        }
        self.drop_removed();
    }

    pub(super) fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        self.first += 1;
        self.drop_removed();
        if let Some(Item::Path(..)) = item {
            self.paths -= 1;
        }
        item
    }

    fn drop_removed(&mut self) {
        while self.items.pop_front_if(|item| item.is_none()).is_some() {
            self.first += 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.first += self.items.len() as u64;
        self.items.clear();
        self.paths = 0;
    }

    fn push(&mut self, item: Item) -> Ticket {
        let ticket = Ticket(self.first + self.items.len() as u64);
        self.items.push_back(Some(item));
        ticket
    }
}
