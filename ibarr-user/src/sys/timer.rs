// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A timer on the clock of the cores. The runtime's own timers have a resolution of a millisecond,
//! which is too coarse for the kernel's answers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use ibarr_common::Instant;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{clock, fd};

/// A timerfd of `CLOCK_BOOTTIME`.
#[derive(Debug)]
pub(crate) struct Timer {
    alarm: TimerFd,
    /// The same open file, registered with the runtime.
    fd: AsyncFd<OwnedFd>,
    /// The expiry, if the timer is armed.
    set: Option<Instant>,
}

impl Timer {
    /// A timer that is not armed. Must be called within a runtime.
    ///
    /// # Errors
    /// Errors of timerfd_create(2).
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let alarm = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        let fd = fd::watch(alarm.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Self { alarm, fd, set: None })
    }

    /// Arms the timer for `at`; `None` changes nothing. If an earlier expiry was set before, the
    /// timer keeps it, which costs one extra turn.
    ///
    /// # Errors
    /// Errors of timerfd_settime(2): none for a valid time.
    pub(crate) fn set(&mut self, at: Option<Instant>) -> io::Result<()> {
        if let Some(at) = at
            && self.set.is_none_or(|set| at < set)
        {
            // A value of zero would disarm the timer.
            let expiration = Expiration::OneShot(clock::shown(at));
            self.alarm.set(expiration, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            self.set = Some(at);
        }
        Ok(())
    }

    /// Ready when the timer has expired.
    pub(crate) fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            // An error only if the runtime is being shut down.
            let Ok(mut guard) = ready!(self.fd.poll_read_ready(context)) else {
                return Poll::Pending;
            };
            if guard.try_io(|_| Ok(self.alarm.wait()?)).is_ok() {
                self.set = None;
                return Poll::Ready(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn timer_expires_at_its_time_and_not_before() {
        let mut timer = Timer::new().unwrap();
        let begun = clock::now();
        timer.set(Some(begun + Duration::from_mins(1))).unwrap();
        timer.set(Some(begun + Duration::from_millis(3))).unwrap();
        // An earlier expiry stays.
        timer.set(Some(begun + Duration::from_mins(1))).unwrap();
        poll_fn(|context| timer.poll_expired(context)).await;
        assert!(clock::now() >= begun + Duration::from_millis(3));
        // Arm it again, in the past.
        timer.set(Some(Instant::BOOT)).unwrap();
        poll_fn(|context| timer.poll_expired(context)).await;
    }
}
