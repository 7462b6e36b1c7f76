// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What waits for room in the socket.

use std::collections::BTreeMap;

use ibarr_common::wire::ls::Seq;

/// First in, first out, and anything can be taken back. Answers are bounded by the requests that
/// they belong to, errors here.
#[derive(Debug)]
pub(super) struct Queue {
    max_errors: usize,
    errors: usize,
    next: u64,
    items: BTreeMap<Ticket, Item>,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Ticket(u64);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Item {
    /// The answer to an address request, which the request holds.
    Answer(Seq),
    /// "Ask the SA", to a path request.
    Error(Seq),
}

impl Queue {
    pub(super) fn new(max_errors: usize) -> Self {
        Self { max_errors, errors: 0, next: 0, items: BTreeMap::new() }
    }

    pub(super) fn push_answer(&mut self, seq: Seq) -> Ticket {
        self.push(Item::Answer(seq))
    }

    /// False if there are too many.
    pub(super) fn push_error(&mut self, seq: Seq) -> bool {
        let has_room = self.errors < self.max_errors;
        if has_room {
            self.errors += 1;
            self.push(Item::Error(seq));
        }
        has_room
    }

    pub(super) fn remove(&mut self, ticket: Ticket) {
        self.items.remove(&ticket);
    }

    pub(super) fn pop(&mut self) -> Option<Item> {
        let (_, item) = self.items.pop_first()?;
        if let Item::Error(_) = item {
            self.errors -= 1;
        }
        Some(item)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.errors = 0;
    }

    fn push(&mut self, item: Item) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.items.insert(ticket, item);
        ticket
    }
}
