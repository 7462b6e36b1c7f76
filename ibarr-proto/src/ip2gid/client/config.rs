// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::num::{NonZeroU16, NonZeroUsize};
use std::time::Duration;

use ibarr_common::wire::ip2gid::PORT;

use crate::retry::{Jitter, Schedule, ScheduleError};

/// Settings of the client as in the configuration file. [`Config`] is the checked form.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The UDP port of peers, to which queries go and from which replies come.
    pub udp_port: NonZeroU16,
    /// Which fields of a reply must match its query.
    pub source_check: SourceCheck,
    /// How long a request waits by default, also one of the kernel: 10 ms to 5 min.
    pub deadline: Duration,
    /// When an unanswered query is sent again, counted from its first send. A resend is later if
    /// answers are known to take longer. After the last one of these, the query is sent once a
    /// second.
    pub resends: Vec<Duration>,
    /// Random variation of each resend.
    pub resend_jitter: Jitter,
    /// Maximum number of questions in flight.
    pub max_flights: NonZeroUsize,
    /// Maximum number of requests that wait for one question.
    pub max_waiters_per_flight: NonZeroUsize,
    /// Maximum number of requests that wait in total.
    pub max_waiters: NonZeroUsize,
    /// Number of sockets (random source ports) of each IP version, 1 to 64.
    pub sockets: u8,
    /// How long a socket sends queries.
    pub socket_lifetime: Duration,
    /// How long after that a socket still receives replies. At least a round ([`Config::round`]),
    /// so that no query loses its socket, and at most `socket_lifetime`.
    pub socket_grace: Duration,
    /// How long a next hop counts as reachable after a reply came through it. At least a round.
    pub hop_idle: Duration,
    /// Within this time each question behind a next hop that has not answered gets a turn to probe
    /// it. Between the first resend and half of `deadline`.
    pub probe_round: Duration,
    /// Maximum number of next hops remembered. At least `max_flights`, so that each question in
    /// flight can have its own.
    pub max_hops: NonZeroUsize,
    /// How long after the peer's last word a GID is given without asking the peer: at most 5 s; 0 to
    /// always ask.
    pub fresh_for: Duration,
    /// How long a GID is remembered, for people and for peers that refuse: 1 s to a day.
    pub cache_ttl: Duration,
    /// How long a negative answer is remembered: at most 1 s, because the reason may be gone in a
    /// moment.
    pub negative_ttl: Duration,
    /// Maximum number of answers remembered.
    pub max_cached: NonZeroUsize,
}

impl Default for Settings {
    /// Reasons for the default values:
    /// * `resends`: three early ones replace a lost datagram before an RDMA connection set-up notices;
    ///   the later ones are for a next hop whose path the subnet manager takes long to provide;
    /// * `deadline`: callers of the kernel wait for 2 s (rping, librdmacm's examples, MPI), 10 or 30 s
    ///   (UCX, libfabric), and the kernel does not say for how long; the C original asks for 30 s;
    /// * `fresh_for`: an address may move to another node at any time, and a wrong GID costs a caller
    ///   its connection; a second is long enough for the callers of a job that starts;
    /// * `cache_ttl`: a daemon that is stopped and started again is back by then.
    fn default() -> Self {
        let at_least_one = |n| NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN);
        Self {
            udp_port: NonZeroU16::new(PORT).unwrap_or(NonZeroU16::MIN),
            source_check: SourceCheck::default(),
            deadline: Duration::from_secs(30),
            resends: [20, 60, 180, 500, 1200].map(Duration::from_millis).into(),
            resend_jitter: Jitter::percent(10).unwrap_or_default(),
            max_flights: at_least_one(16_384),
            max_waiters_per_flight: at_least_one(1024),
            max_waiters: at_least_one(32_768),
            sockets: 32,
            socket_lifetime: Duration::from_mins(1),
            socket_grace: Duration::from_secs(3),
            hop_idle: Duration::from_mins(1),
            probe_round: Duration::from_millis(500),
            max_hops: at_least_one(16_384),
            fresh_for: Duration::from_secs(1),
            cache_ttl: Duration::from_mins(1),
            negative_ttl: Duration::from_secs(1),
            max_cached: at_least_one(65_536),
        }
    }
}

