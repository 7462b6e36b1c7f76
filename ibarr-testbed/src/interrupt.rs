// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Ctrl-C that does not lose anything: SIGINT, SIGTERM and SIGHUP are read where the program is
//! ready to clean up, instead of ending it anywhere.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Where the wish to end arrives.
#[derive(Debug)]
pub struct Interrupt(Option<SignalFd>);

impl Interrupt {
    /// From now on signals are read through the result. To be called before any thread is started,
    /// as a thread that does not block a signal dies from it.
    ///
    /// # Errors
    /// None that a sound kernel gives.
    pub fn watch() -> Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        signals.thread_block().context("cannot block signals")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let fd = SignalFd::with_flags(&signals, flags).context("cannot open a signalfd")?;
        Ok(Self(Some(fd)))
    }

    /// Nothing is watched: signals do what they always do.
    pub const fn never() -> Self {
        Self(None)
    }

    /// Does nothing until a signal comes or the time is over.
    ///
    /// # Errors
    /// That a signal came.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        self.wait(None, time)
    }

    /// Does nothing until `fd` can be read, a signal comes or the time is over.
    ///
    /// # Errors
    /// That a signal came.
    pub fn wait_readable(&self, fd: BorrowedFd<'_>, time: Duration) -> Result<()> {
        self.wait(Some(fd), time)
    }

    fn wait(&self, fd: Option<BorrowedFd<'_>>, time: Duration) -> Result<()> {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        let watched = self.0.as_ref().map(AsFd::as_fd).into_iter().chain(fd);
        let mut fds: Vec<_> = watched.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // EINTR is as good as a time that is over: the caller looks again.
        let _ = poll(&mut fds, timeout);
        self.check()
    }

    /// # Errors
    /// That a signal came.
    pub fn check(&self) -> Result<()> {
        let Some(fd) = &self.0 else { return Ok(()) };
        match fd.read_signal().context("cannot read a signalfd")? {
            Some(info) => {
                let signal = i32::try_from(info.ssi_signo).ok().and_then(|n| n.try_into().ok());
                bail!("stopped by {}", signal.map_or("a signal", Signal::as_str))
            }
            None => Ok(()),
        }
    }
}
