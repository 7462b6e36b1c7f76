// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Commands that send one request to the daemon and print the answer.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ibarr_proto::paths;
use ibarr_proto::request::Freshness;

use super::{Daemon, Exit, print};
use crate::control::messages::{
    Answer, Body, CacheEntry, Failure, FailureKind, Millis, Request, Target,
};
use crate::process::RUN_DIR;

/// Sends the request and prints the answer.
pub(super) fn ask(daemon: &Daemon, request: &Request) -> Exit {
    let body = match daemon.ask(request) {
        Ok(body) => body,
        Err(failure) => return fail(failure, daemon.json),
    };
    let exit = match &body {
        Body::Path { path } if path.status != paths::Status::Found => Exit::Negative,
        _ => Exit::Ok,
    };
    show(body, daemon.json);
    exit
}

/// Prints a document for programs or for people.
pub(super) fn show(body: Body, is_json: bool) -> Exit {
    if is_json {
        print::json(&body.into());
    } else {
        print::body(&body);
    }
    Exit::Ok
}

/// Adds why the service has ended, which systemd knows from its last words.
pub(super) fn with_reason(mut failure: Failure, daemon: &Daemon) -> Failure {
    if failure.kind == FailureKind::Unreachable
        && daemon.run_dir == Path::new(RUN_DIR)
        && let Some(reason) = reason_of_the_end()
    {
        failure.message = format!("{}\nibarr.service has ended: {reason}", failure.message);
    }
    failure
}

/// The reason that a service gave which ended with an error.
fn reason_of_the_end() -> Option<String> {
    let mut systemctl = Command::new("systemctl");
    systemctl.args(["show", "--property=Result,StatusText", "ibarr.service"]);
    let output = systemctl.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let shown = String::from_utf8(output.stdout).ok()?;
    let value =
        |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    (value("Result")? == "exit-code").then_some(value("StatusText")?.to_owned())
}

/// Prints the whole client cache, ordered by address. An address that the daemon learns again
/// meanwhile may be on two pages; the later one counts.
pub(super) fn addresses(daemon: &Daemon) -> Exit {
    let mut all = BTreeMap::new();
    let mut after = None;
    loop {
        match daemon.ask(&Request::Cache { after }) {
            Ok(Body::Cache { entries, next }) => {
                let key = |entry: &CacheEntry| (entry.ip, entry.interface.clone());
                all.extend(entries.into_iter().map(|entry| (key(&entry), entry)));
                match next {
                    None => break,
                    next => after = next,
                }
            }
            other => return fail(unexpected(other), daemon.json),
        }
    }
    let entries = all.into_values().collect();
    show(Body::Cache { entries, next: None }, daemon.json)
}

/// Prints the whole path cache, which may have millions of entries: each page as it arrives.
pub(super) fn paths(daemon: &Daemon) -> Exit {
    let mut document = print::Paths::begin(daemon.json);
    let mut after = None;
    loop {
        match daemon.ask(&Request::Paths { after }) {
            Ok(Body::Paths { paths, next }) => {
                document.page(&paths);
                after = next;
            }
            other => {
                let failure = unexpected(other);
                if !daemon.json || after.is_none() {
                    return fail(failure, daemon.json);
                }
                // Earlier pages are printed already: the error ends the document.
                let exit = failure.kind.into();
                document.fail(&failure);
                return exit;
            }
        }
        if after.is_none() || print::has_failed() {
            document.end();
            return Exit::Ok;
        }
    }
}

pub(super) fn one(
    target: Target,
    lookup: Freshness,
    timeout: Option<Duration>,
    ask: impl FnOnce(&Request) -> Result<Body, Failure>,
) -> Result<Answer, Failure> {
    let timeout_ms = timeout.map(Millis::from);
    let request = Request::Resolve { addresses: vec![target], timeout_ms, lookup, each: false };
    let Body::Answers { answers } = ask(&request)? else { return Err(other_version()) };
    answers.into_iter().next().ok_or_else(other_version)
}

pub(super) fn unexpected(answer: Result<Body, Failure>) -> Failure {
    answer.err().unwrap_or_else(other_version)
}

pub(super) fn other_version() -> Failure {
    internal("the daemon speaks another version: its answer has another type".to_owned())
}

/// Runs a command that signals may interrupt. A thread that waits for an answer then delays no one.
pub(super) fn block_on<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| internal(format!("no event loop for signals: {error}")))?;
    let outcome = runtime.block_on(command);
    runtime.shutdown_background();
    outcome
}

/// Starts to ask in a thread.
pub(super) fn aside<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> impl Future<Output = Result<T, Failure>> {
    let asked = tokio::task::spawn_blocking(ask);
    let ended = |error| internal(format!("the thread that asks has ended: {error}"));
    async move { asked.await.map_err(ended)? }
}

fn internal(message: String) -> Failure {
    Failure { kind: FailureKind::Internal, message }
}

pub(super) fn fail(failure: Failure, json: bool) -> Exit {
    let exit = failure.kind.into();
    if json {
        print::json(&failure.into());
    } else {
        print::error_line(&failure.message);
    }
    exit
}
