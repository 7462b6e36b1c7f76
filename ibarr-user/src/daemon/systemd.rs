// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What systemd is told (sd_notify(3)). Its socket holds ten messages, and who sends waits while
//! systemd reads none; so a thread does.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// Messages that wait for systemd, behind those that its socket holds.
const DEPTH: usize = 16;
/// How long the end of the daemon waits until systemd has heard of it.
const PATIENCE: Duration = Duration::from_secs(1);

type Message = Vec<NotifyState<'static>>;

/// Disconnected when systemd has been told all.
pub(super) type Told = Receiver<()>;

/// Where messages go. Without systemd nobody is told.
#[derive(Clone, Debug)]
pub struct Systemd {
    messages: SyncSender<Message>,
}

impl Systemd {
    /// Starts the thread, which ends with the last of those that tell it something.
    ///
    /// # Errors
    /// If there can be none.
    pub fn start() -> io::Result<(Self, Told)> {
        let (messages, to_tell) = sync_channel::<Message>(DEPTH);
        let (telling, told) = sync_channel(0);
        thread::Builder::new().name("systemd".to_owned()).spawn(move || {
            let _telling = telling;
            for message in to_tell {
                if let Err(error) = sd_notify::notify(&message) {
                    warn!(%error, "cannot tell systemd");
                }
            }
        })?;
        Ok((Self { messages }, told))
    }

    /// The daemon answers, or has taken another configuration, or not.
    pub fn ready(&self) {
        self.tell(vec![NotifyState::Ready]);
    }

    /// For `Type=notify-reload` (systemd.service(5)).
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(vec![NotifyState::Reloading, now]),
            Err(error) => warn!(%error, "cannot tell systemd the time"),
        }
    }

    /// The daemon ends. Gives systemd a moment to hear of it, and no more.
    pub fn stopping(self, told: &Told) {
        self.tell(vec![NotifyState::Stopping]);
        drop(self);
        // Nothing is ever sent: this ends with the thread, or in time.
        let _ = told.recv_timeout(PATIENCE);
    }

    fn tell(&self, message: Message) {
        if self.messages.try_send(message).is_err() {
            warn!("systemd reads nothing: it is not told");
        }
    }
}
