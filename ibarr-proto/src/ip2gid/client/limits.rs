// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The bounds of each table, derived from the configuration.

use super::{Config, flights, hops, table};

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
        hop_idle: settings.hop_idle,
        turn: config.schedule().first(),
        round: settings.probe_round,
    }
}
