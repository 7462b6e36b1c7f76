// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Nudges of the kernel, and how the last one ended.

use ibarr_common::IfIndex;
use ibarr_proto::local_service::Nudged as Outcome;
use tracing::{info, warn};

use crate::causes::chain;
use crate::logging::ids;
use crate::sys::local_service::Quiet;
use crate::transport::rtnetlink::{LOOPBACK, NudgeError, Nudged, Nudger, Place};

pub(super) struct Nudges {
    nudger: Nudger,
    /// The interface of the last nudge, or why it failed.
    last: Option<Result<IfIndex, String>>,
}

impl Nudges {
    pub(super) fn new(nudger: Nudger) -> Self {
        Self { nudger, last: None }
    }

    pub(super) fn nudge(&self, fallback: Option<Place>, quiet: Option<Quiet>) {
        self.nudger.nudge(fallback, quiet);
    }

    /// Logs changes of the outcome, and returns the outcome for the core. `without_place` is what
    /// the core makes of a nudge for which there was no interface.
    pub(super) fn note(
        &mut self,
        outcome: Result<Nudged, NudgeError>,
        without_place: Outcome,
    ) -> Outcome {
        let (outcome, nudged) = match outcome {
            Ok(Nudged::On(ifindex)) => (Ok(ifindex), Outcome::Done),
            Ok(Nudged::Postponed) => return Outcome::Postponed,
            Err(NudgeError::NoPlace(_)) if without_place == Outcome::Postponed => {
                return Outcome::Postponed;
            }
            Err(error) => (Err(chain(&error)), Outcome::Failed),
        };
        match (&outcome, &self.last) {
            (outcome, Some(last)) if outcome == last => {}
            (Err(failure), _) => {
                warn!(message_id = ids::NUDGES_FAIL, cause = failure, "nudges fail: {failure}");
            }
            (Ok(ifindex), _) if *ifindex != LOOPBACK => {
                info!(%ifindex, "without IPv6 nudges are made on an IPoIB interface");
            }
            (Ok(_), Some(_)) => info!(message_id = ids::NUDGES_WORK, "nudges work again"),
            (Ok(_), None) => {}
        }
        self.last = Some(outcome);
        nudged
    }

    /// The interface of the last nudge, or why it failed.
    pub(super) fn last(&self) -> Option<&Result<IfIndex, String>> {
        self.last.as_ref()
    }
}
