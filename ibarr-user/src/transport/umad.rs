// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Moves MADs between the ports' umad devices and the engine.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ibarr_common::ib::Lid;
use ibarr_common::wire::mad;
use ibarr_common::wire::umad::{Received, Send};
use ibarr_proto::paths::PortName;
use ibarr_proto::sa::{PortIndex, Transmit};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::ports::Token;
use super::{Counter, Counters};
use crate::causes::{Fault, fault};
use crate::logging::ids;
use crate::sys::umad::{Device, Opened};

/// All ports that ever existed, and the umad devices that are open.
#[derive(Debug)]
pub(crate) struct Umads {
    /// The index of a port is its position here, which never changes.
    names: Vec<PortName>,
    open: BTreeMap<PortIndex, OpenDevice>,
    blocked: BTreeMap<PortIndex, Fault>,
    /// Whether questions may have tables as answers.
    with_tables: bool,
    next: u64,
    events: mpsc::Sender<Event>,
    counters: Arc<Counters>,
}

/// An event of a umad device.
#[derive(Debug)]
pub(crate) struct Event {
    port: PortIndex,
    /// The number of the opening, which tells a reopened device from the old one.
    opening: u64,
    /// A message, or the error that ended the reading.
    what: io::Result<Bytes>,
}

/// The meaning of an [`Event`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EventKind<'a> {
    /// A MAD has arrived.
    Mad {
        /// The port that received it.
        port: PortIndex,
        /// LID of the sender.
        from: Option<Lid>,
        /// Bytes of the MAD.
        mad: &'a [u8],
    },
    /// The kernel returned a MAD of ours without an answer.
    Unanswered,
    /// The umad device of this port is gone.
    Lost(PortIndex),
    /// The event is to be ignored, and was counted.
    Nothing,
}

/// The outcome of sending a MAD.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SendResult {
    /// The kernel took it.
    Sent,
    /// The kernel does not take it now, or the device is not open.
    Refused,
    /// The kernel refused it, and the device is gone.
    Lost,
}

#[derive(Debug)]
struct OpenDevice {
    opening: u64,
    device: Arc<Device>,
    /// Whether its agent for tables is registered, or is being so.
    has_tables: bool,
    task: AbortHandle,
    /// While this exists, the device is not opened again.
    _token: Token,
}