/// What a reply must match, besides a waiting query, the socket of that query, and the peers' UDP
/// port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SourceCheck {
    /// Nothing else: a multi-homed C peer replies from whichever address its routing selects.
    #[default]
    MsgId,
    /// Also the address that was asked, and the interface of the route to it.
    Strict,
}

/// Checked settings of the client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    settings: Settings,
    schedule: Schedule,
    round: Duration,
}

impl Config {
    /// Checks each of the [`Settings`] against its limits.
    ///
    /// # Errors
    /// The first setting outside its limits, by its name in the configuration file.
    pub fn new(settings: Settings) -> Result<Self, ConfigError> {
        let schedule = Schedule::new(settings.resends.clone(), settings.resend_jitter)?;
        let Settings { deadline, socket_lifetime, socket_grace, hop_idle, .. } = settings;
        let secs = Duration::from_secs;
        let within = |setting, value, least, most| {
            let outside = value < least || value > most;
            if outside { Err(ConfigError::Outside { setting, value, least, most }) } else { Ok(()) }
        };
        within("deadline", deadline, Duration::from_millis(10), Duration::from_mins(5))?;
        if schedule.latest() >= deadline {
            return Err(ConfigError::LateResend { latest: schedule.latest(), deadline });
        }
        if !(1..=Self::MAX_SOCKETS).contains(&settings.sockets) {
            return Err(ConfigError::Sockets(settings.sockets));
        }
        within("probe-round", settings.probe_round, schedule.first(), deadline / 2)?;
        let round =
            ROUND.max(settings.probe_round.saturating_mul(2)).max(schedule.latest()).min(deadline);
        within("socket-lifetime", socket_lifetime, round, DAY)?;
        within("socket-grace", socket_grace, round, socket_lifetime)?;
        within("hop-idle", hop_idle, round, DAY)?;
        if settings.max_hops < settings.max_flights {
            return Err(ConfigError::Hops(settings.max_hops, settings.max_flights));
        }
        within("fresh-for", settings.fresh_for, Duration::ZERO, secs(5))?;
        within("cache-ttl", settings.cache_ttl, secs(1), DAY)?;
        within("negative-ttl", settings.negative_ttl, Duration::ZERO, secs(1))?;
        Ok(Self { settings, schedule, round })
    }

    /// Maximum number of sockets of an IP version.
    pub const MAX_SOCKETS: u8 = 64;

