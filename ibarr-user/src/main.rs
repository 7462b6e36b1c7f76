// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The `ibarr` binary; see [`ibarr_user::cli`].

use std::panic;
use std::process::{self, ExitCode};

fn main() -> ExitCode {
    ibarr_user::process::hold_hangups();
    // A panic in one task must end the daemon, not leave it half alive.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        process::abort();
    }));
    ibarr_user::cli::main()
}
