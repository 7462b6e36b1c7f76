// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The document of `ibarr doctor`.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

/// One thing that a connection needs, and whether it is there.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Check {
    /// What was examined, such as `sa`. The names are part of the format.
    pub check: String,
    /// The result.
    pub state: CheckState,
    /// What was found.
    pub found: String,
    /// What to do; absent if there is nothing to do.
    pub remedy: Option<String>,
}

ibarr_common::words! {
    /// Results of a check, from good to bad.
    CheckState {
        /// It cannot be examined, or has no meaning here.
        Skipped = "skipped",
        /// It works.
        Ok = "ok",
        /// Connections work, but slower or not in all cases.
        Warn = "warn",
        /// Connections fail.
        Fail = "fail",
    }
}

impl Check {
    /// It works.
    pub fn ok(check: &str, found: impl Into<String>) -> Self {
        Self { check: check.to_owned(), state: CheckState::Ok, found: found.into(), remedy: None }
    }

    /// It cannot be examined.
    pub fn skipped(check: &str, why: impl Into<String>) -> Self {
        Self { state: CheckState::Skipped, ..Self::ok(check, why) }
    }

    /// It works, but not well.
    pub fn warn(check: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { state: CheckState::Warn, remedy, ..Self::ok(check, found) }
    }

    /// It does not work.
    pub fn fail(check: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: CheckState::Fail, ..Self::warn(check, found, remedy) }
    }
}
