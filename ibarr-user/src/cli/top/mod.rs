// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr top`: what the daemon does now, again and again. `rates` computes it, `text` writes it,
//! `screen` shows it on a terminal.

mod rates;
mod screen;
mod text;

use std::io::{IsTerminal as _, stdout};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use self::rates::Sample;
use super::{Daemon, Exit, ask, print};
use crate::control::client::Connection;
use crate::control::messages::{Body, Failure, Request};

#[derive(Args, Clone, Debug)]
pub(super) struct TopArgs {
    /// Time between two looks at the daemon, in seconds or like 200ms; at least 10ms
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = super::ping::interval)]
    interval: Duration,
    /// Look twice, print one page, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    daemon: Daemon,
}

pub(super) fn run(args: &TopArgs) -> Exit {
    let is_shown = stdout().is_terminal() && !args.once && !args.daemon.json;
    if is_shown { screen::show(args) } else { list(args) }
}

/// Prints page after page, or one.
fn list(args: &TopArgs) -> Exit {
    let (json, begun) = (args.daemon.json, Instant::now());
    let mut before: Option<Sample> = None;
    loop {
        let after = look(&args.daemon, begun);
        if before.is_some() || after.is_err() {
            match &after {
                Ok(after) => page(&rates::top(before.as_ref(), after), json),
                Err(failure) if args.once => return ask::fail(failure.clone(), json),
                Err(failure) if json => print::json(&failure.clone().into()),
                Err(failure) => print::line(&unanswered(failure)),
            }
            if args.once || print::has_failed() {
                return Exit::Ok;
            }
        }
        before = after.ok();
        thread::sleep(args.interval);
    }
}

fn page(top: &crate::control::messages::Top, json: bool) {
    if json {
        print::json(&Body::Top { top: Box::new(top.clone()) }.into());
    } else {
        let lines = text::lines(top).into_iter().map(|line| line.text.trim_end().to_owned());
        print::line(&format!("{}\n", lines.collect::<Vec<_>>().join("\n")));
    }
}

fn unanswered(failure: &Failure) -> String {
    format!("no answer from the daemon: {}", failure.message)
}

/// Asks the daemon, on a connection of its own, because the last daemon may be gone.
fn look(daemon: &Daemon, begun: Instant) -> Result<Sample, Failure> {
    let mut connection = Connection::open(&daemon.run_dir, daemon.patience())?;
    let Body::Counters { counters } = connection.ask(&Request::Counters, |_| ())? else {
        return Err(ask::other_version());
    };
    let at = begun.elapsed();
    match connection.ask(&Request::Status, |_| ())? {
        Body::Status { status } => Ok(Sample { at, status: *status, counters }),
        _ => Err(ask::other_version()),
    }
}
