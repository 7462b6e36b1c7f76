// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The log level: that of the command line, or else of the configuration, or another one for a while.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ibarr_common::Instant;
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{EnvFilter, Registry, reload};

use super::Log;
use crate::spelling::are_near;

/// The log filter: a level, or levels of parts of the program like `ibarr_proto=debug,info`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Level(String);

impl Level {
    /// Errors are logged of the parts that the filter does not name.
    pub(super) fn filter(&self) -> EnvFilter {
        EnvFilter::new(format!("{},{}", LevelFilter::ERROR, self.0))
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
        let numbers = ["trace", "info", "warn", "error"];
        let number = text.parse().ok().and_then(|number: usize| numbers.get(number).copied());
        if let Some(level) = number.or_else(|| level(text)) {
            return Ok(Self(level.to_owned()));
        }
        let directives: Result<Vec<_>, _> = text.split(',').map(directive).collect();
        Ok(Self(directives?.join(",")))
    }
}

/// The levels, and the words of syslog, journald and Python for them.
const LEVELS: [(&str, &[&str]); 6] = [
    ("off", &[]),
    ("error", &["err", "crit", "critical", "alert", "emerg", "fatal"]),
    ("warn", &["warning"]),
    ("info", &["notice"]),
    ("debug", &[]),
    ("trace", &[]),
];

/// What events are named after: their modules.
const CRATES: [&str; 2] = ["ibarr_user", "ibarr_proto"];

fn level(word: &str) -> Option<&'static str> {
    let is_it = |name: &str| name.eq_ignore_ascii_case(word);
    let found =
        LEVELS.iter().find(|(name, others)| is_it(name) || others.iter().any(|it| is_it(it)));
    found.map(|(name, _)| *name)
}

