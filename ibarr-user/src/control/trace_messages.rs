// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of a trace: one when it begins, one for each [event](ibarr_proto::trace::Event), one when it
//! ends.

use ibarr_common::Instant;
use ibarr_proto::trace::Filter;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::values::Millis;

/// The trace has begun.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tracing {
    /// The daemon's clock at its beginning, in nanoseconds.
    pub at: Instant,
    /// Which events follow; absent for all.
    pub only: Option<Filter>,
    /// When it ends by itself; absent if it does not.
    pub for_ms: Option<Millis>,
}

/// The trace has ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Traced {
    /// Why.
    pub ended: TraceEnd,
    /// How many events were shown.
    pub events: u64,
    /// How many were lost.
    pub lost: u64,
}

ibarr_common::words! {
    /// Why a trace has ended.
    TraceEnd {
        /// Its time was over.
        Time = "time",
        /// The command was interrupted.
        Interrupted = "interrupted",
        /// The daemon ends.
        Daemon = "daemon",
    }
}