impl OpenDevice {
    /// Registers its agent for tables, on a thread: the driver may take its time. A table that is asked for before
    /// that is not sent, and asked for again.
    fn register_for_tables(&mut self, port: String) {
        if std::mem::replace(&mut self.has_tables, true) {
            return;
        }
        let device = Arc::clone(&self.device);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = device.register_for_tables() {
                warn!(
                    message_id = ids::SA_NOT_ASKED,
                    cause = %error,
                    %port,
                    "its subnet administrator cannot be asked for several paths: {error}"
                );
            }
        });
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Umads {
    pub(crate) fn new(events: mpsc::Sender<Event>, counters: Arc<Counters>) -> Self {
        let (names, open, blocked) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { names, open, blocked, with_tables: false, next: 0, events, counters }
    }

    /// The index of a port. `None` beyond 65,536 ports.
    pub(crate) fn index(&mut self, name: PortName) -> Option<PortIndex> {
        let place = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        u16::try_from(place).ok().map(PortIndex)
    }

    /// Questions may have tables as answers, or may not. Must be called within a runtime.
    pub(crate) fn with_tables(&mut self, with_tables: bool) {
        self.with_tables = with_tables;
        let Self { names, open, .. } = self;
        for (PortIndex(port), open) in open.iter_mut().filter(|_| with_tables) {
            let name = names.get(usize::from(*port)).map(PortName::to_string);
            open.register_for_tables(name.unwrap_or_default());
        }
    }

    /// Takes over the open umad device of a port. Must be called within a runtime.
    pub(crate) fn open(&mut self, port: PortIndex, opened: Opened, token: Token) {
        let device = match Device::adopt(opened) {
            Ok(device) => Arc::new(device),
            Err(error) => return self.block(port, Some(fault!("cannot be awaited: {error}"))),
        };
        self.next += 1;
        let opening = self.next;
        let read = read_all(port, opening, Arc::clone(&device), self.events.clone());
        let task = tokio::spawn(read).abort_handle();
        let name = self.name(port);
        info!(message_id = ids::SA_ASKED, port = %name, "asking its subnet administrator");
        self.blocked.remove(&port);
        let mut open = OpenDevice { opening, device, has_tables: false, task, _token: token };
        if self.with_tables {
            open.register_for_tables(name);
        }
        self.open.insert(port, open);
    }

    /// Notes that the umad device of a port is not open, for this reason; `None` if it is unknown
    /// whether there is one.
    pub(crate) fn block(&mut self, port: PortIndex, reason: Option<Fault>) {
        let Some(reason) = reason else { return };
        if self.blocked.get(&port) != Some(&reason) {
            warn!(
                message_id = ids::SA_NOT_ASKED,
                cause = %reason,
                port = %self.name(port),
                "its subnet administrator cannot be asked: {reason}"
            );
            self.blocked.insert(port, reason);
        }
    }

    /// Closes the device of a port that was removed.
    pub(crate) fn close(&mut self, port: PortIndex) {
        self.open.remove(&port);
        self.blocked.remove(&port);
    }

    /// Whether the umad device of a port is open.
    pub(crate) fn is_open(&self, port: PortIndex) -> bool {
        self.open.contains_key(&port)
    }

    /// Why the umad device is not open, for people.
    pub(crate) fn why_not(&self, port: PortIndex) -> Option<&Fault> {
        self.blocked.get(&port)
    }

    /// Sends a MAD through the umad device of its port.
    pub(crate) fn send(&mut self, transmit: &Transmit) -> SendResult {
        let Some(OpenDevice { device, .. }) = self.open.get(&transmit.port) else {
            return SendResult::Refused;
        };
        let agent =
            if transmit.is_for_table { device.agent_for_tables() } else { Some(device.agent()) };
        let Some(agent) = agent else {
            self.counters.count(Counter::MadNotSent);
            return SendResult::Refused;
        };
        let message = Send {
            agent,
            to: transmit.sa.lid,
            sl: transmit.sa.sl,
            pkey_index: transmit.sa.pkey_index,
            timeout: transmit.timeout,
            mad: transmit.mad,
        };
        match device.write(message.emit().as_ref()) {
            Ok(()) => SendResult::Sent,
            Err(error) => {
                self.counters.count(Counter::MadNotSent);
                if is_passing(&error) {
                    tracing::debug!(port = %self.name(transmit.port), %error, "MAD not sent");
                    return SendResult::Refused;
                }
                self.lose(transmit.port, &error);
                SendResult::Lost
            }
        }
    }

    pub(crate) fn read<'a>(&mut self, event: &'a Event) -> EventKind<'a> {
        let is_it = |open: &&OpenDevice| open.opening == event.opening;
        let Some(OpenDevice { device, .. }) = self.open.get(&event.port).filter(is_it) else {
            return EventKind::Nothing;
        };
        let packet = match &event.what {
            Ok(packet) => packet,
            Err(error) => {
                self.lose(event.port, error);
                return EventKind::Lost(event.port);
            }
        };
        let is_ours = |agent| agent == device.agent() || Some(agent) == device.agent_for_tables();
        match Received::parse(packet) {
            Ok(Received::Mad { agent, from, mad }) if is_ours(agent) => {
                EventKind::Mad { port: event.port, from, mad }
            }
            Ok(Received::Unanswered { agent, .. }) if is_ours(agent) => EventKind::Unanswered,
            Ok(_) => self.malformed(Counter::UmadAgent),
            Err(mad::Error::Truncated) => self.malformed(Counter::UmadTruncated),
            Err(_) => self.malformed(Counter::UmadMalformed),
        }
    }

    fn lose(&mut self, port: PortIndex, error: &io::Error) {
        warn!(message_id = ids::UMAD_LOST, port = %self.name(port), %error, "its umad device is lost");
        self.counters.count(Counter::UmadLost);
        self.open.remove(&port);
    }

    fn malformed(&self, counter: Counter) -> EventKind<'static> {
        self.counters.count(counter);
        EventKind::Nothing
    }

    /// Device and number of a port.
    pub(crate) fn name(&self, port: PortIndex) -> String {
        self.port_name(port).map_or_else(String::new, |name| name.to_string())
    }

    /// The name of a port, if there ever was such a port.
    pub(crate) fn port_name(&self, port: PortIndex) -> Option<PortName> {
        self.names.get(usize::from(port.0)).copied()
    }
}

/// Whether the kernel may take the next MAD. Other errors mean that the device is gone; their
/// numbers changed between kernels. A device that was closed by mistake is soon open again.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory | io::ErrorKind::Interrupted
    )
}

/// Reads until the device is lost. The buffer is allocated again only while the engine holds its
/// messages.
async fn read_all(port: PortIndex, opening: u64, device: Arc<Device>, events: mpsc::Sender<Event>) {
    let mut buffer = BytesMut::new();
    loop {
        let what = device.read_any(&mut buffer).await.map(|len| buffer.split_to(len).freeze());
        let is_lost = what.is_err();
        // The engine is gone.
        if events.send(Event { port, opening, what }).await.is_err() || is_lost {
            return;
        }
    }
}
