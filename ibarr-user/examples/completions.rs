// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Prints the completions of `ibarr` for a shell: bash, zsh or fish. `cargo xtask package` installs them.

use std::{env, io};

use clap::ValueEnum as _;
use clap_complete::Shell;

fn main() -> Result<(), String> {
    let name = env::args().nth(1).ok_or("usage: completions SHELL")?;
    let shell = Shell::from_str(&name, false)?;
    clap_complete::generate(shell, &mut ibarr_user::cli::command(), "ibarr", &mut io::stdout());
    Ok(())
}
