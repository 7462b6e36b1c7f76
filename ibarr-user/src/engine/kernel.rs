// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's RDMA core: its requests, the answers to them, and the nudges after these.

use ibarr_common::Instant;
use ibarr_proto::local_service::{Input, Nudge, Sender, Transmit};
use ibarr_proto::local_view::Link;
use ibarr_proto::node::{self, Room};
use ibarr_proto::turn::{Handled, Read};
use nix::errno::Errno;
use tracing::error;

use super::nudges::Nudges;
use super::{Engine, log};
use crate::process::Until;
use crate::sys::local_service::Received;
use crate::transport::local_service::{Event, LocalService, NAME};
use crate::transport::rtnetlink::{NudgeError, Nudged, Place};

/// The socket to the kernel, and the thread that makes nudges.
pub(super) struct Kernel {
    socket: LocalService,
    nudges: Nudges,
}

/// The longest request has 160 bytes, and the kernel sends each in its own datagram. The buffer is
/// cleared before each read, so it is not much larger.
const REQUEST_BUFFER: usize = 1024;

impl Kernel {
    pub(super) fn new(socket: LocalService, nudges: Nudges) -> Self {
        Self { socket, nudges }
    }

    pub(super) async fn next(&mut self) -> Event {
        self.socket.next().await
    }

    pub(super) fn socket(&self) -> &LocalService {
        &self.socket
    }

    pub(super) fn nudges(&self) -> &Nudges {
        &self.nudges
    }

    pub(super) fn room(&self) -> Room {
        Room { local_service: self.socket.has_room() }
    }
}

impl Engine {
    /// Uses an inherited socket, or one that could be opened at once.
    pub(super) fn start_kernel(&mut self, now: Instant) {
        if let Some(opened) = self.kernel.socket.opening() {
            self.handle_kernel(now, opened);
        }
    }

    pub(super) fn handle_kernel(&mut self, now: Instant, event: Event) -> Handled {
        match event {
            Event::Opened { port_id, is_member } => {
                self.tell_kernel_side(now, Input::Opened { port_id, is_member });
                self.keep_kernel_socket();
            }
            Event::Writable => self.kernel.socket.flush(),
            Event::Readable => return Handled::KernelAsks,
        }
        Handled::Changed
    }

    pub(super) fn read_kernel_socket(&mut self, now: Instant) -> Read {
        let mut buffer = [0; REQUEST_BUFFER];
        let (input, read) = match self.kernel.socket.receive(&mut buffer) {
            Received::Datagram { len, from_kernel } => {
                let sender = if from_kernel { Sender::Kernel } else { Sender::Other };
                let (bytes, cut) = (buffer.get(..len).unwrap_or(&buffer), len > REQUEST_BUFFER);
                log::kernel_asks(bytes);
                (Input::Datagram { sender, bytes, cut }, Read::Message)
            }
            Received::Overrun => (Input::Overrun, Read::Message),
            Received::Drained => (Input::Drained, Read::Nothing),
            Received::Closed => (Input::Closed, Read::Nothing),
        };
        self.tell_kernel_side(now, input);
        read
    }

    pub(super) fn tell_kernel(&mut self, now: Instant, transmit: &Transmit) {
        match transmit {
            Transmit::Message(message) => {
                log::kernel_is_answered(message.as_ref());
                self.kernel.socket.send(message.as_ref());
            }
            Transmit::Join => {
                if self.kernel.socket.join() {
                    self.keep_kernel_socket();
                } else {
                    self.tell_kernel_side(now, Input::Closed);
                }
            }
            Transmit::Leave(errno) => {
                self.kernel.socket.leave(Errno::from_raw(-*errno));
                self.tell_kernel_side(now, Input::Closed);
            }
            Transmit::Nudge(nudge) => {
                self.node.trace().nudge(now);
                let place = |link: &Link| Place { ifindex: link.ifindex, hwaddr: link.hwaddr };
                let fallback = self.node.view().first_ipoib().map(place);
                let quiet = self.kernel.socket.quiet();
                self.kernel.nudges.nudge(fallback, quiet.filter(|_| *nudge == Nudge::IfQuiet));
            }
        }
    }

    pub(super) fn handle_nudged(&mut self, now: Instant, outcome: Result<Nudged, NudgeError>) {
        let nudged = self.kernel.nudges.note(outcome, self.node.nudge_without_place());
        self.node.trace().nudged(now, nudged);
        self.tell_kernel_side(now, Input::Nudged(nudged));
    }

    pub(super) fn stop_kernel(&mut self, now: Instant) {
        self.tell_kernel_side(now, Input::Stop);
    }

    /// Passes an input to the core that serves the kernel.
    fn tell_kernel_side(&mut self, now: Instant, input: Input<'_>) {
        self.node.handle_input(now, node::Input::LocalService(input));
    }

    /// While no daemon runs, the kernel's requests wait in the socket: without it, the kernel would
    /// refuse its callers at once (`ib_nl_fetch_ha`).
    fn keep_kernel_socket(&self) {
        match self.kernel.socket.copy() {
            Some(Ok(copy)) => self.systemd.keep(NAME, copy, Until::Stop),
            Some(Err(error)) => {
                error!(%error, "local service: the socket cannot be kept for the next daemon");
            }
            None => {}
        }
    }
}
