// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ibarr_common::Instant;

use super::super::cache::{Key, Remembered};
use super::super::ports::BEFORE;
use super::super::types::{PortFacts, PortName};
use super::{Identity, KeptPath, KeptPort, Snapshot};
use crate::sa::PortIndex;

/// Paths of an earlier daemon, until it is known whether they are usable.
#[derive(Debug)]
pub(in super::super) struct Restoring {
    /// Of ports that have not come up yet.
    waiting: BTreeMap<PortName, (Identity, Vec<Entry>)>,
    /// After this time they are dropped.
    until: Instant,
    /// Of ports with an unchanged identity.
    ready: Vec<(PortIndex, Entry)>,
    told: VecDeque<Restored>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    path: KeptPath,
    expires_at: Instant,
}

/// The result for a port's paths.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Restored {
    /// The port.
    pub port: PortName,
    /// Number of its paths that have not expired.
    pub paths: usize,
    /// Whether they are usable.
    pub verdict: Verdict,
}

/// Whether paths of an earlier daemon are usable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// They are taken over in doubt, and used if the SA should be spared or is silent.
    Taken,
    /// They are dropped: the port has another LID, GID, subnet manager or partition.
    Changed,
    /// They are dropped: the port has not come up for too long.
    Absent,
}

/// Maximum time for a port to come up: after a power cut, the subnet manager has to configure the
/// whole fabric.
const WITHIN: Duration = Duration::from_mins(10);

/// Number of paths taken over at once, which takes some hundred microseconds.
const PART: usize = 256;

impl Default for Restoring {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            until: Instant::BOOT,
            ready: Vec::new(),
            told: VecDeque::new(),
        }
    }
}

impl Restoring {
    /// Takes a snapshot of the given age. No path lives longer than `longest`, whatever the
    /// snapshot contains.
    pub(in super::super) fn new(
        now: Instant,
        snapshot: Snapshot,
        age: Duration,
        longest: Duration,
    ) -> Self {
        let mut of_port: Vec<_> = snapshot.ports.iter().map(|_| Vec::new()).collect();
        for path in snapshot.paths {
            let life = path.life().saturating_sub(age).min(longest);
            if let Some(of_port) = of_port.get_mut(usize::from(path.port))
                && !life.is_zero()
            {
                of_port.push(Entry { path, expires_at: now + life });
            }
        }
        let ports = snapshot.ports.into_iter().zip(of_port);
        let waiting =
            ports.map(|(KeptPort { name, identity }, entries)| (name, (identity, entries)));
        Self { waiting: waiting.collect(), until: now + WITHIN, ..Self::default() }
    }

    /// A port exists. `is_new`: nothing has happened to it since the daemon started.
    pub(in super::super) fn decide(
        &mut self,
        index: PortIndex,
        port: PortName,
        facts: &PortFacts,
        is_new: bool,
    ) {
        let Some(identity) = Identity::of(facts) else { return };
        let Some((kept, entries)) = self.waiting.remove(&port) else { return };
        let paths = entries.len();
        let verdict = if is_new && kept == identity { Verdict::Taken } else { Verdict::Changed };
        if verdict == Verdict::Taken {
            self.ready.extend(entries.into_iter().map(|entry| (index, entry)));
        }
        self.told.push_back(Restored { port, paths, verdict });
    }

    /// The paths to be remembered now.
    pub(in super::super) fn take(
        &mut self,
        now: Instant,
    ) -> impl Iterator<Item = (Key, Remembered)> + use<> {
        if self.until <= now {
            for (port, (_, entries)) in std::mem::take(&mut self.waiting) {
                let (paths, verdict) = (entries.len(), Verdict::Absent);
                self.told.push_back(Restored { port, paths, verdict });
            }
        }
        let taken = self.ready.split_off(self.ready.len().saturating_sub(PART));
        // The longest life first: among paths of one question it is the newest.
        taken.into_iter().rev().map(|(index, Entry { path, expires_at })| {
            let record = Some(path.record);
            (Key::new(index, &path.question), Remembered { record, expires_at, epoch: BEFORE })
        })
    }

    pub(in super::super) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(now);
        }
        (!self.waiting.is_empty()).then_some(self.until)
    }

    pub(in super::super) fn poll_told(&mut self) -> Option<Restored> {
        self.told.pop_front()
    }

    /// Number of paths held.
    pub(in super::super) fn len(&self) -> usize {
        self.ready.len() + self.waiting.values().map(|(_, entries)| entries.len()).sum::<usize>()
    }
}
