// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Privileges: everything is built as the user that typed the command, and only finished programs that
//! make namespaces are started as root.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::tools;

/// How to start a program that needs root.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Privilege {
    /// Directly, because we are root.
    Root,
    Sudo,
    /// As the current user, because sudo is missing or not wanted.
    Unprivileged,
}

impl Privilege {
    /// `no_sudo`: the user does not want sudo.
    pub(crate) fn find(no_sudo: bool) -> Result<Self> {
        let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
        Ok(if effective_uid(&status).context("/proc/self/status names no user")? == "0" {
            Self::Root
        } else if !no_sudo && tools::which("sudo").is_some() {
            Self::Sudo
        } else {
            Self::Unprivileged
        })
    }

    /// A command that runs `program` with `variables` in its environment. sudo alone would drop them.
    pub(crate) fn command(self, program: &Path, variables: &[(&str, &OsStr)]) -> Command {
        if self == Self::Sudo {
            let mut command = Command::new("sudo");
            command.args(["--", "env"]);
            for (name, value) in variables {
                let mut assignment = OsString::from(format!("{name}="));
                assignment.push(value);
                command.arg(assignment);
            }
            command.arg(program);
            command
        } else {
            let mut command = Command::new(program);
            command.envs(variables.iter().copied());
            command
        }
    }
}

fn effective_uid(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_user_counts_and_not_the_real_one() {
        let status = "Name:\txtask\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n";
        assert_eq!(effective_uid(status), Some("0"));
    }

    #[test]
    fn environment_is_carried_through_sudo() {
        let path = [("PATH", OsStr::new("/t/bin:/bin"))];
        let command = Privilege::Sudo.command(Path::new("/t/lab"), &path);
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(command.get_program(), "sudo");
        assert_eq!(arguments, ["--", "env", "PATH=/t/bin:/bin", "/t/lab"]);
    }
}
