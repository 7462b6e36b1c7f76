// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! With which number a command ends.

use std::process::ExitCode;

use crate::control::messages::FailureKind;

/// The exit codes of `ibarr`, from sysexits(3) where it has one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    /// Success, and every address has an answer.
    Ok,
    /// An address or path has no answer.
    Negative,
    /// Something that connections need does not work (`ibarr doctor`).
    Failing,
    /// `status --check`: something is degraded.
    Warning,
    /// `status --check`: something has failed.
    Critical,
    /// `status --check`: the state is not known, or the daemon cannot be asked.
    Unknown,
    /// The command has failed.
    Failed(FailureKind),
    /// Standard output cannot be written.
    Output,
    /// The reader of standard output has closed it: 128 + SIGPIPE, as from a shell.
    ReaderGone,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Negative | Self::Warning => 1,
            Self::Failing | Self::Critical => 2,
            Self::Unknown => 3,
            // From here on as in sysexits(3).
            Self::Failed(FailureKind::Usage) => 64,
            Self::Failed(FailureKind::Absent) => 66,
            Self::Failed(FailureKind::Unreachable | FailureKind::Overloaded) => 69,
            Self::Failed(FailureKind::Internal) => 70,
            Self::Output => 74,
            Self::Failed(FailureKind::Busy) => 75,
            Self::Failed(FailureKind::Permission) => 77,
            Self::Failed(FailureKind::Config) => 78,
            Self::ReaderGone => 141,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

impl From<FailureKind> for Exit {
    fn from(kind: FailureKind) -> Self {
        Self::Failed(kind)
    }
}
