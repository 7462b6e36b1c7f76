// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Paths from files, until their port shows whether they still hold.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use ibarr_common::Instant;

use super::super::cache::{Key, Remembered};
use super::super::types::{Counter, PortFacts, PortName};
use super::{Identity, KeptPath, KeptPort, Snapshot};
use crate::sa::PortIndex;

/// Paths that this daemon has not asked for: those of an earlier one, until it is known whether they are usable, and
/// those of a file.
#[derive(Debug)]
pub(in super::super) struct Restoring {
    /// Of ports that have not come up yet.
    waiting: BTreeMap<PortName, (Identity, Vec<Entry>)>,
    /// After this time they are dropped.
    until: Instant,
    /// Of ports with an unchanged identity.
    ready: Vec<Ready>,
    told: VecDeque<Restored>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    path: KeptPath,
    expires_at: Instant,
}

/// A path to be remembered.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Ready {
    port: PortIndex,
    origin: Origin,
    /// The path is dropped if the answers of its port have become wrong since this epoch.
    pub(in super::super) epoch: u32,
    entry: Entry,
}

impl Ready {
    pub(in super::super) fn counter(&self) -> Counter {
        match self.origin {
            Origin::LastDaemon => Counter::Restored,
            Origin::File => Counter::Preloaded,
        }
    }

    pub(in super::super) fn remembered(&self) -> (Key, Remembered) {
        let Entry { path, expires_at } = self.entry;
        let (record, epoch) = (Some(path.record), self.epoch);
        (Key::new(self.port, &path.question), Remembered { record, expires_at, epoch })
    }
}

/// Where paths come from that this daemon has not asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Origin {
    /// The snapshot of an earlier daemon.
    LastDaemon,
    /// A file of the administrator.
    File,
}

/// The result for a port's paths.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Restored {
    pub port: PortName,
    /// Number of its paths that have not expired.
    pub paths: usize,
    /// Whether they are usable.
    pub result: RestoreResult,
    /// Where they come from.
    pub origin: Origin,
}

/// Whether paths that this daemon has not asked for are usable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RestoreResult {
    /// They are taken over in doubt, and used if the SA should be spared or is silent.
    Taken,
    /// They are dropped: the port has another LID, GID, subnet manager or partition.
    Changed,
    /// They are dropped: there is no such port, or it has not come up for too long.
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
    /// Takes a snapshot of the given age, in the place of an earlier one. No path lives longer than `longest`,
    /// whatever the snapshot contains.
    pub(in super::super) fn wait(
        &mut self,
        now: Instant,
        snapshot: Snapshot,
        age: Duration,
        longest: Duration,
    ) {
        self.waiting = by_port(now, snapshot, age, longest)
            .map(|(KeptPort { name, identity }, entries)| (name, (identity, entries)))
            .collect();
        self.until = now + WITHIN;
    }

    /// Takes paths of a file, of ports that exist: `found` gives the index, the state and the epoch of a port. At most
    /// `most` paths are held.
    pub(in super::super) fn preload<'a>(
        &mut self,
        now: Instant,
        snapshot: Snapshot,
        longest: Duration,
        most: usize,
        found: impl Fn(&PortName) -> Option<(PortIndex, &'a PortFacts, u32)>,
    ) {
        let origin = Origin::File;
        for (KeptPort { name, identity }, mut entries) in
            by_port(now, snapshot, Duration::ZERO, longest)
        {
            entries.truncate(most.saturating_sub(self.ready.len()));
            let paths = entries.len();
            let result = match found(&name) {
                Some((port, facts, epoch)) if Identity::of(facts).as_ref() == Some(&identity) => {
                    let ready = |entry| Ready { port, origin, epoch, entry };
                    self.ready.extend(entries.into_iter().map(ready));
                    RestoreResult::Taken
                }
                Some(_) => RestoreResult::Changed,
                None => RestoreResult::Absent,
            };
            self.told.push_back(Restored { port: name, paths, result, origin });
        }
    }

    /// A port exists. `unchanged` is the epoch of its answers if nothing has happened to it since the daemon
    /// started.
    pub(in super::super) fn decide(
        &mut self,
        index: PortIndex,
        port: PortName,
        facts: &PortFacts,
        unchanged: Option<u32>,
    ) {
        let Some(identity) = Identity::of(facts) else { return };
        let Some((kept, entries)) = self.waiting.remove(&port) else { return };
        let (paths, origin) = (entries.len(), Origin::LastDaemon);
        let result = match unchanged.filter(|_| kept == identity) {
            Some(epoch) => {
                let ready = |entry| Ready { port: index, origin, epoch, entry };
                self.ready.extend(entries.into_iter().map(ready));
                RestoreResult::Taken
            }
            None => RestoreResult::Changed,
        };
        self.told.push_back(Restored { port, paths, result, origin });
    }

    /// The paths to be remembered now.
    pub(in super::super) fn take(&mut self, now: Instant) -> impl Iterator<Item = Ready> + use<> {
        if self.until <= now {
            for (port, (_, entries)) in core::mem::take(&mut self.waiting) {
                let (paths, result) = (entries.len(), RestoreResult::Absent);
                let origin = Origin::LastDaemon;
                self.told.push_back(Restored { port, paths, result, origin });
            }
        }
        let taken = self.ready.split_off(self.ready.len().saturating_sub(PART));
        if self.ready.is_empty() {
            self.ready = Vec::new();
        }
        // The longest life first: among paths of one question it is the newest.
        taken.into_iter().rev()
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

/// The paths of each port that have not expired.
fn by_port(
    now: Instant,
    snapshot: Snapshot,
    age: Duration,
    longest: Duration,
) -> impl Iterator<Item = (KeptPort, Vec<Entry>)> {
    let mut of_port: Vec<_> = snapshot.ports.iter().map(|_| Vec::new()).collect();
    for path in snapshot.paths {
        let life = path.life().saturating_sub(age).min(longest);
        if let Some(of_port) = of_port.get_mut(usize::from(path.port))
            && !life.is_zero()
        {
            of_port.push(Entry { path, expires_at: now + life });
        }
    }
    snapshot.ports.into_iter().zip(of_port)
}
