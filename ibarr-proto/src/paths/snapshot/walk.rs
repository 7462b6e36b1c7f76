// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Steps through the remembered paths without stopping the daemon.

use alloc::vec::Vec;

use ibarr_common::Instant;

use super::super::cache::Cache;
use super::super::order::Position;
use super::super::ports::Ports;
use super::{Identity, KeptPath, KeptPort};
use crate::sa::PortIndex;

/// Reads the remembered paths in parts, while others are learned and dropped: each path is valid by
/// itself.
#[derive(Debug)]
pub struct Walk {
    began: Instant,
    /// Ports in the order of their names; all their paths are read.
    ports: Vec<(PortIndex, KeptPort)>,
    /// The end of the last part.
    after: Option<Position>,
    /// Remaining number of paths; no more are read than existed at the start.
    left: usize,
}

/// The result of a step.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Step {
    /// These paths, and there may be more.
    Paths(Vec<KeptPath>),
    Done,
    /// The identity of a port has changed: paths read so far may be unusable.
    Void,
}

impl Walk {
    pub(in super::super) fn new(now: Instant, ports: &Ports, cache: &Cache) -> Self {
        let kept = ports.last_facts().filter_map(|(index, name, facts)| {
            Some((index, KeptPort { name, identity: Identity::of(facts)? }))
        });
        let mut kept: Vec<_> = kept.collect();
        kept.sort_by_key(|(_, port)| port.name);
        kept.truncate(u16::MAX.into());
        Self { began: now, ports: kept, after: None, left: cache.len() }
    }

    /// The ports whose paths are read.
    pub fn ports(&self) -> Vec<KeptPort> {
        self.ports.iter().map(|(_, port)| port.clone()).collect()
    }

    pub(in super::super) fn step(&mut self, ports: &Ports, cache: &Cache, count: usize) -> Step {
        let is_same = |(index, port): &(PortIndex, KeptPort)| {
            let now = ports.last_facts().find(|(other, ..)| other == index);
            now.and_then(|(.., facts)| Identity::of(facts)).as_ref() == Some(&port.identity)
        };
        if !self.ports.iter().all(is_same) {
            return Step::Void;
        }
        let mut paths = Vec::new();
        for (place, key, remembered) in cache.after(self.after).take(count.min(self.left)) {
            self.after = Some(place);
            self.left -= 1;
            let at = self.ports.iter().position(|(index, _)| *index == key.port());
            let is_valid =
                |index| ports.get(index).is_some_and(|port| remembered.epoch >= port.valid_from);
            let life = remembered.expires_at.since(self.began).as_millis();
            if let Some(port) = at.and_then(|at| u16::try_from(at).ok())
                && is_valid(key.port())
                && let (Some(question), Some(record)) = (key.question(), remembered.record)
                && let Ok(life @ 1..) = u32::try_from(life)
            {
                paths.push(KeptPath { port, question, record, life });
            }
        }
        let is_over = self.left == 0 || cache.after(self.after).next().is_none();
        if paths.is_empty() && is_over { Step::Done } else { Step::Paths(paths) }
    }
}
