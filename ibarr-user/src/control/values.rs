// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How the documents of the control socket write values: each type here is one form in JSON.

use std::time::Duration;

pub use ibarr_proto::durations::Elapsed;
use serde::{Deserialize, Serialize};

/// Whether a field is left out, because its value is the default.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whole milliseconds; a fraction is cut off.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Millis(u64);

impl From<Duration> for Millis {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<Millis> for Duration {
    fn from(Millis(millis): Millis) -> Self {
        Self::from_millis(millis)
    }
}

/// Whole seconds; a fraction is cut off.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Seconds(u64);

impl From<Duration> for Seconds {
    fn from(time: Duration) -> Self {
        Self(time.as_secs())
    }
}

impl From<Seconds> for Duration {
    fn from(Seconds(seconds): Seconds) -> Self {
        Self::from_secs(seconds)
    }
}
