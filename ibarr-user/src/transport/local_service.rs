// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The socket to the kernel's RDMA core. The engine reads it directly, so that an answer leaves in
//! the turn that read the request, and the core knows when the socket is empty.
//!
//! The core says when to open it again. An inherited stand-in for the kernel is used until it is closed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use ibarr_proto::health::{KernelSilent, Listener};
use ibarr_proto::local_service::{Closed, Input};
use nix::errno::Errno;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::{Counter, Counters, listeners};
use crate::causes::fault;
use crate::logging::ids;
use crate::sys::local_service::{Peer, Quiet, Received, Socket};

/// The socket and its state, see the [module](self).
#[derive(Debug)]
pub(crate) struct LocalService {
    state: State,
    /// The socket was inherited.
    inherited: bool,
    /// Why it was closed last; logged once, however often opening fails.
    reason: Option<KernelSilent>,
    /// A message that could not be sent yet.
    unsent: Option<Box<[u8]>>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
enum State {
    Open(Socket, Option<watch::Receiver<Option<Vec<Listener>>>>),
    Closed(KernelSilent, Closed),
    /// The daemon is told not to ask for requests.
    Off,
}

/// An event of the socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// There is something to read.
    Readable,
    /// There is room for the message that could not be sent.
    Writable,
}

/// The name of an inherited socket (`FDNAME=`).
pub(crate) const NAME: &str = "ls";

ibarr_common::words! {
    /// States of the socket to the kernel's RDMA core.
    SocketState {
        /// The kernel sends requests to a socket of the daemon.
        Open = "open",
        /// The kernel sends requests to an inherited socket.
        Inherited = "inherited",
        /// The kernel sends no requests.
        Closed = "closed",
        /// The daemon was started with `--no-local-service`, and asks for no requests.
        Off = "off",
    }
}

impl LocalService {
    /// Uses the `inherited` socket, or opens one; does neither if it is not `wanted`. Must be called within a runtime.
    pub(crate) fn start(wanted: bool, inherited: Option<OwnedFd>, counters: Arc<Counters>) -> Self {
        let inherits = inherited.is_some();
        let mut this =
            Self { state: State::Off, inherited: inherits, reason: None, unsent: None, counters };
        match inherited.map(Socket::adopt) {
            // A copy that systemd keeps would stay in the group, and callers would wait for it.
            Some(Ok(socket)) if !wanted => {
                if let Err(error) = socket.leave() {
                    warn!(%error, "local service: cannot leave the kernel's group");
                }
            }
            _ if !wanted => {}
            None => this.open(),
            Some(Ok(socket)) => this.opened(socket),
            Some(Err(error)) => this.close(KernelSilent::Failed(error.into()), Closed::Failed),
        }
        this
    }

    /// The next event, or the caller is woken when there is one.
    pub(crate) fn poll_event(&self, context: &mut Context<'_>) -> Poll<Event> {
        let State::Open(socket, _) = &self.state else { return Poll::Pending };
        match self.unsent {
            Some(_) => socket.poll_writable(context).map(|()| Event::Writable),
            None => socket.poll_readable(context).map(|()| Event::Readable),
        }
    }

