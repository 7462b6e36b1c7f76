// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The table `[paths]`.

use std::path::PathBuf;
use std::time::Duration;

use ibarr_common::wire::sa::PathCount;
use ibarr_proto::paths::{self, Qos};

use super::duration;
use super::reader::{Table, Value, file};

/// Entries that take about a gigabyte.
const MAX_PATHS: usize = 5_000_000;

pub(super) fn read(root: &mut Table<'_, '_>) -> (paths::Config, Option<PathBuf>) {
    let default = paths::Config::default();
    root.table("paths", |table| (paths_of(table, default), table.value("snapshot", None, file)))
}

fn paths_of(table: &mut Table<'_, '_>, default: paths::Config) -> paths::Config {
    paths::Config {
        qos: table.value("qos", default.qos, |value| value.word(Qos::Auto, &Qos::ALL)),
        ttl: table.value("cache-ttl", default.ttl, |value| {
            at_least_a_second(value, Duration::from_hours(24))
        }),
        spread: table.value("spread", default.spread, |value| {
            let count = value.number(1..=paths::Config::MOST_SPREAD)?;
            Ok(PathCount::new(count).unwrap_or(PathCount::ONE))
        }),
        max_cached: table
            .value("max-cached", default.max_cached, |value| value.number(1..=MAX_PATHS)),
        repeat_rate: table
            .value("repeat-rate", default.repeat_rate, |value| value.number(0..=10_000)),
        fallback_interval: table.value("fallback-interval", default.fallback_interval, |value| {
            at_least_a_second(value, Duration::from_hours(1))
        }),
        ..default
    }
}

fn at_least_a_second(value: Value<'_>, longest: Duration) -> Result<Duration, String> {
    let duration = duration(value)?;
    if (Duration::from_secs(1)..=longest).contains(&duration) {
        return Ok(duration);
    }
    Err(format!("must be from \"1s\" to \"{}s\"", longest.as_secs()))
}
