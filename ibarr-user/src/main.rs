// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The `ibarr` binary; see [`ibarr_user::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ibarr_user::cli::main()
}