    /// The same configuration with at most `at_most` [`Settings::sockets`], and at least one.
    #[must_use]
    pub fn with_sockets(mut self, at_most: u8) -> Self {
        self.settings.sockets = self.settings.sockets.min(at_most).max(1);
        self
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How long a query keeps one msg_id and its sockets: long enough for its resends and for two
    /// turns at a next hop, at least 3 s, at most the deadline.
    pub fn round(&self) -> Duration {
        self.round
    }

    pub(super) fn schedule(&self) -> &Schedule {
        &self.schedule
    }
}

impl Default for Config {
    fn default() -> Self {
        // A test checks the default settings against their limits.
        Self::new(Settings::default()).unwrap_or_else(|error| unreachable!("{error}"))
    }
}

/// Error: illegal settings.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A time is outside its limits.
    #[error("{setting} = {value:?} is outside {least:?} to {most:?}")]
    Outside {
        /// Name of the setting.
        setting: &'static str,
        /// The configured value.
        value: Duration,
        /// The minimum.
        least: Duration,
        /// The maximum.
        most: Duration,
    },
    /// The resends are not a legal schedule.
    #[error("resends: {0}")]
    Resends(#[from] ScheduleError),
    /// The last resend comes after the deadline.
    #[error("resends: the last may come after {latest:?}, leave it below deadline = {deadline:?}")]
    LateResend {
        /// The latest time of the last resend.
        latest: Duration,
        /// The configured deadline.
        deadline: Duration,
    },
    /// Too few or too many sockets.
    #[error("sockets = {0} is outside 1 to {max}", max = Config::MAX_SOCKETS)]
    Sockets(u8),
    /// Fewer next hops than questions in flight.
    #[error("max-hops = {0} is below max-flights = {1}, raise it")]
    Hops(NonZeroUsize, NonZeroUsize),
}

const ROUND: Duration = Duration::from_secs(3);
const DAY: Duration = Duration::from_hours(24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_settings_are_within_their_limits() {
        assert_eq!(Config::new(Settings::default()), Ok(Config::default()));
    }

    /// Settings of version 0.1, where a round lasted until the deadline.
    #[test]
    fn settings_of_version_0_1_are_still_accepted() {
        let ms = Duration::from_millis;
        let round = |deadline, last_resend, probe_round, socket_grace| {
            let (deadline, resends) = (ms(deadline), vec![ms(20), ms(last_resend)]);
            let (probe_round, socket_grace) = (ms(probe_round), ms(socket_grace));
            let settings =
                Settings { deadline, resends, socket_grace, probe_round, ..Settings::default() };
            Config::new(settings).unwrap().round().as_millis()
        };
        assert_eq!(round(3000, 1200, 500, 3000), 3000);
        assert_eq!(round(100, 60, 50, 100), 100);
        assert_eq!(round(10_000, 4000, 5000, 10_000), 10_000);
        assert_eq!(round(10_000, 4000, 500, 10_000), 4400);
    }

    fn refused(change: impl Fn(&mut Settings)) -> String {
        let mut settings = Settings::default();
        change(&mut settings);
        Config::new(settings).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_setting_and_its_limits() {
        let secs = Duration::from_secs;
        assert_eq!(refused(|s| s.deadline = secs(301)), "deadline = 301s is outside 10ms to 300s");
        assert_eq!(refused(|s| s.deadline = secs(0)), "deadline = 0ns is outside 10ms to 300s");
        assert_eq!(
            refused(|s| s.resends.clear()),
            "resends: no resend is given, give at least one"
        );
        assert_eq!(
            refused(|s| s.resends.swap(0, 1)),
            "resends: the resend after 20ms is not after the one before it, jitter included"
        );
        assert_eq!(
            refused(|s| s.resends.push(secs(30))),
            "resends: the last may come after 33s, leave it below deadline = 30s"
        );
        assert_eq!(refused(|s| s.sockets = 0), "sockets = 0 is outside 1 to 64");
        assert_eq!(refused(|s| s.sockets = 65), "sockets = 65 is outside 1 to 64");
        assert_eq!(
            refused(|s| s.socket_lifetime = secs(2)),
            "socket-lifetime = 2s is outside 3s to 86400s"
        );
        assert_eq!(
            refused(|s| s.socket_grace = secs(61)),
            "socket-grace = 61s is outside 3s to 60s"
        );
        assert_eq!(refused(|s| s.hop_idle = secs(2)), "hop-idle = 2s is outside 3s to 86400s");
        assert_eq!(
            refused(|s| s.probe_round = secs(16)),
            "probe-round = 16s is outside 20ms to 15s"
        );
        assert_eq!(
            refused(|s| s.max_hops = NonZeroUsize::MIN),
            "max-hops = 1 is below max-flights = 16384, raise it"
        );
        assert_eq!(refused(|s| s.fresh_for = secs(6)), "fresh-for = 6s is outside 0ns to 5s");
        assert_eq!(refused(|s| s.cache_ttl = secs(0)), "cache-ttl = 0ns is outside 1s to 86400s");
        assert_eq!(refused(|s| s.negative_ttl = secs(2)), "negative-ttl = 2s is outside 0ns to 1s");
    }
}
