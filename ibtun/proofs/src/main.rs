// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What proves the software InfiniBand: scenarios of `cargo xtask vm` without `ibarr`. [`init`] runs this program
//! again, with a scenario's name.

#![deny(unsafe_code)]

mod above_verbs;
mod bring_up;
mod diagnostics;
mod ibtun;
mod installed;
mod pyverbs;
#[cfg(test)]
mod readme;
mod reload;
mod rxe_speed;
#[expect(unsafe_code, reason = "system calls without a safe wrapper")]
mod sys;
mod tutorial;
mod wire;

use std::env;
use std::process::{self, ExitCode};

use ibtun_guest::{OWN, init, kernel_log, report, rig};

fn main() -> ExitCode {
    if process::id() == 1 {
        init::run();
    }
    let arguments: Vec<String> = env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "run-a"] => bring_up::run(),
        [_, "run-h"] => wire::run(),
        [_, "run-i"] => pyverbs::run(),
        [_, "run-o"] => pyverbs::run_newer(),
        [_, "installed"] => installed::run(),
        [_, "run-tutorial"] => tutorial::run(),
        [_, "rxe-speed"] => rxe_speed::run(),
        [_, "reload", rounds, seed] => match (rounds.parse(), seed.parse()) {
            (Ok(rounds), Ok(seed)) => reload::run(rounds, seed),
            _ => ExitCode::from(64),
        },
        [_, ibtun::CREATE] => ibtun::create_here(),
        [_, "ibtun", records] if records.parse::<u64>().is_ok() => {
            ibtun::run(records.parse().unwrap_or_default())
        }
        _ => {
            eprintln!("ibtun-proofs: no scenario is called {arguments:?}");
            ExitCode::from(64)
        }
    }
}
