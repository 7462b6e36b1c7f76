// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Peers' answers, handed on from one daemon to the next.

use ibarr_common::Instant;
use ibarr_proto::node::Node;

use crate::bpf::{PART, Part, Responder};

/// Takes over what an earlier daemon has learned, and keeps the map equal to the cache for the
/// next one. A turn does a bounded part of it.
pub(super) fn mirror_cache(now: Instant, node: &mut Node, responder: &mut Responder) {
    let mut handover = responder.handover();
    while let Some(change) = node.poll_learned() {
        if let Some(handover) = &mut handover {
            handover.learn(now, &change);
        }
    }
    let Some(handover) = handover else { return };
    match handover.next_part() {
        Some(Part::Compare { elements, are_inherited }) => {
            for element in elements {
                let there = element.parse();
                if let Some((question, answer)) = there.filter(|_| are_inherited) {
                    node.restore(now, question, answer);
                }
                let cached = there.and_then(|(question, _)| node.client().lookup(now, question));
                handover.compare(now, &element, cached);
            }
        }
        Some(Part::Add { after }) => {
            let client = node.client();
            let entries: Vec<_> = match after {
                None => client.entries().take(PART).collect(),
                Some(last) => client.entries_after(last).take(PART).collect(),
            };
            handover.add(now, &entries);
        }
        None => {}
    }
}
