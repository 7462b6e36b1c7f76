// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Writes what follows from the command line of `ibarr` into a directory: completions for bash, zsh and fish, and
//! a man page in section 8 for each command. `cargo xtask package` installs them.

use std::path::Path;
use std::{env, fs};

use clap_complete::Shell;
use clap_mangen::Man;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = env::args_os().nth(1).ok_or("usage: command_line DIRECTORY")?;
    let directory = Path::new(&directory);
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut ibarr_user::cli::command(), "ibarr", directory)?;
    }
    let mut ibarr = ibarr_user::cli::command();
    ibarr.build();
    for command in ibarr.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = format!("ibarr-{}", command.get_name());
        let mut page = Vec::new();
        Man::new(command.clone())
            .title(name.to_uppercase())
            .section("8")
            .source(concat!("ibarr ", env!("CARGO_PKG_VERSION")))
            .manual("System administration")
            .render(&mut page)?;
        page.extend_from_slice(b".SH \"SEE ALSO\"\n\\fBibarr\\fR(8)\n");
        fs::write(directory.join(format!("{name}.8")), page)?;
    }
    Ok(())
}
