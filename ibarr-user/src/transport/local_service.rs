// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The socket to the kernel's RDMA core. The engine reads it itself: an answer leaves in the turn
//! that its request was read in, and the core knows when nothing more is to be read.
//!
//! Where the kernel has no RDMA the socket is awaited. An inherited one is used as long as it lives.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ibarr_common::wire::ls::PortId;
use nix::errno::Errno;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::listeners::{self, Listener};
use super::{Counter, Counters};
use crate::causes::chain;
use crate::sys::local_service::{Peer, Quiet, Received, Socket};

/// See the [module](self).
#[derive(Debug)]
pub struct LocalService {
    state: State,
    inherited: bool,
    /// What could not be sent yet.
    unsent: Option<Box<[u8]>>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
enum State {
    Open(Socket, Option<watch::Receiver<Vec<Listener>>>),
    Closed {
        /// Why, for people.
        reason: String,
        /// When to try again, if ever.
        retry_at: Option<Instant>,
    },
}

/// What has happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// There is a socket now.
    Opened(PortId),
    /// There is something to read.
    Readable,
    /// There is room for what could not be sent.
    Writable,
}

/// What `ibarr status` says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Status {
    /// The kernel asks us.
    Open,
    /// Through a socket that somebody else opened.
    Inherited,
    /// It does not, for this reason.
    Closed(String),
}

/// Between attempts to open the socket.
const RETRY: Duration = Duration::from_secs(5);

impl LocalService {
    /// Uses the `inherited` socket, or opens one. Must be called within a runtime.
    pub fn start(inherited: Option<OwnedFd>, counters: Arc<Counters>) -> Self {
        let retry_at = Some(Instant::now());
        let state = State::Closed { reason: String::new(), retry_at };
        let mut this = Self { state, inherited: inherited.is_some(), unsent: None, counters };
        match inherited.map(Socket::adopt) {
            None => this.open(),
            Some(Ok(socket)) => this.opened(socket),
            Some(Err(error)) => {
                warn!("local service: {}", chain(&error));
                this.state = State::Closed { reason: chain(&error), retry_at: None };
            }
        }
        this
    }

    /// Waits for the next event. May be dropped at any time.
    pub async fn next(&mut self) -> Event {
        loop {
            match &self.state {
                State::Open(socket, _) => {
                    let (ready, event) = match self.unsent {
                        Some(_) => (socket.writable().await, Event::Writable),
                        None => (socket.readable().await, Event::Readable),
                    };
                    match ready {
                        Ok(()) => return event,
                        Err(_) => pending().await,
                    }
                }
                State::Closed { retry_at: None, .. } => pending().await,
                State::Closed { retry_at: Some(at), .. } => {
                    sleep_until(*at).await;
                    self.open();
                    if let Some(port_id) = self.port_id() {
                        return Event::Opened(port_id);
                    }
                }
            }
        }
    }

    /// What the kernel calls the socket, if there is one.
    pub fn port_id(&self) -> Option<PortId> {
        match &self.state {
            State::Open(socket, _) => Some(socket.port_id()),
            State::Closed { .. } => None,
        }
    }

    /// For people.
    pub fn status(&self) -> Status {
        match &self.state {
            State::Open(..) if self.inherited => Status::Inherited,
            State::Open(..) => Status::Open,
            State::Closed { reason, .. } => Status::Closed(reason.clone()),
        }
    }

    /// Who else heard the kernel's requests when it was last looked for them.
    pub fn listeners(&self) -> Vec<Listener> {
        match &self.state {
            State::Open(_, Some(others)) => others.borrow().clone(),
            _ => Vec::new(),
        }
    }

    /// Reads a datagram, as much of it as fits. Without a socket there is nothing to read.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Received {
        let State::Open(socket, _) = &self.state else { return Received::Drained };
        let reason = match socket.try_recv(buffer) {
            Ok(Received::Closed) => "the inherited socket was closed at its other end".to_owned(),
            Ok(received) => return received,
            Err(error) => format!("the socket is broken: {error}"),
        };
        warn!("local service: {reason}");
        self.close(reason);
        Received::Closed
    }

    /// See [`Socket::quiet`].
    pub fn quiet(&self) -> Option<Quiet> {
        match &self.state {
            State::Open(socket, _) => Some(socket.quiet()),
            State::Closed { .. } => None,
        }
    }

    /// Whether nothing waits to be sent.
    pub fn has_room(&self) -> bool {
        self.unsent.is_none()
    }

    /// Sends, now or when there is room; only while [`has_room`](Self::has_room).
    pub fn send(&mut self, message: &[u8]) {
        let State::Open(socket, _) = &self.state else { return };
        match socket.try_send(message) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.counters.count(Counter::LocalServiceBlocked);
                self.unsent = Some(message.into());
            }
            Err(error) => {
                self.counters.count(Counter::LocalServiceNotSent);
                debug!(%error, "answer not sent");
            }
        }
    }

    /// Sends what could not be sent before, if there is room now.
    pub fn flush(&mut self) {
        if let Some(message) = self.unsent.take() {
            self.send(&message);
        }
    }

    fn open(&mut self) {
        match Socket::open() {
            Ok(socket) => self.opened(socket),
            Err(error) => {
                let reason = explain(&error);
                if !matches!(&self.state, State::Closed { reason: old, .. } if *old == reason) {
                    warn!("local service: {reason}");
                }
                let retry_at = Some(Instant::now() + RETRY);
                self.state = State::Closed { reason, retry_at };
            }
        }
    }

    fn opened(&mut self, socket: Socket) {
        let (peer, port_id) = (socket.peer(), socket.port_id());
        info!(?peer, port_id = port_id.0, "local service: the kernel asks us");
        let others = (peer == Peer::Netlink).then(|| listeners::watch(socket.inode()));
        self.state = State::Open(socket, others);
    }

    /// Whoever opened the socket for us does not do it again.
    fn close(&mut self, reason: String) {
        let retry_at = (!self.inherited).then(|| Instant::now() + RETRY);
        self.state = State::Closed { reason, retry_at };
        self.unsent = None;
    }
}

fn explain(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPROTONOSUPPORT) => {
            "awaiting the module ib_core: this kernel has no RDMA yet".to_owned()
        }
        Some(Errno::EPERM) => "not allowed: needs CAP_NET_ADMIN".to_owned(),
        _ => format!("cannot be opened: {error}"),
    }
}
