// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What clients of ACM need to know of the ports: endpoints, and where a path starts.

use ibarr_common::ib::{Gid, PKey, PortNum};
use ibarr_common::wire::sa::PathQuery;

use super::{Incomplete, Paths, PortFacts, PortName, Search};

/// An active port, in one of its partitions.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Endpoint<'a> {
    pub port: PortName,
    pub pkey: PKey,
    pub facts: &'a PortFacts,
}

/// Why a path has no start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoStart {
    /// No port of this node has the source.
    NoSource,
    /// Several ports could be meant, and the destination is a name alone. ibacm answers no such question.
    SeveralPorts,
}

impl Endpoint<'_> {
    /// Whether an interface in this partition, or in the first one, is the endpoint's.
    pub fn has_partition(&self, pkey: Option<PKey>) -> bool {
        self.facts.partition(pkey) == Some(self.pkey)
    }
}

impl Paths {
    /// The endpoint with a number, from 1, among those of the ports with a number, or of all ports. The search reads no
    /// address, so that one for a number that no endpoint has is cheap: `ib_acme -e` makes 255 of them.
    pub fn endpoint(&self, index: u8, port: Option<PortNum>) -> Option<Endpoint<'_>> {
        let index = usize::from(index).checked_sub(1)?;
        let is_meant = |name: &PortName| port.is_none_or(|port| port == name.port);
        let ports = self.active_ports().filter(|(name, _)| is_meant(name));
        let mut all = ports.flat_map(|(port, facts)| {
            facts.pkeys.iter().map(move |&(_, pkey)| Endpoint { port, pkey, facts })
        });
        all.nth(index)
    }

    /// The endpoint with a GID, on an interface in a partition.
    pub fn endpoint_of(&self, gid: Gid, pkey: Option<PKey>) -> Option<Endpoint<'_>> {
        let (port, facts) = self.active_ports().find(|(_, facts)| facts.gids.contains(gid))?;
        Some(Endpoint { port, pkey: facts.partition(pkey)?, facts })
    }

    /// The port at which a path starts of which these parts are `known`, and the whole question for it. `None` if
    /// there is no port yet. With `is_named` the destination is a listed name, and the source is left open. With
    /// `asks_sa` the SA is asked with exactly these parts.
    pub fn start(
        &self,
        known: PathQuery,
        is_named: bool,
        asks_sa: bool,
    ) -> Option<Result<(PortName, Search), NoStart>> {
        if is_named && self.active_ports().nth(1).is_some() {
            return Some(Err(NoStart::SeveralPorts));
        }
        let start = if asks_sa {
            self.source_of(known).map(|(port, query)| (port, Search::Known(query)))
        } else {
            self.complete_query(known)
        };
        match start {
            Err(Incomplete::NoPort) => None,
            start => Some(start.map_err(|_| NoStart::NoSource)),
        }
    }

    pub(super) fn active_ports(&self) -> impl Iterator<Item = (PortName, &PortFacts)> {
        let ports = self.ports().filter(|(.., facts, _)| facts.is_active);
        ports.map(|(_, name, facts, _)| (name, facts))
    }
}
