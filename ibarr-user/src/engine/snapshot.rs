// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Paths of subnet administrators, handed on from one daemon to the next.

use std::path::PathBuf;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::paths::snapshot::{Restored, Step, Verdict, Walk};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::Engine;
use super::inputs::Input;
use crate::logging::ids;
use crate::transport::snapshot::{Event, Keeper, Order};

/// When to write a snapshot of the paths.
pub(super) struct Snapshots {
    keeper: Keeper,
    /// The file, if one is configured.
    file: Option<PathBuf>,
    state: State,
}

enum State {
    /// No snapshot is being written; the next one is due at this time.
    Idle(Instant),
    /// The position in the cache; the next part is due at this time.
    Writing(Walk, Instant),
}

/// After a crash, paths learned since the last snapshot are asked for again.
const INTERVAL: Duration = Duration::from_mins(10);

/// Paths read in one turn, which take some ten microseconds.
const PART: usize = 256;

/// Interval between checks whether a slow disk has room for more.
const PAUSE: Duration = Duration::from_millis(10);

/// Time to write the last snapshot at the end of the daemon; after that it is left unfinished, and
/// the old one stays.
const LAST_WORDS: Duration = Duration::from_secs(10);

impl Snapshots {
    pub(super) fn new(now: Instant, keeper: Keeper, file: Option<PathBuf>, paths: usize) -> Self {
        if let (Some(file), Some(room)) = (&file, keeper.try_reserve()) {
            room.send(Order::Read(file.clone(), paths));
        }
        Self { keeper, file, state: State::Idle(now + INTERVAL) }
    }

    /// Writes snapshots to this file from now on.
    pub(super) fn set_file(&mut self, file: Option<PathBuf>) {
        self.file = file;
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.file.as_ref()?;
        match self.state {
            State::Idle(until) => Some(until),
            State::Writing(_, due) => Some(due),
        }
    }
}

impl Engine {
    /// Writes a part of a snapshot, if one is due.
    pub(super) fn keep_paths(&mut self, now: Instant) {
        let Snapshots { keeper, file, state } = &mut self.snapshots;
        let Some(file) = file else { return };
        let (State::Idle(due) | State::Writing(_, due)) = state;
        if *due > now {
            return;
        }
        let Some(room) = keeper.try_reserve() else {
            *due = now + PAUSE;
            return;
        };
        match state {
            State::Idle(_) => {
                let walk = self.node.paths().walk(now);
                room.send(Order::Begin(file.clone(), walk.ports()));
                *state = State::Writing(walk, now);
            }
            State::Writing(walk, _) => {
                let order = order(self.node.paths().step(walk, PART));
                if !matches!(order, Order::Paths(_)) {
                    *state = State::Idle(now + INTERVAL);
                }
                room.send(order);
            }
        }
    }

    pub(super) fn handle_snapshot(&mut self, now: Instant, event: Event) {
        match event {
            Event::Read(snapshot, age) => self.node.restore_paths(now, snapshot, age),
            Event::Refused(reason) => {
                warn!(
                    message_id = ids::SNAPSHOT_FAILED,
                    cause = %reason,
                    "the snapshot of paths is not used: {reason}"
                );
            }
            Event::Written => debug!("saved paths for the next daemon"),
            Event::NotWritten(reason) => warn_unsaved(&reason),
            Event::Ended => {}
        }
    }

    pub(super) fn tell_restored(&mut self) {
        while let Some(Restored { port, paths, verdict }) = self.node.poll_restored() {
            match verdict {
                Verdict::Taken => {
                    info!(%port, paths, "took over paths of the last daemon");
                }
                Verdict::Changed => info!(
                    %port,
                    paths,
                    "paths of the last daemon are discarded: LID, GID, subnet manager or \
                     partitions of the port have changed"
                ),
                Verdict::Absent => {
                    info!(%port, paths, "paths of a port that does not become active");
                }
            }
        }
    }

    /// Writes the last snapshot all at once, because nothing else runs any more.
    pub(super) async fn keep_paths_at_end(self) {
        let Self { snapshots, node, mut inputs, .. } = self;
        let Snapshots { keeper, file: Some(file), .. } = snapshots else { return };
        let paths = node.paths();
        let write = async {
            let mut walk = paths.walk(crate::sys::clock::now());
            keeper.order(Order::Begin(file, walk.ports())).await;
            loop {
                let order = order(paths.step(&mut walk, PART));
                let is_more = matches!(order, Order::Paths(_));
                keeper.order(order).await;
                if !is_more {
                    break;
                }
            }
            // The thread ends when it has executed all orders.
            drop(keeper);
            let mut last = None;
            loop {
                match inputs.next().await {
                    None | Some(Input::Snapshot(Event::Ended)) => break last,
                    Some(Input::Snapshot(event)) => last = Some(event),
                    Some(_) => {}
                }
            }
        };
        match timeout(LAST_WORDS, write).await {
            Ok(Some(Event::Written)) => info!("saved paths for the next daemon"),
            Ok(Some(Event::NotWritten(reason))) => warn_unsaved(&reason),
            Ok(_) => {}
            Err(_) => warn_unsaved("the disk is too slow"),
        }
    }
}

fn warn_unsaved(cause: &str) {
    warn!(
        message_id = ids::SNAPSHOT_FAILED,
        cause, "cannot save paths for the next daemon: {cause}"
    );
}

fn order(step: Step) -> Order {
    match step {
        Step::Paths(paths) => Order::Paths(paths),
        Step::Done => Order::End,
        Step::Void => Order::Abandon,
    }
}
