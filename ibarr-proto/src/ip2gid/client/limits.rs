// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The bounds of each table, derived from the configuration.

use core::time::Duration;

use super::config::RESENDS;
use super::{Config, flights, hops, table};

/// How long a next hop counts as reachable after a reply came through it.
const HOP_IDLE: Duration = Duration::from_mins(1);

/// Within this time each question behind a next hop that has not answered gets a turn to probe it.
const PROBE_ROUND: Duration = Duration::from_millis(500);

pub(super) fn flight_limits(config: &Config) -> flights::Limits {
    let settings = config.settings();
    flights::Limits {
        flights: settings.max_flights.get(),
        waiters_per_flight: settings.max_waiters_per_flight.get(),
        waiters: settings.max_waiters.get(),
    }
}

pub(super) fn cache_limits(config: &Config) -> table::Limits {
    let settings = config.settings();
    table::Limits {
        entries: settings.max_cached.get(),
        ttl: settings.cache_ttl,
        negative_ttl: settings.negative_ttl,
    }
}

pub(super) fn hop_limits(config: &Config) -> hops::Limits {
    let settings = config.settings();
    hops::Limits {
        hops: settings.max_hops.get(),
        hop_idle: HOP_IDLE,
        turn: RESENDS.first(),
        round: PROBE_ROUND.min(settings.deadline / 2),
    }
}
