// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What peers have answered, from one daemon to the next.

use ibarr_common::Instant;
use ibarr_proto::ip2gid::client::Learned;

use super::Engine;
use crate::bpf::Element;

impl Engine {
    /// What a daemon before this one has learned is taken over, what this one learns is left for the
    /// next.
    pub(super) fn mirror_cache(&mut self, now: Instant) {
        if let Some(inherited) = self.responder.take_inherited() {
            for (question, answer) in inherited.iter().filter_map(Element::parse) {
                self.node.restore(now, question, answer);
            }
            self.responder.mirror(now, Some(inherited), self.node.client().entries());
        }
        while let Some(change) = self.node.poll_learned() {
            match change {
                Learned::Everything => self.make_mirror(now),
                change => self.responder.learn(now, &change),
            }
        }
        if self.responder.is_mirror_due(now) {
            self.make_mirror(now);
        }
    }
    fn make_mirror(&mut self, now: Instant) {
        self.responder.mirror(now, None, self.node.client().entries());
    }
}
