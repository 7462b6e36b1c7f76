// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The guest's side of `cargo xtask vm`: scenarios with `ibarr`. [`init`] runs this program again, with a
//! scenario's name.

#![deny(unsafe_code)]

mod acm;
mod burst;
mod cluster;
mod events;
mod floating;
mod hello;
mod join;
mod like_c;
mod ls;
mod namespaces;
mod next_hops;
mod no_ipv6;
mod operator;
mod rails;
mod responder;
mod rig;
mod rtnetlink;
mod shell;
mod silent;
mod subnets;
#[expect(unsafe_code, reason = "system calls without a safe wrapper")]
mod sys;
mod timings;
mod version;

use std::convert::Infallible;
use std::env;
use std::process::{self, ExitCode};

use anyhow::Result;
use ibtun_guest::{OWN, init, report};

use self::ls::Clock;
use self::rig::Scheme;

fn main() -> ExitCode {
    if process::id() == 1 {
        init::run();
    }
    let arguments: Vec<String> = env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "hello"] => hello::run(),
        [_, "run-b"] => join::run(),
        [_, "run-c"] => timings::run(),
        [_, "run-d"] => responder::run(),
        [_, "run-e"] => events::run(),
        [_, "run-f"] => no_ipv6::run(),
        [_, "run-g"] => acm::run(),
        [_, "run-j"] => subnets::flid::run(),
        [_, "run-k"] => floating::run(),
        [_, "run-l"] => rails::run(),
        [_, "run-m"] => silent::run(),
        [_, "run-n"] => subnets::by_lid::run(),
        [_, "run-p"] => namespaces::run(),
        [_, "run-q"] => subnets::records::run(),
        [_, "run-r"] => join::run_behind(Scheme::Alias),
        [_, "run-s"] => join::run_behind(Scheme::Flid),
        [_, "cluster"] => cluster::run(),
        [_, "hosts"] => cluster::hosts::run(),
        [_, "storage"] => cluster::storage::run(),
        [_, "routers"] => cluster::routers::run(),
        [_, cluster::storage::writer::NAME, path] => ended(cluster::storage::writer::run(path)),
        [_, "other-guest"] => ended(cluster::other_guest()),
        [_, "service"] => failure(cluster::service()),
        [_, rig::STAND_IN, ..] => cluster::there::stand_for(&arguments[2..]),
        [_, "acm-speed"] => acm::speed::run(),
        [_, acm::speed::PLAIN] => failure(acm::speed::plain()),
        [_, "shell"] => shell::run(),
        [own, "ls"] => ls::run(&[own.to_owned(), RESPONDER.to_owned()], true, Clock::Real),
        [own, "ls", STEADY] => {
            ls::run(&[own.to_owned(), RESPONDER.to_owned()], true, Clock::Steady)
        }
        [_, "ls", STEADY, ..] => ls::run(&arguments[3..], false, Clock::Steady),
        [_, "ls", ..] => ls::run(&arguments[2..], false, Clock::Real),
        [_, "daemon"] => ls::daemon::run(),
        [_, timings::LIKE_C, port, requests] => ended(like_c::run(port, requests)),
        [_, RESPONDER, ..] => failure(ls::responder::run(&arguments[2..])),
        [_, LISTENER] => failure(ls::daemon::listen()),
        [_, STRANDED, place, ..] => failure(ls::daemon::strand(place, &arguments[3..])),
        [_, INHERIT, ..] => failure(ls::daemon::inherit(&arguments[2..])),
        _ => {
            eprintln!("ibarr-guest: no scenario is called {arguments:?}");
            ExitCode::from(64)
        }
    }
}

fn ended(outcome: Result<()>) -> ExitCode {
    outcome.map_or_else(|error| failure(Err(error)), |()| ExitCode::SUCCESS)
}

fn failure(outcome: Result<Infallible>) -> ExitCode {
    let Err(error) = outcome;
    eprintln!("ibarr-guest: {error:#}");
    ExitCode::FAILURE
}

/// The command that `ls` runs if no daemon is given.
const RESPONDER: &str = "ls-responder";
/// Option of `ls` for a clock that counts instructions.
const STEADY: &str = "--steady";
/// Command that joins the group and never answers.
const LISTENER: &str = "ls-listener";
/// Command that starts a program with an inherited socket.
const INHERIT: &str = "ls-inherit";
/// Command that starts a program where the kernel refuses its messages.
const STRANDED: &str = "ls-stranded";
