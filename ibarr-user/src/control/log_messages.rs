// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The part of the documents about the log.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::values::Millis;
use crate::logging::Level;

/// What to log from now on.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LevelChange {
    /// Absent for the level of the command line or the configuration.
    pub level: Option<Level>,
    /// Milliseconds until the level is again that of the command line or the configuration; absent for
    /// the life of the daemon.
    pub for_ms: Option<Millis>,
}

/// What is logged.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LogStatus {
    /// The level in force.
    pub level: Level,
    /// Milliseconds until the usual level is in force again; absent if it is, or if no end is set.
    pub ends_in_ms: Option<Millis>,
}
