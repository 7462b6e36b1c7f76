// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ibarr_common::Instant;

use super::super::cache::{Key, Remembered};
use super::super::ports::BEFORE;
use super::super::types::{PortFacts, PortName};
use super::{Identity, KeptPath, KeptPort, Snapshot};
use crate::sa::PortIndex;

/// Paths of a daemon before us, until it is known whether they are of use.
#[derive(Debug)]
pub(in super::super) struct Restoring {
    /// Of ports that have not come up yet.
    waiting: BTreeMap<PortName, (Identity, Vec<Entry>)>,
    /// Nobody waits for them any longer.
    until: Instant,
    /// Of ports that are what they were.
    ready: Vec<(PortIndex, Entry)>,
    told: VecDeque<Restored>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    path: KeptPath,
    expires_at: Instant,
}

/// What became of a port's paths.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Restored {
    /// The port.
    pub port: PortName,
    /// How many of its paths have not expired.
    pub paths: usize,
    /// Whether they are of use.
    pub verdict: Verdict,
}

/// Whether paths of a daemon before us are of use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// They are in doubt, and given where the SA is to be spared or silent.
    Taken,
    /// They are not: the port has another LID, GID, subnet manager or partition.
    Changed,
    /// The port has not come up for so long that they are not waited for any more.
    Absent,
}

/// For a port to come up: after a power cut, the subnet manager has all of the fabric to do.
const WITHIN: Duration = Duration::from_mins(10);

/// Paths that are taken over at once: some hundred microseconds' worth.
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
    /// Of a snapshot that was begun so long ago. Whatever it says, no path lives longer than
    /// `longest`.
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

    /// A port is there. `is_new`: nothing has happened to it since the daemon started.
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

    /// What is to be remembered now.
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
        // Those that live longest first: of one question they are the youngest.
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

    /// How many paths are held.
    pub(in super::super) fn len(&self) -> usize {
        self.ready.len() + self.waiting.values().map(|(_, entries)| entries.len()).sum::<usize>()
    }
}
