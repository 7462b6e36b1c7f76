// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

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
    /// `status --check`: the daemon cannot be asked.
    Unknown,
    /// The command line is invalid (`EX_USAGE`).
    Usage,
    /// This machine lacks what the command line names, such as a port (`EX_NOINPUT`).
    Absent,
    /// No daemon answers, or it has too many connections (`EX_UNAVAILABLE`).
    Unreachable,
    /// An internal error, or a fault of the machine (`EX_SOFTWARE`).
    Internal,
    /// Standard output cannot be written (`EX_IOERR`).
    Output,
    /// Another daemon or command holds the object (`EX_TEMPFAIL`).
    Busy,
    /// The user lacks the right (`EX_NOPERM`).
    Permission,
    /// The configuration has mistakes (`EX_CONFIG`).
    Config,
    /// The reader of standard output has closed it: 128 + SIGPIPE, as from a shell.
    ReaderGone,
}

impl Exit {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Negative | Self::Warning => 1,
            Self::Failing | Self::Critical => 2,
            Self::Unknown => 3,
            Self::Usage => 64,
            Self::Absent => 66,
            Self::Unreachable => 69,
            Self::Internal => 70,
            Self::Output => 74,
            Self::Busy => 75,
            Self::Permission => 77,
            Self::Config => 78,
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
        match kind {
            FailureKind::Usage => Self::Usage,
            FailureKind::Unreachable | FailureKind::Overloaded => Self::Unreachable,
            FailureKind::Internal => Self::Internal,
            FailureKind::Busy => Self::Busy,
            FailureKind::Permission => Self::Permission,
            FailureKind::Config => Self::Config,
            FailureKind::Absent => Self::Absent,
        }
    }
}
