// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of the control socket about health.

use ibarr_proto::health;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::values::Seconds;

/// A subsystem of the daemon.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SubsystemHealth {
    /// Its name, such as `sa`. Names may be added.
    pub subsystem: String,
    /// The interface or port, if there is one for each.
    pub of: Option<String>,
    /// How well it works.
    pub state: health::State,
    /// Seconds since the state last changed.
    pub since_s: Seconds,
    /// What is wrong with it, or could be better.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<HealthReason>,
}

/// What is wrong with a subsystem, or could be better.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct HealthReason {
    /// Its name for programs, such as `sa-silent`. Names may be added.
    pub cause: String,
    /// What it makes of the subsystem; `ok` if it is only advice.
    pub state: health::State,
    /// Seconds since it was first seen.
    pub since_s: Seconds,
    /// What is wrong, for people.
    pub why: String,
    /// What to do, for people.
    pub remedy: String,
}
