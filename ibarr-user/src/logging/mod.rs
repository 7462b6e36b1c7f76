// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Logs go to standard error, which systemd passes to the journal. No log line can end or block the
//! daemon.

mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use std::str::FromStr;
use std::time::Duration;
use std::{panic, process, thread};

use tracing_subscriber::EnvFilter;

pub use self::writer::Log;
use self::writer::Stderr;

/// The log filter: a number as in the C original, or a filter of `tracing`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Level(String);

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

/// Time for the last lines of a process, whose reader may have stalled.
pub const LAST_LINES: Duration = Duration::from_millis(500);

/// Sends the events that `level` accepts to standard error from now on. A panic is reported there,
/// too, and ends the process.
///
/// # Errors
/// If the writing thread cannot be started.
///
/// # Panics
/// If it is called twice in one process.
pub fn start(level: &Level) -> io::Result<Log> {
    let log = Log::start(Stderr)?;
    let systemd = std::env::var_os("JOURNAL_STREAM").is_some();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&level.0))
        .with_writer(log.clone())
        // tracing would print them to standard error itself.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    if systemd {
        // The journal adds the time.
        subscriber.without_time().init();
    } else {
        subscriber.init();
    }
    let to = log.clone();
    panic::set_hook(Box::new(move |info| {
        let thread = thread::current();
        let backtrace = Backtrace::capture();
        let backtrace = match backtrace.status() {
            BacktraceStatus::Captured => format!("{backtrace}\n"),
            _ => String::new(),
        };
        let name = thread.name().unwrap_or("unnamed");
        to.put(format!("thread {name}: {info}\n{backtrace}").as_bytes());
        to.finish(LAST_LINES);
        process::abort();
    }));
    Ok(log)
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
}