    /// Whether it is open, for the core.
    pub(crate) fn state(&self) -> Input<'static> {
        match &self.state {
            State::Open(socket, _) => {
                let is_member = socket.is_member().unwrap_or_default();
                Input::Opened { port_id: socket.port_id(), is_member }
            }
            State::Closed(_, why) => Input::Closed(*why),
            State::Off => Input::Closed(Closed::ForGood),
        }
    }

    /// Joins the group to which the kernel sends its requests; returns whether that succeeded.
    pub(crate) fn join(&mut self) -> bool {
        let State::Open(socket, others) = &mut self.state else { return false };
        if let Err(error) = socket.join() {
            let reason = explain(&error);
            self.close(reason, Closed::Refused);
            return false;
        }
        info!(
            message_id = ids::KERNEL_ASKS,
            port_id = socket.port_id().0,
            "local service: the kernel sends its requests to ibarr"
        );
        *others = Some(listeners::watch(socket.inode()));
        true
    }

    /// Leaves the group and closes the socket, because the kernel refuses our messages with
    /// `errno`.
    pub(crate) fn leave(&mut self, errno: Errno) {
        let State::Open(socket, _) = &self.state else { return };
        if let Err(error) = socket.leave() {
            warn!(%error, "local service: cannot leave the kernel's group");
        }
        self.close(refused(errno), Closed::Refused);
    }

    /// A copy of the socket, if it is in the kernel's group.
    pub(crate) fn copy(&self) -> Option<io::Result<OwnedFd>> {
        let State::Open(socket, _) = &self.state else { return None };
        socket.is_member().unwrap_or_default().then(|| socket.copy())
    }

    /// The state for `ibarr status`.
    pub(crate) fn status(&self) -> (SocketState, Option<KernelSilent>) {
        match &self.state {
            State::Open(..) if self.inherited => (SocketState::Inherited, None),
            State::Open(..) => (SocketState::Open, None),
            State::Closed(reason, _) => (SocketState::Closed, Some(reason.clone())),
            State::Off => (SocketState::Off, None),
        }
    }

    /// Other listeners, as of the last search; `None` before the first one has ended.
    pub(crate) fn listeners(&self) -> Option<Vec<Listener>> {
        match &self.state {
            State::Open(_, Some(others)) => others.borrow().clone(),
            _ => Some(Vec::new()),
        }
    }

    /// Reads one datagram, truncated to the buffer. Without a socket there is nothing to read.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        let State::Open(socket, _) = &self.state else { return Received::Drained };
        let reason = match socket.try_recv(buffer) {
            Ok(Received::Closed) => KernelSilent::OtherEndClosed,
            Ok(received) => return received,
            Err(error) => KernelSilent::Failed(fault!("the socket is broken: {error}")),
        };
        self.close(reason, Closed::Failed);
        Received::Closed
    }

    pub(crate) fn quiet(&self) -> Option<Quiet> {
        match &self.state {
            State::Open(socket, _) => Some(socket.quiet()),
            State::Closed(..) | State::Off => None,
        }
    }

    /// Whether no message waits to be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.unsent.is_none()
    }

    /// Sends now, or when there is room. Call it only while [`has_room`](Self::has_room).
    pub(crate) fn send(&mut self, message: &[u8]) {
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

    /// Sends the waiting message, if there is room now.
    pub(crate) fn flush(&mut self) {
        if let Some(message) = self.unsent.take() {
            self.send(&message);
        }
    }

    pub(crate) fn open(&mut self) {
        self.inherited = false;
        match Socket::open() {
            Ok(socket) => self.opened(socket),
            Err(error) => self.close(explain(&error), Closed::Failed),
        }
    }

    fn opened(&mut self, socket: Socket) {
        let (peer, port_id) = (socket.peer(), socket.port_id());
        let is_member = socket.is_member().unwrap_or_default();
        if is_member {
            info!(
                message_id = ids::KERNEL_ASKS,
                ?peer,
                port_id = port_id.0,
                "local service: the kernel sends its requests to ibarr"
            );
        }
        let others = (peer == Peer::Netlink && is_member).then(|| listeners::watch(socket.inode()));
        self.state = State::Open(socket, others);
    }

    fn close(&mut self, reason: KernelSilent, why: Closed) {
        if self.reason.as_ref() != Some(&reason) {
            let cause = reason.to_string();
            warn!(message_id = ids::KERNEL_DOES_NOT_ASK, cause, "local service: {cause}");
            self.reason = Some(reason.clone());
        }
        let is_kernel = |socket: &Socket| socket.peer() == Peer::Netlink;
        let was_kernel = matches!(&self.state, State::Open(socket, _) if is_kernel(socket));
        let why = if was_kernel || !self.inherited { why } else { Closed::ForGood };
        self.state = State::Closed(reason, why);
        self.unsent = None;
    }
}

fn explain(error: &io::Error) -> KernelSilent {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPROTONOSUPPORT) => KernelSilent::NoRdma,
        Some(Errno::EPERM) => KernelSilent::NotAllowed,
        _ => KernelSilent::Failed(fault!("cannot be opened: {error}")),
    }
}

/// Why the kernel refuses our messages (`rdma_nl_rcv_msg` and `get_cb_table` in
/// drivers/infiniband/core/netlink.c).
fn refused(errno: Errno) -> KernelSilent {
    match errno {
        Errno::EPERM => KernelSilent::NotAllowed,
        Errno::EINVAL => KernelSilent::OtherNamespace,
        errno => KernelSilent::Failed(fault!("the kernel refuses our messages: {errno}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_that_is_not_wanted_is_never_opened_and_no_failure() {
        let service = LocalService::start(false, None, Arc::default());
        assert!(matches!(service.state(), Input::Closed(Closed::ForGood)));
        assert_eq!(service.status(), (SocketState::Off, None));
    }
}
