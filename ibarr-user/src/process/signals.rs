// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Signals as commands.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A command that an administrator sends as a signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    End,
}

/// The signals that the daemon handles.
#[derive(Debug)]
pub struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Must be called within a runtime.
    ///
    /// # Errors
    /// If the signals cannot be handled.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Command {
        tokio::select! {
            _ = self.hangup.recv() => Command::Reload,
            _ = self.terminate.recv() => Command::End,
            _ = self.interrupt.recv() => Command::End,
        }
    }
}
