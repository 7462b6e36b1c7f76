// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Paths of subnet administrators, handed on from one daemon to the next.

use std::path::PathBuf;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::node::Node;
use ibarr_proto::paths::{
    Paths,
    snapshot::{Origin, RestoreResult, Restored, Schedule},
};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::inputs::{Input, Inputs};
use crate::causes::{Fault, fault};
use crate::logging::ids;
use crate::transport::snapshot::{Event, Keeper, Order};

/// The thread that reads and writes snapshots, and what it is to do next.
pub(super) struct Snapshots {
    keeper: Keeper,
    /// The file, if one is configured.
    file: Option<PathBuf>,
    schedule: Schedule,
    /// Why the last one was not written.
    unsaved: Option<Fault>,
}

/// Time to write the last snapshot at the end of the daemon; after that it is left unfinished, and
/// the old one stays.
const LAST_WORDS: Duration = Duration::from_secs(10);

impl Snapshots {
    pub(super) fn new(now: Instant, keeper: Keeper, file: Option<PathBuf>, paths: usize) -> Self {
        if let (Some(file), Some(room)) = (&file, keeper.try_reserve()) {
            room.send(Order::Read(file.clone(), paths));
        }
        let schedule = Schedule::new(now + Schedule::INTERVAL);
        Self { keeper, file, schedule, unsaved: None }
    }

    /// Writes snapshots to this file from now on. The first one into another file is due at once, so that the
    /// administrator learns whether it can be written.
    pub(super) fn set_file(&mut self, now: Instant, file: Option<PathBuf>) {
        if self.file != file {
            (self.schedule, self.unsaved) = (Schedule::new(now), None);
            self.file = file;
        }
    }

    pub(super) fn warning(&self) -> Option<Fault> {
        self.unsaved.as_ref().map(unsaved)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.file.as_ref().map(|_| self.schedule.poll_timeout())
    }

    /// Writes a part of a snapshot, if one is due.
    pub(super) fn keep(&mut self, now: Instant, paths: &Paths) {
        let Self { keeper, file: Some(file), schedule, .. } = self else { return };
        if schedule.poll_timeout() > now {
            return;
        }
        let room = keeper.try_reserve();
        if let Some(action) = schedule.poll(now, paths, room.is_some())
            && let Some(room) = room
        {
            room.send(Order::Write(file.clone(), action));
        }
    }

    pub(super) fn handle(&mut self, now: Instant, event: Event, node: &mut Node) {
        match event {
            Event::Read(snapshot, age) => node.restore_paths(now, snapshot, age),
            Event::Refused(reason) => {
                warn!(
                    message_id = ids::SNAPSHOT_FAILED,
                    cause = %reason,
                    "the snapshot of paths is not used: {reason}"
                );
            }
            Event::Written if self.unsaved.take().is_some() => {
                info!(
                    message_id = ids::SNAPSHOT_WORKS,
                    "paths are saved for the next daemon again"
                );
            }
            Event::Written => debug!("saved paths for the next daemon"),
            Event::NotWritten(reason) => {
                if self.unsaved.is_none() {
                    warn_unsaved(&reason);
                }
                self.unsaved = Some(reason);
            }
            Event::Ended => {}
        }
    }

    /// Writes the last snapshot all at once, because nothing else runs any more.
    pub(super) async fn keep_at_end(self, paths: &Paths, mut inputs: Inputs) {
        let Self { keeper, file: Some(file), .. } = self else { return };
        let write = async {
            let now = crate::sys::clock::now();
            let mut schedule = Schedule::new(now);
            while let Some(action) = schedule.poll(now, paths, true) {
                keeper.order(Order::Write(file.clone(), action)).await;
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
            Err(_) => warn_unsaved(&fault!("the disk is too slow")),
        }
    }
}

pub(super) fn tell_restored(node: &mut Node) {
    while let Some(Restored { port, paths, result, origin }) = node.poll_restored() {
        let what = match (result, origin) {
            (RestoreResult::Taken, Origin::File) => "took over paths of a file",
            (RestoreResult::Changed | RestoreResult::Absent, Origin::File) => {
                "paths of a file are discarded: the port has changed since it was read; reload"
            }
            (RestoreResult::Taken, Origin::LastDaemon) => "took over paths of the last daemon",
            (RestoreResult::Changed, Origin::LastDaemon) => {
                "paths of the last daemon are discarded: LID, GID, subnet manager or \
                 partitions of the port have changed"
            }
            (RestoreResult::Absent, Origin::LastDaemon) => {
                "paths of a port that does not become active"
            }
        };
        info!(%port, paths, "{what}");
    }
}

fn warn_unsaved(cause: &Fault) {
    warn!(message_id = ids::SNAPSHOT_FAILED, %cause, "{}", unsaved(cause));
}

fn unsaved(cause: &Fault) -> Fault {
    fault!(
        "paths cannot be saved for the next daemon, which will ask for them again: {cause}: mend that, or name another \
         file ([paths] snapshot)"
    )
}
