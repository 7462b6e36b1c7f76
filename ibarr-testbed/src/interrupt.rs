// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Clean-up after Ctrl-C: the program reads SIGINT, SIGTERM and SIGHUP where it can clean up, and does not
//! end anywhere else.

use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// The signals that arrive.
#[derive(Debug)]
pub struct Interrupt(Option<UnixStream>);

impl Interrupt {
    /// Catches signals from now on, for the result. They are caught and not blocked, because child processes
    /// would inherit a blocked signal.
    ///
    /// # Errors
    /// A sound kernel gives none.
    pub fn watch() -> Result<Self> {
        let (reader, mut writer) = UnixStream::pair().context("cannot make a pair of sockets")?;
        reader.set_nonblocking(true).context("cannot set up a socket")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .context("cannot start a runtime")?;
        let in_runtime = runtime.enter();
        let mut signals = Vec::new();
        for number in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            let stream = signal(SignalKind::from_raw(number as i32))
                .with_context(|| format!("cannot catch {number}"))?;
            signals.push((number, stream));
        }
        drop(in_runtime);
        thread::spawn(move || {
            loop {
                let caught = runtime.block_on(poll_fn(|context| {
                    let caught = signals.iter_mut().find_map(|(number, stream)| {
                        stream.poll_recv(context).is_ready().then_some(*number)
                    });
                    caught.map_or(Poll::Pending, Poll::Ready)
                }));
                // One byte for each signal. When the program is about to end, there may be no reader.
                let _ = writer.write_all(&[caught as u8]);
            }
        });
        Ok(Self(Some(reader)))
    }

    /// Catches nothing: signals have their default effect.
    pub const fn never() -> Self {
        Self(None)
    }

    /// Waits until a signal comes or the time is over.
    ///
    /// # Errors
    /// A signal came.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        self.wait(None, time)
    }

    /// Waits until `fd` can be read, a signal comes or the time is over.
    ///
    /// # Errors
    /// A signal came.
    pub fn wait_readable(&self, fd: BorrowedFd<'_>, time: Duration) -> Result<()> {
        self.wait(Some(fd), time)
    }

    /// # Errors
    /// A signal came.
    pub fn check(&self) -> Result<()> {
        let Some(mut reader) = self.0.as_ref() else { return Ok(()) };
        let mut number = [0];
        match reader.read_exact(&mut number) {
            Ok(()) => match Signal::try_from(i32::from(number[0])) {
                Ok(signal) => bail!("stopped by {signal}"),
                Err(_) => bail!("stopped by a signal"),
            },
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error).context("cannot learn of signals"),
        }
    }

    fn wait(&self, fd: Option<BorrowedFd<'_>>, time: Duration) -> Result<()> {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        let watched = self.0.as_ref().map(AsFd::as_fd).into_iter().chain(fd);
        let mut fds: Vec<_> = watched.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // After EINTR the caller looks again, as after the time is over.
        let _ = poll(&mut fds, timeout);
        self.check()
    }
}
