// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Notifications for systemd (sd_notify(3)). Its socket holds ten messages, and sending blocks
//! while systemd reads none; so a thread sends them.

use std::env;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ibarr_common::Instant;
use sd_notify::NotifyState;
use tracing::warn;

use super::watchdog::Watchdog;

/// Messages that wait for systemd, besides those in its socket.
const DEPTH: usize = 1024;
/// How long the daemon waits at its end until systemd has received the messages.
const PATIENCE: Duration = Duration::from_secs(1);

/// The content of one datagram to systemd.
struct Message {
    states: Vec<NotifyState<'static>>,
    status: Option<String>,
    descriptors: Vec<OwnedFd>,
}

/// How long systemd keeps a descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Until {
    /// Until the service is stopped.
    Stop,
    /// At most until the other end has closed the connection.
    HangUp,
}

/// Says in one line why the daemon does not run, for `systemctl status`.
pub(crate) fn report_failure(message: &str) {
    let line = message.replace('\n', "; ");
    // Without systemd it is discarded.
    drop(sd_notify::notify(&[NotifyState::Status(&line)]));
}

/// Queues messages for the thread. Without systemd they are discarded.
#[derive(Clone, Debug)]
pub(crate) struct Systemd {
    messages: SyncSender<Message>,
    watchdog: Watchdog,
    is_there: bool,
}

impl Systemd {
    /// Starts the thread, which ends when the last sender is dropped. The receiver is disconnected when
    /// systemd has received all messages.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(now: Instant) -> io::Result<(Self, Receiver<()>)> {
        let (messages, to_tell) = sync_channel::<Message>(DEPTH);
        let (telling, told) = sync_channel(0);
        thread::Builder::new().name("systemd".to_owned()).spawn(move || {
            let _telling = telling;
            for message in to_tell {
                let mut states = message.states;
                states.extend(message.status.as_deref().map(NotifyState::Status));
                let descriptors: Vec<_> = message.descriptors.iter().map(AsFd::as_fd).collect();
                let sent = if descriptors.is_empty() {
                    sd_notify::notify(&states)
                } else {
                    sd_notify::notify_with_fds(&states, &descriptors)
                };
                if let Err(error) = sent {
                    warn!(%error, "cannot notify systemd");
                }
            }
        })?;
        let is_there = env::var_os("NOTIFY_SOCKET").is_some();
        Ok((Self { messages, watchdog: Watchdog::of_this_process(now), is_there }, told))
    }

    /// How many descriptors a message can have (`SCM_MAX_FD` of the kernel).
    pub(crate) const AT_ONCE: usize = 253;

    /// Whether systemd, or another service manager, has started the process: it may start the next one.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there
    }

    /// When the watchdog is to be fed, by [`feed_watchdog`](Self::feed_watchdog).
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.watchdog.poll_timeout()
    }

    /// Whether this turn is to feed the watchdog.
    pub(crate) fn take_watchdog_due(&mut self, now: Instant) -> bool {
        self.watchdog.take_due(now)
    }

    /// The daemon is ready, or a reload has ended, and what its state is in words.
    pub(crate) fn ready(&self, status: String) {
        let ready = vec![NotifyState::Ready];
        self.send(Message { states: ready, status: Some(status), descriptors: Vec::new() });
    }

    /// Feeds the watchdog, and shows the state of the engine in words.
    pub(crate) fn feed_watchdog(&self, status: String) {
        let watchdog = vec![NotifyState::Watchdog];
        self.send(Message { states: watchdog, status: Some(status), descriptors: Vec::new() });
    }

    /// Makes systemd hold descriptors, [`AT_ONCE`](Self::AT_ONCE) at most, for the next daemon, which inherits them as
    /// `name`. systemd closes them when the service is stopped; with [`Until::HangUp`] also when the other end has
    /// closed the connection.
    pub(crate) fn keep(&self, name: &'static str, descriptors: Vec<OwnedFd>, until: Until) {
        let mut states = vec![NotifyState::FdStore, NotifyState::FdName(name)];
        if until == Until::Stop {
            states.push(NotifyState::Custom("FDPOLL=0"));
        }
        self.send(Message { states, status: None, descriptors });
    }

    /// For `Type=notify-reload` (systemd.service(5)).
    pub(crate) fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(vec![NotifyState::Reloading, now]),
            Err(error) => warn!(%error, "cannot notify systemd of the time"),
        }
    }

    /// The daemon ends. Waits at most a moment until systemd has received this.
    pub(crate) fn stopping(self, told: &Receiver<()>) {
        self.tell(vec![NotifyState::Stopping]);
        drop(self);
        // No message comes: the channel is closed when the thread ends.
        let _ = told.recv_timeout(PATIENCE);
    }

    fn tell(&self, states: Vec<NotifyState<'static>>) {
        self.send(Message { states, status: None, descriptors: Vec::new() });
    }

    fn send(&self, message: Message) {
        if self.messages.try_send(message).is_err() {
            warn!("systemd reads no notifications; this one is lost");
        }
    }
}
