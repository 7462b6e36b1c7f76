// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What an administrator can set about asking peers, and which settings are legal.

use core::num::{NonZeroU16, NonZeroUsize};
use core::time::Duration;

use ibarr_common::wire::ip2gid::PORT;

use crate::retry::{Jitter, Schedule};

/// Settings of the client as in the configuration file. [`Config`] is the checked form.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The UDP port of peers, to which queries go and from which replies come.
    pub udp_port: NonZeroU16,
    /// Which fields of a reply must match its query.
    pub source_check: SourceCheck,
    /// How long a request waits by default, also one of the kernel: 10 ms to 5 min.
    pub deadline: Duration,
    /// Maximum number of questions in flight.
    pub max_flights: NonZeroUsize,
    /// Maximum number of requests that wait for one question.
    pub max_waiters_per_flight: NonZeroUsize,
    /// Maximum number of requests that wait in total.
    pub max_waiters: NonZeroUsize,
    /// Number of sockets (random source ports) of each IP version in each VRF, at least 1.
    pub sockets: u8,
    /// Maximum number of next hops remembered. At least `max_flights`, so that each question in
    /// flight can have its own.
    pub max_hops: NonZeroUsize,
    /// How long after the peer's last word a GID is given without asking the peer: at most 5 s; 0 to
    /// always ask.
    pub fresh_for: Duration,
    /// How long a GID is kept, to show it, and to answer if the peer refuses a query: 1 s to a day.
    pub cache_ttl: Duration,
    /// How long a negative answer is remembered: at most 1 s, because the reason may be gone in a
    /// moment.
    pub negative_ttl: Duration,
    /// Maximum number of answers remembered.
    pub max_cached: NonZeroUsize,
}

impl Default for Settings {
    /// Reasons for the default values:
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
            max_flights: at_least_one(16_384),
            max_waiters_per_flight: at_least_one(1024),
            max_waiters: at_least_one(32_768),
            sockets: 32,
            max_hops: at_least_one(16_384),
            fresh_for: Duration::from_secs(1),
            cache_ttl: Duration::from_mins(1),
            negative_ttl: Duration::from_secs(1),
            max_cached: at_least_one(65_536),
        }
    }
}

ibarr_common::words! {
    /// What a reply must match, besides a waiting query, the socket of that query, and the peers' UDP
    /// port.
    #[derive(Default)]
    SourceCheck {
        /// Nothing else: a multi-homed C peer replies from whichever address its routing selects.
        #[default]
        MsgId = "msg-id",
        /// Also the address that was asked, and the interface of the route to it.
        Strict = "strict",
    }
}

/// Checked settings of the client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config(Settings);

impl Config {
    /// Checks each of the [`Settings`] against its limits.
    ///
    /// # Errors
    /// The first setting outside its limits, by its name in the configuration file.
    pub fn new(settings: Settings) -> Result<Self, ConfigError> {
        let secs = Duration::from_secs;
        let within = |setting, value, least, most| {
            let outside = value < least || value > most;
            if outside { Err(ConfigError::Outside { setting, value, least, most }) } else { Ok(()) }
        };
        within("deadline", settings.deadline, Duration::from_millis(10), Duration::from_mins(5))?;
        within("fresh-for", settings.fresh_for, Duration::ZERO, secs(5))?;
        within("cache-ttl", settings.cache_ttl, secs(1), DAY)?;
        Ok(Self(settings))
    }

    /// The same configuration with at most `at_most` [`Settings::sockets`], and at least one.
    #[must_use]
    pub fn with_sockets(mut self, at_most: u8) -> Self {
        self.0.sockets = self.0.sockets.min(at_most).max(1);
        self
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.0
    }

    /// How long a query keeps one msg_id and its sockets: long enough for its resends and for two
    /// turns at a next hop, at most the deadline.
    pub fn round(&self) -> Duration {
        ROUND.min(self.0.deadline)
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
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum ConfigError {
    /// A time is outside its limits.
    #[error("{setting} = {value:?} is outside {least:?} to {most:?}")]
    Outside {
        /// Name of the setting.
        setting: &'static str,
        value: Duration,
        least: Duration,
        most: Duration,
    },
}

/// When an unanswered query is sent again. A resend is later if answers are known to take longer; after
/// the last one, the query is sent once a second. Three early ones replace a lost datagram before an RDMA
/// connection set-up notices; the later ones are for a next hop whose path the subnet manager takes long
/// to provide.
pub(super) const RESENDS: Schedule = {
    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
    Schedule::new(&[ms(20), ms(60), ms(180), ms(500), ms(1200)], Jitter::TENTH)
};
const ROUND: Duration = Duration::from_secs(3);
const DAY: Duration = Duration::from_hours(24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_settings_are_within_their_limits() {
        assert_eq!(Config::new(Settings::default()), Ok(Config::default()));
    }

    #[test]
    fn each_resend_comes_after_the_last_whatever_its_jitter() {
        for luck in [0, u32::MAX / 2, u32::MAX] {
            let pauses: Vec<_> = (0..).map_while(|n| RESENDS.pause(n, luck)).collect();
            assert_eq!(pauses.len(), 5);
            assert!(pauses.iter().all(|pause| !pause.is_zero()), "{pauses:?}");
        }
    }

    #[test]
    fn round_lasts_no_longer_than_the_deadline() {
        let round = |ms| {
            let deadline = Duration::from_millis(ms);
            Config::new(Settings { deadline, ..Settings::default() }).unwrap().round().as_millis()
        };
        assert_eq!([10, 100, 3000, 10_000].map(round), [10, 100, 3000, 3000]);
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
        assert_eq!(refused(|s| s.fresh_for = secs(6)), "fresh-for = 6s is outside 0ns to 5s");
        assert_eq!(refused(|s| s.cache_ttl = secs(0)), "cache-ttl = 0ns is outside 1s to 86400s");
    }
}