/// A part of a filter, which `tracing` would take for a target if it is no level, and so log nothing.
fn directive(text: &str) -> Result<String, String> {
    let text = text.trim();
    if let Some(level) = level(text) {
        return Ok(level.to_owned());
    }
    let (target, of_target) = text.split_once('=').unwrap_or((text, "trace"));
    let is_path = target.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'));
    let names_part = |of: &&str| {
        of.starts_with(target) || target.strip_prefix(*of).is_some_and(|it| it.starts_with("::"))
    };
    let is_ours = !target.is_empty() && is_path && CRATES.iter().any(names_part);
    let near = |word: &str| {
        let names = LEVELS.map(|(name, _)| name);
        let near = names.into_iter().find(|name| are_near(name, word));
        let remedy = "give error, warn, info, debug or trace; 3, 2, 1 or 0; or a filter like ibarr_proto=debug,info";
        near.map_or(remedy.to_owned(), |near| format!("did you mean {near:?}?"))
    };
    if !is_ours {
        return Err(match text.split_once('=') {
            Some(_) => format!(
                "{target:?} is no part of ibarr; write ibarr_user or ibarr_proto, and a module of it"
            ),
            None => format!("{text:?} is no level; {}", near(text)),
        });
    }
    match level(of_target) {
        Some(level) => Ok(format!("{target}={level}")),
        None => Err(format!("{of_target:?} is no level; {}", near(of_target))),
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
    /// What was applied last.
    in_force: Level,
    handle: reload::Handle<EnvFilter, Registry>,
    log: Log,
}

impl Levels {
    pub(super) fn new(
        given: Option<Level>,
        configured: Level,
        handle: reload::Handle<EnvFilter, Registry>,
        log: Log,
    ) -> Self {
        let in_force = Self::first(given.as_ref(), &configured).clone();
        Self { given, configured, other: None, in_force, handle, log }
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

    /// Another level is logged whatever it is: the log of a daemon that says less has to say why.
    fn apply(&mut self) {
        let (level, end) = self.get();
        if level != self.in_force {
            let until = if end.is_some() { ", for a while" } else { "" };
            let said = format!("log level {level}{until}; it was {}", self.in_force);
            self.log.say(tracing::Level::INFO, &said);
        }
        // Fails only if there is no log any more.
        let _ = self.handle.reload(level.filter());
        self.in_force = level;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::super::Form;
    use super::*;

    #[test]
    fn level_numbers_are_those_of_the_c_original() {
        let levels = ["0", "1", "2", "3"].map(|number| number.parse::<Level>().unwrap().0);
        assert_eq!(levels, ["trace", "info", "warn", "error"]);
    }

    #[test]
    fn words_of_syslog_are_levels_and_filters_name_parts_of_ibarr() {
        for (text, means) in [
            ("warning", "warn"),
            ("WARN", "warn"),
            ("err", "error"),
            ("crit", "error"),
            ("notice", "info"),
            ("off", "off"),
            ("ibarr_proto=debug,info", "ibarr_proto=debug,info"),
            ("ibarr=Warning", "ibarr=warn"),
            ("ibarr_user::transport=debug, warning", "ibarr_user::transport=debug,warn"),
            ("ibarr_proto", "ibarr_proto=trace"),
        ] {
            let level = text.parse::<Level>().unwrap();
            assert_eq!(level.0, means);
            // What it means is a level again.
            assert_eq!(means.parse(), Ok(level));
        }
    }

    #[test]
    fn text_that_would_mute_the_daemon_is_refused_with_the_remedy() {
        for (text, says) in [
            ("wran", "\"wran\" is no level; did you mean \"warn\"?"),
            ("debgu", "\"debgu\" is no level; did you mean \"debug\"?"),
            (
                "verbose",
                "\"verbose\" is no level; give error, warn, info, debug or trace; 3, 2, 1 or 0",
            ),
            ("quiet", "\"quiet\" is no level"),
            ("4", "\"4\" is no level"),
            ("-1", "\"-1\" is no level"),
            ("", "\"\" is no level"),
            ("info,", "\"\" is no level"),
            ("ibarr=loud", "\"loud\" is no level"),
            ("ibarr=", "\"\" is no level"),
            ("ibarr=2", "\"2\" is no level"),
            ("ibar_user=debug,info", "\"ibar_user\" is no part of ibarr"),
            ("ibarr_users=debug", "\"ibarr_users\" is no part of ibarr"),
            ("aya=debug", "\"aya\" is no part of ibarr"),
            ("=debug", "\"\" is no part of ibarr"),
            ("ibarr_user[span]=debug", "is no part of ibarr"),
            ("info ibarr_user", "\"info ibarr_user\" is no level"),
        ] {
            let error = text.parse::<Level>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn errors_of_the_parts_that_a_filter_does_not_name_are_logged() {
        let filter = |text: &str| text.parse::<Level>().unwrap().filter().to_string();
        assert_eq!(filter("ibarr_proto=debug"), "ibarr_proto=debug,error");
        assert_eq!(filter("ibarr_proto=debug,info"), "ibarr_proto=debug,info");
        assert_eq!(filter("off"), "off");
    }

    #[test]
    fn level_set_for_a_while_gives_way_to_the_usual_one() {
        let level = |text: &str| text.parse::<Level>().unwrap();
        let (layer, handle) = reload::Layer::<_, Registry>::new(EnvFilter::new("info"));
        let (reader, writer) = std::io::pipe().unwrap();
        let log = Log::start(Form::Lines, writer).unwrap();
        let mut levels = Levels::new(None, Level::default(), handle.clone(), log);
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
        drop((layer, levels));
        let said = BufReader::new(reader).lines().map(Result::unwrap);
        let expected = [
            "warn; it was info",
            "trace, for a while; it was warn",
            "error; it was trace",
            "info; it was error",
            "error; it was info",
            "warn; it was error",
        ];
        let each: Vec<_> = said.take(expected.len()).collect();
        assert_eq!(each, expected.map(|said| format!(" INFO ibarr: log level {said}")));
    }
}
