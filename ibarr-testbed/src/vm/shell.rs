// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm shell`: the rig, with a shell at the second serial port.

use std::fs::File;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use nix::sys::termios::{OutputFlags, SetArg, tcgetattr, tcsetattr};

use crate::report::Report;
use crate::rig::Rig;

/// Sets up the rig, and starts a shell at the second serial port.
pub(crate) fn run() -> ExitCode {
    const TERMINAL: &str = "/dev/ttyS1";
    let shell = || -> Result<()> {
        Report::note("starting the fabric, OpenSM and IPoIB; this takes a while");
        let rig = Rig::up()?;
        Report::note(
            "here: ib0 10.1.0.1; `ip netns exec b`: ib1 10.2.0.1; r is the router between",
        );
        Report::note("ping 10.2.0.1, ibnetdiscover, saquery, ibfab show; exit ends the machine");
        let open = || File::options().read(true).write(true).open(TERMINAL).context(TERMINAL);
        // `init` has switched this off for reports.
        let terminal = open()?;
        let mut settings = tcgetattr(&terminal)?;
        settings.output_flags.insert(OutputFlags::OPOST | OutputFlags::ONLCR);
        tcsetattr(&terminal, SetArg::TCSANOW, &settings)?;
        let mut shell = Command::new("busybox");
        shell.args(["setsid", "-c", "busybox", "sh", "-i"]).env("PS1", "# ");
        shell.stdin(open()?).stdout(open()?).stderr(terminal).status().context("busybox")?;
        drop(rig);
        Ok(())
    };
    match shell() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            Report::note(format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
