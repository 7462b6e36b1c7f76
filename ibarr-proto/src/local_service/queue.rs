// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Answers that wait for room in the socket.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use ibarr_common::wire::ls::{Answer, Seq};

/// A queue, first in, first out. Answers to address requests are bounded by their requests, and can
/// be removed; answers to path requests are bounded here.
#[derive(Debug)]
pub(super) struct Queue {
    max_paths: usize,
    paths: usize,
    next: u64,
    items: BTreeMap<Ticket, Item>,
}

/// A position in the queue.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Ticket(u64);

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Item {
    /// The answer to an address request, which the request stores.
    Answer(Seq),
    /// The answer to a path request. Boxed, because few wait and items are moved.
    Path(Seq, Box<Answer>),
}

impl Queue {
    pub(super) fn new(max_paths: usize) -> Self {
        Self { max_paths, paths: 0, next: 0, items: BTreeMap::new() }
    }

    pub(super) fn push_answer(&mut self, seq: Seq) -> Ticket {
        self.push(Item::Answer(seq))
    }

    /// Returns `false` if too many wait.
    pub(super) fn push_path(&mut self, seq: Seq, answer: Answer) -> bool {
        let has_room = self.paths < self.max_paths;
        if has_room {
            self.paths += 1;
            self.push(Item::Path(seq, Box::new(answer)));
        }
        has_room
    }

    pub(super) fn remove(&mut self, ticket: Ticket) {
        self.items.remove(&ticket);
    }

    pub(super) fn pop(&mut self) -> Option<Item> {
        let (_, item) = self.items.pop_first()?;
        if let Item::Path(..) = item {
            self.paths -= 1;
        }
        Some(item)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.paths = 0;
    }

    fn push(&mut self, item: Item) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.items.insert(ticket, item);
        ticket
    }
}
