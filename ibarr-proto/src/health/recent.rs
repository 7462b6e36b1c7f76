// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The peers that datagrams were sent to last: a policy rule is named only if it takes those to one of them by
//! another way. The kernel knows the ways; the driver asks it for those that are to be compared.

use alloc::vec::Vec;

use super::Health;
use crate::ip2gid::client::Candidate;
use crate::local_view::rules::{Diverted, Traffic};

/// How many peers are kept. Until the next assessment there may be twice as many.
const PEERS: usize = 16;

impl Health {
    pub(super) fn sent_to(&mut self, peer: Candidate) {
        if self.recent.len() < 2 * PEERS && !self.recent.contains(&peer) {
            self.recent.insert(0, peer);
        }
    }

    /// The ways that the driver asks the kernel for: to each recent peer that of connections, and those of datagrams
    /// that a rule may divert.
    pub fn ways(&self, by_rules: &[Diverted]) -> Vec<(Candidate, Traffic)> {
        let of_peer = |&peer: &Candidate| {
            let family = peer.question.family();
            let diverted = by_rules.iter().filter(move |by| by.family == family);
            let mut diverted = diverted.map(|by| by.traffic).peekable();
            let connections = diverted.peek().map(|_| Traffic::CONNECTIONS);
            connections.into_iter().chain(diverted).map(move |traffic| (peer, traffic))
        };
        self.recent.iter().flat_map(of_peer).collect()
    }

    /// Keeps the rules that divert datagrams to a peer, which stays: the kernel connects to it, but sends such packets
    /// by another way, or by none. `ways` has those of [`Self::ways`] that there are.
    pub fn diverted<W: PartialEq>(
        &mut self,
        mut by_rules: Vec<Diverted>,
        ways: &[((Candidate, Traffic), W)],
    ) -> Vec<Diverted> {
        let way = |to| ways.iter().find(|(asked, _)| *asked == to).map(|(_, way)| way);
        by_rules.retain(|by| {
            let at = self.recent.iter().position(|&peer| {
                let connections = way((peer, Traffic::CONNECTIONS));
                let differs = connections.is_some() && way((peer, by.traffic)) != connections;
                differs && peer.question.family() == by.family
            });
            at.map(|at| self.recent.remove(at)).inspect(|&it| self.recent.insert(0, it)).is_some()
        });
        self.recent.truncate(PEERS);
        by_rules
    }
}
