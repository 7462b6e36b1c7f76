// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Logs go to the journal, or as text to standard error or output. No log line can end or block the
//! daemon.

pub mod ids;
mod journal;
mod level;
mod record;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::time::Duration;
use std::{env, panic, process, thread};

use clap::ValueEnum;
use tracing::Subscriber;
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, reload};

pub use self::level::{Level, Levels};
pub use self::writer::Log;
use self::writer::{Form, Standard};

/// Field with one of the [`ids`].
const MESSAGE_ID: &str = "message_id";
/// Field with the cause of an event, which its message contains.
const CAUSE: &str = "cause";

/// Where the log goes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Sink {
    /// The journal if standard error leads there, else standard error.
    #[default]
    Auto,
    /// The journal, with fields
    Journal,
    /// Standard error, as text
    Stderr,
    /// Standard output, as text
    Stdout,
}

/// Time for the last lines of a process, whose reader may have stalled.
pub const LAST_LINES: Duration = Duration::from_millis(500);

/// Logs to `place` from now on, at the level `given` on the command line, or else at `configured`.
/// A panic is reported there, too, and ends the process.
///
/// # Errors
/// If the writing thread cannot be started, or the journal is demanded and there is none.
///
/// # Panics
/// If it is called twice in one process.
pub fn start(given: Option<Level>, configured: Level, place: Sink) -> io::Result<(Log, Levels)> {
    let journal = match place {
        Sink::Journal => Some(journal::Socket::open()?),
        Sink::Auto if journal::has_stderr() => journal::Socket::open().ok(),
        Sink::Auto | Sink::Stderr | Sink::Stdout => None,
    };
    let first = Levels::first(given.as_ref(), &configured);
    let (filter, handle) = reload::Layer::new(first.filter());
    let registry = tracing_subscriber::registry().with(filter);
    let log = match journal {
        Some(socket) => {
            let log = Log::start(Form::Records, socket)?;
            registry.with(journal::Journal(log.clone())).init();
            log
        }
        None if place == Sink::Stdout => {
            let log = Log::start(Form::Lines, Standard::Output)?;
            registry.with(text(&log, &Standard::Output)).init();
            log
        }
        None => {
            let log = Log::start(Form::Lines, Standard::Error)?;
            registry.with(text(&log, &Standard::Error)).init();
            log
        }
    };
    report_panics(log.clone());
    Ok((log.clone(), Levels::new(given, configured, handle, log)))
}

/// Says why the daemon does not run, which may be before the log has started: in the journal if standard error
/// leads there. Returns whether it did.
pub fn report_failure(message: &str) -> bool {
    journal::has_stderr()
        && journal::Socket::open().and_then(|journal| journal.fail(message)).is_ok()
}

fn text<S>(log: &Log, to: &Standard) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let has_color = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(log.clone())
        // tracing would print them to standard error itself.
        .log_internal_errors(false)
        .with_ansi(has_color && to.as_fd().is_terminal())
        .fmt_fields(format::debug_fn(|writer: &mut Writer<'_>, field, value| match field.name() {
            "message" => write!(writer, "{value:?}"),
            name if is_shown(name) => write!(writer, " {name}={value:?}"),
            _ => Ok(()),
        }));
    // The journal adds the time.
    if journal::has_stderr() { layer.without_time().boxed() } else { layer.boxed() }
}

/// Whether the text of an event has a field.
fn is_shown(field: &str) -> bool {
    field != MESSAGE_ID && field != CAUSE
}

fn report_panics(log: Log) {
    panic::set_hook(Box::new(move |info| {
        let thread = thread::current();
        let backtrace = Backtrace::capture();
        let backtrace = match backtrace.status() {
            BacktraceStatus::Captured => format!("\n{backtrace}"),
            _ => String::new(),
        };
        let name = thread.name().unwrap_or("unnamed");
        log.say(tracing::Level::ERROR, &format!("thread {name}: {info}{backtrace}"));
        log.finish(LAST_LINES);
        process::abort();
    }));
}
