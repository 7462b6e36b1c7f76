// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How the documents of the control socket write values: each type here is one form in JSON.

use std::fmt::{self, Display};
use std::time::Duration;

use ibarr_common::ib::{FlowLabel, Lid, PKey, Sl};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::durations::millis;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value whose form in JSON is a number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Number<T>(pub T);

impl<T: Display> Display for Number<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! numbers {
    ($($type:ty, $raw:ty: $new:expr, $get:expr;)+) => {$(
        impl Serialize for Number<$type> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $get(self.0).serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for Number<$type> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = <$raw>::deserialize(deserializer)?;
                let illegal = || D::Error::custom(format!("{raw} is not a {}", stringify!($type)));
                $new(raw).map(Self).ok_or_else(illegal)
            }
        }
    )+};
}

numbers! {
    Lid, u16: Lid::new, Lid::get;
    PKey, u16: PKey::new, PKey::get;
    Sl, u8: Sl::new, Sl::get;
    FlowLabel, u32: |label| Some(FlowLabel::from_low_bits(label)), FlowLabel::get;
    IfIndex, u32: IfIndex::new, IfIndex::get;
    // 0 is none, as in the maps of the programs.
    Option<IfIndex>, u32: |raw| Some(IfIndex::new(raw)), |index: Option<IfIndex>| index.map_or(0, IfIndex::get);
    // Nanoseconds of the daemon's clock.
    Instant, u64: |nanos| Some(Instant::from_nanos(nanos)), Instant::as_nanos;
}

/// Whether a field is left out, because its value is the default.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A value, or a text for people in its place.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(untagged)]
pub enum OrText<T> {
    /// The value.
    Value(T),
    /// Why there is none.
    Text(String),
}

impl<T: Display> Display for OrText<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// Whole milliseconds; a fraction is cut off.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Millis(u64);

impl Millis {
    /// The number in JSON.
    pub fn get(self) -> u64 {
        self.0
    }
}

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

/// Milliseconds with their fraction, to the nanosecond.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Elapsed(#[serde(with = "millis")] pub Duration);

impl Elapsed {
    /// The number in JSON.
    pub fn millis(self) -> f64 {
        millis::of(self.0)
    }
}
