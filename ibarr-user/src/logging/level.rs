// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The log level: that of the command line, or else of the configuration, or another one for a while.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ibarr_common::Instant;
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// The log filter: a number as in the C original, or a filter of `tracing`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Level(String);

impl Level {
    pub(super) fn filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

impl Default for Level {
    fn default() -> Self {
        Self(LevelFilter::INFO.to_string())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let directives = match text {
            "0" => "trace",
            "1" => "info",
            "2" => "warn",
            "3" => "error",
            directives => directives,
        };
        EnvFilter::try_new(directives)
            .map(|_| Self(directives.to_owned()))
            .map_err(|error| format!("{error}; give 0, 1, 2, 3 or a filter like ibarr=debug"))
    }
}

impl TryFrom<String> for Level {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Level> for String {
    fn from(level: Level) -> Self {
        level.0
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Decides which level is in force.
#[derive(Debug)]
pub struct Levels {
    given: Option<Level>,
    configured: Level,
    /// Set while the daemon runs, and when that ends.
    other: Option<(Level, Option<Instant>)>,
    handle: reload::Handle<EnvFilter, Registry>,
}

impl Levels {
    pub(super) fn new(
        given: Option<Level>,
        configured: Level,
        handle: reload::Handle<EnvFilter, Registry>,
    ) -> Self {
        Self { given, configured, other: None, handle }
    }

    /// The level at the start.
    pub(super) fn first<'a>(given: Option<&'a Level>, configured: &'a Level) -> &'a Level {
        given.unwrap_or(configured)
    }

    /// The configuration has been read again.
    pub fn configure(&mut self, configured: Level) {
        self.configured = configured;
        self.apply();
    }

    /// Sets another level until the end of the process, or for a while. Without a level, ends that.
    pub fn set(&mut self, now: Instant, level: Option<Level>, time: Option<Duration>) {
        self.other = level.map(|level| (level, time.map(|time| now + time)));
        self.apply();
    }

    /// The level in force, and when it ends.
    pub fn get(&self) -> (Level, Option<Instant>) {
        let usual = || (Self::first(self.given.as_ref(), &self.configured).clone(), None);
        self.other.clone().unwrap_or_else(usual)
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.other.as_ref().and_then(|(_, end)| *end)
    }

    /// Ends what was set for a while.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|end| end <= now) {
            self.other = None;
            self.apply();
        }
    }

    fn apply(&self) {
        // Fails only if there is no log any more.
        let _ = self.handle.reload(self.get().0.filter());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_numbers_are_those_of_the_c_original() {
        let levels = ["0", "1", "2", "3"].map(|number| number.parse::<Level>().unwrap().0);
        assert_eq!(levels, ["trace", "info", "warn", "error"]);
        assert_eq!("ibarr_user=debug".parse(), Ok(Level("ibarr_user=debug".to_owned())));
        assert!("ibarr=loud".parse::<Level>().is_err());
    }

    #[test]
    fn level_set_for_a_while_gives_way_to_the_usual_one() {
        let level = |text: &str| text.parse::<Level>().unwrap();
        let (layer, handle) = reload::Layer::<_, Registry>::new(EnvFilter::new("info"));
        let mut levels = Levels::new(None, Level::default(), handle.clone());
        let in_force = || handle.with_current(ToString::to_string).unwrap();
        levels.configure(level("2"));
        assert_eq!(in_force(), "warn");
        let now = Instant::BOOT;
        levels.set(now, Some(level("0")), Some(Duration::from_mins(1)));
        assert_eq!(in_force(), "trace");
        // A reload meanwhile does not end it.
        levels.configure(level("3"));
        levels.handle_timeout(now + Duration::from_secs(59));
        assert_eq!((in_force().as_str(), levels.get().0), ("trace", level("0")));
        levels.handle_timeout(levels.poll_timeout().unwrap());
        assert_eq!((in_force().as_str(), levels.get()), ("error", (level("3"), None)));
        levels.set(now, Some(level("1")), None);
        assert_eq!((in_force().as_str(), levels.poll_timeout()), ("info", None));
        levels.set(now, None, None);
        assert_eq!(in_force(), "error");
        levels.given = Some(level("2"));
        levels.configure(level("1"));
        assert_eq!(in_force(), "warn", "the command line counts more than the file");
        drop(layer);
    }
}
