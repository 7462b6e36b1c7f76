// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The peers that datagrams were sent to last: a policy rule is named only if it takes those to one of them by another way.

use alloc::vec::Vec;

use crate::ip2gid::client::Candidate;
use crate::local_view::rules::{Diverted, Traffic};

/// How many peers are kept. Until the next assessment there may be twice as many.
const PEERS: usize = 16;

/// The newest comes first.
#[derive(Debug, Default)]
pub(crate) struct RecentPeers(Vec<Candidate>);

impl RecentPeers {
    /// A datagram is sent to this peer, which is kept if there is room.
    pub(crate) fn add(&mut self, peer: Candidate) {
        if self.0.len() < 2 * PEERS && !self.0.contains(&peer) {
            self.0.insert(0, peer);
        }
    }

    /// Keeps those that divert datagrams to a peer, which stays: the kernel connects to it, but sends such packets
    /// by another way. `way` asks the kernel.
    pub(crate) fn diverted<W: PartialEq, E>(
        &mut self,
        mut by_rules: Vec<Diverted>,
        way: impl Fn(Candidate, Traffic) -> Result<W, E>,
    ) -> Vec<Diverted> {
        by_rules.retain(|by| {
            let differs = |peer, connections| way(peer, by.traffic).ok() != Some(connections);
            let at = self.0.iter().position(|&peer| {
                peer.question.family() == by.family
                    && way(peer, Traffic::CONNECTIONS).is_ok_and(|way| differs(peer, way))
            });
            at.map(|at| self.0.remove(at)).inspect(|&peer| self.0.insert(0, peer)).is_some()
        });
        self.0.truncate(PEERS);
        by_rules
    }
}
