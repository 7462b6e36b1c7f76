// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Commands that send one request to the daemon and print the answer.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ibarr_proto::paths;
use ibarr_proto::request::Freshness;

use super::{Daemon, Exit, print};
use crate::control::messages::{
    Answer, Body, CacheEntry, Failure, FailureKind, Millis, Request, Target,
};
use crate::units::unit_of;

/// How long systemd may take to say why the service has ended.
const SYSTEMD: Duration = Duration::from_millis(400);

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

/// Adds what systemd knows of the service, as the last line.
pub(super) fn with_reason(mut failure: Failure, daemon: &Daemon) -> Failure {
    if failure.kind == FailureKind::Unreachable
        && let Some(unit) = unit_of(&daemon.run_dir)
        && let Some(shown) = of_service(&unit, "ActiveState,Result,StatusText,ExecMainStatus")
        && let Some(reason) = reason_of_the_end(&unit, &shown)
    {
        failure.message = format!("{}\n{reason}", failure.message);
    }
    failure
}

/// Properties of a service, if systemd answers soon.
pub(super) fn of_service(unit: &str, properties: &str) -> Option<String> {
    let (sender, shown) = mpsc::channel();
    let unit = unit.to_owned();
    let properties = format!("--property={properties}");
    thread::spawn(move || {
        let mut systemctl = Command::new("systemctl");
        systemctl.args(["show", &properties, "--", &unit]);
        let output = systemctl.stdin(Stdio::null()).stderr(Stdio::null()).output();
        // An answer that comes too late has no receiver.
        drop(sender.send(output));
    });
    String::from_utf8(shown.recv_timeout(SYSTEMD).ok()?.ok()?.stdout).ok()
}

/// Why the service does not run. systemd forgets the last words of a service when it starts it again.
fn reason_of_the_end(unit: &str, shown: &str) -> Option<String> {
    let value =
        |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let (result, words) = (value("Result")?, value("StatusText").unwrap_or_default());
    let status = value("ExecMainStatus").unwrap_or_default();
    let reason = match (result, value("ActiveState")?) {
        ("success", "activating") => return Some(format!("{unit} is starting")),
        ("success", _) => return None,
        ("exit-code", _) if !words.is_empty() => words.to_owned(),
        ("exit-code", _) => format!("exit status {status}"),
        ("signal" | "core-dump", _) => format!("killed by signal {status}"),
        ("watchdog", _) => "it hung, and its watchdog ended it".to_owned(),
        ("timeout", _) => "systemd ended it, because it took too long".to_owned(),
        ("oom-kill", _) => "the kernel ended it, because memory was short".to_owned(),
        (other, _) => other.to_owned(),
    };
    Some(format!("{unit} has ended: {reason}"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SERVICE;

    #[test]
    fn service_that_does_not_run_is_explained_in_one_sentence() {
        let reason = |shown: &str| reason_of_the_end(SERVICE, &shown.replace(' ', "\n"));
        let ended = |text: &str| Some(format!("ibarr.service has ended: {text}"));
        for (shown, expected) in [
            ("ActiveState=failed Result=exit-code StatusText=a:1:1:x", ended("a:1:1:x")),
            (
                "ActiveState=failed Result=exit-code StatusText= ExecMainStatus=78",
                ended("exit status 78"),
            ),
            ("ActiveState=failed Result=signal ExecMainStatus=9", ended("killed by signal 9")),
            ("ActiveState=failed Result=start-limit-hit", ended("start-limit-hit")),
            ("ActiveState=activating Result=success", Some("ibarr.service is starting".to_owned())),
            ("ActiveState=inactive Result=success", None),
            ("", None),
        ] {
            assert_eq!(reason(shown), expected, "{shown}");
        }
    }
}
