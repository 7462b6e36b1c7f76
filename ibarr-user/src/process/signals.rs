// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Signals as commands.

use std::io;

use nix::sys::signal::{SigSet, Signal as Number};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A command that an administrator sends as a signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Command {
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    End,
}

/// The signals that the daemon handles.
#[derive(Debug)]
pub(crate) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

/// Makes SIGHUP wait: by default it ends the process, which is of use to commands and not to a daemon that starts.
/// Call it before all else.
pub fn hold_hangups() {
    // It fails for no valid signal.
    let _ = SigSet::from(Number::SIGHUP).thread_block();
}

/// Ends that; a signal that came meanwhile takes effect.
pub(crate) fn release_hangups() {
    let _ = SigSet::from(Number::SIGHUP).thread_unblock();
}

impl Signals {
    /// Must be called within a runtime. A SIGHUP that was held is the first command.
    ///
    /// # Errors
    /// If the signals cannot be handled.
    pub(crate) fn catch() -> io::Result<Self> {
        let this = Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        release_hangups();
        Ok(this)
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Command {
        tokio::select! {
            _ = self.hangup.recv() => Command::Reload,
            _ = self.terminate.recv() => Command::End,
            _ = self.interrupt.recv() => Command::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn hangup_from_before_the_handler_is_a_reload() {
        hold_hangups();
        for _ in 0..3 {
            raise(Number::SIGHUP).unwrap();
        }
        let mut signals = Signals::catch().unwrap();
        assert_eq!(signals.next().await, Command::Reload);
    }
}
