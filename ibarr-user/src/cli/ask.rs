// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::path::Path;

use super::{Daemon, Exit, print};
use crate::causes::chain;
use crate::config::Config;
use crate::control::client;
use crate::control::messages::{AnswerStatus, Body, Failure, FailureKind, PathStatus, Request};

/// Asks the daemon and prints what it says.
pub(super) fn ask(daemon: &Daemon, request: &Request) -> Exit {
    let body = match client::ask(&daemon.run_dir, request, daemon.patience) {
        Ok(body) => body,
        Err(failure) => return fail(failure, daemon.json),
    };
    let exit = match &body {
        Body::Answers { answers }
            if answers.iter().any(|answer| answer.status != AnswerStatus::Found) =>
        {
            Exit::Negative
        }
        Body::Path { path } if path.status != PathStatus::Found => Exit::Negative,
        _ => Exit::Ok,
    };
    if daemon.json {
        print::json(&body.into());
    } else {
        print::body(&body);
    }
    exit
}

/// Looks for mistakes in `file`, without a daemon.
pub(super) fn validate(file: &Path, json: bool) -> Exit {
    let Err(error) = Config::load(file) else {
        let done = format!("{}: no mistakes", file.display());
        if json {
            print::json(&Body::Done { done }.into());
        } else {
            print::line(&done);
        }
        return Exit::Ok;
    };
    fail(Failure { kind: FailureKind::Config, message: chain(&error) }, json)
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
