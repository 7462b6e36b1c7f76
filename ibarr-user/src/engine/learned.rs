// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Peers' answers, handed on from one daemon to the next.

use ibarr_common::Instant;

use super::Engine;
use crate::bpf::{PART, Part};

impl Engine {
    /// Takes over what an earlier daemon has learned, and keeps the map equal to the cache for the
    /// next one. A turn does a bounded part of it.
    pub(super) fn mirror_cache(&mut self, now: Instant) {
        while let Some(change) = self.node.poll_learned() {
            self.responder.learn(now, &change);
        }
        match self.responder.next_part() {
            Some(Part::Compare { elements, are_inherited }) => {
                for element in elements {
                    let there = element.parse();
                    if let Some((question, answer)) = there.filter(|_| are_inherited) {
                        self.node.restore(now, question, answer);
                    }
                    let cached =
                        there.and_then(|(question, _)| self.node.client().lookup(now, question));
                    self.responder.compare(now, &element, cached);
                }
            }
            Some(Part::Add { after }) => {
                let client = self.node.client();
                let entries: Vec<_> = match after {
                    None => client.entries().take(PART).collect(),
                    Some(last) => client.entries_after(last).take(PART).collect(),
                };
                self.responder.add(now, &entries);
            }
            None => {}
        }
    }
}
