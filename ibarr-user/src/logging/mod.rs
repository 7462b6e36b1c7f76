// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Logs go to standard error, which systemd passes to the journal. No log line can end or block the
//! daemon.

mod level;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use std::time::Duration;
use std::{panic, process, thread};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, reload};

pub use self::level::{Level, Levels};
pub use self::writer::Log;
use self::writer::Stderr;

/// Time for the last lines of a process, whose reader may have stalled.
pub const LAST_LINES: Duration = Duration::from_millis(500);

/// Logs to standard error from now on: what `given` accepts, which the command line has, or else
/// `configured`. A panic is reported there, too, and ends the process.
///
/// # Errors
/// If the writing thread cannot be started.
///
/// # Panics
/// If it is called twice in one process.
pub fn start(given: Option<Level>, configured: Level) -> io::Result<(Log, Levels)> {
    let first = Levels::first(given.as_ref(), &configured);
    let (filter, handle) = reload::Layer::new(first.filter());
    let log = Log::start(Stderr)?;
    let systemd = std::env::var_os("JOURNAL_STREAM").is_some();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(log.clone())
        // tracing would print them to standard error itself.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    // The journal adds the time.
    let layer = if systemd { layer.without_time().boxed() } else { layer.boxed() };
    tracing_subscriber::registry().with(filter).with(layer).init();
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
    Ok((log, Levels::new(given, configured, handle)))
}
